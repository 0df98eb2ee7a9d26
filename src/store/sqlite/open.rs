//! From a URL to open connections: checks the place, the version of SQLite and the schema.
//!
//! A file that is not Diarist's, or that a newer Diarist made, stays as it is. Called by
//! [`super::database`] only.

use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, Connection as _};

use super::connections::Connections;
use super::error::OpenError;
use super::migrations::migrations;
use super::place::{create_file, refuse_folder};
use super::process_lock::ProcessLock;
use crate::tasks::yield_to_requests;

/// The first release without the WAL-reset bug. That bug corrupts a database if one process runs a
/// checkpoint while another one writes (<https://sqlite.org/releaselog/3_51_3.html>).
const OLDEST_SQLITE: (u32, u32, u32) = (3, 51, 3);
const OLDEST_SQLITE_TEXT: &str = "3.51.3";

/// Background work waits this long for a lock: longer than any write of Diarist takes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two attempts to open a locked file.
const RETRY: Duration = Duration::from_millis(20);
/// The size of the journal from which a commit also copies it into the database, in pages of 4 KiB (32 MiB).
/// Keys are hashes, so commits write the same inner pages again and again: the longer the journal grows, the
/// fewer pages are copied. With SQLite's own 1,000 pages, every few batches of the recorder paid for a
/// copy. [`super::database`] copies the rest while nobody writes.
const CHECKPOINT_PAGES: &str = "8192";
/// Memory for pages of the writing connection, in KiB (as SQLite spells it, negative). A batch of the
/// recorder changes more pages than SQLite's 2 MiB hold, and would write some of them twice.
const WRITER_CACHE: &str = "-16384";
/// Intermediate results of a statement stay in memory. In files they would cost system calls for each
/// request, and would need a temporary folder that can be written.
const TEMP_STORE: &str = "MEMORY";
/// More than there are statements, so that none is prepared twice.
const STATEMENT_CACHE: usize = 256;
/// Connections of the request path: two requests can look up a cold conversation while two others wait for
/// the disk.
const REQUEST_READERS: u32 = 4;
/// Connections of workers and of the command line. They are separate, so that they never delay a request.
const WORKER_READERS: u32 = 2;
/// The instructions of SQLite's virtual machine in one step of a statement of background work: some 50 us.
const STEP_INSTRUCTIONS: i32 = 200;

/// `_sqlx_migrations` is the table of [`Migrator`].
const HAS_SCHEMA: &str = "
SELECT count(*), coalesce(sum(name = '_sqlx_migrations'), 0) FROM sqlite_schema
WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";

/// The connections to one database.
pub(super) struct OpenConnections {
    pub(super) writer: Connections,
    pub(super) request_readers: Connections,
    pub(super) worker_readers: Connections,
    /// The file; `None` in memory.
    pub(super) path: Option<PathBuf>,
}

pub(super) async fn open(
    url: &str,
    request_timeout: Duration,
) -> Result<OpenConnections, OpenError> {
    if !url.starts_with("sqlite:") || url.contains("mode=memory") {
        return Err(OpenError::Url(url.to_owned()));
    }
    let options = SqliteConnectOptions::from_str(url)
        .map_err(|_| OpenError::Url(url.to_owned()))?
        .disable_statement_logging()
        .busy_timeout(BUSY_TIMEOUT)
        // Deleted rows held message text, so SQLite overwrites them.
        .pragma("secure_delete", "ON")
        .pragma("temp_store", TEMP_STORE)
        .statement_cache_capacity(STATEMENT_CACHE)
        // A committed row must be on the disk. Only background work waits for that.
        .synchronous(SqliteSynchronous::Full);
    if url.ends_with(":memory:") {
        return in_memory(options).await;
    }
    let path = options.get_filename().to_owned();
    if path.as_os_str().is_empty() {
        return Err(OpenError::Url(url.to_owned()));
    }
    refuse_folder(&path).await?;
    create_file(&path).await?;
    // If another process starts at the same time, the switch to WAL fails with "locked" at once: SQLite
    // skips the busy timeout there, because two processes would wait for each other for ever.
    let started = Instant::now();
    loop {
        match in_file(&options, &path, request_timeout).await {
            Err(OpenError::Locked(_)) if started.elapsed() < BUSY_TIMEOUT => {
                tokio::time::sleep(RETRY).await;
            }
            outcome => return outcome,
        }
    }
}

