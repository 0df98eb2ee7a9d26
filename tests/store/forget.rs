//! Forgetting deletes a conversation, keeps what others use, and nothing comes back.

use diarist::memory::PartKind;
use diarist::store::testing::SingleRequest as _;
use diarist::store::{
    Admin as _, Chains as _, EnqueueOutcome, ForgetTarget, Forgetting as _, Queue as _, Release,
    RequestRecord, Snapshots as _, SqliteStore, StoreError,
};

use crate::store::world::{ANYBODY, Disk, LEASE, TestChain, deleted, forgotten, scope};

#[tokio::test]
async fn forgetting_deletes_a_whole_conversation_and_no_running_job_restores_it() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let chain = TestChain::new(&scope("alice"), "secret", 6);
    let other = TestChain::new(&scope("alice"), "other", 4);
    let lineage = chain.recorded(&store).await;
    let spared = other.recorded(&store).await;
    let chunk = chain.observed(&store, 0, 2).await;
    let snapshot = chain.snapshot(2, &[chunk]);
    store
        .commit_snapshot(&chain.scope, &snapshot)
        .await
        .expect("committed");
    store
        .enqueue(&chain.scope, &chain.job(PartKind::Chunk, 2, 4), 0)
        .await
        .expect("offered");
    let running = store
        .claim(&ANYBODY, 1, LEASE)
        .await
        .expect("claimed")
        .expect("a job");

    assert_eq!(
        deleted(&store, lineage).await,
        1 + 6 + 6 + 1 + 1 + 1 + 1,
        "lineage, messages, their contents, request, part, snapshot, job"
    );
    assert_eq!(deleted(&store, lineage).await, 0);

    let nothing = async || {
        let found = store
            .find_on_chain(&chain.scope, &chain.links)
            .await
            .expect("found");
        assert!(found.snapshots.is_empty() && found.sent_with.is_none() && found.depth == 0);
        let known = store
            .load_chain(&chain.scope, &chain.links)
            .await
            .expect("known");
        assert!(known.nodes.is_empty());
        assert!(
            store
                .parts(&chain.scope, &[chunk])
                .await
                .expect("read")
                .is_empty()
        );
        assert!(store.thread(lineage).await.expect("read").is_none());
        assert_eq!(store.open_jobs(i64::MAX).await.expect("counted"), 0);
    };
    nothing().await;
    let late = store.commit_part(&running, &chain.chunk(2, 4), 3).await;
    assert_eq!(late.expect("refused"), None);
    store
        .release(&running, Release::RetryAt(0))
        .await
        .expect("refused");
    let late = store
        .enqueue(&chain.scope, &chain.job(PartKind::Chunk, 0, 4), 0)
        .await;
    assert_eq!(late.expect("refused"), EnqueueOutcome::Forgotten);
    let late = store.commit_snapshot(&chain.scope, &snapshot).await;
    assert!(matches!(late, Err(StoreError::Forgotten)));
    nothing().await;

    let detail = store.thread(spared).await.expect("read").expect("there");
    assert_eq!(detail.nodes.len(), 4);

    // A client that continues starts a new lineage, with an id that was never used.
    let again = store
        .record(&chain.scope, &chain.record(Some(lineage), 0))
        .await;
    assert!(again.expect("recorded") > spared);
}

#[tokio::test]
async fn forgetting_keeps_rows_that_another_conversation_uses() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let trunk = TestChain::new(&scope("alice"), "trunk", 6);
    let first = trunk.recorded(&store).await;
    let chunk = trunk.observed(&store, 0, 2).await;
    let late_chunk = trunk.observed(&store, 2, 6).await;
    let snapshot = store
        .commit_snapshot(&trunk.scope, &trunk.snapshot(2, &[chunk]))
        .await;
    let snapshot = snapshot.expect("committed");
    let tail = store
        .commit_snapshot(&trunk.scope, &trunk.snapshot(6, &[chunk, late_chunk]))
        .await;
    tail.expect("committed");

    // Another lineage branches off after the fourth message: its record names none.
    let branch = trunk.first(4).grown("branch", 2);
    let mut record = branch.record(None, 4);
    record.thread_key = Some("b".to_owned());
    let second = store.record(&trunk.scope, &record).await.expect("recorded");
    assert_ne!(first, second);

    forgotten(&store, first).await;
    let known = store
        .load_chain(&trunk.scope, &branch.links)
        .await
        .expect("known");
    assert_eq!(known.nodes.len(), 6, "the branch is whole");
    assert_eq!(known.lineage, Some(second));
    assert_eq!(known.parts.len(), 1);
    assert_eq!(known.snapshots, [snapshot.meta]);
    let known = store
        .load_chain(&trunk.scope, &trunk.links)
        .await
        .expect("known");
    assert_eq!(known.nodes.len(), 4, "what only the first used is gone");
    assert!(
        store
            .parts(&trunk.scope, &[late_chunk])
            .await
            .expect("read")
            .is_empty()
    );
    let detail = store.thread(second).await.expect("read").expect("there");
    assert_eq!((detail.nodes.len(), detail.parts.len()), (6, 1));

    assert_eq!(
        forgotten(&store, second).await,
        1 + 6 + 1 + 1 + 1,
        "lineage, messages, request, part, snapshot"
    );
    assert!(store.threads(10).await.expect("listed").is_empty());
}

