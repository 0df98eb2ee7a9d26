//! A quota of bytes takes the longest silent conversations first, counts what it frees, and leaves no tombstone.

use diarist::memory::PartKind;
use diarist::store::testing::SingleRequest as _;
use diarist::store::{
    Admin as _, Forgetting as _, Queue as _, Quota as _, QuotaDeletion, SilentThread,
    Snapshots as _, SqliteStore, TenantAccount, Tenants as _,
};

use crate::store::world::{ANYBODY, Disk, LEASE, TestChain, scope};

const NOW_MS: i64 = 10_000;
/// Conversations with a request since then are in use.
const USED_SINCE_MS: i64 = 9_000;
const EVERYTHING: i64 = i64::MAX;

async fn record_at(store: &SqliteStore, chain: &TestChain, at_ms: i64) -> i64 {
    let mut record = chain.record(None, 0);
    record.contents = chain.contents(1_000);
    record.at_ms = at_ms;
    store.record(&chain.scope, &record).await.expect("recorded")
}

async fn held_by(store: &SqliteStore, tenant: [u8; 32]) -> i64 {
    let held = store.bytes_of_tenants().await.expect("summed");
    let of_tenant = held.iter().find(|(owner, _)| *owner == tenant);
    of_tenant.map_or(0, |(_, bytes)| *bytes)
}

async fn list(store: &SqliteStore, tenant: [u8; 32], limit: u32) -> Vec<SilentThread> {
    let times = (USED_SINCE_MS, NOW_MS);
    let threads = store.longest_silent(tenant, times, limit).await;
    threads.expect("listed")
}

fn lineages(threads: &[SilentThread]) -> Vec<i64> {
    threads.iter().map(|thread| thread.lineage).collect()
}

/// Everything that a deletion can free is counted, once, and by both counts alike.
#[tokio::test]
async fn the_counted_bytes_equal_the_bytes_that_deletions_free() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let chain = TestChain::new(&scope("alice"), "trunk", 6);
    let trunk = chain.recorded(&store).await;
    let bare = held_by(&store, chain.scope.tenant).await;
    let chunk = chain.observed(&store, 0, 2).await;
    let snapshot = chain.snapshot(2, &[chunk]);
    let snapshot = store.commit_snapshot(&chain.scope, &snapshot).await;
    snapshot.expect("committed");
    let job = chain.job(PartKind::Chunk, 2, 4);
    store.enqueue(&chain.scope, &job, 0).await.expect("offered");
    // Another conversation begins with the same four messages.
    let branch = chain.first(4).grown("branch", 2);
    let mut record = branch.record(None, 4);
    record.thread_key = Some("b".to_owned());
    let branch = store.record(&chain.scope, &record).await.expect("recorded");

    let all = held_by(&store, chain.scope.tenant).await;
    let texts = job.payload.len() + chain.chunk(0, 2).text.len();
    assert!(all > bare + i64::try_from(texts).expect("small"));
    let threads = list(&store, chain.scope.tenant, 10).await;
    assert_eq!(lineages(&threads), [trunk, branch]);
    let first = store.delete_silent(threads[..1].to_vec(), 1).await;
    let first = first.expect("deleted");
    assert_eq!((first.threads, first.handled), (1, 1));
    assert!(
        first.bytes > 0 && first.bytes < bare,
        "the shared beginning stays"
    );
    assert_eq!(held_by(&store, chain.scope.tenant).await, all - first.bytes);
    let second = store.delete_silent(threads[1..].to_vec(), 1).await;
    assert_eq!(first.bytes + second.expect("deleted").bytes, all);
    assert_eq!(held_by(&store, chain.scope.tenant).await, 0);
}

