//! Pins: what each request is sent with, from the moment it is decided. Equal requests at the same time are
//! sent alike, and a repetition is sent like the first one (INV-SAME). Two requests are equal if they have one
//! history and one model.
//!
//! A pin that no upstream has accepted is kept only while a request with it is in flight. After a refusal,
//! a repetition is decided anew. Used by [`super::SnapshotCache`] only.

use foldhash::{HashMap, HashSet};

use super::sizes;
use crate::history::Link;
use crate::memory::Trim;
use crate::store::SentWith;

/// A link, with its tenant. The scope is part of every link's hash, but the tenant is in the key all the
/// same (INV-OWN).
pub(super) type Key = ([u8; 32], Link);

/// What a pin is kept for: the model, and the thread key.
#[derive(Clone, Copy, Debug)]
pub struct PinLabel<'a> {
    /// The model, as the request names it.
    pub model: &'a str,
    /// The thread key that the client gives.
    pub thread_key: Option<&'a str>,
}

#[derive(Debug)]
struct Pin {
    sent_with: SentWith,
    model: Box<str>,
    /// The thread key of its conversation.
    thread_key: Option<Box<str>>,
    /// Requests that were sent with it and have no answer yet.
    in_flight: u32,
    /// Whether an upstream has accepted it, by this process or by the store.
    accepted: bool,
}

/// Pins by the last link of the history, one for each model.
#[derive(Debug, Default)]
pub(super) struct Pins {
    by_history: HashMap<Key, Vec<Pin>>,
    /// Histories of which a request was trimmed once. Few are, and a request asks for those it continues: it need not
    /// look at the pins of each of its messages.
    trimmed: HashSet<Key>,
    /// Bytes of all pins.
    bytes: usize,
}

impl Pin {
    fn bytes(&self) -> usize {
        sizes::of_pin(&self.model, self.thread_key.as_deref())
    }
}

impl Pins {
    fn pin(&self, key: &Key, model: &str) -> Option<&Pin> {
        let mut pins = self.by_history.get(key)?.iter();
        pins.find(|pin| *pin.model == *model)
    }

    fn pin_mut(&mut self, key: &Key, model: &str) -> Option<&mut Pin> {
        let mut pins = self.by_history.get_mut(key)?.iter_mut();
        pins.find(|pin| *pin.model == *model)
    }

    /// The pin; `new` makes it if there is none.
    fn or_insert(&mut self, key: Key, model: &str, new: impl FnOnce() -> Pin) -> &mut Pin {
        let pins = self.by_history.entry(key).or_default();
        let existing = pins.iter().position(|pin| *pin.model == *model);
        let at = existing.unwrap_or_else(|| {
            let pin = new();
            self.bytes += pin.bytes();
            pins.push(pin);
            pins.len() - 1
        });
        &mut pins[at]
    }

    /// Must be called for everything that a pin may hold.
    fn note_trim(&mut self, key: &Key, sent_with: &SentWith) {
        if sent_with.trim.is_some() {
            self.trimmed.insert(*key);
        }
    }

    pub(super) fn get(&self, key: &Key, model: &str) -> Option<&SentWith> {
        self.pin(key, model).map(|pin| &pin.sent_with)
    }