/// The text of a job is overwritten on the disk, not only unlinked; so is the text of an abandoned span.
#[tokio::test]
async fn the_text_of_a_finished_job_is_overwritten_on_disk() {
    const WORDS: &str = "the-password-is-swordfish";
    for given_up in [false, true] {
        let disk = Disk::new();
        let store = disk.open().await;
        let chain = TestChain::new(&scope("alice"), "secret", 6);
        chain.recorded(&store).await;
        let mut job = chain.job(PartKind::Chunk, 0, 4);
        job.payload = format!("{WORDS} ").repeat(2_000);
        store.enqueue(&chain.scope, &job, 0).await.expect("offered");
        store.close().await;
        let holds = || {
            let bytes = std::fs::read(disk.file()).expect("the file");
            bytes
                .windows(WORDS.len())
                .any(|window| window == WORDS.as_bytes())
        };
        assert!(holds(), "a job survives a restart");

        let store = disk.open().await;
        let job = store.claim(&ANYBODY, 1, LEASE).await.expect("claimed");
        let job = job.expect("a job");
        if given_up {
            let released = store.release(&job, Release::Abandon).await;
            released.expect("released");
        } else {
            let part = store.commit_part(&job, &chain.chunk(0, 4), 2).await;
            part.expect("committed").expect("a part");
        }
        store.close().await;
        assert!(!holds(), "given up: {given_up}");
        let folder = disk.file().parent().expect("a folder").to_owned();
        let names: Vec<_> = std::fs::read_dir(folder)
            .expect("the folder")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        assert_eq!(names, ["diarist.db"], "no journal after a clean end");
    }
}

/// The command line is another process. From its commit on, the server records nothing of it.
#[tokio::test]
async fn a_conversation_forgotten_by_another_process_is_not_recorded_again() {
    let disk = Disk::new();
    let server = disk.open().await;
    let chain = TestChain::new(&scope("alice"), "secret", 6);
    let mut first = chain.first(1).record(None, 0);
    first.thread_key = Some("trip".to_owned());
    let lineage = server.record(&chain.scope, &first).await.expect("recorded");
    let mut whole = chain.record(Some(lineage), 1);
    whole.thread_key = Some("trip".to_owned());
    server.record(&chain.scope, &whole).await.expect("recorded");

    let before = server.refresh_tombstones().await.expect("read");
    let operator = disk.open().await;
    let target = ForgetTarget::Thread(lineage);
    let receipt = operator.forget_target(&target, 7).await.expect("forgotten");
    let receipt = receipt.expect("a receipt");
    assert_eq!(
        (receipt.kind.as_str(), receipt.subject.as_str()),
        ("thread", "1")
    );
    assert_eq!(
        (receipt.counts["messages"], receipt.counts["requests"]),
        (6, 2)
    );
    assert!(receipt.done && receipt.at_ms == 7);
    let again = operator.forget_target(&target, 8).await.expect("asked");
    assert_eq!(again, None, "there is no such conversation");

    let recorded = async |record: &RequestRecord| server.record(&chain.scope, record).await;
    let mut unnamed = chain.record(None, 0);
    for name in [None, Some("trip".to_owned())] {
        unnamed.thread_key = name;
        let refused = recorded(&unnamed).await;
        assert!(matches!(refused, Err(StoreError::Forgotten)), "{refused:?}");
    }
    assert!(server.threads(9).await.expect("listed").is_empty());
    // Others may begin with the same words, and the same words belong to others.
    let greeting = chain.first(1).grown("another", 4).record(None, 0);
    recorded(&greeting)
        .await
        .expect("a conversation of its own");
    let bob = TestChain::new(&scope("bob"), "secret", 6);
    bob.recorded(&server).await;

    // A recording has read the tombstones. Who drops caches must still notice that they have changed.
    let after = server.refresh_tombstones().await.expect("read");
    assert_ne!(before, after);

    assert!(operator.lift(receipt.id, 9).await.expect("lifted"));
    assert!(!operator.lift(receipt.id, 9).await.expect("asked"), "once");
    let mut record = chain.record(None, 0);
    record.thread_key = Some("trip".to_owned());
    recorded(&record).await.expect("recorded again");
}

