//! One open database: its connections, and how a query or a transaction runs on them.
//!
//! Every query runs as a task of its own. hyper drops the future of a request when its client hangs
//! up. A query that is dropped midway leaves its connection with unread rows, and the next query on
//! that connection could get them. So the caller may go, and the query still ends normally. A write
//! is a transaction that begins with the write lock; it never fails halfway because it cannot get it.
//! This file never opens a lost database again ([`super::connection`] does) and knows no statement of
//! a verb.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sqlx::Connection as _;
use sqlx::sqlite::SqliteConnection;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::connections::Connections;
use super::error::OpenError;
use super::failed_writes::FailedWrites;
use super::fill_known_keys::fill_known_keys;
use super::known_keys::KnownKeys;
use super::large_reads::LargeReads;
use super::open;
use super::place::file_identity;
use super::process_lock::ProcessLock;
use super::shrink;
use crate::history::{Link, Scope, ScopedHash};
use crate::store::{LookupKeys, StoreError, StoreResult};
use crate::tasks::Tasks;

/// The request path waits this long for the store. Then the request goes on with what this process
/// remembers, or raw (INV-OPEN).
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_millis(250);
/// Closing waits this long for running queries: longer than the longest wait for a lock.
pub(super) const CLOSE_GRACE: Duration = Duration::from_secs(15);

/// Changes whenever another connection has committed something.
const DATA_VERSION: &str = "PRAGMA data_version";

/// After this long without a write, the journal is copied into the database and emptied: the next commit need not
/// do it, and deleted text is gone.
const CHECKPOINT_AFTER: Duration = Duration::from_secs(2);

/// The connections to one open database.
pub(super) struct Database {
    pub(super) writer: Connections,
    /// Those of the request path.
    pub(super) request_readers: Connections,
    /// Those of workers and of the command line.
    pub(super) worker_readers: Connections,
    file: Option<DatabaseFile>,
    request_timeout: Duration,
    tasks: Tasks,
    /// Told of every write.
    written: Arc<Notify>,
    failed_writes: Arc<FailedWrites>,
    /// Ends the task that waits for a pause, also where a lost database is dropped without being closed.
    _stop: DropGuard,
    other_writers: Arc<OtherWriters>,
    known_keys: Arc<KnownKeys>,
    large_reads: LargeReads,
    /// Held while this process serves with the file.
    lock: Mutex<Option<Arc<ProcessLock>>>,
}

/// Statements that one connection runs.
pub(super) trait Work<T>:
    for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, StoreResult<T>> + Send + 'static
{
}

impl<T, W> Work<T> for W where
    W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, StoreResult<T>> + Send + 'static
{
}

/// Whether another process writes to the same file. SQLite counts, for each connection, the commits
/// of all other connections. All writes of this process go through one connection, so that
/// connection's count changes only when another process writes.
#[derive(Default)]
pub(super) struct OtherWriters {
    /// The count at the last check; 0 before the first.
    data_version: AtomicI64,
    detected: AtomicBool,
}

impl OtherWriters {
    /// Reads the count. `writer` must be the connection that writes, inside its transaction.
    ///
    /// Returns whether somebody else may have written since the last check.
    pub(super) async fn check(&self, writer: &mut SqliteConnection) -> StoreResult<bool> {
        let now: i64 = sqlx::query_scalar(DATA_VERSION).fetch_one(writer).await?;
        let before = self.data_version.swap(now, Ordering::Relaxed);
        if before != 0 && before != now {
            self.detected.store(true, Ordering::Relaxed);
        }
        Ok(before != now)
    }
}

/// The opened file, as it was then. SQLite keeps writing to a file that was deleted or replaced, and
/// all of that is lost. So every write first compares the file at the path with this.
#[derive(Clone)]
struct DatabaseFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl Database {
    /// Opens or creates the database at `url`, and brings its schema up to date.
    pub(super) async fn open(
        url: &str,
        request_timeout: Duration,
        failed_writes: &Arc<FailedWrites>,
    ) -> Result<Self, OpenError> {
        let connections = open::open(url, request_timeout).await?;
        let mut database = Self::from_connections(connections, request_timeout);
        database.failed_writes = Arc::clone(failed_writes);
        if !database.is_in_memory() {
            let (writer, written) = (database.writer.clone(), Arc::clone(&database.written));
            let failed_writes = Arc::clone(&database.failed_writes);
            let task =
                checkpoint_in_pauses(writer, (written, failed_writes), database.tasks.token());
            database.tasks.spawn("store checkpoints", task);
        }
        Ok(database)
    }

