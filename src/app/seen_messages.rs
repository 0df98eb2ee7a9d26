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
use crate::store::{SeenMessagesStore as _, SqliteStore, StoreError, StoreResult};

/// How often the store is asked, until it has answered.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The most bytes that are kept: what one process holds at most has some 20 MB.
const MAX_BYTES: usize = 32 << 20;

/// What earlier processes have seen, and this one.
#[derive(Clone, Debug)]
pub(super) struct SeenMessages {
    store: Arc<SqliteStore>,
    cache: Arc<SnapshotCache>,
    jobs: Jobs,
    began_ms: i64,
}

impl SeenMessages {
    /// Until it is known what earlier processes have seen, nothing proves a conversation.
    pub(super) fn new(store: &Arc<SqliteStore>, caches: &ConversationCaches) -> Self {
        caches.snapshots.await_seen_messages();
        Self {
            store: Arc::clone(store),
            cache: Arc::clone(&caches.snapshots),
            jobs: caches.jobs.clone(),
            began_ms: Timestamp::now().as_millisecond(),
        }
    }

    /// Reads what earlier processes have seen.
    pub(super) async fn load(&self) -> StoreResult<()> {
        let saved = self.store.seen_messages().await?;
        self.cache.restore_seen_messages(&saved);
        Ok(())
    }

    /// Reads it, unless that is done, until it succeeds. Stores what this process has seen when `draining` is cancelled.
    pub(super) async fn run(self, mut is_loaded: bool, draining: CancellationToken) {
        let mut is_reported = false;
        while !is_loaded && !draining.is_cancelled() {
            match self.load().await {
                Ok(()) => is_loaded = true,
                // The store logs why it is not open, and when it is.
                Err(StoreError::NotOpen(_)) => {}
                Err(error) => {
                    if !std::mem::replace(&mut is_reported, true) {
                        tracing::warn!(
                            %error,
                            "what earlier processes have seen cannot be read; until it is, clients that have dropped messages get no memory of them"
                        );
                    }
                }
            }
            if !is_loaded {
                let pause = tokio::time::sleep(RETRY_INTERVAL);
                draining.run_until_cancelled(pause).await;
            }
        }
        draining.cancelled().await;
        self.save().await;
    }

    /// Stores what this process has seen and is not stored yet, unless memory is only read.
    pub(super) async fn save(&self) {
        if self.jobs.is_read_only() {
            return;
        }
        let entries = self.cache.seal_unsaved_messages();
        if entries.is_empty() {
            return;
        }
        let times = (self.began_ms, Timestamp::now().as_millisecond());
        let stored = self.store.put_seen_messages(entries, times, MAX_BYTES);
        match stored.await {
            Ok(()) => self.cache.mark_messages_saved(),
            Err(error) => tracing::warn!(
                %error,
                "what was seen could not be stored. If two users got equal answers, the next process may not know it"
            ),
        }
    }
}
