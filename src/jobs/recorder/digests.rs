//! When a conversation tells the others what it learned.

use super::super::peer_memory::publish_digest;
use super::{Recorder, Track};
use crate::jobs::failure::log_store_failure;
use crate::memory::advance::observed_parts;

impl Recorder {
    /// Tells the user's other conversations what is new in this one.
    pub(super) async fn publish_digest(&self, track: &mut Track) {
        let settings = self.shop.settings.current();
        let (Some(budget), Some(lineage)) = (
            settings
                .peer_memory_tokens
                .filter(|_| track.allows_peer_memory),
            track.lineage,
        ) else {
            return;
        };
        let log = observed_parts(&track.path());
        if log.is_empty() || log == track.published_log {
            return;
        }
        match publish_digest(&self.shop, &track.scope, lineage, &log, budget, &settings).await {
            Ok(()) => track.published_log = log,
            Err(error) => log_store_failure("other conversations could not be told", &error),
        }
    }
}
