//! Deletes what is too old (`store.retention`, `store.job_retention`), and measures the database. Called by `app`.
//!
//! Works in short transactions, so that the recorder can write between them. A conversation that goes on after it was
//! deleted begins anew.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::conversation_caches::ConversationCaches;
use crate::config::{Config, Database};
use crate::store::{Forgetting as _, SqliteStore, StoreResult};
use crate::telemetry;

/// How often old rows are looked for.
const EXPIRY_INTERVAL: Duration = Duration::from_mins(10);

/// How often the files are measured.
const MEASURE_INTERVAL: Duration = Duration::from_secs(15);

/// Conversations that are deleted in one transaction.
const THREADS_AT_ONCE: u32 = 20;

/// Deletes old rows of one database.
pub(super) struct Housekeeping {
    store: Arc<SqliteStore>,
    caches: ConversationCaches,
    retention: Option<Duration>,
    job_retention: Duration,
    /// The database file; `None` in memory.
    file: Option<PathBuf>,
}

impl Housekeeping {
    pub(super) fn new(
        store: &Arc<SqliteStore>,
        caches: &ConversationCaches,
        config: &Config,
    ) -> Self {
        Self {
            store: Arc::clone(store),
            caches: caches.clone(),
            retention: config.retention,
            job_retention: config.job_retention,
            file: match &config.database {
                Database::Sqlite(path) => Some(path.clone()),
                Database::SqliteInMemory => None,
            },
        }
    }

    pub(super) async fn run(self, stop: CancellationToken) {
        let mut expiry = tokio::time::interval(EXPIRY_INTERVAL);
        let mut measure = tokio::time::interval(MEASURE_INTERVAL);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = expiry.tick() => self.expire_and_report(&stop).await,
                _ = measure.tick() => self.measure().await,
            }
        }
    }

    async fn expire_and_report(&self, stop: &CancellationToken) {
        match self.expire(stop).await {
            Ok((0, 0)) => {}
            Ok((threads, jobs)) => tracing::info!(
                threads,
                jobs,
                "{threads} conversations and {jobs} waiting model calls were deleted because of their age"
            ),
            Err(error) => tracing::warn!(
                error = %error,
                "old conversations could not be deleted; the next round tries again"
            ),
        }
    }

    /// Deletes what is too old. Returns how many conversations and jobs.
    async fn expire(&self, stop: &CancellationToken) -> StoreResult<(u64, u64)> {
        let now_ms = Timestamp::now().as_millisecond();
        let mut threads = 0;
        if let Some(retention) = self.retention {
            let before_ms = before(now_ms, retention);
            while !stop.is_cancelled() {
                let some = self
                    .store
                    .expire_threads(before_ms, THREADS_AT_ONCE)
                    .await?;
                threads += some;
                if some < u64::from(THREADS_AT_ONCE) {
                    break;
                }
            }
        }
        let jobs_before_ms = before(now_ms, self.job_retention);
        let jobs = self.store.expire_jobs(jobs_before_ms, now_ms).await?;
        if threads + jobs > 0 {
            // What is cached of them must not be sent any more.
            self.caches.clear();
            self.store.shrink().await?;
        }
        Ok((threads, jobs))
    }

    async fn measure(&self) {
        let Some(file) = &self.file else { return };
        for (part, suffix) in [("database", ""), ("journal", "-wal")] {
            let mut path = file.clone().into_os_string();
            path.push(suffix);
            // Without a file there are no bytes.
            let bytes = tokio::fs::metadata(path).await.map_or(0, |file| file.len());
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
            metrics::gauge!(telemetry::DATABASE_BYTES, "file" => part).set(bytes as f64);
        }
    }
}

fn before(now_ms: i64, age: Duration) -> i64 {
    now_ms.saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX))
}
