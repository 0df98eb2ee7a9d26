//! A database that may be missing: it is opened when that is possible, and the proxy works without it
//! until then.
//!
//! If the database cannot be opened at the start, every query returns [`StoreError::NotOpen`] at once. If it is deleted,
//! replaced or damaged later, queries work with what is left. An attempt to open it runs in the background, at most one
//! per interval. Only [`Connection::open_now`] waits for an attempt. Called by
//! [`super::SqliteStore`], which runs every query through here.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::database::{CLOSE_GRACE, Database};
use super::error::OpenError;
use super::failed_writes::FailedWrites;
use super::open;
use super::pepper;
use crate::store::pepper_file::KeptPepper;
use crate::store::{StoreError, StoreResult};
use crate::tasks::Tasks;

/// The database there is now, if any, and when to try again if there is none.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    url: Arc<str>,
    /// The shortest time between two attempts to open the database; `None`: it is never opened again.
    interval: Option<Duration>,
    /// The limit for a query of the request path.
    request_timeout: Duration,
    /// Whether other processes may serve with the same database.
    shared: bool,
    pepper: KeptPepper,
    failed_writes: Arc<FailedWrites>,
    state: Arc<Mutex<ConnectionState>>,
    tasks: Tasks,
}

#[derive(Debug, Default)]
struct ConnectionState {
    database: Option<Arc<Database>>,
    /// Why there is no database, or why the last attempt to open it again failed.
    last_error: String,
    last_attempt: Option<Instant>,
    opening: bool,
    closed: bool,
    /// How often another database took the place of an open one.
    reopenings: u64,
}

impl Connection {
    /// Opens nothing yet. The first query starts the first attempt.
    pub(super) fn reopening(url: &str, interval: Duration, request_timeout: Duration) -> Self {
        let state = ConnectionState {
            last_error: "not opened yet".to_owned(),
            ..ConnectionState::default()
        };
        Self::new(url, Some(interval), request_timeout, state)
    }

    /// An open database. If it is lost, it is not opened again.
    pub(super) fn fixed(url: &str, database: Database) -> Self {
        let request_timeout = database.request_timeout();
        let state = ConnectionState {
            database: Some(Arc::new(database)),
            ..ConnectionState::default()
        };
        Self::new(url, None, request_timeout, state)
    }

    fn new(
        url: &str,
        interval: Option<Duration>,
        request_timeout: Duration,
        state: ConnectionState,
    ) -> Self {
        Self {
            url: url.into(),
            interval,
            request_timeout,
            shared: false,
            pepper: KeptPepper::default(),
            failed_writes: Arc::default(),
            state: Arc::new(Mutex::new(state)),
            tasks: Tasks::new(),
        }
    }

    #[cfg(feature = "testing")]
    pub(super) fn set_reopen_interval(&mut self, interval: Duration) {
        self.interval = Some(interval);
    }

    /// Lets other processes serve with the same database.
    #[cfg(feature = "testing")]
    pub(super) fn share(&mut self) {
        self.shared = true;
    }

    pub(super) fn set_pepper(&mut self, pepper: KeptPepper) {
        self.pepper = pepper;
    }

    /// The file that holds the pepper, if one does.
    pub(super) fn pepper_file(&self) -> Option<&Path> {
        self.pepper.file.as_ref().map(|file| &*file.path)
    }

    pub(super) fn set_background(&mut self, runtime: Handle) {
        self.tasks = std::mem::take(&mut self.tasks).with_background(runtime);
    }

    /// The database, and why it can only be read if that is so.
    async fn open(&self) -> Result<(Database, Option<OpenError>), OpenError> {
        let database = if self.shared {
            Database::open(&self.url, self.request_timeout, &self.failed_writes).await?
        } else {
            let lost = self.lock().database.clone();
            let held = lost.and_then(|lost| lost.process_lock());
            Database::open_to_serve(&self.url, self.request_timeout, &self.failed_writes, held)
                .await?
        };
        if let Some(path) = database.path() {
            let failed = |error| OpenError::from_sqlx(path, &error);
            let mut conn = database.writer.acquire().await.map_err(failed)?;
            pepper::settle(&mut conn, path, &self.pepper).await?;
            let read_only = open::read_only(&mut conn, path).await;
            conn.keep();
            return Ok((database, read_only));
        }
        Ok((database, None))
    }

    /// Compares the pepper with the open database.
    pub(super) async fn verify_pepper(&self) -> Result<(), OpenError> {
        let Ok(database) = self.database() else {
            return Ok(());
        };
        let Some(path) = database.path() else {
            return Ok(());
        };
        let failed = |error| OpenError::from_sqlx(path, &error);
        let mut conn = database.worker_readers.acquire().await.map_err(failed)?;
        pepper::verify(&mut conn, path, &self.pepper.value)
            .await
            .map(drop)
    }