/// Takes the lock of the process that serves with the database at `url`, and creates the file if there is
/// none. `None` if there is nothing to lock: the database is in memory, or its folder cannot be written. If this process holds
/// the lock already (`held`), it is the same one: nobody else gets it in between.
pub(super) async fn lock(
    url: &str,
    held: Option<Arc<ProcessLock>>,
) -> Result<Option<Arc<ProcessLock>>, OpenError> {
    let options =
        SqliteConnectOptions::from_str(url).map_err(|_| OpenError::Url(url.to_owned()))?;
    let path = options.get_filename();
    if url.contains(":memory:") || path.as_os_str().is_empty() {
        return Ok(None);
    }
    create_file(path).await?;
    if let Some(held) = held.filter(|held| held.is_for(path)) {
        return Ok(Some(held));
    }
    Ok(ProcessLock::acquire(path)?.map(Arc::new))
}

/// Opens a database for reading while a server may write to it. Creates and changes nothing.
pub(super) async fn open_to_read(url: &str) -> Result<OpenConnections, OpenError> {
    let wrong = || OpenError::Url(url.to_owned());
    if !url.starts_with("sqlite:") || url.contains(":memory:") || url.contains("mode=memory") {
        return Err(wrong());
    }
    let options = SqliteConnectOptions::from_str(url).map_err(|_| wrong())?;
    let path = options.get_filename().to_owned();
    if !tokio::fs::try_exists(&path).await.unwrap_or(false) {
        return Err(OpenError::Missing(path));
    }
    refuse_folder(&path).await?;
    let options = read_only_options(&path, BUSY_TIMEOUT);
    let mut first = options
        .connect()
        .await
        .map_err(|error| OpenError::from_sqlx(&path, &error))?;
    check_version(&mut first, &path).await?;
    let migrator = Migrator::with_migrations(migrations());
    let known = migrator.iter().map(|m| m.version).max().unwrap_or(0);
    match schema(&mut first, &path).await? {
        Some(found) if found == known => verify(&migrator, &mut first, &path).await?,
        Some(found) if found > known => return Err(OpenError::Newer { path, found, known }),
        _ => return Err(OpenError::Older(path)),
    }
    drop(first);
    let readers = pool(WORKER_READERS, BUSY_TIMEOUT * 2).connect_lazy_with(options);
    let readers = Connections::new(readers);
    Ok(OpenConnections {
        writer: readers.clone(),
        request_readers: readers.clone(),
        worker_readers: readers,
        path: Some(path),
    })
}

fn read_only_options(path: &Path, busy_timeout: Duration) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .read_only(true)
        .pragma("temp_store", TEMP_STORE)
        .statement_cache_capacity(STATEMENT_CACHE)
        .disable_statement_logging()
        .busy_timeout(busy_timeout)
}

async fn in_file(
    options: &SqliteConnectOptions,
    path: &Path,
    request_timeout: Duration,
) -> Result<OpenConnections, OpenError> {
    let failed = |error: sqlx::Error| OpenError::from_sqlx(path, &error);
    // The checks come before the journal mode is set, because that changes the file.
    let mut first = options.connect().await.map_err(failed)?;
    check_version(&mut first, path).await?;
    migrate(&mut first, path).await?;
    first.close().await.map_err(failed)?;

    let options = options
        .clone()
        .journal_mode(SqliteJournalMode::Wal)
        .pragma("journal_size_limit", "67108864")
        .pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
        .pragma("cache_size", WRITER_CACHE);
    // The request path waits less than its whole timeout for a lock, so that its connection is free again
    // before the next request needs it.
    let request_busy_timeout = request_timeout * 4 / 5;
    let writer = in_steps(pool(1, BUSY_TIMEOUT * 2), yield_to_requests)
        .connect_with(options)
        .await
        .map_err(failed)?;
    let request_readers = pool(REQUEST_READERS, request_busy_timeout)
        .connect_lazy_with(read_only_options(path, request_busy_timeout));
    let worker_readers = in_steps(pool(WORKER_READERS, BUSY_TIMEOUT * 2), yield_to_requests)
        .connect_lazy_with(read_only_options(path, BUSY_TIMEOUT));
    Ok(OpenConnections {
        writer: Connections::new(writer),
        request_readers: Connections::new(request_readers),
        worker_readers: Connections::new(worker_readers),
        path: Some(path.to_owned()),
    })
}

