//! What the recorder owns: the tracks it follows, its next timer, and handles to what it shares with
//! the workers and the request path.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::jobs::base::Base;
use crate::jobs::budget::Budget;
use crate::jobs::call_audit::CallAudit;
use crate::jobs::code_reflector::CodeReflector;
use crate::jobs::message_archive::MessageArchive;
use crate::jobs::model_switch::ModelSwitchSnapshots;
use crate::jobs::outcome::PendingWork;
use crate::jobs::overflow_observe::PendingOverflows;
use crate::jobs::part_report::PartReporter;
use crate::jobs::peer_memory::PeerMemories;
use crate::jobs::snapshots::Snapshots;
use crate::jobs::track::Track;
use crate::jobs::tracks::Tracks;
use crate::memory::PartKind;
use crate::memory::advance::threshold_status;

/// See [`crate::jobs::recorder`].
pub(in crate::jobs) struct Recorder {
    pub(super) base: Base,
    pub(super) snapshots: Snapshots,
    pub(super) peer_memory: PeerMemories,
    pub(super) archive: MessageArchive,
    pub(super) code_reflector: CodeReflector,
    pub(super) shared: RecorderShares,
    pub(super) tracks: Tracks,
    /// How often the database had been opened again when the tracks were made.
    pub(super) reopenings: u64,
    /// When the next timer may run out, in milliseconds since 1970.
    pub(super) next_timer_ms: Option<i64>,
    /// Whether the store did not take the last exchange.
    pub(super) store_failed: bool,
}

/// State that the recorder writes and others read, or the other way round.
#[derive(Clone)]
pub(in crate::jobs) struct RecorderShares {
    /// Costs that the workers could not bill yet.
    pub(in crate::jobs) budget: Arc<Budget>,
    pub(in crate::jobs) reporter: PartReporter,
    /// Learns here how the conversations of jobs are called.
    pub(in crate::jobs) call_audit: Arc<CallAudit>,
    /// Composed here, committed by the request path when another model is called.
    pub(in crate::jobs) model_switch_snapshots: Arc<ModelSwitchSnapshots>,
    /// Observed while clients waited, stored here with their exchanges.
    pub(in crate::jobs) pending_overflows: Arc<PendingOverflows>,
    pub(in crate::jobs) pending_work: PendingWork,
    /// Wakes the workers.
    pub(in crate::jobs) wake: Arc<Notify>,
}

impl Recorder {
    pub(in crate::jobs) fn new(base: &Base, shared: RecorderShares) -> Self {
        Self {
            base: base.clone(),
            snapshots: Snapshots::new(base),
            peer_memory: PeerMemories::new(base),
            archive: MessageArchive::new(base),
            code_reflector: CodeReflector::new(base),
            shared,
            tracks: Tracks::default(),
            reopenings: base.store.reopenings(),
            // Due now: timers may have run out while no process ran.
            next_timer_ms: Some(0),
            store_failed: false,
        }
    }

    /// Drops the tracks if the database was opened again since they were made: a backup may be in its place.
    pub(super) fn drop_tracks_of_earlier_database(&mut self) {
        let reopenings = self.base.store.reopenings();
        if std::mem::replace(&mut self.reopenings, reopenings) != reopenings {
            self.tracks = Tracks::default();
        }
    }

    /// How urgent jobs of `kind` are for the conversation of `track`.
    pub(super) fn urgency(&self, track: &Track, kind: PartKind) -> u32 {
        let settings = self.base.settings();
        let policy = self.base.policy_for(&settings, &track.model);
        threshold_status(&track.path()).urgency(kind, &policy)
    }
}
