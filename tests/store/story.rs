//! One conversation from its first request until its kept texts expire, over the trait. Every backend
//! runs the same story; a new backend adds a [`Backend`] and one test.

use diarist::history::Scope;
use diarist::memory::advance::{ChainJob, JobState};
use diarist::memory::{PartId, PartKind, Rendering, SnapshotCause, SnapshotId, Trim};
use diarist::store::testing::SingleRequest as _;
use diarist::store::{
    Admin as _, Chains as _, EnqueueOutcome, PrefixTrim, SentWith, Snapshots as _, SqliteStore,
    Store, StoreError,
};

use crate::store::world::{ANYBODY, Disk, LEASE, TestChain, raw, scope};

/// A place that holds one database of a backend, also while no store is open on it.
trait Backend {
    /// The store of this backend.
    type Opened: Store;

    /// A new place without a database.
    fn new() -> Self;

    /// Opens the database there; makes it if there is none.
    async fn open(&self) -> Self::Opened;
}

impl Backend for Disk {
    type Opened = SqliteStore;

    fn new() -> Self {
        Self::new()
    }

    async fn open(&self) -> SqliteStore {
        self.open().await
    }
}

/// Record, enqueue, claim, commit a part, commit a snapshot, reopen, send, reflect, expire.
async fn story<B: Backend>() {
    let backend = B::new();
    let store = backend.open().await;
    until_the_first_snapshot(&store).await;
    store.close().await;
    // A restart in the middle: everything must still be there.
    let store = backend.open().await;
    from_the_first_snapshot(&store).await;
    kept_texts_expire(&store).await;
    store.close().await;
}

#[tokio::test]
async fn one_conversation_is_stored_correctly_in_a_sqlite_file() {
    story::<Disk>().await;
}

/// Without a restart, because closing such a database deletes it.
#[tokio::test]
async fn one_conversation_is_stored_correctly_in_memory() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    until_the_first_snapshot(&store).await;
    from_the_first_snapshot(&store).await;
    kept_texts_expire(&store).await;
    store.close().await;
}

fn chain(length: usize) -> TestChain {
    TestChain::new(&scope("alice"), "the story", length)
}

async fn until_the_first_snapshot(store: &dyn Store) {
    let owner = scope("alice");
    let (short, long) = (chain(3), chain(5));

    // The conversation is not recorded.
    let found = store
        .find_on_chain(&owner, &short.links)
        .await
        .expect("found");
    assert!(found.snapshots.is_empty() && found.sent_with.is_none() && found.depth == 0);
    let known = store.load_chain(&owner, &short.links).await.expect("known");
    assert!(known.nodes.is_empty() && known.lineage.is_none() && !known.has_successor);

    // Its first request.
    let lineage = short.recorded(store).await;
    let found = store
        .find_on_chain(&owner, &short.links)
        .await
        .expect("found");
    assert_eq!(found.sent_with, Some(raw()));
    assert_eq!(found.depth, short.links.len());
    let known = store.load_chain(&owner, &long.links).await.expect("known");
    assert_eq!(known.nodes, short.nodes(0));
    assert_eq!(known.lineage, Some(lineage));
    assert!(!known.has_successor);

    // A longer request confirms the messages it carries again, and no others.
    let record = long.record(Some(lineage), 3);
    assert_eq!(
        store.record(&owner, &record).await.expect("recorded"),
        lineage
    );
    let known = store.load_chain(&owner, &long.links).await.expect("known");
    let confirmed: Vec<_> = known.nodes.iter().map(|node| node.confirmed).collect();
    assert_eq!(confirmed, [true, true, true, false, false]);
    let known = store
        .load_chain(&owner, &short.grown("another", 1).links)
        .await
        .expect("known");
    assert_eq!(known.nodes.len(), 3);
    assert!(
        known.has_successor,
        "a message after the third is a fork now"
    );

    // Its tip was never a request of its own, but its links are known.
    let middle = store
        .find_on_chain(&owner, &long.first(4).links)
        .await
        .expect("found");
    assert!(middle.depth == 4 && middle.sent_with.is_none());

    // The first chunk.
    let chunk = long.observed(store, 0, 2).await;
    let known = store.load_chain(&owner, &long.links).await.expect("known");
    assert!(known.jobs.is_empty());
    assert_eq!(known.parts.len(), 1);
    assert_eq!(
        (known.parts[0].id, known.parts[0].span),
        (chunk, long.span(0, 2))
    );
    let parts = store.parts(&owner, &[chunk]).await.expect("parts");
    assert_eq!(parts[0].body, long.chunk(0, 2));

    // The first snapshot is for requests longer than every recorded one.
    let snapshot = store
        .commit_snapshot(&owner, &long.snapshot(2, &[chunk]))
        .await;
    let snapshot = snapshot.expect("committed");
    assert_eq!(snapshot.meta.eligible_from, 6);
    let again = store
        .commit_snapshot(&owner, &long.snapshot(2, &[chunk]))
        .await;
    assert_eq!(again.expect("committed"), snapshot);
}