    /// Whether the history was sent to any model.
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.by_history.contains_key(key)
    }

    /// Whether a request with the history has no answer yet.
    pub(super) fn is_in_flight(&self, key: &Key) -> bool {
        let mut pins = self.by_history.get(key).into_iter().flatten();
        pins.any(|pin| pin.in_flight > 0)
    }

    /// How far requests with the history were trimmed, for each model.
    pub(super) fn trims(&self, key: &Key) -> impl Iterator<Item = (Trim, &str)> {
        let pins = self.trimmed.get(key).map(|key| self.by_label(key));
        let pins = pins.into_iter().flatten();
        pins.filter_map(|(used, model, _)| Some((used.trim?, model)))
    }

    /// What the history was sent with, for each model, with the thread key.
    pub(super) fn by_label(
        &self,
        key: &Key,
    ) -> impl Iterator<Item = (&SentWith, &str, Option<&str>)> {
        let pins = self.by_history.get(key).into_iter().flatten();
        pins.map(|pin| (&pin.sent_with, &*pin.model, pin.thread_key.as_deref()))
    }

    /// Returns the pin, or pins `proposed`: the first caller decides. `accepted` says that an upstream has
    /// accepted `proposed` before. It does not change an existing pin, because a request in flight also counts
    /// as sent before.
    pub(super) fn get_or_pin(
        &mut self,
        key: Key,
        label: PinLabel<'_>,
        proposed: SentWith,
        accepted: bool,
    ) -> SentWith {
        self.note_trim(&key, &proposed);
        let pin = self.or_insert(key, label.model, || Pin {
            sent_with: proposed,
            model: label.model.into(),
            thread_key: label.thread_key.map(Into::into),
            in_flight: 0,
            accepted,
        });
        pin.in_flight += 1;
        pin.sent_with.clone()
    }

    /// Adds what a request was recorded with, if it has no pin. So a choice that was made while the store
    /// failed binds repetitions only once it is recorded.
    pub(super) fn add_recorded(&mut self, key: Key, label: PinLabel<'_>, sent_with: SentWith) {
        self.note_trim(&key, &sent_with);
        self.or_insert(key, label.model, || Pin {
            sent_with,
            model: label.model.into(),
            thread_key: label.thread_key.map(Into::into),
            in_flight: 0,
            accepted: true,
        });
    }

    /// Replaces the pin of a refused request, unless another request has changed it. A pin that an upstream has
    /// accepted before stays, although the upstream refused it this time.
    pub(super) fn replace_refused(
        &mut self,
        key: &Key,
        model: &str,
        refused: &SentWith,
        replacement: SentWith,
    ) -> SentWith {
        self.note_trim(key, &replacement);
        match self.pin_mut(key, model) {
            Some(pin) if pin.sent_with.is_alike(refused) && !pin.accepted => {
                pin.sent_with = replacement.clone();
                replacement
            }
            Some(pin) => pin.sent_with.clone(),
            None => replacement,
        }
    }

    /// Replaces the snapshot id in a pin after the snapshot was stored. The bytes stay the same.
    pub(super) fn renumber(
        &mut self,
        key: &Key,
        model: &str,
        unstored: &SentWith,
        stored: SentWith,
    ) {
        self.note_trim(key, &stored);
        if let Some(pin) = self
            .pin_mut(key, model)
            .filter(|pin| pin.sent_with == *unstored)
        {
            pin.sent_with = stored;
        }
    }

    /// Takes the pins of requests in flight. The others are dropped with `self`.
    pub(super) fn take_in_flight(&mut self) -> Self {
        let Self {
            mut by_history,
            mut trimmed,
            ..
        } = std::mem::take(self);
        by_history.retain(|_, pins| {
            pins.retain(|pin| pin.in_flight > 0);
            !pins.is_empty()
        });
        trimmed.retain(|key| by_history.contains_key(key));
        let bytes = by_history.values().flatten().map(Pin::bytes).sum();
        Self {
            by_history,
            trimmed,
            bytes,
        }
    }

    /// How many bytes all pins need.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts one request in flight less; removes the pin if none is left and no upstream accepted it.
    pub(super) fn release(&mut self, key: &Key, model: &str, accepted: bool) {
        let Some(pin) = self.pin_mut(key, model) else {
            return;
        };
        pin.in_flight = pin.in_flight.saturating_sub(1);
        pin.accepted |= accepted;
        if pin.in_flight > 0 || pin.accepted {
            return;
        }
        if let Some(pins) = self.by_history.get_mut(key) {
            let gone = pins.extract_if(.., |pin| *pin.model == *model);
            self.bytes -= gone.map(|pin| pin.bytes()).sum::<usize>();
            if pins.is_empty() {
                self.by_history.remove(key);
                self.trimmed.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trimmed(to_count: usize) -> SentWith {
        SentWith {
            trim: Some(Trim {
                to_count,
                pin: None,
                wording: 0,
            }),
            ..SentWith::default()
        }
    }

    /// A request that streams is refused. An equal one that does not stream was sent alike, so none has replaced it.
    #[test]
    fn a_request_that_cannot_be_asked_for_usage_is_alike() {
        let sent_with = |usage_requested| SentWith {
            usage_requested,
            ..trimmed(1)
        };
        for (one, other) in [
            (None, Some(true)),
            (Some(false), None),
            (Some(true), Some(true)),
        ] {
            assert!(
                sent_with(one).is_alike(&sent_with(other)),
                "{one:?} {other:?}"
            );
        }
        assert!(!sent_with(Some(true)).is_alike(&sent_with(Some(false))));
        assert!(!sent_with(None).is_alike(&SentWith::default()));
    }

    /// A request that goes on without the cut of the one before would bring back what its model had no room for.
    #[test]
    fn a_trim_is_found_however_it_became_known() {
        let label = PinLabel {
            model: "m",
            thread_key: None,
        };
        let keys: Vec<Key> = (1..=5)
            .map(|byte| ([0; 32], Link::from_slice(&[byte; 32]).expect("32")))
            .collect();
        let plain = SentWith::default;
        let mut pins = Pins::default();
        pins.get_or_pin(keys[0], label, trimmed(1), false);
        pins.add_recorded(keys[1], label, trimmed(2));
        pins.get_or_pin(keys[2], label, plain(), false);
        pins.replace_refused(&keys[2], "m", &plain(), trimmed(3));
        pins.get_or_pin(keys[3], label, plain(), false);
        pins.renumber(&keys[3], "m", &plain(), trimmed(4));
        pins.get_or_pin(keys[4], label, plain(), false);
        let counts = |pins: &Pins| -> Vec<usize> {
            let trims = keys.iter().flat_map(|key| pins.trims(key));
            trims.map(|(trim, _)| trim.to_count).collect()
        };
        assert_eq!(counts(&pins), [1, 2, 3, 4]);
        let mut in_flight = pins.take_in_flight();
        assert_eq!(counts(&in_flight), [1, 3, 4]);
        assert_eq!(counts(&pins), [0; 0]);
        in_flight.release(&keys[0], "m", false);
        assert_eq!(counts(&in_flight), [3, 4]);
    }
}