#[tokio::test]
async fn the_longest_unused_conversations_are_deleted_first_and_active_ones_last() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let (alice, bob) = (scope("alice"), scope("bob"));
    let chain = |name: &str| TestChain::new(&alice, name, 6);
    let recent = record_at(&store, &chain("recent"), USED_SINCE_MS).await;
    let middle = record_at(&store, &chain("middle"), 2_000).await;
    let oldest = record_at(&store, &chain("oldest"), 1_000).await;
    let observed = chain("observed");
    let running = record_at(&store, &observed, 500).await;
    let job = observed.job(PartKind::Chunk, 0, 4);
    store.enqueue(&alice, &job, 0).await.expect("offered");
    let job = store.claim(&ANYBODY, NOW_MS, LEASE).await.expect("claimed");
    assert!(job.is_some());
    let others = TestChain::new(&bob, "of another tenant", 6);
    let others = record_at(&store, &others, 1).await;

    let threads = list(&store, alice.tenant, 10).await;
    assert_eq!(lineages(&threads), [oldest, middle, running, recent]);
    let in_use: Vec<bool> = threads.iter().map(|thread| thread.in_use).collect();
    assert_eq!(in_use, [false, false, true, true]);
    assert_eq!(lineages(&list(&store, alice.tenant, 1).await), [oldest]);

    // A request comes between the look and the deletion: that conversation stays.
    let mut again = chain("oldest").record(Some(oldest), 6);
    again.at_ms = NOW_MS;
    let again = store.record(&alice, &again).await;
    assert_eq!(again.expect("recorded"), oldest);
    let done = store.delete_silent(threads[..1].to_vec(), EVERYTHING).await;
    let handled = QuotaDeletion {
        handled: 1,
        ..QuotaDeletion::default()
    };
    assert_eq!(done.expect("looked at"), handled);

    let done = store.delete_silent(threads[1..].to_vec(), EVERYTHING).await;
    assert_eq!(done.expect("deleted").threads, 3);
    let mut left = Vec::new();
    for lineage in [recent, middle, oldest, running, others] {
        left.push(store.thread(lineage).await.expect("read").is_some());
    }
    assert_eq!(left, [false, false, true, false, true]);
    assert!(store.receipts().await.expect("listed").is_empty());
    // Nothing keeps it from beginning anew.
    assert!(record_at(&store, &chain("middle"), NOW_MS).await > others);
}

/// The recorder can write between two transactions, however much is to be deleted.
#[tokio::test]
async fn one_transaction_deletes_a_limited_number_of_rows() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let alice = scope("alice");
    let member = TenantAccount {
        tenant: alice.tenant,
        account: scope("who pays").tenant,
    };
    store.set_account(member).await.expect("stored");
    for number in 0..4 {
        let chain = TestChain::new(&alice, &format!("talk {number}"), 100);
        record_at(&store, &chain, 1_000 + number).await;
    }
    let threads = list(&store, alice.tenant, 10).await;
    let done = store.delete_silent(threads.clone(), EVERYTHING).await;
    let done = done.expect("deleted");
    assert_eq!((done.threads, done.handled), (2, 2), "200 rows each");
    let some = store.delete_silent(threads[2..].to_vec(), 1).await;
    assert_eq!(some.expect("deleted").threads, 1, "enough is free");
    assert_eq!(store.threads(10).await.expect("listed").len(), 1);
    // A quota deletes conversations. What says who pays for them stays.
    let accounts = store.tenant_accounts().await.expect("read");
    assert_eq!(accounts, [member]);
}

/// Eight megabytes are 2,000 pages, and one slice of a shrink gives back 1,000.
#[tokio::test]
async fn all_freed_pages_are_returned_to_the_file_system() {
    const MUCH: u64 = 8 << 20;
    let disk = Disk::new();
    let store = disk.open().await;
    let chain = TestChain::new(&scope("alice"), "long", 6);
    chain.recorded(&store).await;
    let mut job = chain.job(PartKind::Chunk, 0, 4);
    job.payload = "long ".repeat(usize::try_from(MUCH / 5).expect("small"));
    store.enqueue(&chain.scope, &job, 0).await.expect("offered");
    assert!(store.shrink().await.expect("emptied"));
    let size = || std::fs::metadata(disk.file()).expect("a file").len();
    assert!(size() > MUCH);
    let threads = list(&store, chain.scope.tenant, 10).await;
    let done = store.delete_silent(threads, EVERYTHING).await;
    assert_eq!(done.expect("deleted").threads, 1);
    assert!(store.shrink().await.expect("emptied"));
    assert!(size() < MUCH / 8, "{}", size());
}
