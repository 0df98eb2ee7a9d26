//! Keeps the figures of `memory.calibrate_tokens` over a restart. Called by `app`.
//!
//! What the last process knew is added to what this one has learned so far. Nothing is stored before that: it would
//! replace the old figures. A process that is killed loses the last minute.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::jobs::{Jobs, MAX_RATIO_MODELS};
use crate::store::{AuditLines as _, SqliteStore};

/// How often changed figures are stored.
const SAVE_INTERVAL: Duration = Duration::from_mins(1);

/// The figures of one process, and the database.
pub(super) struct TokenRatios {
    store: Arc<SqliteStore>,
    jobs: Jobs,
    /// Whether the stored figures were read.
    is_loaded: bool,
    /// Up to which addition they are stored.
    saved: u64,
}

impl TokenRatios {
    pub(super) fn new(store: &Arc<SqliteStore>, jobs: &Jobs) -> Self {
        Self {
            store: Arc::clone(store),
            jobs: jobs.clone(),
            is_loaded: false,
            saved: 0,
        }
    }

    /// Reads the stored figures, unless that is done. If the store does not answer, `database::watch` reports it.
    pub(super) async fn load(&mut self) {
        if self.is_loaded {
            return;
        }
        if let Ok(stored) = self.store.token_ratios().await {
            self.jobs.add_token_ratios(&stored);
            self.is_loaded = true;
        }
    }

    /// Stores them each minute and at the end.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut is_stopped = false;
        while !is_stopped {
            let pause = tokio::time::sleep(SAVE_INTERVAL);
            is_stopped = stop.run_until_cancelled(pause).await.is_none();
            self.load().await;
            if self.is_loaded && !self.jobs.is_read_only() {
                self.save().await;
            }
        }
    }

    async fn save(&mut self) {
        let (changed, last) = self.jobs.changed_token_ratios(self.saved);
        if changed.is_empty() {
            return;
        }
        let at_ms = Timestamp::now().as_millisecond();
        let stored = self
            .store
            .put_token_ratios(changed, at_ms, MAX_RATIO_MODELS);
        // If this fails, the next round stores them.
        if stored.await.is_ok() {
            self.saved = last;
        }
    }
}
