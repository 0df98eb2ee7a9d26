//! What one process's view of the store knows beside the store: its gate, its ledger, whether its reads are
//! out of date or fail, and the planted bug.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use diarist::jobs::Clock;
use diarist::memory::NewPart;
use diarist::store::{Job, RequestRecord, SqliteStore, StoreError};

use crate::simulation::gate::Gate;
use crate::simulation::ledger::Ledger;
use crate::simulation::planted::Bug;

/// A job as it lies in the queue.
const KEPT: &str = "INSERT INTO jobs (tenant, resource, kind, from_link, from_count, to_link, \
    to_count, state, due_ms, leased, fence, attempts, empty_answers, message_tokens, parts, model, \
    tip, tip_count, payload) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'open', 0, 0, 0, 0, 0, 0, '[]', '', ?6, ?7, ?8)";

/// One process's view of the store.
#[derive(Debug)]
pub struct Watched {
    pub process: usize,
    pub(super) store: Arc<SqliteStore>,
    file: PathBuf,
    /// An older state, which is read where there is one.
    old: Mutex<Option<Arc<SqliteStore>>>,
    /// Every so many reads of a request fail; 0 is none.
    pub failing: AtomicUsize,
    reads: AtomicUsize,
    /// Whether a read failed or was out of date since somebody last asked.
    pub doubtful: AtomicBool,
    misled: AtomicBool,
    pub gate: Gate,
    pub(super) clock: Clock,
    pub(super) ledger: Arc<Mutex<Ledger>>,
    pub(super) bug: Option<Bug>,
    chance: AtomicUsize,
}

impl Watched {
    pub fn new(
        process: usize,
        (store, file): (Arc<SqliteStore>, PathBuf),
        clock: Clock,
        ledger: Arc<Mutex<Ledger>>,
        bug: Option<Bug>,
    ) -> Self {
        Self {
            process,
            store,
            file,
            old: Mutex::default(),
            failing: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            doubtful: AtomicBool::new(false),
            misled: AtomicBool::new(false),
            gate: Gate::default(),
            clock,
            ledger,
            bug,
            chance: AtomicUsize::new(0),
        }
    }

    /// Its process is gone.
    pub fn release_lock(&self) {
        self.store.release_lock();
    }

    pub(super) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }

    /// Reads are answered from `old` until they are told otherwise.
    pub fn read_from(&self, old: Option<Arc<SqliteStore>>) {
        self.misled.fetch_or(old.is_some(), Ordering::SeqCst);
        *self.old.lock().unwrap() = old;
    }

    /// Whether a read was ever out of date: what follows from one may be as well.
    pub(super) fn doubtful_ever(&self) -> bool {
        self.misled.load(Ordering::SeqCst)
    }

    /// Who answers a read.
    pub(super) fn reader(&self) -> Arc<SqliteStore> {
        let old = self.old.lock().unwrap().clone();
        if old.is_some() {
            self.doubtful.store(true, Ordering::SeqCst);
        }
        old.unwrap_or_else(|| Arc::clone(&self.store))
    }

    /// Whether this read of a request fails.
    pub(super) fn fails(&self) -> Result<(), StoreError> {
        let every = self.failing.load(Ordering::SeqCst);
        let read = self.reads.fetch_add(1, Ordering::SeqCst) + 1;
        if every > 0 && read.is_multiple_of(every) {
            self.doubtful.store(true, Ordering::SeqCst);
            return Err(StoreError::Busy("as the run says".to_owned()));
        }
        Ok(())
    }

    /// Puts a job back that was done, as a store that forgot to delete it would hold it.
    pub(super) async fn keep(&self, job: &Job, part: &NewPart) {
        use sqlx::Connection as _;
        let file = format!("sqlite://{}", self.file.display());
        let mut conn = sqlx::SqliteConnection::connect(&file).await.unwrap();
        sqlx::query(KEPT)
            .bind(job.scope.tenant.as_slice())
            .bind(job.scope.resource_key())
            .bind(part.kind.name())
            .bind(part.span.from.as_bytes().as_slice())
            .bind(i64::try_from(part.span.from_count).unwrap())
            .bind(part.span.to.as_bytes().as_slice())
            .bind(i64::try_from(part.span.to_count).unwrap())
            .bind(&job.spec.payload)
            .execute(&mut conn)
            .await
            .unwrap();
        conn.close().await.unwrap();
    }

    /// Spoils the timer that a request sets.
    pub(super) fn set_timer(&self, record: &mut RequestRecord) {
        if self.has(Bug::TimerNotMoved) && record.lineage.is_some() {
            record.timer = None;
        }
        if let Some(timer) = record.timer.as_mut().filter(|_| self.has(Bug::NeverIdle)) {
            timer.alarms.activate_ms = Some(record.at_ms);
        }
    }

    /// Whether a bug that would show too often strikes now.
    pub(super) fn strikes(&self) -> usize {
        self.chance.fetch_add(1, Ordering::SeqCst)
    }
}