    /// Opens the database now, unless it is open.
    pub(super) async fn open_now(&self) -> Result<(), OpenError> {
        {
            let mut state = self.lock();
            if state.database.is_some() {
                return Ok(());
            }
            state.opening = true;
            state.last_attempt = Some(Instant::now());
        }
        let opened = self.open().await;
        let problem = self.finish_opening(opened, true).await;
        problem.map_or(Ok(()), Err)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ConnectionState> {
        // No code panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database, if there is one now. Otherwise starts an attempt to open it.
    ///
    /// # Errors
    /// [`StoreError::NotOpen`] with the reason of the last failed attempt.
    pub(super) fn database(&self) -> StoreResult<Arc<Database>> {
        let state = self.lock();
        if let Some(database) = &state.database {
            return Ok(Arc::clone(database));
        }
        let last_error = state.last_error.clone();
        drop(state);
        self.start_reopening();
        Err(StoreError::NotOpen(last_error))
    }

    pub(super) fn reopenings(&self) -> u64 {
        self.lock().reopenings
    }

    /// Starts an attempt to open the database again if `result` says that it is unavailable: the
    /// file may be back, its rights may be repaired, or a backup may be in its place. Names the file in the error.
    pub(super) fn check_result<T>(
        &self,
        database: &Database,
        result: StoreResult<T>,
    ) -> StoreResult<T> {
        // A database in memory would be empty after it was opened again.
        let Some(path) = database.path() else {
            return result;
        };
        let named = |reason: String| format!("{}: {reason}", path.display());
        let error = match result {
            Err(StoreError::Unavailable(reason)) => StoreError::Unavailable(named(reason)),
            Err(StoreError::ReadOnly(reason)) => StoreError::ReadOnly(named(reason)),
            result => return result,
        };
        self.start_reopening();
        Err(error)
    }

    /// Starts an attempt, unless one is running or the last one is too recent.
    fn start_reopening(&self) {
        let Some(interval) = self.interval else {
            return;
        };
        let mut state = self.lock();
        let due = state
            .last_attempt
            .is_none_or(|last| last.elapsed() >= interval);
        if state.opening || state.closed || !due {
            return;
        }
        state.opening = true;
        state.last_attempt = Some(Instant::now());
        drop(state);
        let (this, stop) = (self.clone(), self.tasks.token());
        self.tasks.spawn_background("store reopening", async move {
            let opened = this.open().await;
            let failed = this.finish_opening(opened, false).await.is_some();
            // Also if no query fails meanwhile: what is open may be a file that nobody else sees.
            if failed {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = tokio::time::sleep(interval) => this.start_reopening(),
                }
            }
        });
    }

    /// Takes the result of an attempt. If it failed, the old database stays in use: reading may still
    /// work.
    async fn finish_opening(
        &self,
        opened: Result<(Database, Option<OpenError>), OpenError>,
        is_start: bool,
    ) -> Option<OpenError> {
        let (retired, problem) = {
            let mut state = self.lock();
            state.opening = false;
            match opened {
                Ok((database, _)) if state.closed => (Some(Arc::new(database)), None),
                Ok((database, read_only)) => {
                    match read_only.map(|problem| problem.to_string()) {
                        None => {
                            // Behind an error of a query it is opened again every few seconds, which says nothing.
                            if state.database.is_none() || !state.last_error.is_empty() {
                                tracing::info!("the database is open");
                            }
                            state.last_error.clear();
                        }
                        Some(reason) if state.last_error == reason => {}
                        Some(reason) => {
                            // While a connection of this process is open, SQLite keeps what it knows of the rights.
                            tracing::error!(
                                "the database can be read, but not written: {reason}, then restart Diarist. Until then, requests \
                                 get the memory that it has, and nothing is recorded"
                            );
                            state.last_error = reason;
                        }
                    }
                    let retired = state.database.replace(Arc::new(database));
                    state.reopenings += u64::from(retired.is_some());
                    (retired, None)
                }
                Err(error) => {
                    let reason = error.to_string();
                    if state.last_error != reason && !state.closed {
                        if is_start && error.is_wrong_pepper() {
                            // The caller reports it. In time, the start ends with it.
                        } else if state.database.is_some() {
                            tracing::error!(
                                "the database cannot be opened again: {reason}. Until it can, nothing is recorded; it is \
                                 tried again every few seconds"
                            );
                        } else {
                            tracing::error!(
                                "the database cannot be used: {reason}. Until it can, requests pass without memory; it is \
                                 tried again every few seconds"
                            );
                        }
                        state.last_error = reason;
                    }
                    (None, Some(error))
                }
            }
        };
        if let Some(database) = retired {
            database.close().await;
        }
        problem
    }

    /// Ends a running attempt and closes the database. Every later query is refused.
    pub(super) async fn close(&self) {
        let database = {
            let mut state = self.lock();
            state.closed = true;
            "closed".clone_into(&mut state.last_error);
            state.database.take()
        };
        self.tasks.stop(CLOSE_GRACE).await;
        if let Some(database) = database {
            database.close().await;
        }
    }
}
