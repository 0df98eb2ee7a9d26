//! A database in trouble: every error says what to do, nothing hangs, and the store comes back.

use std::path::Path;
use std::time::Duration;

use diarist::store::testing::SingleRequest as _;
use diarist::store::{
    Admin as _, Chains as _, OpenError, PepperPlace, Queue as _, SqliteStore, StoreError,
};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, SqliteConnection};

use crate::store::world::{Disk, TestChain, scope};
use crate::support::patient_store::PATIENCE;

async fn other_program(file: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(file);
    options.connect().await.expect("a connection")
}

async fn run(conn: &mut SqliteConnection, statement: &str) {
    let statement = AssertSqlSafe(statement.to_owned());
    sqlx::raw_sql(statement).execute(conn).await.expect("done");
}

fn chain() -> TestChain {
    TestChain::new(&scope("alice"), "hello", 4)
}

/// A database with one conversation, closed.
async fn made(disk: &Disk) {
    let store = disk.open().await;
    chain().recorded(&store).await;
    store.close().await;
}

/// A store that opens the database later, and tries again after `interval`.
fn reconnecting(disk: &Disk, interval: Duration) -> SqliteStore {
    SqliteStore::reconnecting(&disk.url(), PATIENCE).with_reopen_interval(interval)
}

async fn refused(url: &str) -> OpenError {
    SqliteStore::open(url).await.expect_err("cannot be opened")
}

#[tokio::test]
async fn an_unsupported_database_url_is_refused() {
    for url in [
        "",
        "postgres://localhost/x",
        "/var/lib/diarist.db",
        "sqlite:",
        "sqlite://x?mode=memory",
        "sqlite://x?nonsense=1",
    ] {
        assert!(matches!(refused(url).await, OpenError::Url(_)), "{url}");
    }
}

#[tokio::test]
async fn a_path_where_no_file_can_be_created_is_refused() {
    let disk = Disk::new();
    made(&disk).await;
    // Below a file, and in a place where even root cannot make a folder.
    for url in [
        format!("{}/below/x.db", disk.url()),
        "sqlite:///proc/diarist/x.db".to_owned(),
    ] {
        let error = refused(&url).await;
        assert!(matches!(error, OpenError::Inaccessible { .. }), "{error}");
        assert!(error.to_string().contains("x.db"), "{error}");
    }
    let folder = disk.file().parent().expect("a folder").to_owned();
    let url = format!("sqlite://{}", folder.display());
    let error = refused(&url).await;
    assert!(matches!(error, OpenError::Folder(_)), "{error}");
    let read = SqliteStore::open_to_read(&url).await;
    assert!(matches!(read, Err(OpenError::Folder(_))));
}

#[cfg(unix)]
#[tokio::test]
async fn only_the_file_owner_may_read_the_database_files() {
    use std::os::unix::fs::PermissionsExt as _;
    let disk = Disk::new();
    let store = disk.open().await;
    chain().recorded(&store).await;
    for entry in std::fs::read_dir(disk.file().parent().expect("a folder")).expect("the folder") {
        let entry = entry.expect("an entry");
        let mode = entry.metadata().expect("metadata").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{:?}", entry.file_name());
    }
}

#[tokio::test]
async fn a_file_of_another_kind_is_refused_and_not_changed() {
    let disk = Disk::new();
    made(&disk).await;
    let text = "my diary, not a database. ".repeat(100);
    std::fs::write(disk.file(), &text).expect("written");
    assert!(matches!(
        refused(&disk.url()).await,
        OpenError::NotADatabase(_)
    ));
    assert_eq!(std::fs::read_to_string(disk.file()).expect("read"), text);

    std::fs::remove_file(disk.file()).expect("removed");
    let options = SqliteConnectOptions::new()
        .filename(disk.file())
        .create_if_missing(true);
    let mut theirs = options.connect().await.expect("a connection");
    run(&mut theirs, "CREATE TABLE bookmarks (url TEXT)").await;
    theirs.close().await.expect("closed");
    let before = std::fs::read(disk.file()).expect("read");
    assert!(matches!(refused(&disk.url()).await, OpenError::Foreign(_)));
    assert_eq!(std::fs::read(disk.file()).expect("read"), before);
}