async fn from_the_first_snapshot(store: &dyn Store) {
    let owner = scope("alice");
    let (long, longer) = (chain(5), chain(7));

    let found = store
        .find_on_chain(&owner, &longer.links)
        .await
        .expect("found");
    assert_eq!(found.snapshots.len(), 1);
    let meta = found.snapshots[0].clone();
    assert_eq!(
        (meta.to, meta.to_count, meta.pin),
        (chain(2).tip(), 2, Some(1))
    );
    assert_eq!(meta.cause, SnapshotCause::Threshold);
    let snapshot = store
        .snapshot(&owner, meta.id)
        .await
        .expect("read")
        .expect("there");
    assert_eq!(snapshot.segments, ["preamble", "observed to 2"]);
    assert_eq!(snapshot.meta, meta);
    let missing = store.snapshot(&owner, SnapshotId(meta.id.0 + 1)).await;
    assert_eq!(missing.expect("read"), None);

    // What a request was sent with stays what it was sent with (INV-SAME).
    let known = store
        .load_chain(&owner, &longer.links)
        .await
        .expect("known");
    let lineage = known.lineage;
    assert_eq!((known.nodes.len(), known.snapshots.len()), (5, 1));
    let mut record = longer.record(lineage, 5);
    record.sent_with = SentWith {
        snapshot: Some(meta.id),
        placement: "system_message".to_owned(),
        usage_requested: Some(true),
        cache_key: true,
        cache_breakpoint: true,
        trim: Some(Trim {
            to_count: 3,
            pin: Some(2),
            wording: 1,
        }),
    };
    store.record(&owner, &record).await.expect("recorded");
    let mut repeated = longer.record(lineage, 7);
    repeated.at_ms = 2_000;
    store.record(&owner, &repeated).await.expect("recorded");
    let found = store
        .find_on_chain(&owner, &longer.links)
        .await
        .expect("found");
    assert_eq!(found.sent_with, Some(record.sent_with.clone()));
    // A request that continues it learns where it was trimmed.
    let carried = PrefixTrim {
        trim: record.sent_with.trim.expect("a trim"),
        model: record.model.clone(),
    };
    assert_eq!(found.prefix_trims, [carried]);
    let found = store
        .find_on_chain(&owner, &long.links)
        .await
        .expect("found");
    assert_eq!(found.sent_with, Some(raw()), "the shorter one went out raw");
    assert_eq!(found.prefix_trims, []);

    // A second chunk, then a reflection over both.
    let second = longer.observed(store, 2, 4).await;
    let first = known.parts[0].id;
    let mut reflect = longer.job(PartKind::Reflection, 0, 4);
    reflect.parts = vec![first, second];
    let offered = store.enqueue(&owner, &reflect, 0).await.expect("offered");
    assert_eq!(offered, EnqueueOutcome::Queued);
    let known = store
        .load_chain(&owner, &longer.links)
        .await
        .expect("known");
    assert_eq!(
        known.jobs,
        [ChainJob {
            kind: PartKind::Reflection,
            span: longer.span(0, 4),
            state: JobState::Fresh
        }]
    );
    assert_eq!(store.open_jobs(i64::MAX).await.expect("counted"), 1);
    let job = store
        .claim(&ANYBODY, 1, LEASE)
        .await
        .expect("claimed")
        .expect("a job");
    assert_eq!(job.spec.parts, [first, second]);
    let mut reflection = longer.chunk(0, 4);
    reflection.kind = PartKind::Reflection;
    reflection.sources = vec![first, second];
    let reflection = store
        .commit_part(&job, &reflection, 9)
        .await
        .expect("committed");
    let reflection = reflection.expect("a new part");
    assert_eq!(store.open_jobs(i64::MAX).await.expect("counted"), 0);
    let order = [second, reflection, first];
    let parts = store.parts(&owner, &order).await.expect("parts");
    assert_eq!(parts.iter().map(|part| part.id).collect::<Vec<_>>(), order);

    // What the operator sees.
    let threads = store.threads(10).await.expect("listed");
    let [thread] = threads.as_slice() else {
        panic!("one thread: {threads:?}")
    };
    assert_eq!(Some(thread.lineage), lineage);
    assert_eq!((thread.messages, thread.message_tokens), (7, 70));
    assert_eq!((thread.requests, thread.parts, thread.snapshots), (4, 3, 1));
    assert_eq!((thread.first_ms, thread.last_ms), (1_000, 2_000));
    let detail = store
        .thread(thread.lineage)
        .await
        .expect("read")
        .expect("there");
    assert_eq!(detail.nodes.len(), 7);
    assert_eq!(detail.parts.len(), 3);
    assert_eq!(detail.snapshots[0].segments, ["preamble", "observed to 2"]);
    assert!(
        store
            .thread(thread.lineage + 1)
            .await
            .expect("read")
            .is_none()
    );
}

