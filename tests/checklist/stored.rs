//! What the store holds to: two that come at once, a process that dies, a conversation that is deleted.

use diarist::memory::{PartId, PartKind, SnapshotId};
use diarist::store::testing::SingleRequest as _;
use diarist::store::{
    Admin as _, Chains as _, EnqueueOutcome, Queue as _, Release, Snapshots as _, SqliteStore,
};

use super::Check;
use super::hand::run;
use crate::store::world::{ANYBODY, LEASE, TestChain, forgotten, scope};

pub const CHECKS: &[Check] = &[
    (&[23], a_stored_token_count_never_changes),
    (&[37], a_thread_lists_all_its_parts_and_snapshots),
    (&[38], two_concurrent_first_requests_make_one_conversation),
    (&[44], the_job_of_a_dead_process_is_claimed_after_its_lease),
    (&[51], a_range_offered_twice_is_observed_once),
    (&[52], a_failed_observation_is_claimed_again_later),
    (&[88], two_concurrent_branches_are_both_recorded),
    (
        &[91],
        a_conversation_deleted_during_its_observation_stays_deleted,
    ),
];

fn stored(check: impl AsyncFnOnce(SqliteStore)) {
    run(async {
        check(SqliteStore::open("sqlite::memory:").await.unwrap()).await;
    });
}

fn a_stored_token_count_never_changes() {
    stored(async |store| {
        let chain = TestChain::new(&scope("ada"), "pass", 4);
        let lineage = chain.recorded(&store).await;
        // Somebody counts the same messages otherwise: a process of another version, a copy of them.
        let mut again = chain.record(Some(lineage), 0);
        for node in &mut again.new_nodes {
            node.tokens = 99;
        }
        store.record(&chain.scope, &again).await.unwrap();
        let longer = chain.grown("on", 1);
        store
            .record(&chain.scope, &longer.record(Some(lineage), 4))
            .await
            .unwrap();
        let known = store.load_chain(&chain.scope, &longer.links).await.unwrap();
        let tokens: Vec<u32> = known.nodes.iter().map(|node| node.tokens).collect();
        assert_eq!(tokens, [10; 5], "counted once, and never otherwise");
    });
}

fn a_thread_lists_all_its_parts_and_snapshots() {
    stored(async |store| {
        let chain = TestChain::new(&scope("ada"), "pass", 8);
        let lineage = chain.recorded(&store).await;
        let chunks = [
            chain.observed(&store, 0, 2).await,
            chain.observed(&store, 2, 4).await,
        ];
        for upto in [1, 2] {
            let snapshot = chain.snapshot(2 * upto, &chunks[..upto]);
            store
                .commit_snapshot(&chain.scope, &snapshot)
                .await
                .unwrap();
        }
        let mut job = chain.job(PartKind::Reflection, 0, 4);
        job.parts = chunks.to_vec();
        store.enqueue(&chain.scope, &job, 0).await.unwrap();
        let job = store.claim(&ANYBODY, 1, LEASE).await.unwrap().unwrap();
        let mut part = chain.chunk(0, 4);
        part.kind = PartKind::Reflection;
        part.sources = chunks.to_vec();
        let reflection = store.commit_part(&job, &part, 2).await.unwrap().unwrap();

        let detail = store.thread(lineage).await.unwrap().unwrap();
        let mut parts: Vec<PartId> = detail.parts.iter().map(|part| part.id).collect();
        parts.sort_unstable();
        assert_eq!(parts, [chunks[0], chunks[1], reflection]);
        let snapshots: Vec<SnapshotId> = detail.snapshots.iter().map(|one| one.meta.id).collect();
        assert_eq!(snapshots.len(), 2);
        let texts: Vec<&str> = detail
            .parts
            .iter()
            .map(|part| part.body.text.as_str())
            .collect();
        assert!(
            texts.contains(&"observed 0 to 2"),
            "condensed, and kept: {texts:?}"
        );
    });
}

fn two_concurrent_first_requests_make_one_conversation() {
    stored(async |store| {
        let chain = TestChain::new(&scope("ada"), "pass", 3);
        let record = chain.record(None, 0);
        let (one, two) = tokio::join!(
            store.record(&chain.scope, &record),
            store.record(&chain.scope, &record)
        );
        assert_eq!(one.unwrap(), two.unwrap());
        assert_eq!(store.threads(10).await.unwrap().len(), 1);
        let known = store.load_chain(&chain.scope, &chain.links).await.unwrap();
        assert_eq!(known.nodes.len(), 3);
    });
}

