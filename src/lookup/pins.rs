//! Pins: what each request is sent with, from the moment it is decided. Equal requests at the same time are
//! sent alike, and a repetition is sent like the first one (INV-SAME). Two requests are equal if they have one
//! history and one model.
//!
//! A pin that no upstream has accepted is kept only while a request with it is in flight. After a refusal,
//! a repetition is decided anew. Used by [`super::SnapshotCache`] only.

use foldhash::HashMap;

use super::sizes;
use crate::history::Link;
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
pub(super) struct Pins(HashMap<Key, Vec<Pin>>);

impl Pins {
    fn pin(&self, key: &Key, model: &str) -> Option<&Pin> {
        let mut pins = self.0.get(key)?.iter();
        pins.find(|pin| *pin.model == *model)
    }

    fn pin_mut(&mut self, key: &Key, model: &str) -> Option<&mut Pin> {
        let mut pins = self.0.get_mut(key)?.iter_mut();
        pins.find(|pin| *pin.model == *model)
    }

    /// The pin; `new` makes it if there is none.
    fn or_insert(&mut self, key: Key, model: &str, new: impl FnOnce() -> Pin) -> &mut Pin {
        let pins = self.0.entry(key).or_default();
        let existing = pins.iter().position(|pin| *pin.model == *model);
        let at = existing.unwrap_or_else(|| {
            pins.push(new());
            pins.len() - 1
        });
        &mut pins[at]
    }

    pub(super) fn get(&self, key: &Key, model: &str) -> Option<&SentWith> {
        self.pin(key, model).map(|pin| &pin.sent_with)
    }

    /// Whether the history was sent to any model.
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }

    /// What the history was sent with, for each model.
    pub(super) fn by_model(&self, key: &Key) -> impl Iterator<Item = (&SentWith, &str)> {
        self.by_label(key).map(|(used, model, _)| (used, model))
    }

    /// What the history was sent with, for each model, with the thread key.
    pub(super) fn by_label(
        &self,
        key: &Key,
    ) -> impl Iterator<Item = (&SentWith, &str, Option<&str>)> {
        let pins = self.0.get(key).into_iter().flatten();
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
        match self.pin_mut(key, model) {
            Some(pin) if pin.sent_with == *refused && !pin.accepted => {
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
        if let Some(pin) = self
            .pin_mut(key, model)
            .filter(|pin| pin.sent_with == *unstored)
        {
            pin.sent_with = stored;
        }
    }

    /// Takes the pins of requests in flight. The others are dropped with `self`.
    pub(super) fn take_in_flight(&mut self) -> Self {
        let mut taken = std::mem::take(&mut self.0);
        taken.retain(|_, pins| {
            pins.retain(|pin| pin.in_flight > 0);
            !pins.is_empty()
        });
        Self(taken)
    }

    /// How many bytes all pins need.
    pub(super) fn bytes(&self) -> usize {
        let pins = self.0.values().flatten();
        pins.map(|pin| sizes::of_pin(&pin.model, pin.thread_key.as_deref()))
            .sum()
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
        if let Some(pins) = self.0.get_mut(key) {
            pins.retain(|pin| *pin.model != *model);
            if pins.is_empty() {
                self.0.remove(key);
            }
        }
    }
}