#[tokio::test]
async fn a_database_with_a_newer_or_altered_schema_is_refused() {
    let disk = Disk::new();
    made(&disk).await;
    let mut other = other_program(&disk.file()).await;
    run(&mut other, "INSERT INTO _sqlx_migrations SELECT 99, 'future', installed_on, 1, checksum, 0 FROM _sqlx_migrations LIMIT 1").await;
    let error = refused(&disk.url()).await;
    assert!(
        matches!(error, OpenError::Newer { found: 99, .. }),
        "{error}"
    );
    run(
        &mut other,
        "DELETE FROM _sqlx_migrations WHERE version = 99",
    )
    .await;
    run(&mut other, "UPDATE _sqlx_migrations SET checksum = x'00'").await;
    let error = refused(&disk.url()).await;
    assert!(matches!(error, OpenError::Schema { .. }), "{error}");
}

#[tokio::test]
async fn a_read_only_database_answers_lookups_and_refuses_writes() {
    let disk = Disk::new();
    made(&disk).await;
    let store = SqliteStore::open(&format!("{}?mode=ro", disk.url()))
        .await
        .expect("a store");
    let found = store
        .find_on_chain(&chain().scope, &chain().links)
        .await
        .expect("found");
    assert_eq!(found.depth, chain().links.len());
    let longer = chain().grown("more", 1);
    let error = store.record(&chain().scope, &longer.record(None, 4)).await;
    let error = error.expect_err("read-only").to_string();
    assert!(error.contains("read-only"), "{error}");
    store.open_jobs(i64::MAX).await.expect("answers");
}

/// Damage in the middle of the file is an error when it is read; the store never returns a partial answer.
#[tokio::test]
async fn a_damaged_database_file_is_an_error() {
    let disk = Disk::new();
    let store = disk.open().await;
    TestChain::new(&scope("alice"), "long", 2_000)
        .recorded(&store)
        .await;
    store.close().await;
    let mut bytes = std::fs::read(disk.file()).expect("read");
    bytes[4096..].fill(0xA5);
    std::fs::write(disk.file(), &bytes).expect("written");
    match SqliteStore::open(&disk.url()).await {
        Err(error) => assert!(matches!(error, OpenError::Damaged { .. }), "{error}"),
        Ok(store) => {
            let error = store
                .find_on_chain(&chain().scope, &chain().links)
                .await
                .expect_err("damaged");
            assert!(error.to_string().contains("damaged"), "{error}");
        }
    }
}

#[tokio::test]
async fn an_unknown_value_in_a_row_is_an_error() {
    let disk = Disk::new();
    made(&disk).await;
    let mut other = other_program(&disk.file()).await;
    run(&mut other, "UPDATE nodes SET role = 'oracle'").await;
    let store = disk.open().await;
    let error = store
        .load_chain(&chain().scope, &chain().links)
        .await
        .expect_err("unknown role");
    assert!(matches!(error, StoreError::Corrupt(_)), "{error}");
}

/// While another process is in the middle of a long write, look-ups work, and a write waits and succeeds.
#[tokio::test]
async fn a_locked_database_still_answers_lookups() {
    let disk = Disk::new();
    made(&disk).await;
    let store = disk.open().await;
    let mut other = other_program(&disk.file()).await;
    run(&mut other, "BEGIN EXCLUSIVE").await;
    let longer = chain().grown("more", 1);
    let record = longer.record(None, 4);
    let write = store.record(&longer.scope, &record);
    let look = async {
        for _ in 0..20 {
            let found = store
                .find_on_chain(&chain().scope, &chain().links)
                .await
                .expect("found");
            assert_eq!(found.depth, chain().links.len());
        }
        run(&mut other, "COMMIT").await;
    };
    let (written, ()) = tokio::join!(write, look);
    written.expect("recorded after the lock was gone");
}

/// Another process holds the file exclusively, as a backup or a repair may.
#[tokio::test]
#[ignore = "slow"]
async fn a_locked_database_is_opened_after_it_is_released() {
    let disk = Disk::new();
    made(&disk).await;
    let mut other = other_program(&disk.file()).await;
    run(
        &mut other,
        "PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; COMMIT",
    )
    .await;
    let store = reconnecting(&disk, Duration::ZERO);
    let error = store.open_now().await.expect_err("held");
    assert!(matches!(error, OpenError::Locked(_)), "{error}");
    let error = store
        .find_on_chain(&chain().scope, &chain().links)
        .await
        .expect_err("held");
    assert!(matches!(error, StoreError::NotOpen(_)), "{error}");
    other.close().await.expect("closed");
    recovered(&store).await;
    store.close().await;
}

