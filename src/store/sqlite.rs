//! The store in one SQLite file: WAL, one writer, readers apart for requests and for workers.
//!
//! Every verb runs as a task of its own. hyper drops the future of a request when its client hangs
//! up, and a query dropped midway is how a pooled connection comes to answer the next question with
//! the last one's rows; here the caller may go, the query ends in peace. Writes are transactions
//! begun with the write lock, so they never fail halfway for want of it. This file decides how
//! statements are run; `verbs` and the files it calls say which.

mod admin;
mod aliases;
mod costs;
mod error;
#[cfg(test)]
mod fault_tests;
mod message_archive;
mod open;
mod operator_requests;
mod overflow_observe;
mod peer_memory;
mod queue;
mod read;
mod record;
mod snapshots;
#[cfg(test)]
mod statement_tests;
mod timers;
mod verbs;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{Connection as _, Transaction};
use tokio::sync::oneshot;

use crate::tasks::Tasks;

pub use error::OpenError;

use super::{StoreError, sql};

/// What the request path waits for memory at most; then the request goes on by what this process
/// remembers, or raw (INV-OPEN).
pub const REQUEST_TIMEOUT: Duration = Duration::from_millis(250);
/// What closing waits for work in hand: longer than the longest wait for a lock.
const CLOSE_GRACE: Duration = Duration::from_secs(15);

type StoreResult<T> = Result<T, StoreError>;

/// A store in one SQLite file (or in memory, for tests and demonstrations).
pub struct SqliteStore {
    writer: SqlitePool,
    request_pool: SqlitePool,
    worker_pool: SqlitePool,
    file: Option<DatabaseFile>,
    request_timeout: Duration,
    tasks: Tasks,
    other_writers: Arc<OtherWriters>,
}

/// Whether another process writes to the same file. SQLite counts the commits of others for each
/// connection, and all of this process's own go through one.
#[derive(Default)]
struct OtherWriters {
    /// The count when it was last read; 0 before.
    data_version: AtomicI64,
    detected: AtomicBool,
}

