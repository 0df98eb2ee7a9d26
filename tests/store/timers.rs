//! Timers: one per conversation. Its newest request moves it, and one process claims it.

use diarist::store::testing::SingleRequest as _;
use diarist::store::{Admin as _, Alarms, Chains as _, NewTimer, Queue as _, SqliteStore, Timer};

use crate::store::world::{Disk, TestChain, forgotten, scope};

fn timer(activate_ms: Option<i64>, reflect_ms: Option<i64>) -> NewTimer {
    NewTimer {
        alarms: Alarms {
            activate_ms,
            reflect_ms,
        },
        zone: Some("Europe/Oslo".to_owned()),
    }
}

/// Records `chain`, of which `known` messages are recorded, and sets its timer.
async fn record(
    store: &SqliteStore,
    chain: &TestChain,
    lineage: Option<i64>,
    known: usize,
    timer: impl Into<Option<NewTimer>>,
) -> i64 {
    let mut record = chain.record(lineage, known);
    record.timer = timer.into();
    store.record(&chain.scope, &record).await.expect("recorded")
}

async fn claim(store: &SqliteStore, now_ms: i64) -> Option<Timer> {
    store
        .claim_timer(now_ms, now_ms + 1_000)
        .await
        .expect("claimed")
}

#[tokio::test]
async fn a_due_timer_is_claimed_once_with_its_conversation() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let chain = TestChain::new(&scope("alice"), "idle", 6);
    let lineage = record(&store, &chain, None, 0, timer(Some(500), Some(900))).await;
    assert_eq!(store.next_timer().await.expect("a time"), Some(500));
    assert_eq!(claim(&store, 499).await, None, "not before its time");
    let held = claim(&store, 500).await.expect("due");
    assert_eq!((held.lineage, held.tip), (lineage, chain.tip()));
    assert_eq!(
        (&*held.model, held.zone.as_deref()),
        ("model-1", Some("Europe/Oslo"))
    );
    assert_eq!(held.scope, chain.scope);
    assert_eq!(claim(&store, 1_499).await, None, "somebody acts on it");
    let (_, left) = held.alarms.split_due(500);
    store
        .end_timer(&held, Some((left, 900)))
        .await
        .expect("kept");
    let held = claim(&store, 900).await.expect("the other moment");
    assert_eq!(
        (held.alarms.activate_ms, held.alarms.reflect_ms),
        (None, Some(900))
    );
    store.end_timer(&held, None).await.expect("ended");
    assert_eq!(store.next_timer().await.expect("none"), None);
}

#[tokio::test]
async fn a_newer_request_moves_a_timer_even_while_it_is_claimed() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let chain = TestChain::new(&scope("alice"), "idle", 4);
    let lineage = record(&store, &chain, None, 0, timer(Some(500), None)).await;
    let held = claim(&store, 600).await.expect("due");
    let grown = chain.grown("idle", 2);
    record(&store, &grown, Some(lineage), 4, timer(Some(1_500), None)).await;
    store.end_timer(&held, None).await.expect("too late");
    assert_eq!(store.next_timer().await.expect("moved"), Some(1_500));
    let held = claim(&store, 1_500).await.expect("due");
    assert_eq!(held.tip, grown.tip());
}

#[tokio::test]
async fn a_claimed_timer_is_claimed_again_after_a_restart() {
    let disk = Disk::new();
    let store = disk.open().await;
    let chain = TestChain::new(&scope("alice"), "idle", 4);
    record(&store, &chain, None, 0, timer(Some(500), None)).await;
    assert!(claim(&store, 500).await.is_some());
    store.close().await;
    let store = disk.open().await;
    assert_eq!(claim(&store, 1_400).await, None, "its lease runs");
    assert!(claim(&store, 1_500).await.is_some());
}

#[tokio::test]
async fn a_timer_tip_leads_to_its_chain_and_forgetting_deletes_the_timer() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let chain = TestChain::new(&scope("alice"), "idle", 5);
    let lineage = record(&store, &chain, None, 0, timer(Some(500), None)).await;
    let longest = store
        .chain_links(&chain.scope, chain.tip())
        .await
        .expect("a chain");
    let links: Vec<_> = chain.nodes(0).iter().map(|node| node.link).collect();
    assert_eq!(longest, links);
    let strange = store
        .chain_links(&scope("bob"), chain.tip())
        .await
        .expect("none");
    assert!(strange.is_empty(), "another owner's");
    forgotten(&store, lineage).await;
    assert_eq!(store.next_timer().await.expect("none"), None);
}