    /// As [`Database::open`], for the process that serves with it: no second one may do so. `held` is the lock of the same
    /// database if this process serves with it already. Reads in the background which keys it holds.
    pub(super) async fn open_to_serve(
        url: &str,
        request_timeout: Duration,
        failed_writes: &Arc<FailedWrites>,
        held: Option<Arc<ProcessLock>>,
    ) -> Result<Self, OpenError> {
        let lock = open::lock(url, held).await?;
        let database = Self::open(url, request_timeout, failed_writes).await?;
        if lock.is_some() {
            *database.lock() = lock;
            let known_keys = Arc::clone(&database.known_keys);
            let readers = database.worker_readers.clone();
            database
                .tasks
                .spawn("store known keys", fill_known_keys(readers, known_keys));
        }
        Ok(database)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<ProcessLock>>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock that this process holds while it serves with the file.
    pub(super) fn process_lock(&self) -> Option<Arc<ProcessLock>> {
        self.lock().clone()
    }

    /// Lets another process take the lock. From now on every request is looked up.
    #[cfg(feature = "testing")]
    pub(super) fn release_lock(&self) {
        *self.lock() = None;
    }

    /// Whether it may hold something that a request with this chain and these keys finds.
    pub(super) fn may_know(&self, scope: &Scope, chain: &[Link], keys: &LookupKeys) -> bool {
        let is_sole_writer = self.lock().is_some();
        !is_sole_writer || !self.known_keys.excludes(scope, chain, keys)
    }

    /// Whether it may hold an answer with this ending.
    pub(super) fn may_know_ending(&self, ending: &ScopedHash) -> bool {
        let is_sole_writer = self.lock().is_some();
        !is_sole_writer || !self.known_keys.excludes_ending(ending)
    }

    /// The keys it may hold.
    pub(super) fn known_keys(&self) -> &Arc<KnownKeys> {
        &self.known_keys
    }

    /// Opens the database at `url` for reading. Creates nothing and changes no schema.
    pub(super) async fn open_to_read(url: &str) -> Result<Self, OpenError> {
        let connections = open::open_to_read(url).await?;
        Ok(Self::from_connections(connections, REQUEST_TIMEOUT))
    }

    fn from_connections(connections: open::OpenConnections, request_timeout: Duration) -> Self {
        let file = connections.path.map(|path| DatabaseFile {
            identity: identity_at(&path),
            path,
        });
        let tasks = Tasks::new();
        Self {
            writer: connections.writer,
            request_readers: connections.request_readers,
            worker_readers: connections.worker_readers,
            file,
            request_timeout,
            written: Arc::default(),
            failed_writes: Arc::default(),
            _stop: tasks.token().drop_guard(),
            tasks,
            other_writers: Arc::default(),
            known_keys: Arc::new(KnownKeys::new()),
            large_reads: LargeReads::new(),
            lock: Mutex::default(),
        }
    }

    /// Whether it is in memory only. Closing such a database deletes it.
    pub(super) fn is_in_memory(&self) -> bool {
        self.file.is_none()
    }

    pub(super) fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// The file; `None` in memory.
    pub(super) fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }

    pub(super) fn other_writers(&self) -> &Arc<OtherWriters> {
        &self.other_writers
    }

    pub(super) fn has_other_writers(&self) -> bool {
        self.other_writers.detected.load(Ordering::Relaxed)
    }