async fn kept_texts_expire(store: &dyn Store) {
    let owner = scope("alice");
    let (known, longer) = (chain(7), chain(8));
    let lineage = store.load_chain(&owner, &known.links).await.expect("known");
    let text = (longer.tip(), "a kept text".to_owned());
    let other = (longer.links[0], "another one".to_owned());
    let mut record = longer.record(lineage.lineage, 7);
    record.at_ms = 3_000;
    record.lookup_entries.kept_messages = vec![text.clone(), other.clone()];
    store.record(&owner, &record).await.expect("recorded");

    let expire = async |before_ms| {
        let expired = store.expire_messages(before_ms, 1).await;
        expired.expect("expired")
    };
    assert_eq!(expire(3_000).await, [], "only older texts expire");
    let kept = store.kept_messages(&owner, &longer.links).await;
    assert_eq!(kept.expect("read"), [other, text]);

    let mut expired = [expire(3_001).await, expire(3_001).await].concat();
    expired.sort_by_key(|(_, link)| *link == longer.tip());
    let both = [longer.links[0], longer.tip()];
    assert_eq!(expired, both.map(|link| (owner.tenant, link)));
    assert_eq!(expire(3_001).await, [], "one at a time, until none is left");
    let kept = store.kept_messages(&owner, &longer.links).await;
    assert_eq!(kept.expect("read"), []);
    let found = store.find_on_chain(&owner, &longer.links).await;
    let depth = found.expect("found").depth;
    assert_eq!(depth, longer.links.len(), "the message itself stays");
}

