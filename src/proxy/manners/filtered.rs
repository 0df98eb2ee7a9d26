//! Snapshots whose words a content filter refuses, where it takes the client's own: for how long which of
//! them is passed over, and by which model.
//!
//! Counts and remembers. What counts as a refusal of theirs decides [`crate::proxy::ladder`]; used by
//! [`super::Manners`] alone.

use std::collections::HashMap;
use std::time::Instant;

use super::STEPPED_DOWN;
use crate::memory::SnapshotId;

/// After so many refusals one after the other. One may be a whim: the same filter took the block before.
const TWICE: u32 = 2;

/// Snapshots remembered, over all models. The one that was not asked for the longest goes first.
const SNAPSHOTS: usize = 1_024;

/// What is known of one snapshot and one model.
#[derive(Debug, Default)]
struct Count {
    /// Refusals since it was last taken.
    refusals: u32,
    /// When the last of them was, until that is long enough ago to try it again.
    since: Option<Instant>,
    /// When it was last looked at, in looks.
    looked_at: u64,
}

#[derive(Debug, Default)]
pub(super) struct Filtered {
    counts: HashMap<(String, SnapshotId), Count>,
    looks: u64,
}

impl Filtered {
    /// `model` refused a request with the words of `snapshot`, and took it without.
    pub(super) fn refused(&mut self, model: &str, snapshot: SnapshotId, now: Instant) {
        // What is not stored shares its number with others, and is sent once.
        if snapshot.0 <= 0 {
            return;
        }
        let key = (model.to_owned(), snapshot);
        if self.counts.len() >= SNAPSHOTS && !self.counts.contains_key(&key) {
            let oldest = self.counts.iter().min_by_key(|(_, count)| count.looked_at);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.counts.remove(&oldest);
            }
        }
        self.looks += 1;
        let count = self.counts.entry(key).or_default();
        count.looked_at = self.looks;
        count.refusals = count.refusals.saturating_add(1);
        count.since = Some(now);
    }

    /// `model` took a request with the words of `snapshot`.
    pub(super) fn taken(&mut self, model: &str, snapshot: SnapshotId) {
        if !self.counts.is_empty() {
            self.counts.remove(&(model.to_owned(), snapshot));
        }
    }

    /// Whether requests for `model` go out without `snapshot`.
    pub(super) fn passes_over(&mut self, model: &str, snapshot: SnapshotId) -> bool {
        // Nearly always, and then nothing is copied.
        if self.counts.is_empty() {
            return false;
        }
        let Some(count) = self.counts.get_mut(&(model.to_owned(), snapshot)) else {
            return false;
        };
        self.looks += 1;
        count.looked_at = self.looks;
        count.refusals >= TWICE && count.since.is_some()
    }

    /// What was last refused long enough before `now` may be tried again: once, since one more refusal
    /// is the next in a row.
    pub(super) fn forgive(&mut self, now: Instant) {
        for count in self.counts.values_mut() {
            let young = |at: &Instant| now.saturating_duration_since(*at) < STEPPED_DOWN;
            count.since = count.since.filter(young);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: SnapshotId = SnapshotId(7);

    /// Refused so many times by model `m`.
    fn refused(times: u32) -> (Filtered, Instant) {
        let (mut filtered, now) = (Filtered::default(), Instant::now());
        for _ in 0..times {
            filtered.refused("m", S, now);
        }
        (filtered, now)
    }

    #[test]
    fn the_second_refusal_in_a_row_counts_for_that_snapshot_and_model_alone() {
        let (mut filtered, now) = refused(1);
        assert!(!filtered.passes_over("m", S));
        filtered.refused("m", S, now);
        assert!(filtered.passes_over("m", S));
        assert!(!filtered.passes_over("other", S));
        assert!(!filtered.passes_over("m", SnapshotId(8)));
    }

    #[test]
    fn what_was_taken_begins_anew() {
        let (mut filtered, now) = refused(1);
        filtered.taken("other", S);
        filtered.taken("m", S);
        filtered.refused("m", S, now);
        assert!(!filtered.passes_over("m", S));
        filtered.refused("m", S, now);
        filtered.taken("m", S);
        assert!(!filtered.passes_over("m", S));
    }

    #[test]
    fn after_an_hour_it_is_tried_again_and_refused_once() {
        let (mut filtered, now) = refused(2);
        filtered.forgive(now + STEPPED_DOWN / 2);
        assert!(filtered.passes_over("m", S));
        let later = now + STEPPED_DOWN;
        filtered.forgive(later);
        assert!(!filtered.passes_over("m", S));
        filtered.refused("m", S, later);
        assert!(filtered.passes_over("m", S), "that is the third in a row");
        filtered.forgive(later + STEPPED_DOWN / 2);
        assert!(filtered.passes_over("m", S), "an hour from that one on");
    }

    #[test]
    fn what_is_not_stored_is_not_known_by_its_number() {
        let (mut filtered, now) = refused(0);
        for unstored in [SnapshotId(0), SnapshotId(-3)] {
            filtered.refused("m", unstored, now);
            filtered.refused("m", unstored, now);
            assert!(!filtered.passes_over("m", unstored));
        }
    }

    #[test]
    fn the_snapshot_that_was_not_asked_for_the_longest_is_forgotten() {
        let (mut filtered, now) = refused(0);
        let many = i64::try_from(SNAPSHOTS).unwrap();
        for id in 1..=many {
            filtered.refused("m", SnapshotId(id), now);
            filtered.refused("m", SnapshotId(id), now);
        }
        assert!(filtered.passes_over("m", SnapshotId(1)), "looked at");
        filtered.refused("m", SnapshotId(many + 1), now);
        assert_eq!(filtered.counts.len(), SNAPSHOTS);
        assert!(filtered.passes_over("m", SnapshotId(1)));
        assert!(!filtered.passes_over("m", SnapshotId(2)));
        assert!(filtered.passes_over("m", SnapshotId(3)));
    }
}