fn the_job_of_a_dead_process_is_claimed_after_its_lease() {
    stored(async |store| {
        let chain = TestChain::new(&scope("ada"), "pass", 4);
        chain.recorded(&store).await;
        let job = chain.job(PartKind::Chunk, 0, 2);
        store.enqueue(&chain.scope, &job, 0).await.unwrap();
        let dead = store.claim(&ANYBODY, 1, LEASE).await.unwrap().unwrap();
        // It holds the range until its lease has run out, and no longer.
        let early = store.claim(&ANYBODY, LEASE, LEASE).await.unwrap();
        assert!(early.is_none(), "leased at 1 for {LEASE}");
        let next = store.claim(&ANYBODY, LEASE + 1, LEASE).await.unwrap();
        let next = next.unwrap();
        let late = store
            .commit_part(&dead, &chain.chunk(0, 2), LEASE + 2)
            .await;
        assert_eq!(late.unwrap(), None, "the fence keeps it from committing");
        let part = store
            .commit_part(&next, &chain.chunk(0, 2), LEASE + 3)
            .await;
        assert!(part.unwrap().is_some());
    });
}

fn a_range_offered_twice_is_observed_once() {
    stored(async |store| {
        let chain = TestChain::new(&scope("ada"), "pass", 4);
        chain.recorded(&store).await;
        let job = chain.job(PartKind::Chunk, 0, 2);
        let (one, two) = tokio::join!(
            store.enqueue(&chain.scope, &job, 0),
            store.enqueue(&chain.scope, &job, 0)
        );
        let mut offered = [one.unwrap(), two.unwrap()];
        offered.sort_by_key(|one| *one != EnqueueOutcome::Queued);
        assert_eq!(
            offered,
            [EnqueueOutcome::Queued, EnqueueOutcome::AlreadyExists]
        );
        let claimed = store.claim(&ANYBODY, 1, LEASE).await.unwrap().unwrap();
        assert!(store.claim(&ANYBODY, 1, LEASE).await.unwrap().is_none());
        let part = store.commit_part(&claimed, &chain.chunk(0, 2), 2).await;
        assert!(part.unwrap().is_some());
        // Observed: not taken again.
        let again = store.enqueue(&chain.scope, &job, 3).await.unwrap();
        assert_eq!(again, EnqueueOutcome::AlreadyExists);
    });
}

fn a_failed_observation_is_claimed_again_later() {
    stored(async |store| {
        let chain = TestChain::new(&scope("ada"), "pass", 4);
        chain.recorded(&store).await;
        let job = chain.job(PartKind::Chunk, 0, 2);
        store.enqueue(&chain.scope, &job, 0).await.unwrap();
        let failed = store.claim(&ANYBODY, 1, LEASE).await.unwrap().unwrap();
        store
            .release(&failed, Release::RetryAt(2_000))
            .await
            .unwrap();
        // Nothing is stored, nobody holds it, and it is asked again when its time has come.
        let known = store.load_chain(&chain.scope, &chain.links).await.unwrap();
        assert!(known.parts.is_empty());
        assert!(store.claim(&ANYBODY, 1_999, LEASE).await.unwrap().is_none());
        let again = store.claim(&ANYBODY, 2_000, LEASE).await.unwrap().unwrap();
        assert_eq!(again.spec.payload, failed.spec.payload);
        let part = store.commit_part(&again, &chain.chunk(0, 2), 2_001).await;
        assert!(part.unwrap().is_some());
    });
}

fn two_concurrent_branches_are_both_recorded() {
    stored(async |store| {
        let chain = TestChain::new(&scope("ada"), "pass", 3);
        let lineage = chain.recorded(&store).await;
        let (left, right) = (chain.grown("left", 2), chain.grown("right", 2));
        let records = (
            left.record(Some(lineage), 3),
            right.record(Some(lineage), 3),
        );
        let (one, two) = tokio::join!(
            store.record(&chain.scope, &records.0),
            store.record(&chain.scope, &records.1)
        );
        one.unwrap();
        two.unwrap();
        for chain in [&left, &right] {
            let known = store.load_chain(&chain.scope, &chain.links).await.unwrap();
            assert_eq!(known.nodes.len(), 5);
        }
    });
}

fn a_conversation_deleted_during_its_observation_stays_deleted() {
    stored(async |store| {
        let chain = TestChain::new(&scope("ada"), "pass", 4);
        let lineage = chain.recorded(&store).await;
        let job = chain.job(PartKind::Chunk, 0, 2);
        store.enqueue(&chain.scope, &job, 0).await.unwrap();
        let running = store.claim(&ANYBODY, 1, LEASE).await.unwrap().unwrap();
        assert!(forgotten(&store, lineage).await > 0);
        let late = store.commit_part(&running, &chain.chunk(0, 2), 2).await;
        assert_eq!(late.unwrap(), None);
        let known = store.load_chain(&chain.scope, &chain.links).await.unwrap();
        assert!(known.nodes.is_empty() && known.parts.is_empty());
        assert_eq!(store.open_jobs(i64::MAX).await.unwrap(), 0);
    });
}
