//! Memory made under one owner is never seen, used or changed under another (INV-OWN).

use std::sync::Arc;

use diarist::history::{Link, Scope};
use diarist::memory::{PartKind, PeerMemory};
use diarist::store::testing::SingleRequest as _;
use diarist::store::{
    Admin as _, Chains as _, EnqueueOutcome, NewSnapshot, Queue as _, Quota as _, Release,
    SilentThread, Snapshots as _, SqliteStore, StoreError,
};

use crate::store::world::{ANYBODY, LEASE, TestChain, raw, scope};

/// The same messages have different links under two owners. These have the same links, as if the hash were
/// broken. Then only the owner in every WHERE separates them.
fn same_links(owners: [Scope; 2]) -> [TestChain; 2] {
    let links: Vec<_> = (1..=6_u8)
        .map(|n| Link::from_slice(&[n; 32]).expect("32"))
        .collect();
    let root = Link::from_slice(&[0; 32]).expect("32");
    owners.map(|scope| TestChain {
        root,
        links: links.clone(),
        ..TestChain::new(&scope, "same", 6)
    })
}

fn owners() -> Vec<[Scope; 2]> {
    let resource = |name: &str| Scope::new(b"alice", Some(name.as_bytes()));
    vec![
        [scope("alice"), scope("bob")],
        [scope("alice"), resource("home")],
        [resource("home"), scope("alice")],
        [resource("home"), resource("work")],
    ]
}

#[tokio::test]
async fn equal_links_of_two_owners_stay_apart() {
    for pair in owners() {
        let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
        let [mine, yours] = same_links(pair);
        let lineage = mine.recorded(&store).await;
        let chunk = mine.observed(&store, 0, 2).await;
        let snapshot = store
            .commit_snapshot(&mine.scope, &mine.snapshot(2, &[chunk]))
            .await;
        let snapshot = snapshot.expect("committed");
        store
            .enqueue(&mine.scope, &mine.job(PartKind::Chunk, 2, 4), 0)
            .await
            .expect("offered");

        let them = &yours.scope;
        let found = store
            .find_on_chain(them, &yours.links)
            .await
            .expect("found");
        assert!(found.snapshots.is_empty() && found.sent_with.is_none() && found.depth == 0);
        let known = store.load_chain(them, &yours.links).await.expect("known");
        assert!(known.nodes.is_empty() && known.lineage.is_none());
        assert!(known.parts.is_empty() && known.snapshots.is_empty() && known.jobs.is_empty());
        assert_eq!(
            store.snapshot(them, snapshot.meta.id).await.expect("read"),
            None
        );
        assert!(store.parts(them, &[chunk]).await.expect("read").is_empty());
        let detail = store.thread(lineage).await.expect("read");
        let taken = SilentThread {
            lineage,
            scope: them.clone(),
            last_ms: detail.expect("there").row.last_ms,
            in_use: false,
        };
        let deleted = store.delete_silent(vec![taken], i64::MAX).await;
        assert_eq!(deleted.expect("deleted").threads, 0);

        // A record under the other owner that names my lineage does not join it.
        let theirs = store.record(them, &yours.record(Some(lineage), 0)).await;
        assert_ne!(theirs.expect("recorded"), lineage);
        // A snapshot under the other owner that names my chunk is refused, although the links are the same.
        let stolen = store
            .commit_snapshot(them, &yours.snapshot(2, &[chunk]))
            .await;
        assert!(matches!(stolen, Err(StoreError::Forgotten)));
        let found = store
            .find_on_chain(them, &yours.links)
            .await
            .expect("found");
        assert!(found.snapshots.is_empty());
        assert_eq!(found.sent_with, Some(raw()));
        // My confirmed messages do not count for the other owner's account.
        let job = yours.job(PartKind::Chunk, 0, 2);
        let offered = store.enqueue(them, &job, 0).await;
        assert_eq!(offered.expect("offered"), EnqueueOutcome::Paused);
        let mut confirming = yours.record(None, 6);
        confirming.contents = yours.contents(1_000);
        store.record(them, &confirming).await.expect("recorded");
        let offered = store.enqueue(them, &job, 0).await;
        assert_eq!(offered.expect("offered"), EnqueueOutcome::Queued);
        let known = store.load_chain(them, &yours.links).await.expect("known");
        assert_eq!(known.jobs.len(), 1, "their span has its own job");

        // A job that is committed under another owner changes nothing.
        let mut job = store
            .claim(&ANYBODY, 1, LEASE)
            .await
            .expect("claimed")
            .expect("a job");
        let owner = job.scope.clone();
        job.scope = if owner == *them {
            mine.scope.clone()
        } else {
            them.clone()
        };
        let part = mine.chunk(2, 4);
        assert_eq!(
            store.commit_part(&job, &part, 2).await.expect("refused"),
            None
        );
        store
            .release(&job, Release::Abandon)
            .await
            .expect("refused");
        job.scope = owner;
        assert!(
            store
                .commit_part(&job, &part, 2)
                .await
                .expect("committed")
                .is_some()
        );

        // My conversation is unchanged.
        let known = store
            .load_chain(&mine.scope, &mine.links)
            .await
            .expect("known");
        assert_eq!((known.nodes.len(), known.snapshots.len()), (6, 1));
        assert_eq!(known.lineage, Some(lineage));
        assert!(!known.nodes.iter().any(|node| node.confirmed));
    }
}