/// One connection for everything: a second one would open another, empty database.
async fn in_memory(options: SqliteConnectOptions) -> Result<OpenConnections, OpenError> {
    let path = PathBuf::from(":memory:");
    let failed = |error: sqlx::Error| OpenError::from_sqlx(&path, &error);
    let writer = pool(1, BUSY_TIMEOUT * 2)
        .min_connections(1)
        .connect_with(options)
        .await
        .map_err(failed)?;
    let mut first = writer.acquire().await.map_err(failed)?;
    check_version(&mut first, &path).await?;
    migrate(&mut first, &path).await?;
    drop(first);
    let connections = Connections::new(writer);
    Ok(OpenConnections {
        writer: connections.clone(),
        request_readers: connections.clone(),
        worker_readers: connections,
        path: None,
    })
}

fn pool(max_connections: u32, wait: Duration) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(max_connections)
        .acquire_timeout(wait)
        .idle_timeout(None)
        .max_lifetime(None)
        // A connection that is given back to the pool is tested then.
        .test_before_acquire(false)
}

/// Connections whose thread calls `after_step` between the steps of a statement.
fn in_steps(options: SqlitePoolOptions, after_step: fn()) -> SqlitePoolOptions {
    options.after_connect(move |connection, _| {
        Box::pin(async move {
            let mut handle = connection.lock_handle().await?;
            handle.set_progress_handler(STEP_INSTRUCTIONS, move || {
                after_step();
                // The statement goes on.
                true
            });
            Ok(())
        })
    })
}

async fn check_version(conn: &mut SqliteConnection, path: &Path) -> Result<(), OpenError> {
    let found: String = sqlx::query_scalar("SELECT sqlite_version()")
        .fetch_one(conn)
        .await
        .map_err(|error| OpenError::from_sqlx(path, &error))?;
    if version(&found) < Some(OLDEST_SQLITE) {
        return Err(OpenError::OldSqlite {
            found,
            required: OLDEST_SQLITE_TEXT,
        });
    }
    Ok(())
}

fn version(text: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = text.split('.').map(str::parse);
    match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor)), patch) => {
            Some((major, minor, patch.and_then(Result::ok).unwrap_or(0)))
        }
        _ => None,
    }
}

/// It changes nothing, and fails where nothing can be changed. BEGIN IMMEDIATE would not fail there.
const TRY_TO_WRITE: &str = "DELETE FROM pepper WHERE 0";

/// Why the database can only be read, if that is so: SQLite opens it all the same, and only a write shows it.
pub(super) async fn read_only(conn: &mut SqliteConnection, path: &Path) -> Option<OpenError> {
    let tried = sqlx::query(TRY_TO_WRITE).execute(conn).await;
    let problem = OpenError::from_sqlx(path, &tried.err()?);
    matches!(problem, OpenError::ReadOnly(_)).then_some(problem)
}

/// Brings the schema up to date. Two processes may start at the same time, and sqlx takes no lock for
/// SQLite, so all migrations run under one write lock. If the schema is up to date, no lock is needed, and a
/// read-only database still works.
async fn migrate(conn: &mut SqliteConnection, path: &Path) -> Result<(), OpenError> {
    let failed = |error: sqlx::Error| OpenError::from_sqlx(path, &error);
    let migrator = Migrator::with_migrations(migrations());
    let known = migrator.iter().map(|m| m.version).max().unwrap_or(0);
    match schema(conn, path).await? {
        Some(found) if found == known => {
            if never_shrinks(conn).await {
                warn_of_size(path, "an earlier start did not get it done");
            }
            return verify(&migrator, conn, path).await;
        }
        Some(found) if found > known => {
            return Err(OpenError::Newer {
                path: path.to_owned(),
                found,
                known,
            });
        }
        _ => {}
    }
    // A new database can shrink from its first page on.
    let shrinks = sqlx::query("PRAGMA auto_vacuum = INCREMENTAL");
    shrinks.execute(&mut *conn).await.map_err(failed)?;
    let mut tx = conn.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
    migrator
        .run_direct(None, &mut *tx, false)
        .await
        .map_err(|error| schema_error(path, error))?;
    tx.commit().await.map_err(failed)?;
    allow_shrinking(conn, path).await;
    Ok(())
}