/// Free pages go back to the file system, and no word is left in the file or its journal while both processes run.
#[tokio::test]
async fn forgetting_shrinks_the_file_and_empties_the_journal() {
    const WORDS: &str = "the-password-is-swordfish";
    let disk = Disk::new();
    let server = disk.open().await;
    let mut lineages = Vec::new();
    for number in 0..40 {
        let chain = TestChain::new(&scope("alice"), &format!("secret {number}"), 6);
        lineages.push(chain.recorded(&server).await);
        let mut job = chain.job(PartKind::Chunk, 0, 4);
        job.payload = format!("{WORDS} {number} ").repeat(2_000);
        server
            .enqueue(&chain.scope, &job, 0)
            .await
            .expect("offered");
        let job = server.claim(&ANYBODY, 1, LEASE).await.expect("claimed");
        let mut part = chain.chunk(0, 4);
        part.text = format!("{WORDS} {number} ").repeat(200 + 90 * number);
        let part = server.commit_part(&job.expect("a job"), &part, 2).await;
        part.expect("committed").expect("a part");
    }
    server.shrink().await.expect("copied");
    let size = || std::fs::metadata(disk.file()).expect("the file").len();
    let before = size();
    assert!(before > 1_000_000, "{before}");
    let operator = disk.open().await;
    for lineage in lineages {
        let target = ForgetTarget::Thread(lineage);
        operator.forget_target(&target, 7).await.expect("forgotten");
    }
    assert!(operator.shrink().await.expect("emptied"));
    assert!(size() < before / 3, "{before} to {}", size());
    for suffix in ["", "-wal"] {
        let path = format!("{}{suffix}", disk.file().display());
        // SQLite may have removed the journal, but never the database.
        let bytes = match std::fs::read(path) {
            Err(error) if suffix == "-wal" && error.kind() == std::io::ErrorKind::NotFound => {
                Vec::new()
            }
            read => read.expect("a file"),
        };
        let found = bytes
            .windows(WORDS.len())
            .any(|window| window == WORDS.as_bytes());
        assert!(!found, "{suffix}");
    }
}

/// A waiting job whose conversation has ended goes with its text; the next request may queue it again.
#[tokio::test]
async fn jobs_and_conversations_expire() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let chain = TestChain::new(&scope("alice"), "old", 6);
    let lineage = chain.recorded(&store).await;
    let mut job = chain.job(PartKind::Chunk, 0, 4);
    job.message_tokens = 9_000;
    let offer = async || store.enqueue(&chain.scope, &job, 0).await.expect("offered");
    assert_eq!(offer().await, EnqueueOutcome::Queued);
    // Its request came at 1,000.
    let expire = async |before_ms, limit| {
        let expired = store.expire_jobs(before_ms, 5_000, limit).await;
        expired.expect("asked")
    };
    assert_eq!(expire(1_000, 9).await, 0);
    let claimed = store.claim(&ANYBODY, 1, LEASE).await.expect("claimed");
    assert_eq!(expire(1_001, 9).await, 0, "a worker has it");
    let claimed = claimed.expect("a job");
    store
        .release(&claimed, Release::RetryAt(0))
        .await
        .expect("released");
    assert_eq!(expire(1_001, 0).await, 0, "no more than it was asked for");
    assert_eq!(expire(1_001, 9).await, 1);
    assert_eq!(store.open_jobs(i64::MAX).await.expect("counted"), 0);
    assert_eq!(
        offer().await,
        EnqueueOutcome::Queued,
        "it is not charged twice"
    );

    assert_eq!(store.expire_threads(1_000, 10).await.expect("asked"), 0);
    assert_eq!(store.expire_threads(1_001, 10).await.expect("asked"), 1);
    assert!(store.thread(lineage).await.expect("read").is_none());
    let again = store.record(&chain.scope, &chain.record(None, 0)).await;
    assert!(again.expect("recorded, since nothing keeps it away") > lineage);
}
