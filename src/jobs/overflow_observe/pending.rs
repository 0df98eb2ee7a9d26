//! Observations that were made while a client waited and are not stored yet: the request that they were made for must be
//! accepted first. Bounded by bytes; the oldest goes first, and its range is observed again later. Called by
//! [`super`] and by the recorder.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::lookup::AgedMap;
use crate::memory::retention::LostItems;
use crate::memory::{NewPart, SnapshotId};
use crate::store::{Event, NewOverflowObservation, NewSnapshot};

/// What all of them may hold. One has a few hundred kilobytes where a model with a large window is too small, and a few
/// kilobytes elsewhere.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Roughly what a part, a snapshot or an event takes besides its texts.
const ENTRY_BYTES: usize = 1024;

/// An observation that is not stored yet.
#[derive(Debug)]
pub(in crate::jobs) struct PendingOverflow {
    pub(in crate::jobs) observation: NewOverflowObservation,
    /// Its events, for the timeline.
    pub(in crate::jobs) events: Vec<Event>,
}

/// The observations that are not stored yet, by the ids of their snapshots.
#[derive(Debug, Default)]
pub(in crate::jobs) struct PendingOverflows {
    pending: Mutex<AgedMap<i64, Arc<PendingOverflow>>>,
    last: AtomicI64,
}

impl PendingOverflows {
    pub(super) fn insert(&self, overflow: PendingOverflow) -> SnapshotId {
        // Negative, because stored snapshots count upwards from 1.
        let id = self.last.fetch_sub(1, Ordering::Relaxed) - 1;
        let bytes = overflow.bytes();
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.insert(id, bytes, Arc::new(overflow));
        pending.shrink(MAX_BYTES, |other, _| *other == id);
        SnapshotId(id)
    }

    /// The observation that must be stored before a request that was sent with `snapshot` is
    /// recorded.
    pub(in crate::jobs) fn get(
        &self,
        snapshot: Option<SnapshotId>,
    ) -> Option<Arc<PendingOverflow>> {
        let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.get(&snapshot?.0).cloned()
    }
}

impl PendingOverflow {
    fn bytes(&self) -> usize {
        let part = |part: &NewPart| {
            let hints = [&part.current_task, &part.suggested_response];
            let hints: usize = hints.into_iter().flatten().map(String::len).sum();
            let lost = &part.analysis.lost;
            let lost =
                lost.as_ref().map_or(0, LostItems::bytes) + part.analysis.line_sources.bytes();
            ENTRY_BYTES + 2 * part.text.len() + hints + lost
        };
        let snapshot = |snapshot: &NewSnapshot| {
            let segments: usize = snapshot.segments.iter().map(String::len).sum();
            ENTRY_BYTES + segments + snapshot.settings_json.len()
        };
        let observation = &self.observation;
        let snapshots = observation.peer_snapshot.iter();
        let snapshots = snapshots.chain([&observation.snapshot]);
        observation.parts.iter().map(part).sum::<usize>()
            + snapshots.map(snapshot).sum::<usize>()
            + self
                .events
                .iter()
                .map(|event| ENTRY_BYTES + event.body.len())
                .sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Link, Scope};
    use crate::memory::{Rendering, SnapshotCause};

    /// An observation whose block has this many bytes.
    fn overflow(bytes: usize) -> PendingOverflow {
        let root = Link::root(&Scope::new(b"key", None));
        let snapshot = NewSnapshot {
            to: root,
            to_count: 1,
            pin: None,
            parts: Vec::new(),
            tokens: 1,
            cause: SnapshotCause::Overflow,
            segments: vec!["x".repeat(bytes)],
            placement: String::new(),
            peer_memory: None,
            settings_json: String::new(),
            tip: root,
            tip_count: 1,
            eligible_now: true,
            at_ms: 0,
        };
        PendingOverflow {
            observation: NewOverflowObservation {
                parts: Vec::new(),
                rendering: Rendering {
                    preamble: 1,
                    as_of: jiff::civil::Date::ZERO,
                },
                snapshot,
                peer_snapshot: None,
            },
            events: Vec::new(),
        }
    }

    #[test]
    fn the_oldest_pending_observations_are_dropped_at_the_byte_limit() {
        let pending = PendingOverflows::default();
        let small: Vec<_> = (0..1_000).map(|_| pending.insert(overflow(100))).collect();
        let is_held = |id: &SnapshotId| pending.get(Some(*id)).is_some();
        assert!(small.iter().all(is_held), "small ones are no burden");
        let half: Vec<_> = (0..3)
            .map(|_| pending.insert(overflow(MAX_BYTES / 2 - 2 * ENTRY_BYTES)))
            .collect();
        assert!(!small.iter().any(is_held));
        assert_eq!(
            half.iter().map(is_held).collect::<Vec<_>>(),
            [false, true, true]
        );
        let huge = pending.insert(overflow(2 * MAX_BYTES));
        assert!(is_held(&huge), "its request is about to be recorded");
        assert!(!half.iter().any(is_held));
        assert!(pending.get(None).is_none());
    }
}
