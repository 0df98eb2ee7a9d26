//! Several processes on one database.

use std::sync::Arc;

use diarist::store::testing::SingleRequest as _;
use diarist::store::{Admin as _, Chains as _, Queue as _, SentWith};
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;

use crate::store::world::{Disk, TestChain, scope};

/// All processes write at the same time; none of them gets an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_concurrent_writers_lose_no_record() {
    const CHAINS: usize = 12;
    const TURNS: usize = 10;
    let disk = Disk::new();
    let stores = [Arc::new(disk.open().await), Arc::new(disk.open().await)];
    let owner = scope("alice");
    let mut writers = tokio::task::JoinSet::new();
    for number in 0..CHAINS {
        let (store, owner) = (Arc::clone(&stores[number % 2]), owner.clone());
        writers.spawn(async move {
            let mut lineage = None;
            for turn in 1..=TURNS {
                let chain = TestChain::new(&owner, &format!("talk {number}"), 2 * turn);
                let record = chain.record(lineage, 2 * turn - 2);
                let recorded = store.record(&owner, &record).await.expect("recorded");
                assert_eq!(*lineage.get_or_insert(recorded), recorded);
            }
        });
    }
    writers.join_all().await;
    let threads = stores[0].threads(100).await.expect("listed");
    assert_eq!(threads.len(), CHAINS);
    for thread in threads {
        assert_eq!(
            (thread.messages, thread.requests),
            (2 * TURNS, TURNS as u64)
        );
    }
}

/// The same first request, retried by its client, arrives at two processes at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_that_record_one_request_agree() {
    let disk = Disk::new();
    let stores = [Arc::new(disk.open().await), Arc::new(disk.open().await)];
    for round in 0..20 {
        let chain = TestChain::new(&scope("alice"), &format!("talk {round}"), 5);
        let [one, two] = [0, 1].map(|number: usize| {
            let (store, chain) = (Arc::clone(&stores[number]), chain.clone());
            async move {
                let mut record = chain.record(None, 0);
                record.sent_with = SentWith {
                    placement: format!("by {number}"),
                    ..SentWith::default()
                };
                store.record(&chain.scope, &record).await.expect("recorded")
            }
        });
        let (one, two) = tokio::join!(tokio::spawn(one), tokio::spawn(two));
        assert_eq!(one.expect("ended"), two.expect("ended"), "one lineage");
        let known = stores[0]
            .load_chain(&chain.scope, &chain.links)
            .await
            .expect("known");
        assert_eq!(known.nodes, chain.nodes(0));
        let mut used = Vec::new();
        for store in &stores {
            used.push(
                store
                    .find_on_chain(&chain.scope, &chain.links)
                    .await
                    .expect("found")
                    .sent_with,
            );
        }
        assert_eq!(used[0], used[1]);
        assert!(used[0].is_some());
    }
}

/// A process that records messages as unconfirmed does not undo the confirmation of another process.
#[tokio::test]
async fn a_confirmed_message_stays_confirmed() {
    let disk = Disk::new();
    let (early, late) = (disk.open().await, disk.open().await);
    let chain = TestChain::new(&scope("alice"), "hello", 4);
    chain.first(3).recorded(&early).await;
    // The other process has not seen the first record: it records all messages as new, three of them as
    // confirmed.
    let mut record = chain.record(None, 0);
    for node in &mut record.new_nodes[..3] {
        node.confirmed = true;
    }
    late.record(&chain.scope, &record).await.expect("recorded");
    chain.first(3).recorded(&early).await;
    let known = early
        .load_chain(&chain.scope, &chain.links)
        .await
        .expect("known");
    let confirmed: Vec<_> = known.nodes.iter().map(|node| node.confirmed).collect();
    assert_eq!(confirmed, [true, true, true, false]);
}

/// The versions of the migrations that were applied to a database, in order.
async fn migrations(disk: &Disk) -> Vec<i64> {
    let options = SqliteConnectOptions::new().filename(disk.file());
    let mut database = options.connect().await.expect("a connection");
    sqlx::query_scalar("SELECT version FROM _sqlx_migrations WHERE success ORDER BY version")
        .fetch_all(&mut database)
        .await
        .expect("versions")
}

/// Several processes start on an empty folder at once. Each migration is applied once, as by one process alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_open_an_empty_folder_at_once_create_one_schema() {
    let alone = Disk::new();
    alone.open().await.close().await;
    let applied = migrations(&alone).await;
    assert!(!applied.is_empty());
    for _ in 0..5 {
        let disk = Arc::new(Disk::new());
        let mut openers = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let disk = Arc::clone(&disk);
            openers.spawn(async move {
                let store = disk.open().await;
                store.open_jobs(i64::MAX).await.expect("answers");
            });
        }
        openers.join_all().await;
        assert_eq!(migrations(&disk).await, applied);
    }
}

/// The cache of this process is complete until another process writes.
#[tokio::test]
async fn writes_of_another_process_are_detected() {
    let disk = Disk::new();
    let (one, other) = (disk.open().await, disk.open().await);
    let owner = scope("alice");
    let record = |name: &str| {
        let chain = TestChain::new(&owner, name, 2);
        chain.record(None, 0)
    };
    for name in ["first", "second"] {
        one.record(&owner, &record(name)).await.expect("recorded");
        assert!(!one.has_other_writers());
    }
    other
        .record(&owner, &record("third"))
        .await
        .expect("recorded");
    one.record(&owner, &record("fourth"))
        .await
        .expect("recorded");
    assert!(one.has_other_writers());
}