#[tokio::test]
async fn a_snapshot_is_eligible_beyond_the_longest_chain_of_its_branch() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let trunk = chain(4);
    let lineage = trunk.recorded(&store).await;
    let chunk = trunk.observed(&store, 0, 2).await;
    for (name, by) in [("left", 3), ("left", 9), ("right", 2)] {
        let branch = trunk.grown(name, by);
        let record = branch.record(Some(lineage), 4);
        store.record(&trunk.scope, &record).await.expect("recorded");
    }
    let commit = async |new| {
        store
            .commit_snapshot(&trunk.scope, &new)
            .await
            .expect("committed")
    };
    let right = commit(trunk.grown("right", 2).snapshot(2, &[chunk])).await;
    assert_eq!(
        right.meta.eligible_from, 7,
        "the left branch does not count"
    );
    let left = commit(trunk.grown("left", 3).snapshot(2, &[chunk])).await;
    assert_eq!(
        left.meta.id, right.meta.id,
        "it sends the same and is eligible no later"
    );
    let mut other = trunk.snapshot(2, &[chunk]);
    other.segments.push("hint".to_owned());
    let other = commit(other).await;
    assert_eq!(other.meta.eligible_from, 14, "9 after 4, and one more");
    // A request that was refused as too long is sent again at its own length.
    let mut at_once = trunk.snapshot(2, &[chunk]);
    at_once.eligible_now = true;
    let at_once = commit(at_once).await;
    assert_eq!(at_once.meta.eligible_from, 4);
    assert_ne!(
        at_once.meta.id, right.meta.id,
        "the other is not eligible at 4"
    );
}

#[tokio::test]
async fn a_long_history_is_found_whole() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let long = chain(5_000);
    long.recorded(&store).await;
    let chunk = long.observed(&store, 0, 4_000).await;
    let new = long.snapshot(4_000, &[chunk]);
    let snapshot = store
        .commit_snapshot(&long.scope, &new)
        .await
        .expect("committed");
    assert_eq!(snapshot.meta.eligible_from, 5_001);
    let longer = long.grown("more", 1);
    // A request waits at most a quarter of a second; a busy machine may need longer.
    let mut found = store.find_on_chain(&long.scope, &longer.links).await;
    for _ in 0..20 {
        if !matches!(found, Err(StoreError::Busy(_))) {
            break;
        }
        found = store.find_on_chain(&long.scope, &longer.links).await;
    }
    assert_eq!(found.expect("found").snapshots, [snapshot.meta]);
    let known = store
        .load_chain(&long.scope, &longer.links)
        .await
        .expect("known");
    assert_eq!(known.nodes, long.nodes(0));
    // A hole in the chain ends the recorded prefix.
    let mut holed = longer.links.clone();
    holed.remove(2_000);
    let known = store.load_chain(&long.scope, &holed).await.expect("known");
    assert_eq!(known.nodes.len(), 2_000);
    assert!(known.has_successor);
}

#[tokio::test]
async fn the_first_block_fixes_the_rendering_of_a_part() {
    let disk = Disk::new();
    let store = disk.open().await;
    let owner = scope("alice");
    let chain = TestChain::new(&owner, "a", 6);
    chain.recorded(&store).await;
    let first = chain.observed(&store, 0, 2).await;
    let second = chain.observed(&store, 2, 4).await;
    let on = |preamble, day| Rendering {
        preamble,
        as_of: jiff::civil::date(2026, 3, day),
    };
    let freeze = async |scope: &Scope, parts: &[PartId], rendering| {
        let parts = store
            .fix_rendering(scope, parts, rendering)
            .await
            .expect("frozen");
        let frozen = parts.iter().map(|part| part.rendering);
        frozen.collect::<Vec<_>>()
    };
    let unwritten = store.parts(&owner, &[first]).await.expect("read");
    assert_eq!(unwritten[0].rendering, None);
    assert_eq!(freeze(&owner, &[first], on(2, 4)).await, [Some(on(2, 4))]);
    // Whoever renders later, the first rendering stays. The parts come in the order of the call.
    assert_eq!(
        freeze(&owner, &[second, first], on(3, 9)).await,
        [Some(on(3, 9)), Some(on(2, 4))]
    );
    let stranger = scope("bob");
    assert_eq!(freeze(&stranger, &[first, second], on(4, 20)).await, []);
    let parts = store.parts(&owner, &[first]).await.expect("read");
    assert_eq!(parts[0].rendering, Some(on(2, 4)));
}
