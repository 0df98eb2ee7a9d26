//! The store in one SQLite file: WAL, one writer, readers apart for requests and for workers.
//!
//! Every verb runs as a task of its own. hyper drops the future of a request when its client hangs
//! up, and a query dropped midway is how a pooled connection comes to answer the next question with
//! the last one's rows; here the caller may go, the query ends in peace. Writes are transactions
//! begun with the write lock, so they never fail halfway for want of it. This file decides how
//! statements are run; `read`, `record`, `queue`, `snapshots` and `people` say which.

mod adopt;
mod books;
mod error;
mod open;
mod people;
#[cfg(test)]
mod plans;
mod queue;
mod read;
mod record;
mod snapshots;
mod timers;
#[cfg(test)]
mod trouble;
mod wishes;

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{Connection as _, Transaction};
use tokio::sync::oneshot;

use crate::history::{Link, Scope};
use crate::memory::{NewPart, Part, PartId, Rendering, Snapshot, SnapshotId, Span};
use crate::tasks::Tasks;

pub use error::OpenError;

use super::{
    Adopted, Adoption, Alarms, Chain, ClaimFilter, Cost, Demanded, Event, Found, Job, Known,
    NewJob, NewSnapshot, Offered, Probes, Record, Release, Revived, Store, StoreError,
    ThreadDetail, ThreadRow, Timer, Waiting, Wanted,
};

/// What the request path waits for memory at most; then the request goes on by what this process
/// remembers, or raw (INV-OPEN).
const REQUEST_BOUND: Duration = Duration::from_millis(250);
/// What closing waits for work in hand: longer than the longest wait for a lock.
const CLOSE_GRACE: Duration = Duration::from_secs(15);

type Answer<T> = Result<T, StoreError>;

/// A store in one SQLite file (or in memory, for tests and demonstrations).
pub struct SqliteStore {
    writer: SqlitePool,
    front: SqlitePool,
    back: SqlitePool,
    file: Option<File>,
    tasks: Tasks,
}