/// Whether an older version made the database so that it never shrinks.
async fn never_shrinks(conn: &mut SqliteConnection) -> bool {
    let mode = sqlx::query_scalar("PRAGMA auto_vacuum").fetch_one(conn);
    matches!(mode.await, Ok(0_i64))
}

/// Writes a database anew that never shrinks. Once, after its schema has changed: this takes as long as copying the file,
/// and as much space. If it fails, or the start is interrupted here, it is not tried again: the start may have been ended because of
/// this work.
async fn allow_shrinking(conn: &mut SqliteConnection, path: &Path) {
    if !never_shrinks(conn).await {
        return;
    }
    // The copy would be in memory otherwise.
    let on_disk = sqlx::query("PRAGMA temp_store = FILE").execute(&mut *conn);
    let written = match on_disk.await {
        Ok(_) => sqlx::query("VACUUM").execute(&mut *conn).await,
        Err(error) => Err(error),
    };
    // As `TEMP_STORE`. Only the speed of this connection depends on it.
    let again = sqlx::query("PRAGMA temp_store = MEMORY");
    drop(again.execute(conn).await);
    if let Err(error) = written {
        warn_of_size(path, &error.to_string());
    }
}

fn warn_of_size(path: &Path, reason: &str) {
    tracing::warn!(
        database = %path.display(),
        error = reason,
        "the database was not written anew, so it does not shrink; to let it shrink, stop Diarist and run \
         sqlite3 FILE 'PRAGMA auto_vacuum = 2; VACUUM'"
    );
}

/// The newest applied migration; `None` in an empty database.
async fn schema(conn: &mut SqliteConnection, path: &Path) -> Result<Option<i64>, OpenError> {
    let failed = |error: sqlx::Error| OpenError::from_sqlx(path, &error);
    let (tables, ours): (i64, i64) = sqlx::query_as(HAS_SCHEMA)
        .fetch_one(&mut *conn)
        .await
        .map_err(failed)?;
    match (tables, ours) {
        (0, _) => Ok(None),
        (_, 0) => Err(OpenError::Foreign(path.to_owned())),
        _ => {
            let application: i64 = sqlx::query_scalar("PRAGMA application_id")
                .fetch_one(&mut *conn)
                .await
                .map_err(failed)?;
            if application != APPLICATION {
                return Err(OpenError::Foreign(path.to_owned()));
            }
            sqlx::query_scalar("SELECT max(version) FROM _sqlx_migrations")
                .fetch_one(conn)
                .await
                .map_err(failed)
        }
    }
}

/// "DiAr": the application id that the first migration writes into the header of the file.
const APPLICATION: i64 = 0x4469_4172;

/// Compares the checksums of the applied migrations with those of this program. Writes nothing.
async fn verify(
    migrator: &Migrator,
    conn: &mut SqliteConnection,
    path: &Path,
) -> Result<(), OpenError> {
    let applied: Vec<(i64, Vec<u8>)> =
        sqlx::query_as("SELECT version, checksum FROM _sqlx_migrations WHERE success ORDER BY 1")
            .fetch_all(conn)
            .await
            .map_err(|error| OpenError::from_sqlx(path, &error))?;
    let held = migrator.iter().map(|m| (m.version, m.checksum.to_vec()));
    if held.eq(applied) {
        return Ok(());
    }
    Err(OpenError::Schema {
        path: path.to_owned(),
        reason: "the applied migrations differ from those of this version".to_owned(),
    })
}

