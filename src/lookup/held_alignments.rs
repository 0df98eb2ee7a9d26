//! Alignments of requests that were sent and are not recorded yet, by the last link of what the client sent: a repetition
//! is aligned alike (INV-SAME). That of an exchange which the recorder dropped stays here for good, so they have a bound
//! of their own: each holds every message of two chains, and a hundred long ones would push everything else out of the
//! cache. Used by [`super::state`] only.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashMap;

use super::pins::Key;
use super::sizes;
use crate::memory::alignment::Alignment;

#[derive(Debug, Default)]
pub(super) struct HeldAlignments {
    /// Each with its number.
    by_client: HashMap<Key, (u64, Arc<Alignment>)>,
    /// Their keys by number: the oldest first.
    by_age: BTreeMap<u64, Key>,
    /// The number of the next one.
    next: u64,
    bytes: usize,
}

impl HeldAlignments {
    pub(super) fn get(&self, key: &Key) -> Option<&Arc<Alignment>> {
        self.by_client.get(key).map(|(_, alignment)| alignment)
    }

    /// What all of them need.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds one as the youngest, in the place of an earlier one with the same key.
    pub(super) fn insert(&mut self, key: Key, alignment: Arc<Alignment>) {
        self.remove(&key);
        self.bytes += sizes::of_alignment(&alignment);
        self.by_client.insert(key, (self.next, alignment));
        self.by_age.insert(self.next, key);
        self.next += 1;
    }

    pub(super) fn remove(&mut self, key: &Key) {
        if let Some((number, removed)) = self.by_client.remove(key) {
            self.by_age.remove(&number);
            self.bytes -= sizes::of_alignment(&removed);
        }
    }

    /// Drops the oldest ones, but those that are needed, until the others need at most `most` bytes.
    pub(super) fn shrink(&mut self, most: usize, is_needed: impl Fn(&Key, &Alignment) -> bool) {
        let mut from = 0;
        while self.bytes > most
            && let Some((number, key)) = self.by_age.range(from..).next()
        {
            from = number + 1;
            let key = *key;
            if self.get(&key).is_none_or(|held| !is_needed(&key, held)) {
                self.remove(&key);
            }
        }
    }

    pub(super) fn retain(&mut self, is_kept: impl Fn(&Key, &Alignment) -> bool) {
        self.by_client.retain(|key, (_, held)| is_kept(key, held));
        self.by_age
            .retain(|_, key| self.by_client.contains_key(key));
        let sizes = self.by_client.values();
        self.bytes = sizes.map(|(_, held)| sizes::of_alignment(held)).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PinLabel, SnapshotCache};
    use super::*;
    use crate::history::{History, PositionMap, Scope};
    use crate::memory::alignment::{AlignmentKind, SharedMessages};
    use crate::store::{SentWith, SqliteStore};
    use crate::wire;

    /// An alignment of a request of its own, with its key.
    fn alignment(scope: &Scope, number: usize) -> (Key, Arc<Alignment>) {
        let body =
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{number}"}}]}}"#);
        let request = wire::Request::parse_chat(&body.into_bytes().into()).expect("a request");
        of_history(scope, Arc::new(request.history(scope)))
    }

    fn of_history(scope: &Scope, history: Arc<History>) -> (Key, Arc<Alignment>) {
        let key = (scope.tenant, history.tip().expect("a message"));
        let alignment = Alignment {
            client: Arc::clone(&history),
            history,
            positions: PositionMap::from_parts(Vec::new(), 0, 0).expect("positions"),
            shared: SharedMessages::default(),
            recorded_count: 0,
            kind: AlignmentKind::Continued,
            lineage: None,
            proof: Vec::new(),
            withheld: None,
            client_summary: None,
            origins: Vec::new(),
        };
        (key, Arc::new(alignment))
    }

    #[test]
    fn the_oldest_go_and_those_in_flight_stay() {
        let scope = Scope::new(b"key", None);
        let all: Vec<_> = (0..10).map(|number| alignment(&scope, number)).collect();
        let size = sizes::of_alignment(&all[0].1);
        let in_flight = [all[0].0, all[2].0];
        let mut held = HeldAlignments::default();
        for (key, alignment) in &all {
            held.insert(*key, Arc::clone(alignment));
            held.shrink(4 * size, |key, _| in_flight.contains(key));
        }
        let left = |held: &HeldAlignments| -> Vec<usize> {
            (0..10)
                .filter(|number| held.get(&all[*number].0).is_some())
                .collect()
        };
        assert_eq!(left(&held), [0, 2, 8, 9]);
        assert_eq!(held.bytes(), 4 * size);
        // All are in flight: none goes, and the search ends.
        held.shrink(0, |_, _| true);
        assert_eq!(left(&held), [0, 2, 8, 9]);
        held.remove(&all[8].0);
        held.remove(&all[8].0);
        assert_eq!(held.bytes(), 3 * size);
        held.retain(|key, _| *key == all[9].0);
        assert_eq!((left(&held), held.bytes()), (vec![9], size));
    }

    /// While the recorder fails, a client may repeat one request for hours.
    #[test]
    fn what_comes_again_or_is_released_leaves_nothing() {
        let scope = Scope::new(b"key", None);
        let (repeated, other) = (alignment(&scope, 0), alignment(&scope, 1));
        let mut held = HeldAlignments::default();
        for _ in 0..1_000 {
            for (key, alignment) in [&repeated, &other] {
                held.insert(*key, Arc::clone(alignment));
            }
            held.remove(&other.0);
        }
        assert_eq!(held.bytes(), sizes::of_alignment(&repeated.1));
        assert_eq!(held.by_age.len(), 1);
    }

    /// As a client makes them whose exchanges the recorder drops: it sends thousands of messages in each request.
    #[tokio::test]
    async fn what_is_never_recorded_pushes_nothing_else_out() {
        let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
        let cache = SnapshotCache::new(Arc::new(store));
        let (quiet, busy) = (Scope::new(b"quiet", None), Scope::new(b"busy", None));
        let (key, _) = alignment(&quiet, 0);
        let label = PinLabel {
            model: "m",
            thread_key: None,
        };
        cache.mark_complete(&quiet, key.1, label, SentWith::default(), &[]);
        let message = r#"{"role":"user","content":"Again."}"#;
        let body = format!(
            r#"{{"model":"m","messages":[{}]}}"#,
            vec![message; 4_100].join(",")
        );
        let request = wire::Request::parse_chat(&body.into_bytes().into()).expect("a request");
        let history = request.history(&busy);
        let mut all = 0;
        for count in 4_000..4_100 {
            let (_, alignment) = of_history(&busy, Arc::new(history.prefix(count)));
            all += sizes::of_alignment(&alignment);
            cache.hold_alignment(&busy, &alignment);
        }
        assert!(all > super::super::state::MAX_BYTES, "{all}");
        assert!(cache.state().complete_links.contains(&key));
    }
}
