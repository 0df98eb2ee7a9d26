//! Alignments of requests that were sent and are not recorded yet, by the last link of what the client sent: a repetition
//! is aligned alike (INV-SAME). Of an exchange that the recorder dropped one stays here for good, so they have a bound of
//! their own: one holds every message of two chains, and a hundred long ones would push everything else out of the
//! cache. Used by [`super::state`] only.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::HashMap;

use super::pins::Key;
use super::sizes;
use crate::memory::alignment::Alignment;

#[derive(Debug, Default)]
pub(super) struct HeldAlignments {
    by_client: HashMap<Key, Arc<Alignment>>,
    /// Their keys, the oldest first. A key stays here when its alignment is released.
    order: VecDeque<Key>,
    bytes: usize,
}

impl HeldAlignments {
    pub(super) fn get(&self, key: &Key) -> Option<&Arc<Alignment>> {
        self.by_client.get(key)
    }

    /// What all of them need.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn insert(&mut self, key: Key, alignment: Arc<Alignment>) {
        self.remove(&key);
        self.bytes += sizes::of_alignment(&alignment);
        self.by_client.insert(key, alignment);
        self.order.push_back(key);
    }

    pub(super) fn remove(&mut self, key: &Key) {
        if let Some(removed) = self.by_client.remove(key) {
            self.bytes -= sizes::of_alignment(&removed);
        }
    }

    /// Drops the oldest ones, but those that are needed, until the others need at most `most` bytes.
    pub(super) fn shrink(&mut self, most: usize, is_needed: impl Fn(&Key, &Alignment) -> bool) {
        let mut unseen = self.order.len();
        while self.bytes > most
            && unseen > 0
            && let Some(key) = self.order.pop_front()
        {
            unseen -= 1;
            let held = self.by_client.get(&key);
            if held.is_some_and(|held| is_needed(&key, held)) {
                self.order.push_back(key);
            } else {
                self.remove(&key);
            }
        }
        // Keys of what was released.
        if self.order.len() > 2 * self.by_client.len() + 64 {
            self.order.retain(|key| self.by_client.contains_key(key));
        }
    }

    pub(super) fn retain(&mut self, is_kept: impl Fn(&Key, &Alignment) -> bool) {
        self.by_client.retain(|key, held| is_kept(key, held));
        let sizes = self
            .by_client
            .values()
            .map(|held| sizes::of_alignment(held));
        self.bytes = sizes.sum();
        self.order.retain(|key| self.by_client.contains_key(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{History, PositionMap, Scope};
    use crate::memory::alignment::{AlignmentKind, SharedMessages};
    use crate::wire;

    /// An alignment of a request of its own, with its key.
    fn alignment(scope: &Scope, number: usize) -> (Key, Arc<Alignment>) {
        let body =
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{number}"}}]}}"#);
        let request = wire::Request::parse_chat(&body.into_bytes().into()).expect("a request");
        let history: Arc<History> = Arc::new(request.history(scope));
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

    #[test]
    fn keys_of_what_was_released_are_not_kept_for_ever() {
        let scope = Scope::new(b"key", None);
        let mut held = HeldAlignments::default();
        for number in 0..1_000 {
            let (key, alignment) = alignment(&scope, number);
            held.insert(key, alignment);
            held.shrink(usize::MAX, |_, _| false);
            held.remove(&key);
        }
        assert_eq!(held.bytes(), 0);
        assert!(held.order.len() <= 66, "{}", held.order.len());
    }
}