fn schema_error(path: &Path, error: MigrateError) -> OpenError {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
            OpenError::from_sqlx(path, &error)
        }
        error => OpenError::Schema {
            path: path.to_owned(),
            reason: error.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A million instructions.
    const LONG_STATEMENT: &str = "
        WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 100000)
        SELECT max(n) FROM numbers";

    #[tokio::test]
    async fn a_long_statement_calls_the_step_hook_many_times() {
        static STEPS: AtomicU32 = AtomicU32::new(0);
        let count = || {
            STEPS.fetch_add(1, Ordering::Relaxed);
        };
        let options = SqliteConnectOptions::from_str("sqlite::memory:").expect("options");
        let pool = in_steps(pool(1, BUSY_TIMEOUT), count).connect_lazy_with(options);
        let largest: i64 = sqlx::query_scalar(LONG_STATEMENT)
            .fetch_one(&pool)
            .await
            .expect("an answer");
        assert_eq!(largest, 100_000);
        assert!(STEPS.load(Ordering::Relaxed) > 1_000);
    }

    #[test]
    fn every_migration_file_is_in_the_migration_list() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/sqlite");
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .expect("the folder")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        files.sort();
        let on_disk: Vec<_> = files
            .iter()
            .map(|path| {
                let name = path
                    .file_stem()
                    .expect("a name")
                    .to_string_lossy()
                    .into_owned();
                (name, std::fs::read_to_string(path).expect("text"))
            })
            .collect();
        let held: Vec<_> = migrations()
            .into_iter()
            .map(|m| {
                let name = format!("{:04}_{}", m.version, m.description);
                (name, m.sql.as_str().to_owned())
            })
            .collect();
        assert_eq!(on_disk, held);
    }

    /// Migration 12 keeps what the recorded requests were sent with, each for its model.
    #[tokio::test]
    async fn migration_12_keeps_what_recorded_requests_were_sent_with() {
        let options = SqliteConnectOptions::from_str("sqlite::memory:").expect("a url");
        let mut conn = options.foreign_keys(true).connect().await.expect("open");
        let before = migrations()
            .into_iter()
            .filter(|m| m.version < 12)
            .collect();
        let apply = Migrator::with_migrations(before);
        apply.run_direct(None, &mut conn, false).await.expect("old");
        let rows = "
            INSERT INTO lineages (id, tenant, resource, model, requests, first_ms, last_ms)
            VALUES (1, zeroblob(32), x'', 'b', 2, 1, 2);
            INSERT INTO requests (tenant, resource, tip, count, lineage, snapshot, placement, model,
                                  times, first_ms, last_ms, asked_usage, trimmed_to, trim_pin,
                                  trim_wording)
            VALUES (zeroblob(32), x'', x'01', 7, 1, 3, 'segments', 'a', 2, 10, 20, 1, 5, 4, 2),
                   (zeroblob(32), x'', x'02', 9, 1, NULL, '', 'b', 1, 30, 30, NULL, NULL, NULL, NULL)";
        sqlx::raw_sql(rows).execute(&mut conn).await.expect("rows");
        let query = "
            SELECT group_concat(concat_ws(' ', hex(tip), count, lineage, snapshot, placement, model,
                                          times, first_ms, last_ms, asked_usage, trimmed_to,
                                          trim_pin, trim_wording), ', ' ORDER BY tip)
            FROM requests";
        let old: String = sqlx::query_scalar(query)
            .fetch_one(&mut conn)
            .await
            .expect("said");
        let path = Path::new("memory");
        migrate(&mut conn, path).await.expect("migrated");
        let new: String = sqlx::query_scalar(query)
            .fetch_one(&mut conn)
            .await
            .expect("said");
        assert_eq!(new, old);
        assert!(
            new.starts_with("01 7 1 3 segments a 2 10 20 1 5 4 2, 02 9"),
            "{new}"
        );
    }

    #[test]
    fn sqlite_versions_are_compared_as_numbers() {
        assert!(version("3.51.3") >= Some(OLDEST_SQLITE));
        assert!(version("3.9.9") < Some(OLDEST_SQLITE));
        assert!(version("3.51.2") < Some(OLDEST_SQLITE));
        assert!(version("4.0") > Some(OLDEST_SQLITE));
        assert!(version("nonsense") < Some(OLDEST_SQLITE));
    }
}
