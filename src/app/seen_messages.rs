//! Keeps what the process has seen over an ordinary restart. Called by `app`.
//!
//! A message proves a conversation only as long as nobody else has it, and not everything that was seen is recorded. A stop
//! begins with storing it, because a supervisor may kill a process that waits for its last answers. One that is killed
//! without a stop loses what it has seen since its start.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::conversation_caches::ConversationCaches;
use crate::jobs::Jobs;
use crate::lookup::SnapshotCache;
use crate::store::{SeenMessagesStore as _, SqliteStore, StoreResult};

/// How often the store is asked, until it has answered.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The most bytes that are kept: what one process holds at most has some 20 MB.
const MAX_BYTES: i64 = 32 << 20;

/// What earlier processes have seen, and this one.
pub(super) struct SeenMessages {
    store: Arc<SqliteStore>,
    cache: Arc<SnapshotCache>,
    jobs: Jobs,
    is_loaded: bool,
}

impl SeenMessages {
    pub(super) fn new(store: &Arc<SqliteStore>, caches: &ConversationCaches) -> Self {
        Self {
            store: Arc::clone(store),
            cache: Arc::clone(&caches.snapshots),
            jobs: caches.jobs.clone(),
            is_loaded: false,
        }
    }

    /// Reads what earlier processes have seen. If the store does not answer, `database::watch` reports it.
    pub(super) async fn load(&mut self) {
        if let Ok(saved) = self.store.seen_messages().await {
            self.cache.restore_seen_messages(&saved);
            self.is_loaded = true;
        }
    }

    /// Tries again until it is read, and stores what this process has seen when `draining` is cancelled.
    pub(super) async fn run(mut self, draining: CancellationToken) {
        while !self.is_loaded
            && draining
                .run_until_cancelled(tokio::time::sleep(RETRY_INTERVAL))
                .await
                .is_some()
        {
            self.load().await;
        }
        draining.cancelled().await;
        save(&self.store, &self.cache, &self.jobs).await;
    }
}

/// Stores what this process has seen since the last call, unless memory is only read.
pub(super) async fn save(store: &SqliteStore, cache: &SnapshotCache, jobs: &Jobs) {
    if jobs.is_read_only() {
        return;
    }
    let entries = cache.take_unsaved_messages();
    if entries.is_empty() {
        return;
    }
    let saved: StoreResult<()> = store
        .put_seen_messages(entries, Timestamp::now().as_millisecond(), MAX_BYTES)
        .await;
    if let Err(error) = saved
        && !error.is_logged()
    {
        tracing::warn!(
            %error,
            "what was seen could not be stored. If two users got equal answers, the next process may not know it"
        );
    }
}
