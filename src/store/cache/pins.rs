//! What each request is sent with, from the moment it is decided: equal requests at one moment go out
//! alike, and a repetition as the first time (INV-SAME). Equal are requests of one history for one model.
//!
//! A pin that no upstream has accepted is held only while a request under way stands on it: what was
//! refused is decided anew when it comes again. Used by [`super::Recall`] alone.

use std::collections::HashMap;

use super::state::Key;
use crate::store::SentWith;

/// Who asks what: the model, and the name of the conversation.
#[derive(Clone, Copy, Debug)]
pub struct PinLabel<'a> {
    /// As the request names it.
    pub model: &'a str,
    /// As its client names it.
    pub thread_key: Option<&'a str>,
}

#[derive(Debug)]
struct Pin {
    sent_with: SentWith,
    model: Box<str>,
    /// The name that its conversation goes under.
    thread_key: Option<Box<str>>,
    /// Requests that were sent with it and have no answer yet.
    in_flight: u32,
    /// An upstream took it, or the store says that it did.
    accepted: bool,
}

/// By the last link of the history, one for each model.
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

    /// The pin, as it is or as `new` makes it.
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

    /// Whether the history went out to any model.
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }

    /// What the history was sent with, and for which model each time.
    pub(super) fn by_model(&self, key: &Key) -> impl Iterator<Item = (&SentWith, &str)> {
        self.by_label(key).map(|(used, model, _)| (used, model))
    }

    /// The same, with the name of its conversation.
    pub(super) fn by_label(
        &self,
        key: &Key,
    ) -> impl Iterator<Item = (&SentWith, &str, Option<&str>)> {
        let pins = self.0.get(key).into_iter().flatten();
        pins.map(|pin| (&pin.sent_with, &*pin.model, pin.thread_key.as_deref()))
    }

    /// The first to settle decides. `accepted` says that `mine` is what it was sent with before; of a pin
    /// that is there it says nothing, since what is under way was "sent before" as well.
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

    /// The request was recorded with `used`, which counts where nobody settled it: a choice that a
    /// failing store could not help with is not held against a repetition, until it is recorded.
    pub(super) fn add_recorded(&mut self, key: Key, label: PinLabel<'_>, sent_with: SentWith) {
        self.or_insert(key, label.model, || Pin {
            sent_with,
            model: label.model.into(),
            thread_key: label.thread_key.map(Into::into),
            in_flight: 0,
            accepted: true,
        });
    }

    /// `was` was refused and `now` is to go out instead, unless somebody else has agreed on something.
    /// What an upstream has taken stays: it is another day of the same model that refused.
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

    /// What was sent as `was` is stored as `now`: the same bytes under another number.
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

    /// One request less is under way.
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
