//! Remembers the snapshots whose text a content filter refuses, although it accepts the client's own.
//!
//! Counts refusals by snapshot and model, and says when a snapshot is left out and for how long. Which refusal
//! counts, [`crate::proxy::retry`] decides. Used only by [`super::UpstreamCapabilities`].

use std::collections::HashMap;
use std::time::Instant;

use super::refusal_ttl::REFUSAL_TTL;
use crate::memory::SnapshotId;

/// Rejections in a row after which a snapshot is left out. A single one may be chance: the same filter accepted the
/// block before.
const BLOCK_AFTER: u32 = 2;

/// Snapshots remembered, over all models. The least recently used goes first.
const MAX_SNAPSHOTS: usize = 1_024;

/// The refusals of one snapshot by one model.
#[derive(Debug, Default)]
struct RefusalCount {
    /// Rejections since it was last accepted.
    refusals: u32,
    /// The time of the last refusal; `None` once that is long enough ago to try the snapshot again.
    last_refused: Option<Instant>,
    /// The number of the lookup that used the entry last.
    last_lookup: u64,
}

#[derive(Debug, Default)]
pub(super) struct BlockedSnapshots {
    counts: HashMap<(String, SnapshotId), RefusalCount>,
    lookups: u64,
}

impl BlockedSnapshots {
    /// `model` refused a request with the text of `snapshot`, and accepted it without.
    pub(super) fn record_refused(&mut self, model: &str, snapshot: SnapshotId, now: Instant) {
        // A snapshot that is not stored shares its number with others, and is sent only once.
        if snapshot.0 <= 0 {
            return;
        }
        let key = (model.to_owned(), snapshot);
        if self.counts.len() >= MAX_SNAPSHOTS && !self.counts.contains_key(&key) {
            let oldest = self
                .counts
                .iter()
                .min_by_key(|(_, count)| count.last_lookup);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.counts.remove(&oldest);
            }
        }
        self.lookups += 1;
        let count = self.counts.entry(key).or_default();
        count.last_lookup = self.lookups;
        count.refusals = count.refusals.saturating_add(1);
        count.last_refused = Some(now);
    }

    /// `model` accepted a request with the text of `snapshot`.
    pub(super) fn record_accepted(&mut self, model: &str, snapshot: SnapshotId) {
        if !self.counts.is_empty() {
            self.counts.remove(&(model.to_owned(), snapshot));
        }
    }

    /// Whether requests for `model` go out without `snapshot`.
    pub(super) fn is_blocked(&mut self, model: &str, snapshot: SnapshotId) -> bool {
        // Nearly always empty; then nothing is copied.
        if self.counts.is_empty() {
            return false;
        }
        let Some(count) = self.counts.get_mut(&(model.to_owned(), snapshot)) else {
            return false;
        };
        self.lookups += 1;
        count.last_lookup = self.lookups;
        count.refusals >= BLOCK_AFTER && count.last_refused.is_some()
    }

    /// Allows a snapshot again if its last refusal is older than an hour at `now`. Its count stays, so one more refusal
    /// blocks it again.
    pub(super) fn expire(&mut self, now: Instant) {
        for count in self.counts.values_mut() {
            let is_fresh = |at: &Instant| now.saturating_duration_since(*at) < REFUSAL_TTL;
            count.last_refused = count.last_refused.filter(is_fresh);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: SnapshotId = SnapshotId(7);

    /// Refused this many times by model `m`.
    fn refused(times: u32) -> (BlockedSnapshots, Instant) {
        let (mut blocked, now) = (BlockedSnapshots::default(), Instant::now());
        for _ in 0..times {
            blocked.record_refused("m", S, now);
        }
        (blocked, now)
    }

    #[test]
    fn a_second_refusal_in_a_row_blocks_only_that_snapshot_and_model() {
        let (mut blocked, now) = refused(1);
        assert!(!blocked.is_blocked("m", S));
        blocked.record_refused("m", S, now);
        assert!(blocked.is_blocked("m", S));
        assert!(!blocked.is_blocked("other", S));
        assert!(!blocked.is_blocked("m", SnapshotId(8)));
    }

    #[test]
    fn an_accepted_snapshot_resets_its_refusal_count() {
        let (mut blocked, now) = refused(1);
        blocked.record_accepted("other", S);
        blocked.record_accepted("m", S);
        blocked.record_refused("m", S, now);
        assert!(!blocked.is_blocked("m", S));
        blocked.record_refused("m", S, now);
        blocked.record_accepted("m", S);
        assert!(!blocked.is_blocked("m", S));
    }

    #[test]
    fn after_an_hour_one_refusal_blocks_a_snapshot_again() {
        let (mut blocked, now) = refused(2);
        blocked.expire(now + REFUSAL_TTL / 2);
        assert!(blocked.is_blocked("m", S));
        let later = now + REFUSAL_TTL;
        blocked.expire(later);
        assert!(!blocked.is_blocked("m", S));
        blocked.record_refused("m", S, later);
        assert!(blocked.is_blocked("m", S), "that is the third in a row");
        blocked.expire(later + REFUSAL_TTL / 2);
        assert!(blocked.is_blocked("m", S), "an hour from that one on");
    }

    #[test]
    fn a_snapshot_that_is_not_stored_is_never_blocked() {
        let (mut blocked, now) = refused(0);
        for unstored in [SnapshotId(0), SnapshotId(-3)] {
            blocked.record_refused("m", unstored, now);
            blocked.record_refused("m", unstored, now);
            assert!(!blocked.is_blocked("m", unstored));
        }
    }

    #[test]
    fn the_least_recently_used_blocked_snapshot_is_forgotten() {
        let (mut blocked, now) = refused(0);
        let many = i64::try_from(MAX_SNAPSHOTS).unwrap();
        for id in 1..=many {
            blocked.record_refused("m", SnapshotId(id), now);
            blocked.record_refused("m", SnapshotId(id), now);
        }
        assert!(blocked.is_blocked("m", SnapshotId(1)), "looked at");
        blocked.record_refused("m", SnapshotId(many + 1), now);
        assert_eq!(blocked.counts.len(), MAX_SNAPSHOTS);
        assert!(blocked.is_blocked("m", SnapshotId(1)));
        assert!(!blocked.is_blocked("m", SnapshotId(2)));
        assert!(blocked.is_blocked("m", SnapshotId(3)));
    }
}