#[tokio::test]
async fn a_request_of_one_owner_confirms_no_message_of_another() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let [mine, yours] = same_links([scope("alice"), scope("bob")]);
    mine.first(3).recorded(&store).await;
    let lineage = yours.first(3).recorded(&store).await;
    let longer = yours.record(Some(lineage), 3);
    store.record(&yours.scope, &longer).await.expect("recorded");
    let known = store
        .load_chain(&mine.scope, &mine.links)
        .await
        .expect("known");
    assert_eq!(known.nodes.len(), 3);
    assert!(!known.nodes.iter().any(|node| node.confirmed));
    assert!(!known.has_successor, "their fourth message is not mine");
}

#[tokio::test]
async fn an_owner_gets_no_digest_or_introduction_of_another_owner() {
    for pair in owners() {
        let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
        let [mine, yours] = same_links(pair);
        let lineage = mine.recorded(&store).await;
        yours.recorded(&store).await;
        let (me, them) = (&mine.scope, &yours.scope);
        store
            .publish_digest(me, lineage, "mine")
            .await
            .expect("told");
        store
            .publish_digest(them, lineage, "theirs")
            .await
            .expect("refused");
        assert_eq!(store.peer_digests(them, &[], None).await.expect("read"), []);
        let digests = store.peer_digests(me, &[], None).await.expect("read");
        assert_eq!((digests.len(), digests[0].text.as_str()), (1, "mine"));
        assert_eq!(
            store
                .peer_digests(me, &[lineage], None)
                .await
                .expect("read"),
            []
        );

        let telling = |scope: &Scope, chain: &TestChain| NewSnapshot {
            to: Link::root(scope),
            to_count: 0,
            peer_memory: Some(Arc::new(PeerMemory {
                lineages: vec![lineage],
                keys: Vec::new(),
                tokens: 9,
                binding: None,
            })),
            eligible_now: true,
            tip_count: 0,
            ..chain.snapshot(0, &[])
        };
        let stolen = store.commit_snapshot(them, &telling(them, &yours)).await;
        assert!(matches!(stolen, Err(StoreError::Forgotten)), "{stolen:?}");
        let opener = store.commit_snapshot(me, &telling(me, &mine)).await;
        let id = opener.expect("committed").meta.id;
        assert_eq!(store.snapshot(them, id).await.expect("read"), None);
        let found = store
            .find_on_chain(them, &yours.links)
            .await
            .expect("found");
        assert_eq!(found.newest_peer_intro, None);
        let found = store.find_on_chain(me, &mine.links).await.expect("found");
        assert_eq!(found.newest_peer_intro.map(|meta| meta.id), Some(id));
    }
}
