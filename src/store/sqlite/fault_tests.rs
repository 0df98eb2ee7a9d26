//! Faults that need access to the connections: stuck connections, a full disk.

use std::sync::Arc;
use std::time::Duration;

use super::SqliteStore;
use super::error::OpenError;
use super::open;
use super::process_lock::ProcessLock;
use super::record;
use crate::history::{Encoder, Link, Role, Scope};
use crate::memory::Node;
use crate::store::testing::SingleRequest as _;
use crate::store::{
    Admin as _, Chains as _, LARGE_REQUEST, LookupKeys, RequestRecord, SentWith, StoreError,
    StoreResult,
};

/// Longer than in the product: on a busy machine a query may wait that long for the processor.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

struct Disk {
    folder: tempfile::TempDir,
    store: SqliteStore,
}

async fn disk() -> Disk {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}", folder.path().join("diarist.db").display());
    let store = SqliteStore::open_with(&url, QUERY_TIMEOUT).await;
    Disk {
        folder,
        store: store.expect("a store"),
    }
}

/// The first request of a conversation of `length` messages.
pub(super) fn request(name: &str, length: usize) -> (Scope, Vec<Link>, RequestRecord) {
    let scope = Scope::new(b"alice", None);
    let root = Link::root(&scope);
    let mut links = vec![root];
    for number in 0..length {
        let mut encoder = Encoder::new();
        encoder.text("content", name);
        encoder.count("number", number);
        links.push(links[number].next(&encoder.finish()));
    }
    links.remove(0);
    let node = |(index, link): (usize, &Link)| Node {
        link: *link,
        count: index + 1,
        role: Role::User,
        tokens: 1,
        closed: true,
        turn_end: true,
        first_length: length,
        confirmed: false,
        received_ms: 1,
        live: true,
    };
    let record = RequestRecord {
        thread_key: None,
        lineage: None,
        new_nodes: links.iter().enumerate().map(node).collect(),
        parent: root,
        confirmed_count: 0,
        newly_confirmed: Vec::new(),
        contents: Vec::new(),
        tip: links[length - 1],
        count: length,
        sent_with: SentWith::default(),
        model: "m".to_owned(),
        route_hash: None,
        at_ms: 1,
        lookup_entries: crate::store::LookupEntries::default(),
        timer: None,
        zone: None,
    };
    (scope, links, record)
}

async fn is_recorded(store: &SqliteStore, scope: &Scope, links: &[Link]) -> bool {
    let found = store.find_on_chain(scope, links).await;
    found.expect("found").depth == links.len()
}

/// Much longer than the quarter of a second in which the store must answer.
const NEVER: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_lookup_times_out_while_every_database_connection_is_stuck() {
    let disk = disk().await;
    let store = &disk.store;
    let (scope, links, record) = request("hello", 3);
    store.record(&scope, &record).await.expect("recorded");
    let mut stuck = Vec::new();
    for _ in 0..store.database().request_readers.most() {
        stuck.push(
            store
                .database()
                .request_readers
                .acquire()
                .await
                .expect("a connection"),
        );
    }
    let answer = tokio::time::timeout(NEVER, store.find_on_chain(&scope, &links)).await;
    assert!(matches!(answer.expect("in time"), Err(StoreError::Busy(_))));
    // Workers have connections of their own.
    let known = store.load_chain(&scope, &links).await.expect("known");
    assert_eq!(known.nodes.len(), 3);
    drop(stuck);
    assert!(is_recorded(store, &scope, &links).await);
}

#[tokio::test]
async fn an_endless_query_times_out_and_blocks_no_other_lookup() {
    let disk = disk().await;
    let store = &disk.store;
    let (scope, links, record) = request("hello", 3);
    store.record(&scope, &record).await.expect("recorded");
    let endless = store.request_read(None, "endless", |_| {
        Box::pin(std::future::pending::<StoreResult<()>>())
    });
    let answer = tokio::time::timeout(NEVER, endless).await.expect("in time");
    assert!(matches!(answer, Err(StoreError::Busy(_))));
    assert!(is_recorded(store, &scope, &links).await);
}