/// Asks until the store is back.
async fn recovered(store: &SqliteStore) {
    let ask = async {
        while store
            .find_on_chain(&chain().scope, &chain().links)
            .await
            .is_err()
        {
            tokio::task::yield_now().await;
        }
    };
    let patience = Duration::from_mins(1);
    tokio::time::timeout(patience, ask)
        .await
        .expect("the store came back");
}

#[tokio::test]
async fn a_store_that_could_not_be_opened_comes_back_without_a_restart() {
    let disk = Disk::new();
    made(&disk).await;
    let good = std::fs::read(disk.file()).expect("read");
    std::fs::write(disk.file(), "x".repeat(5_000)).expect("written");
    let store = reconnecting(&disk, Duration::ZERO);
    store.open_now().await.expect_err("not a database");
    let error = store
        .find_on_chain(&chain().scope, &chain().links)
        .await
        .expect_err("not a database");
    assert!(
        error.to_string().contains("not a SQLite database"),
        "{error}"
    );
    assert!(store.open_jobs(i64::MAX).await.is_err());
    std::fs::write(disk.file(), good).expect("written");
    recovered(&store).await;
    let found = store
        .find_on_chain(&chain().scope, &chain().links)
        .await
        .expect("found");
    assert_eq!(found.depth, chain().links.len());
    store.close().await;
    assert!(store.open_jobs(i64::MAX).await.is_err(), "closed is closed");
}

/// Attempts are rare, so that a missing database costs nothing.
#[tokio::test]
async fn an_attempt_to_open_is_made_once_per_interval() {
    let disk = Disk::new();
    made(&disk).await;
    let good = std::fs::read(disk.file()).expect("read");
    std::fs::write(disk.file(), "x".repeat(5_000)).expect("written");
    let store = reconnecting(&disk, Duration::from_hours(1));
    store.open_now().await.expect_err("not a database");
    std::fs::write(disk.file(), good).expect("written");
    for _ in 0..100 {
        assert!(store.open_jobs(i64::MAX).await.is_err());
        tokio::task::yield_now().await;
    }
    store.open_now().await.expect("`open_now` tries at once");
    store.open_jobs(i64::MAX).await.expect("answers");
    store.close().await;
}

/// Without the file, the new database could never be opened by another process.
#[tokio::test]
async fn a_pepper_file_deleted_with_its_database_is_written_again() {
    let disk = Disk::new();
    let database = disk.file();
    let place = PepperPlace {
        secret: None,
        file: None,
        database: Some(&database),
    };
    let pepper = place.find_or_make().expect("a pepper");
    let file = place.path().expect("a place");
    let kept = std::fs::read(&file).expect("the file");
    let store = reconnecting(&disk, Duration::ZERO).with_pepper(&pepper);
    store.open_now().await.expect("open");
    chain().recorded(&store).await;
    std::fs::remove_file(&file).expect("removed");
    std::fs::remove_file(&database).expect("removed");
    let record = chain().record(None, 0);
    let write = async {
        while store.record(&chain().scope, &record).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    let patience = Duration::from_mins(1);
    let written = tokio::time::timeout(patience, write).await;
    written.expect("a new database was made");
    assert_eq!(std::fs::read(&file).expect("the file"), kept);
    store.close().await;
    assert_eq!(place.find().expect("found").value, pepper.value);
}

#[tokio::test]
async fn a_database_deleted_while_in_use_is_replaced_by_a_new_one() {
    let disk = Disk::new();
    let store = reconnecting(&disk, Duration::ZERO);
    store.open_now().await.expect("open");
    chain().recorded(&store).await;
    std::fs::remove_file(disk.file()).expect("removed");
    let record = chain().record(None, 0);
    let error = store
        .record(&chain().scope, &record)
        .await
        .expect_err("nowhere to write to");
    assert!(error.to_string().contains("deleted or replaced"), "{error}");
    let write = async {
        while store.record(&chain().scope, &record).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    let patience = Duration::from_mins(1);
    tokio::time::timeout(patience, write)
        .await
        .expect("a new database was made");
    assert!(disk.file().exists());
    // What is remembered of the earlier one does not hold for it.
    assert!(store.reopenings() >= 1);
    store.close().await;
    // The record is in the new file.
    let store = disk.open().await;
    let found = store
        .find_on_chain(&chain().scope, &chain().links)
        .await
        .expect("found");
    assert_eq!(found.depth, chain().links.len());
}
