//! What each request is sent with, from the moment it is decided: equal requests at one moment go out
//! alike, and a repetition as the first time (INV-SAME).
//!
//! A pin that no upstream has accepted is held only while a request under way stands on it: what was
//! refused is decided anew when it comes again. Used by [`super::Recall`] alone.

use std::collections::HashMap;

use super::known::Key;
use crate::store::Used;

#[derive(Debug)]
struct Pin {
    used: Used,
    model: Box<str>,
    /// Requests that were sent with it and have no answer yet.
    under_way: u32,
    /// An upstream took it, or the store says that it did.
    accepted: bool,
}

#[derive(Debug, Default)]
pub(super) struct Pins(HashMap<Key, Pin>);

impl Pins {
    pub(super) fn of(&self, key: &Key) -> Option<&Used> {
        self.0.get(key).map(|pin| &pin.used)
    }

    /// The pin and the model of the request that it is of.
    pub(super) fn with_model(&self, key: &Key) -> Option<(&Used, &str)> {
        self.0.get(key).map(|pin| (&pin.used, &*pin.model))
    }

    /// The first to settle decides. `accepted` says that `mine` is what it was sent with before; of a pin
    /// that is there it says nothing, since what is under way was "sent before" as well.
    pub(super) fn settle(&mut self, key: Key, model: &str, mine: Used, accepted: bool) -> Used {
        let pin = self.0.entry(key).or_insert_with(|| Pin {
            used: mine,
            model: model.into(),
            under_way: 0,
            accepted,
        });
        pin.under_way += 1;
        pin.used.clone()
    }

    /// The request was recorded with `used`, which counts where nobody settled it: a choice that a
    /// failing store could not help with is not held against a repetition, until it is recorded.
    pub(super) fn recorded(&mut self, key: Key, model: &str, used: Used) {
        self.0.entry(key).or_insert_with(|| Pin {
            used,
            model: model.into(),
            under_way: 0,
            accepted: true,
        });
    }

    /// `was` was refused and `now` is to go out instead, unless somebody else has agreed on something.
    /// What an upstream has taken stays: it is another model, or another day of the same, that refused.
    pub(super) fn agree(&mut self, key: Key, was: &Used, now: Used) -> Used {
        match self.0.get_mut(&key) {
            Some(pin) if pin.used == *was && !pin.accepted => {
                pin.used = now.clone();
                now
            }
            Some(pin) => pin.used.clone(),
            None => now,
        }
    }

    /// What was sent as `was` is stored as `now`: the same bytes under another number.
    pub(super) fn renumber(&mut self, key: &Key, was: &Used, now: Used) {
        if let Some(pin) = self.0.get_mut(key).filter(|pin| pin.used == *was) {
            pin.used = now;
        }
    }

    /// One request less is under way.
    pub(super) fn release(&mut self, key: &Key, accepted: bool) {
        let Some(pin) = self.0.get_mut(key) else {
            return;
        };
        pin.under_way = pin.under_way.saturating_sub(1);
        pin.accepted |= accepted;
        if pin.under_way == 0 && !pin.accepted {
            self.0.remove(key);
        }
    }
}