/// A query whose caller is gone keeps its connection until it ends.
#[tokio::test]
#[ignore = "slow"]
async fn endless_large_lookups_leave_connections_for_other_lookups() {
    let disk = disk().await;
    let store = &disk.store;
    let (scope, links, record) = request("hello", 3);
    store.record(&scope, &record).await.expect("recorded");
    for tenant in [7, 7, 7, 7, 8, 8, 9] {
        let endless = store.request_read(Some([tenant; 32]), "endless", |_| {
            Box::pin(std::future::pending::<StoreResult<()>>())
        });
        let answer = tokio::time::timeout(NEVER, endless).await.expect("in time");
        assert!(matches!(answer, Err(StoreError::Busy(_))));
    }
    assert!(is_recorded(store, &scope, &links).await);
}

/// One key makes many tenants, with headers that its upstream ignores.
#[tokio::test]
async fn all_tenants_of_an_account_share_one_turn_for_large_lookups() {
    let disk = disk().await;
    let store = &disk.store;
    let (scope, links, record) = request("hello", LARGE_REQUEST);
    store.record(&scope, &record).await.expect("recorded");
    let endless = store.request_read(Some([7; 32]), "endless", |_| {
        Box::pin(std::future::pending::<StoreResult<()>>())
    });
    let answer = tokio::time::timeout(NEVER, endless).await.expect("in time");
    assert!(matches!(answer, Err(StoreError::Busy(_))));
    let find = async |account| {
        let account = Some(account);
        let keys = LookupKeys {
            account,
            ..LookupKeys::default()
        };
        store.find_candidates(&scope, &links, &keys).await
    };
    assert!(matches!(find([7; 32]).await, Err(StoreError::Busy(_))));
    assert_eq!(find([8; 32]).await.expect("found").depth, links.len());
}

#[tokio::test]
async fn a_query_that_panics_leaves_no_transaction_behind() {
    let disk = disk().await;
    let store = &disk.store;
    let (scope, links, record) = request("hello", 3);
    for _ in 0..3 {
        let (scope, record) = (scope.clone(), record.clone());
        let panics = store.write("panics", move |conn| {
            Box::pin(async move {
                record::record(conn, &scope, &record).await?;
                panic!("on purpose");
            })
        });
        let answer: StoreResult<()> = panics.await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))));
    }
    assert!(!is_recorded(store, &scope, &links).await);
    store.record(&scope, &record).await.expect("recorded");
    assert!(is_recorded(store, &scope, &links).await);
}

#[tokio::test]
async fn a_write_that_fails_midway_stores_nothing() {
    let disk = disk().await;
    let store = &disk.store;
    let (scope, links, record) = request("hello", 3);
    let (owner, copy) = (scope.clone(), record.clone());
    let answer: StoreResult<()> = store
        .write("fails midway", move |conn| {
            Box::pin(async move {
                record::record(conn, &owner, &copy).await?;
                Err(StoreError::Forgotten)
            })
        })
        .await;
    assert!(matches!(answer, Err(StoreError::Forgotten)));
    assert!(!is_recorded(store, &scope, &links).await);
    store.record(&scope, &record).await.expect("recorded");
    assert!(is_recorded(store, &scope, &links).await);
}

