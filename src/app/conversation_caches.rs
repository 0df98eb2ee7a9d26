//! Everything that this process holds of conversations outside the store, so that a deletion reaches all of it.
//!
//! Each of them is filled again by the next requests. Decides nothing. Called by the tasks that notice deletions.

use std::sync::Arc;

use crate::jobs::Jobs;
use crate::lookup::SnapshotCache;
use crate::proxy::{ParsedPrefixes, SentPrompts};

/// The caches of conversations. A clone is a second handle.
#[derive(Clone, Debug)]
pub(super) struct ConversationCaches {
    pub(super) snapshots: Arc<SnapshotCache>,
    pub(super) jobs: Jobs,
    pub(super) sent_prompts: Arc<SentPrompts>,
    pub(super) parsed_prefixes: Arc<ParsedPrefixes>,
}

impl ConversationCaches {
    /// Drops all of it, because something was deleted.
    pub(super) fn clear(&self) {
        self.snapshots.clear();
        self.jobs.drop_cached_conversations();
        self.sent_prompts.clear();
        self.parsed_prefixes.clear();
    }
}