/// The file that was opened. SQLite goes on writing into a file that was deleted or replaced, and
/// everything written so is lost.
#[derive(Clone)]
struct File {
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
        Ok(Self::over(open::open(url).await?).await)
    }

    /// Opens the database `url` names for reading, while a Diarist may be writing it. Makes
    /// nothing and changes no schema; verbs that write fail.
    ///
    /// # Errors
    /// As [`SqliteStore::open`]; also where there is no such file, or an older Diarist made it.
    pub async fn open_to_read(url: &str) -> Result<Self, OpenError> {
        Ok(Self::over(open::open_to_read(url).await?).await)
    }

    async fn over(pools: open::Pools) -> Self {
        let file = match pools.path {
            None => None,
            Some(path) => Some(File {
                identity: identity(&path).await,
                path,
            }),
        };
        Self {
            writer: pools.writer,
            front: pools.front,
            back: pools.back,
            file,
            tasks: Tasks::new(),
        }
    }

    /// Whether it lives in memory only: then closing it deletes it.
    pub fn in_memory(&self) -> bool {
        self.file.is_none()
    }

    /// Runs `work` as a task that ends by itself, whatever becomes of the caller.
    async fn detached<T, F>(&self, name: &'static str, work: F) -> Answer<T>
    where
        T: Send + 'static,
        F: Future<Output = Answer<T>> + Send + 'static,
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
    async fn hurried<T, W>(&self, name: &'static str, work: W) -> Answer<T>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Answer<T>> + Send + 'static,
    {
        let pool = self.front.clone();
        let query = self.detached(name, async move {
            let mut conn = pool.acquire().await?;
            work(&mut conn).await
        });
        tokio::time::timeout(REQUEST_BOUND, query)
            .await
            .unwrap_or_else(|_| {
                Err(StoreError::Busy(format!(
                    "no answer within {} ms",
                    REQUEST_BOUND.as_millis()
                )))
            })
    }

    /// Queries of workers and people: one view of the database for all of them.
    async fn read<T, W>(&self, name: &'static str, work: W) -> Answer<T>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Answer<T>> + Send + 'static,
    {
        let pool = self.back.clone();
        self.detached(name, transaction(pool, "BEGIN", work)).await
    }

    /// One write transaction.
    async fn write<T, W>(&self, name: &'static str, work: W) -> Answer<T>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Answer<T>> + Send + 'static,
    {
        let (pool, file) = (self.writer.clone(), self.file.clone());
        self.detached(name, async move {
            if let Some(file) = file {
                file.still_there().await?;
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
async fn transaction<T, W>(pool: SqlitePool, begin: &'static str, work: W) -> Answer<T>
where
    W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Answer<T>>,
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

impl File {
    async fn still_there(&self) -> Answer<()> {
        let now = identity(&self.path).await;
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
async fn identity(path: &std::path::Path) -> Option<(u64, u64)> {
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

#[async_trait]
impl Store for SqliteStore {
    async fn trace(&self, scope: &Scope, chain: &[Link], probes: &Probes) -> Answer<Found> {
        let Some(request) = read::Request::of(chain, probes) else {
            return Ok(Found::default());
        };
        let scope = scope.clone();
        self.hurried("store find", move |conn| {
            Box::pin(read::find(conn, scope, request))
        })
        .await
    }

    async fn snapshot(&self, scope: &Scope, id: SnapshotId) -> Answer<Option<Snapshot>> {
        let scope = scope.clone();
        self.hurried("store snapshot", move |conn| {
            Box::pin(read::snapshot(conn, scope, id))
        })
        .await
    }

    async fn known(&self, scope: &Scope, chain: &[Link]) -> Answer<Known> {
        if chain.is_empty() {
            return Ok(Known::default());
        }
        let (scope, probes) = (scope.clone(), super::rows::probes(chain));
        self.read("store known", move |conn| {
            Box::pin(read::known(conn, scope, probes))
        })
        .await
    }

    async fn record(&self, scope: &Scope, record: &Record) -> Answer<i64> {
        let (scope, record) = (scope.clone(), record.clone());
        self.write("store record", move |conn| {
            Box::pin(record::record(conn, scope, record))
        })
        .await
    }

    async fn adopt(&self, scope: &Scope, record: &Record, adoption: &Adoption) -> Answer<Adopted> {
        let (scope, record, adoption) = (scope.clone(), record.clone(), adoption.clone());
        self.write("store adopt", move |conn| {
            Box::pin(adopt::adopt(conn, scope, record, adoption))
        })
        .await
    }

    async fn parts(&self, scope: &Scope, parts: &[PartId]) -> Answer<Vec<Part>> {
        let (scope, parts) = (scope.clone(), parts.to_vec());
        self.read("store parts", move |conn| {
            Box::pin(read::parts(conn, scope, parts))
        })
        .await
    }

    async fn chunk_ending(&self, scope: &Scope, to: Link) -> Answer<Option<Part>> {
        let scope = scope.clone();
        self.read("store chunk", move |conn| {
            Box::pin(read::chunk_ending(conn, scope, to))
        })
        .await
    }

    async fn offer(&self, scope: &Scope, job: &NewJob, at_ms: i64) -> Answer<Offered> {
        let (scope, job) = (scope.clone(), job.clone());
        self.write("store offer", move |conn| {
            Box::pin(queue::offer(conn, scope, job, at_ms))
        })
        .await
    }

    async fn claim(&self, filter: &ClaimFilter, now_ms: i64, lease_ms: i64) -> Answer<Option<Job>> {
        let filter = filter.clone();
        self.write("store claim", move |conn| {
            Box::pin(queue::claim(conn, filter, now_ms, lease_ms))
        })
        .await
    }

    async fn steer(
        &self,
        scope: &Scope,
        ends: &[Link],
        way: Option<[u8; 32]>,
        urgency: u32,
    ) -> Answer<()> {
        let (scope, ends) = (scope.clone(), super::rows::probes(ends));
        self.write("store steer", move |conn| {
            Box::pin(queue::steer(conn, scope, ends, way, urgency))
        })
        .await
    }

    async fn pay(&self, scope: &Scope, tip: Link, cost: Cost, at_ms: i64) -> Answer<u64> {
        let scope = scope.clone();
        self.write("store pay", move |conn| {
            Box::pin(books::pay(conn, scope, tip, cost, at_ms))
        })
        .await
    }

    async fn note(&self, scope: &Scope, tip: Link, events: &[Event]) -> Answer<Vec<Event>> {
        let (scope, events) = (scope.clone(), events.to_vec());
        self.write("store note", move |conn| {
            Box::pin(books::note(conn, scope, tip, events))
        })
        .await
    }

    async fn waiting(&self, at_ms: i64) -> Answer<Vec<Waiting>> {
        self.read("store waiting", move |conn| {
            Box::pin(books::waiting(conn, at_ms))
        })
        .await
    }

    async fn commit_by_code(
        &self,
        scope: &Scope,
        part: &NewPart,
        at_ms: i64,
    ) -> Answer<Option<PartId>> {
        let (scope, part) = (scope.clone(), part.clone());
        self.write("store commit by code", move |conn| {
            Box::pin(queue::commit_by_code(conn, scope, part, at_ms))
        })
        .await
    }

    async fn commit_part(&self, job: &Job, part: &NewPart, at_ms: i64) -> Answer<Option<PartId>> {
        let (held, part) = (queue::Held::of(job), part.clone());
        self.write("store commit part", move |conn| {
            Box::pin(queue::commit_part(conn, held, part, at_ms))
        })
        .await
    }

    async fn renew(&self, job: &Job, until_ms: i64) -> Answer<bool> {
        let held = queue::Held::of(job);
        self.write("store renew", move |conn| {
            Box::pin(queue::renew(conn, held, until_ms))
        })
        .await
    }

    async fn release(&self, job: &Job, how: Release) -> Answer<()> {
        let held = queue::Held::of(job);
        self.write("store release", move |conn| {
            Box::pin(queue::release(conn, held, how))
        })
        .await
    }

    async fn title(&self, scope: &Scope, link: Link) -> Answer<Option<String>> {
        let scope = scope.clone();
        self.read("store title", move |conn| {
            Box::pin(people::title(conn, scope, link))
        })
        .await
    }

    async fn entitle(&self, scope: &Scope, link: Link, title: &str) -> Answer<()> {
        let (scope, title) = (scope.clone(), title.to_owned());
        self.write("store entitle", move |conn| {
            Box::pin(people::entitle(conn, scope, link, title))
        })
        .await
    }

    async fn freeze(
        &self,
        scope: &Scope,
        parts: &[PartId],
        rendering: Rendering,
    ) -> Answer<Vec<Part>> {
        let (scope, parts) = (scope.clone(), parts.to_vec());
        self.write("store freeze", move |conn| {
            Box::pin(snapshots::freeze(conn, scope, parts, rendering))
        })
        .await
    }

    async fn claim_timer(&self, now_ms: i64, until_ms: i64) -> Answer<Option<Timer>> {
        self.write("store claim timer", move |conn| {
            Box::pin(timers::claim(conn, now_ms, until_ms))
        })
        .await
    }

    async fn end_timer(&self, timer: &Timer, left: Option<(Alarms, i64)>) -> Answer<()> {
        let timer = timer.clone();
        self.write("store end timer", move |conn| {
            Box::pin(timers::end(conn, timer, left))
        })
        .await
    }

    async fn next_timer(&self) -> Answer<Option<i64>> {
        self.read("store next timer", |conn| Box::pin(timers::next(conn)))
            .await
    }

    async fn chain(&self, scope: &Scope, tip: Link) -> Answer<Vec<Link>> {
        let scope = scope.clone();
        self.read("store chain", move |conn| {
            Box::pin(read::chain(conn, scope, tip))
        })
        .await
    }

    async fn commit_snapshot(&self, scope: &Scope, snapshot: &NewSnapshot) -> Answer<Snapshot> {
        let (scope, snapshot) = (scope.clone(), snapshot.clone());
        self.write("store commit snapshot", move |conn| {
            Box::pin(snapshots::commit(conn, scope, snapshot))
        })
        .await
    }

    async fn namesakes(&self, scope: &Scope, key: &str, since_ms: i64) -> Answer<u32> {
        let (scope, key) = (scope.clone(), key.to_owned());
        self.read("store namesakes", move |conn| {
            Box::pin(read::namesakes(conn, scope, key, since_ms))
        })
        .await
    }

    async fn open_jobs(&self) -> Answer<u64> {
        self.read("store open jobs", |conn| Box::pin(queue::open_jobs(conn)))
            .await
    }

    async fn threads(&self, limit: u32) -> Answer<Vec<ThreadRow>> {
        self.read("store threads", move |conn| {
            Box::pin(people::threads(conn, limit))
        })
        .await
    }

    async fn thread(&self, lineage: i64) -> Answer<Option<ThreadDetail>> {
        self.read("store thread", move |conn| {
            Box::pin(people::thread(conn, lineage))
        })
        .await
    }

    async fn known_of(&self, lineage: i64) -> Answer<Option<Chain>> {
        self.read("store known of", move |conn| {
            Box::pin(wishes::known_of(conn, lineage))
        })
        .await
    }

    async fn want(&self, scope: &Scope, lineage: i64, wanted: Wanted) -> Answer<bool> {
        let scope = scope.clone();
        self.write("store want", move |conn| {
            Box::pin(wishes::want(conn, scope, lineage, wanted))
        })
        .await
    }

    async fn wanted(&self, scope: &Scope, lineage: i64) -> Answer<Option<Wanted>> {
        let scope = scope.clone();
        self.read("store wanted", move |conn| {
            Box::pin(wishes::wanted(conn, scope, lineage))
        })
        .await
    }

    async fn given(&self, scope: &Scope, lineage: i64) -> Answer<()> {
        let scope = scope.clone();
        self.write("store given", move |conn| {
            Box::pin(wishes::given(conn, scope, lineage))
        })
        .await
    }

    async fn revive(&self, scope: &Scope, lineage: i64, at_ms: i64) -> Answer<Revived> {
        let scope = scope.clone();
        self.write("store revive", move |conn| {
            Box::pin(wishes::revive(conn, scope, lineage, at_ms))
        })
        .await
    }

    async fn demand(&self, scope: &Scope, job: &NewJob, at_ms: i64) -> Answer<Demanded> {
        let scope = scope.clone();
        let job = job.clone();
        self.write("store demand", move |conn| {
            Box::pin(wishes::demand(conn, scope, job, at_ms))
        })
        .await
    }

    async fn words(&self, lineage: i64) -> Answer<Vec<(Span, String)>> {
        self.read("store words", move |conn| {
            Box::pin(wishes::words(conn, lineage))
        })
        .await
    }

    async fn forget(&self, scope: &Scope, lineage: i64) -> Answer<u64> {
        let scope = scope.clone();
        self.write("store forget", move |conn| {
            Box::pin(people::forget(conn, scope, lineage))
        })
        .await
    }

    async fn ping(&self) -> Answer<()> {
        let file = self.file.clone();
        self.hurried("store ping", move |conn| {
            Box::pin(async move {
                if let Some(file) = file {
                    file.still_there().await?;
                }
                read::ping(conn).await
            })
        })
        .await
    }

    async fn close(&self) {
        let left = self.tasks.stop(CLOSE_GRACE).await;
        if left > 0 {
            // Its connection would be waited for without an end. The system closes it, and the
            // next start finds the journal.
            tracing::warn!(
                left,
                "{left} queries did not end before the store was closed"
            );
            return;
        }
        self.front.close().await;
        self.back.close().await;
        // The last connection to close writes the journal back into the database.
        self.writer.close().await;
    }
}