/// Look-ups still work; writes work again as soon as there is room.
#[tokio::test]
async fn a_full_disk_stops_writing_only_while_it_is_full() {
    let disk = disk().await;
    let store = &disk.store;
    let (scope, links, record) = request("small", 3);
    store.record(&scope, &record).await.expect("recorded");
    // A limit below the size of the file means that it cannot grow.
    limit_pages(store, "PRAGMA max_page_count = 1").await;

    let (_, large_links, large) = request("large", 2_000);
    let error = store.record(&scope, &large).await.expect_err("full");
    assert!(error.to_string().contains("the disk is full"), "{error}");
    let stored = is_recorded(store, &scope, &large_links).await;
    assert!(!stored, "nothing of it was stored");
    assert!(is_recorded(store, &scope, &links).await);

    limit_pages(store, "PRAGMA max_page_count = 1000000").await;
    store.record(&scope, &large).await.expect("recorded");
    let known = store.load_chain(&scope, &large_links).await.expect("known");
    assert_eq!(known.nodes.len(), 2_000);
}

async fn limit_pages(store: &SqliteStore, pragma: &'static str) {
    let mut conn = store.writer().await;
    sqlx::raw_sql(pragma)
        .execute(&mut *conn)
        .await
        .expect("limited");
}

/// After some failures (an I/O error, a full disk in the middle of a commit) SQLite has rolled back
/// by itself, while sqlx believes that the transaction is still open.
#[tokio::test]
async fn the_store_works_after_sqlite_rolled_back_a_transaction_by_itself() {
    let disk = disk().await;
    let store = &disk.store;
    let (scope, links, record) = request("hello", 3);
    let answer: StoreResult<()> = store
        .write("ended by itself", |conn| {
            Box::pin(async move {
                sqlx::raw_sql("ROLLBACK").execute(conn).await?;
                Err(StoreError::Unavailable("an I/O error".to_owned()))
            })
        })
        .await;
    let error = answer.expect_err("an error").to_string();
    let file = disk.folder.path().join("diarist.db");
    assert!(error.contains(&file.display().to_string()), "{error}");
    store.record(&scope, &record).await.expect("recorded");
    assert!(is_recorded(store, &scope, &links).await);
}

/// Where it says so, the connection has logged it, and no task logs it again.
#[tokio::test]
async fn an_error_of_a_read_only_database_names_the_file() {
    let disk = disk().await;
    let (scope, _, record) = request("hello", 3);
    let limit = disk.store.write("read only", |conn| {
        Box::pin(async move {
            sqlx::raw_sql("COMMIT; PRAGMA query_only = 1; BEGIN")
                .execute(conn)
                .await?;
            Ok(())
        })
    });
    limit.await.expect("read only");
    let refused = disk.store.record(&scope, &record).await;
    let error = refused.expect_err("read only");
    assert!(error.is_logged(), "{error}");
    let file = disk.folder.path().join("diarist.db");
    let error = error.to_string();
    assert!(error.contains(&file.display().to_string()), "{error}");
    assert!(error.contains("give this user write access"), "{error}");
}

/// The size of a file of the database, in bytes.
async fn file_size(disk: &Disk, name: &str) -> u64 {
    let path = disk.folder.path().join(name);
    tokio::fs::metadata(path).await.expect("a file").len()
}

