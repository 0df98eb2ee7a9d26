//! Deletes what is too old (`store.retention`, `store.job_retention`, `audit.store_retention`) or too much
//! (`store.max_account_bytes`), and measures the database. Called by `app`.
//!
//! Works in short transactions, so that the recorder can write between them. A conversation that goes on after it was
//! deleted begins anew.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::account_quota::AccountQuota;
use super::conversation_caches::ConversationCaches;
use crate::config::{Config, Database};
use crate::store::{
    AuditLines as _, Forgetting as _, SeenMessagesStore as _, SqliteStore, StoreResult,
};
use crate::telemetry;

/// What processes have seen is kept for so long at most. It has no conversation, so it stays if one is forgotten.
const MAX_SEEN_AGE: Duration = Duration::from_hours(30 * 24);

/// How often old rows are looked for.
const EXPIRY_INTERVAL: Duration = Duration::from_mins(10);

/// How often the files are measured.
const MEASURE_INTERVAL: Duration = Duration::from_secs(15);

const DAY: Duration = Duration::from_hours(24);

/// The most conversations that one transaction deletes.
const THREADS_AT_ONCE: u32 = 20;

/// The most waiting model calls that one transaction deletes.
const JOBS_AT_ONCE: u32 = 100;

/// The most audit lines that one transaction deletes.
const LINES_AT_ONCE: u32 = 1_000;

/// Longer than a read of the request path may take.
const CLEAR_AGAIN: Duration = Duration::from_secs(1);

/// What one round has deleted.
#[derive(Clone, Copy, Debug, Default)]
struct Deleted {
    old_threads: u64,
    old_jobs: u64,
    beyond_quota: u64,
}

/// Deletes rows of one database.
pub(super) struct Housekeeping {
    store: Arc<SqliteStore>,
    caches: ConversationCaches,
    retention: Option<Duration>,
    job_retention: Duration,
    /// `None`: no lines are stored, and those of before stay.
    audit_retention: Option<Duration>,
    quota: Option<AccountQuota>,
    /// The database file; `None` in memory.
    file: Option<PathBuf>,
    /// Whether a round has begun since the start.
    has_begun: bool,
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
            audit_retention: config.audit_store_retention,
            quota: AccountQuota::new(config.max_account_bytes),
            file: match &config.database {
                Database::Sqlite(path) => Some(path.clone()),
                Database::SqliteInMemory => None,
            },
            has_begun: false,
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut expiry = tokio::time::interval(EXPIRY_INTERVAL);
        let mut measure = tokio::time::interval(MEASURE_INTERVAL);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = expiry.tick() => self.delete_and_report(&stop).await,
                _ = measure.tick() => self.measure().await,
            }
        }
    }

    /// Deletes what is too old or too much, unless memory is only read: then this process writes nothing.
    async fn delete_and_report(&mut self, stop: &CancellationToken) {
        if self.caches.jobs.is_read_only() {
            return;
        }
        let mut deleted = Deleted::default();
        let mut result = self.delete(stop, &mut deleted).await;
        let Deleted {
            old_threads,
            old_jobs,
            beyond_quota,
        } = deleted;
        if old_threads + old_jobs > 0 {
            tracing::info!(
                threads = old_threads,
                jobs = old_jobs,
                "{old_threads} conversations and {old_jobs} waiting model calls were deleted because of their age"
            );
        }
        if old_threads + old_jobs + beyond_quota > 0 {
            // What is cached of them must not be sent any more, even if the deletion failed halfway.
            self.caches.clear();
            result = result.and(self.store.shrink().await.map(drop));
            // A read that began before the deletion may have filled a cache after it.
            if stop
                .run_until_cancelled(tokio::time::sleep(CLEAR_AGAIN))
                .await
                .is_some()
            {
                self.caches.clear();
            }
        }
        if let Err(error) = result
            && !error.is_logged()
        {
            tracing::warn!(%error, "old conversations could not be deleted; the next round tries again");
        }
    }

    /// Adds what it deletes to `deleted`, also before an error.
    async fn delete(&mut self, stop: &CancellationToken, deleted: &mut Deleted) -> StoreResult<()> {
        let now_ms = Timestamp::now().as_millisecond();
        if !self.waits_for_clock(now_ms).await? {
            self.delete_old(now_ms, stop, deleted).await?;
        }
        if let Some(quota) = self.quota {
            let beyond_quota = &mut deleted.beyond_quota;
            quota.enforce(&self.store, stop, beyond_quota).await?;
        }
        Ok(())
    }

    /// Whether the first round after the start deletes nothing because of its age: by this clock, nobody has used Diarist
    /// for a day longer than things are kept. The clock of a machine that has just started may be wrong, until it is
    /// put right.
    async fn waits_for_clock(&mut self, now_ms: i64) -> StoreResult<bool> {
        if self.has_begun {
            return Ok(false);
        }
        let kept = [self.retention, self.audit_retention].into_iter().flatten();
        let shortest = kept.fold(self.job_retention, Duration::min);
        let unused = before(now_ms, shortest.saturating_add(DAY));
        let last_use = self.store.last_use_ms().await?;
        self.has_begun = true;
        let waits = last_use.is_some_and(|last_use| last_use < unused);
        if waits {
            tracing::warn!(
                "by the clock of this machine, nobody has used Diarist for longer than things are kept. What is too old is \
                 deleted in ten minutes, unless the clock is put right until then"
            );
        }
        Ok(waits)
    }

    async fn delete_old(
        &self,
        now_ms: i64,
        stop: &CancellationToken,
        deleted: &mut Deleted,
    ) -> StoreResult<()> {
        if let Some(retention) = self.retention {
            let before_ms = before(now_ms, retention);
            while !stop.is_cancelled() {
                let some = self
                    .store
                    .expire_threads(before_ms, THREADS_AT_ONCE)
                    .await?;
                deleted.old_threads += some;
                if some == 0 {
                    break;
                }
            }
        }
        let jobs_before_ms = before(now_ms, self.job_retention);
        while !stop.is_cancelled() {
            let some = self
                .store
                .expire_jobs(jobs_before_ms, now_ms, JOBS_AT_ONCE)
                .await?;
            deleted.old_jobs += some;
            if some == 0 {
                break;
            }
        }
        if let Some(retention) = self.audit_retention {
            // No cache holds lines, and others fill the pages that they leave.
            let before_ms = before(now_ms, retention);
            while !stop.is_cancelled()
                && self
                    .store
                    .expire_audit_lines(before_ms, LINES_AT_ONCE)
                    .await?
                    > 0
            {}
        }
        let seen_age = self
            .retention
            .map_or(MAX_SEEN_AGE, |retention| retention.min(MAX_SEEN_AGE));
        self.store
            .expire_seen_messages(before(now_ms, seen_age))
            .await
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