impl OtherWriters {
    /// Looks, inside a transaction of the writer.
    async fn check(&self, writer: &mut SqliteConnection) -> StoreResult<()> {
        let now: i64 = sqlx::query_scalar(sql::DATA_VERSION)
            .fetch_one(writer)
            .await?;
        let before = self.data_version.swap(now, Ordering::Relaxed);
        if before != 0 && before != now {
            self.detected.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// The file that was opened. SQLite goes on writing into a file that was deleted or replaced, and
/// everything written so is lost.
#[derive(Clone)]
struct DatabaseFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl SqliteStore {
    /// Opens, or makes, the database `url` names (`sqlite:///absolute/path`, `sqlite::memory:`) and
    /// brings its schema up to date.
    ///
    /// # Errors
    /// Each says what is wrong and what to do; nothing was changed in a file that is not ours.
    pub async fn open(url: &str) -> Result<Self, OpenError> {
        Self::open_with(url, REQUEST_TIMEOUT).await
    }

    /// The same, where reads of the request path may take `request_timeout`.
    ///
    /// # Errors
    /// As [`SqliteStore::open`].
    pub async fn open_with(url: &str, request_timeout: Duration) -> Result<Self, OpenError> {
        let pools = open::open(url, request_timeout).await?;
        Ok(Self::from_pools(pools, request_timeout).await)
    }

    /// Opens the database `url` names for reading, while a Diarist may be writing it. Makes
    /// nothing and changes no schema; verbs that write fail.
    ///
    /// # Errors
    /// As [`SqliteStore::open`]; also where there is no such file, or an older Diarist made it.
    pub async fn open_to_read(url: &str) -> Result<Self, OpenError> {
        let pools = open::open_to_read(url).await?;
        Ok(Self::from_pools(pools, REQUEST_TIMEOUT).await)
    }

    async fn from_pools(pools: open::Pools, request_timeout: Duration) -> Self {
        let file = match pools.path {
            None => None,
            Some(path) => Some(DatabaseFile {
                identity: file_identity(&path).await,
                path,
            }),
        };
        Self {
            writer: pools.writer,
            request_pool: pools.request_pool,
            worker_pool: pools.worker_pool,
            file,
            request_timeout,
            tasks: Tasks::new(),
            other_writers: Arc::default(),
        }
    }

    /// Whether it lives in memory only: then closing it deletes it.
    pub fn in_memory(&self) -> bool {
        self.file.is_none()
    }

    /// Runs `work` as a task that ends by itself, whatever becomes of the caller.
    async fn run_detached<T, F>(&self, name: &'static str, work: F) -> StoreResult<T>
    where
        T: Send + 'static,
        F: Future<Output = StoreResult<T>> + Send + 'static,
    {
        let (done, answer) = oneshot::channel();
        self.tasks.spawn(name, async move {
            // The caller may have gone; what was done is done.
            let _gone = done.send(work.await);
        });
        answer
            .await
            .unwrap_or_else(|_| Err(StoreError::Unavailable("a query was ended".to_owned())))
    }

    /// A query of the request path.
    async fn request_read<T, W>(&self, name: &'static str, work: W) -> StoreResult<T>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, StoreResult<T>>
            + Send
            + 'static,
    {
        let pool = self.request_pool.clone();
        let query = self.run_detached(name, async move {
            let mut conn = pool.acquire().await?;
            work(&mut conn).await
        });
        tokio::time::timeout(self.request_timeout, query)
            .await
            .unwrap_or_else(|_| {
                Err(StoreError::Busy(format!(
                    "no answer within {} ms",
                    self.request_timeout.as_millis()
                )))
            })
    }

    /// Queries of workers and people: one view of the database for all of them.
    async fn read<T, W>(&self, name: &'static str, work: W) -> StoreResult<T>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, StoreResult<T>>
            + Send
            + 'static,
    {
        let pool = self.worker_pool.clone();
        self.run_detached(name, transaction(pool, "BEGIN", work))
            .await
    }

    /// One write transaction.
    async fn write<T, W>(&self, name: &'static str, work: W) -> StoreResult<T>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, StoreResult<T>>
            + Send
            + 'static,
    {
        let (pool, file) = (self.writer.clone(), self.file.clone());
        self.run_detached(name, async move {
            if let Some(file) = file {
                file.check_unchanged().await?;
            }
            transaction(pool, "BEGIN IMMEDIATE", work).await
        })
        .await
    }
}

/// Runs `work` between `begin` and COMMIT.
///
/// After a full disk or an I/O error SQLite has rolled back by itself; sqlx does not know, takes the
/// failing ROLLBACK for an open transaction and would refuse every later one on that connection. So
/// a connection whose transaction did not end cleanly is thrown away.
async fn transaction<T, W>(pool: SqlitePool, begin: &'static str, work: W) -> StoreResult<T>
where
    W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, StoreResult<T>>,
{
    let mut conn = pool.acquire().await?;
    let mut tx: Transaction<'_, _> = conn.begin_with(begin).await?;
    let (answer, clean) = match work(&mut tx).await {
        Ok(value) => match tx.commit().await {
            Ok(()) => (Ok(value), true),
            Err(error) => (Err(error.into()), false),
        },
        Err(error) => (Err(error), tx.rollback().await.is_ok()),
    };
    if !clean {
        // Its error would say no more than the first.
        let _closed = conn.detach().close_hard().await;
    }
    answer
}

impl DatabaseFile {
    async fn check_unchanged(&self) -> StoreResult<()> {
        let now = file_identity(&self.path).await;
        if now.is_some() && now == self.identity {
            return Ok(());
        }
        Err(StoreError::Unavailable(format!(
            "the database {} was deleted or replaced while in use",
            self.path.display()
        )))
    }
}

/// What tells a file from another one put in its place.
async fn file_identity(path: &std::path::Path) -> Option<(u64, u64)> {
    let metadata = tokio::fs::metadata(path).await.ok()?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        Some((metadata.dev(), metadata.ino()))
    }
    #[cfg(not(unix))]
    {
        // Elsewhere an open file can be neither deleted nor replaced.
        let _ = metadata;
        Some((0, 0))
    }
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = self.file.as_ref().map(|file| &file.path);
        f.debug_struct("SqliteStore")
            .field("path", &path)
            .finish_non_exhaustive()
    }
}