/// A commit does not copy the journal into the database every few batches; a pause does.
#[tokio::test]
async fn the_journal_is_copied_to_the_database_during_a_pause() {
    let disk = disk().await;
    let before = file_size(&disk, "diarist.db").await;
    let (scope, links, record) = request("long", 16_000);
    disk.store.record(&scope, &record).await.expect("recorded");
    let journal = file_size(&disk, "diarist.db-wal").await;
    assert!(journal > 1_000 * 4_096, "more than SQLite's own bound");
    let unchanged = file_size(&disk, "diarist.db").await;
    assert_eq!(unchanged, before, "no commit copied it");
    let copied = async {
        while file_size(&disk, "diarist.db").await == before {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(NEVER, copied).await.expect("copied");
    let known = disk.store.load_chain(&scope, &links).await.expect("known");
    assert_eq!(known.nodes.len(), 16_000);
}

/// Otherwise the journal takes all room that the operator of a full disk frees. The database is opened again meanwhile.
#[tokio::test]
async fn after_a_failed_write_the_journal_is_copied_without_a_pause() {
    let Disk { folder, store } = disk().await;
    store.close().await;
    let url = format!("sqlite://{}", folder.path().join("diarist.db").display());
    let store = SqliteStore::reconnecting(&url, QUERY_TIMEOUT).with_reopen_interval(Duration::ZERO);
    store.open_now().await.expect("open");
    let disk = Disk { folder, store };
    let before = file_size(&disk, "diarist.db").await;
    let (scope, _, record) = request("long", 16_000);
    disk.store.record(&scope, &record).await.expect("recorded");
    let first = disk.store.database();
    let full = disk.store.write("full", |_| {
        Box::pin(async { Err::<(), _>(StoreError::Unavailable("the disk is full".to_owned())) })
    });
    full.await.expect_err("full");
    let opened_again = async {
        while Arc::ptr_eq(&first, &disk.store.database()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let opened_again = tokio::time::timeout(NEVER, opened_again).await;
    opened_again.expect("opened again");
    let (scope, _, record) = request("short", 1);
    disk.store.record(&scope, &record).await.expect("recorded");
    assert!(file_size(&disk, "diarist.db").await > before);
}

/// Otherwise another process could take the lock, and both would serve with the database.
#[tokio::test]
async fn the_process_lock_is_held_while_the_database_cannot_be_opened_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("diarist.db");
    let url = format!("sqlite://{}", path.display());
    let store = SqliteStore::reconnecting(&url, QUERY_TIMEOUT)
        .with_reopen_interval(Duration::from_millis(5));
    store.open_now().await.expect("open");
    let is_free = || !matches!(ProcessLock::acquire(&path), Err(OpenError::InUse(_)));
    let first = store.database();
    // A folder in its place: it cannot be opened, and its lock is still there.
    let away = folder.path().join("away.db");
    std::fs::rename(&path, &away).expect("away");
    std::fs::create_dir(&path).expect("a folder");
    let (scope, _, record) = request("hello", 3);
    store.record(&scope, &record).await.expect_err("replaced");
    for _ in 0..20 {
        assert!(!is_free());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // It is tried again, also if nobody asks.
    std::fs::remove_dir(&path).expect("no folder");
    std::fs::rename(&away, &path).expect("back");
    let opened_again = async {
        while Arc::ptr_eq(&first, &store.database()) {
            assert!(!is_free());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let opened_again = tokio::time::timeout(NEVER, opened_again).await;
    opened_again.expect("opened again");
    assert!(!is_free());
    store.record(&scope, &record).await.expect("recorded");
    store.close().await;
    drop((store, first));
    assert!(is_free());
}

/// Another process may hold the lock that stands in its place now.
#[tokio::test]
async fn a_lock_whose_file_was_replaced_is_not_handed_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("diarist.db");
    let url = format!("sqlite://{}", path.display());
    let held = open::lock(&url, None).await.expect("free").expect("a lock");
    let again = open::lock(&url, Some(Arc::clone(&held))).await;
    assert!(again.is_ok_and(|lock| lock.is_some_and(|lock| Arc::ptr_eq(&lock, &held))));
    std::fs::remove_file(folder.path().join("diarist.db.lock")).expect("a lock");
    let _other = ProcessLock::acquire(&path).expect("free");
    let again = open::lock(&url, Some(held)).await;
    assert!(matches!(again, Err(OpenError::InUse(_))), "{again:?}");
}

/// Intermediate results need no temporary folder.
#[tokio::test]
async fn no_connection_writes_temporary_files() {
    let disk = disk().await;
    let database = disk.store.database();
    for pool in [
        &database.writer,
        &database.request_readers,
        &database.worker_readers,
    ] {
        let mut conn = pool.acquire().await.expect("a connection");
        let place: i64 = sqlx::query_scalar("PRAGMA temp_store")
            .fetch_one(&mut *conn)
            .await
            .expect("a setting");
        assert_eq!(place, 2, "in memory");
    }
}