    /// Runs `work` as a task. It ends normally even if the caller is dropped.
    async fn run_detached<T, F>(&self, name: &'static str, work: F) -> StoreResult<T>
    where
        T: Send + 'static,
        F: Future<Output = StoreResult<T>> + Send + 'static,
    {
        let (result_sender, result) = oneshot::channel();
        // `map`, since an `async` block has room for `work` twice.
        let work = work.map(|result| {
            // The caller may be gone. The work is done all the same.
            let _gone = result_sender.send(result);
        });
        self.tasks.spawn(name, work);
        result
            .await
            .unwrap_or_else(|_| Err(StoreError::Unavailable("a query was ended".to_owned())))
    }

    /// Runs one query of the request path, for at most its timeout. `large_read_of` is the account of one that takes long.
    pub(super) async fn request_read<T, W>(
        &self,
        large_read_of: Option<[u8; 32]>,
        name: &'static str,
        work: W,
    ) -> StoreResult<T>
    where
        T: Send + 'static,
        W: Work<T>,
    {
        let readers = self.request_readers.clone();
        let query = async {
            // Outside of the task: a query whose caller is gone gets no turn.
            let turn = match large_read_of {
                Some(account) => self.large_reads.turn(account).await,
                None => None,
            };
            let work = async move {
                let _turn = turn;
                statement(readers, work).await
            };
            self.run_detached(name, work).await
        };
        tokio::time::timeout(self.request_timeout, query)
            .await
            .unwrap_or_else(|_| {
                Err(StoreError::Busy(format!(
                    "no answer within {} ms",
                    self.request_timeout.as_millis()
                )))
            })
    }

    /// Runs queries of workers or of the command line. All of them see the same state.
    pub(super) async fn read<T, W>(&self, name: &'static str, work: W) -> StoreResult<T>
    where
        T: Send + 'static,
        W: Work<T>,
    {
        let readers = self.worker_readers.clone();
        self.run_detached(name, transaction(readers, "BEGIN", work))
            .await
    }

    /// As [`Database::read`], for work that is a single statement. Such a statement sees one state by itself. BEGIN and
    /// COMMIT would be two more trips to SQLite's thread and back.
    pub(super) async fn read_once<T, W>(&self, name: &'static str, work: W) -> StoreResult<T>
    where
        T: Send + 'static,
        W: Work<T>,
    {
        let readers = self.worker_readers.clone();
        self.run_detached(name, statement(readers, work)).await
    }

    /// As [`Database::write`], for work that is a single statement. SQLite makes a transaction of it: it takes the write
    /// lock first, and commits when the statement has been read to its end. So `work` must read all of its rows.
    pub(super) async fn write_once<T, W>(&self, name: &'static str, work: W) -> StoreResult<T>
    where
        T: Send + 'static,
        W: Work<T>,
    {
        let work = statement(self.writer.clone(), work);
        self.run_write(name, work).await
    }

    /// Runs one write transaction.
    pub(super) async fn write<T, W>(&self, name: &'static str, work: W) -> StoreResult<T>
    where
        T: Send + 'static,
        W: Work<T>,
    {
        let work = transaction(self.writer.clone(), "BEGIN IMMEDIATE", work);
        self.run_write(name, work).await
    }

    async fn run_write<T, F>(&self, name: &'static str, work: F) -> StoreResult<T>
    where
        T: Send + 'static,
        F: Future<Output = StoreResult<T>> + Send + 'static,
    {
        let (file, written) = (self.file.clone(), Arc::clone(&self.written));
        let (failed_writes, writer) = (Arc::clone(&self.failed_writes), self.writer.clone());
        self.run_detached(name, async move {
            let Some(file) = file else {
                // In memory there is no journal.
                return work.await;
            };
            file.check_unchanged()?;
            failed_writes.copy_journal(&writer).await;
            let done = work.await;
            failed_writes.note(&done);
            written.notify_one();
            done
        })
        .await
    }

    /// Waits for running queries, then closes the connections.
    pub(super) async fn close(&self) {
        let left = self.tasks.stop(CLOSE_GRACE).await;
        if left > 0 {
            // Closing a pool would wait for the stuck connection without end. The system closes it
            // with the process, and the next start finds the journal.
            tracing::warn!(
                left,
                "{left} queries did not end before the store was closed"
            );
            return;
        }
        self.request_readers.close().await;
        self.worker_readers.close().await;
        // The last connection to close writes the journal back into the database.
        self.writer.close().await;
    }
}

/// Runs [`shrink::tidy`] whenever nobody has written for a while.
async fn checkpoint_in_pauses(
    writer: Connections,
    (written, failed_writes): (Arc<Notify>, Arc<FailedWrites>),
    stop: CancellationToken,
) {
    let mut dirty = failed_writes.have_happened();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = written.notified() => dirty = true,
            () = tokio::time::sleep(CHECKPOINT_AFTER), if dirty => {
                if let Ok(mut conn) = writer.acquire().await {
                    // Where a reader needs the journal, or the disk is full, it is tried again.
                    let tidied = shrink::tidy(&mut conn).await;
                    if tidied.is_ok() {
                        conn.keep();
                    }
                    if matches!(tidied, Ok(true)) {
                        failed_writes.end();
                    }
                    dirty = matches!(tidied, Ok(false) | Err(StoreError::Unavailable(_)));
                }
            }
        }
    }
}

/// Runs `work` between `begin` and COMMIT.
///
/// After a full disk or an I/O error, SQLite has rolled back by itself. sqlx does not know that: its
/// own ROLLBACK fails, it believes that the transaction is still open, and it would refuse every
/// later one on that connection. So a connection is closed if its transaction did not end cleanly.
async fn transaction<T, W>(connections: Connections, begin: &'static str, work: W) -> StoreResult<T>
where
    W: Work<T>,
{
    let mut conn = connections.acquire().await?;
    let mut tx = conn.begin_with(begin).await?;
    let (result, is_clean) = match work(&mut tx).await {
        Ok(value) => match tx.commit().await {
            Ok(()) => (Ok(value), true),
            Err(error) => (Err(error.into()), false),
        },
        Err(error) => (Err(error), tx.rollback().await.is_ok()),
    };
    if is_clean {
        conn.keep();
    } else {
        conn.close_hard().await;
    }
    result
}

/// Runs `work`, a single statement, without a transaction of its own.
async fn statement<T, W>(connections: Connections, work: W) -> StoreResult<T>
where
    W: Work<T>,
{
    let mut conn = connections.acquire().await?;
    let result = work(&mut conn).await;
    if result.is_ok() {
        conn.keep();
    }
    result
}

impl DatabaseFile {
    /// # Errors
    /// [`StoreError::Unavailable`] if the path holds another file now, or none.
    fn check_unchanged(&self) -> StoreResult<()> {
        // Not in a thread of its own: SQLite uses the file all the time, so the system knows this without the disk, and a task
        // on another thread costs ten times as much.
        let now = identity_at(&self.path);
        if now.is_some() && now == self.identity {
            return Ok(());
        }
        let reason = "the database was deleted or replaced while in use";
        Err(StoreError::Unavailable(reason.to_owned()))
    }
}

fn identity_at(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().as_ref().map(file_identity)
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = self.file.as_ref().map(|file| &file.path);
        f.debug_struct("Database")
            .field("path", &path)
            .finish_non_exhaustive()
    }
}
