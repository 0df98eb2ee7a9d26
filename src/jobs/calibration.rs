//! How many tokens providers count where Diarist counts one, by model: a running figure for each.
//!
//! The recorder adds to it, the request path reads it for the audit, and the thresholds follow it if the operator wants
//! that (`memory.calibrate_tokens`). A threshold decides what is made from now on. What was made stays, so no request
//! goes out otherwise than before. Lives in the memory of the process, for as many models as [`MAX_MODELS`]; `app`
//! stores it and brings it back after a restart.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::{HashMap, HashMapExt as _};

use super::exchange::Exchange;
use crate::memory::{Node, Policy, TokenRatio};
use crate::store::StoredTokenRatio;
use crate::telemetry;

/// Clients choose the names of models. The one that nothing was added to for the longest time makes room; those of which
/// too little is known do so first.
pub const MAX_MODELS: u32 = 256;

/// Longer names are not stored. No provider has such a model.
const LONGEST_NAME: usize = 256;

/// The figures of all models. A clone is a second handle to the same ones.
#[derive(Clone, Debug)]
pub(super) struct Calibration(Arc<Mutex<Models>>);

#[derive(Debug)]
struct Models {
    by_name: HashMap<String, Entry>,
    additions: u64,
}

#[derive(Debug, Default)]
struct Entry {
    ratio: TokenRatio,
    /// The number of its last addition.
    last: u64,
}

impl Default for Calibration {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Models {
            by_name: HashMap::new(),
            additions: 0,
        })))
    }
}

impl Models {
    /// The figure of a model, which is about to change.
    fn entry(&mut self, model: &str) -> &mut Entry {
        self.additions += 1;
        if !self.by_name.contains_key(model) && self.by_name.len() >= MAX_MODELS as usize {
            // Those of which too little is known go first: it costs an invented name more to push out a real one.
            let place = |entry: &Entry| (entry.ratio.value().is_some(), entry.last);
            let oldest = self.by_name.iter().min_by_key(|(_, entry)| place(entry));
            let oldest = oldest.map(|(name, _)| name.clone());
            oldest.and_then(|name| self.by_name.remove(&name));
        }
        let entry = self.by_name.entry(model.to_owned()).or_default();
        entry.last = self.additions;
        entry
    }
}

impl Calibration {
    /// Compares the growth that the provider reported for `exchange` with the tokens of its new messages. `nodes` are
    /// those of its chain.
    pub(super) fn add(&self, exchange: &Exchange, nodes: &[Node]) {
        // The messages of an aligned request stand elsewhere on its chain.
        let aligned = exchange.alignment.is_some();
        let Some(growth) = exchange.growth.filter(|_| !aligned) else {
            return;
        };
        let sent = exchange.history.len();
        let Some(new) = sent
            .checked_sub(growth.messages)
            .and_then(|from| nodes.get(from..sent))
        else {
            return;
        };
        let counted = new.iter().map(|node| u64::from(node.tokens)).sum();
        if self.add_tokens(&exchange.model, counted, growth.tokens) {
            for (by, tokens) in [("diarist", counted), ("provider", growth.tokens)] {
                metrics::counter!(telemetry::COMPARED_TOKENS, "by" => by).increment(tokens);
            }
        }
    }

    fn add_tokens(&self, model: &str, counted: u64, reported: u64) -> bool {
        let mut models = self.lock();
        let known = models.by_name.get(model).map(|entry| entry.ratio);
        let mut ratio = known.unwrap_or_default();
        // What is not used makes no entry: it would push out another one.
        let is_used = ratio.add(counted, reported);
        if is_used {
            models.entry(model).ratio = ratio;
        }
        is_used
    }

    /// Adds what an earlier process knew.
    pub(super) fn add_stored(&self, stored: &[StoredTokenRatio]) {
        let mut models = self.lock();
        for model in stored {
            let ratio = &mut models.entry(&model.model).ratio;
            *ratio = ratio.plus(TokenRatio::from_sums(model.counted, model.reported));
        }
    }

    /// What changed after the addition with the number `since`, and the number of the newest one.
    pub(super) fn changed_since(&self, since: u64) -> (Vec<StoredTokenRatio>, u64) {
        let models = self.lock();
        let changed = models.by_name.iter().filter(|(name, entry)| {
            let (counted, _) = entry.ratio.sums();
            entry.last > since && counted > 0 && name.len() <= LONGEST_NAME
        });
        let stored = changed.map(|(name, entry)| {
            let (counted, reported) = entry.ratio.sums();
            StoredTokenRatio {
                model: name.clone(),
                counted,
                reported,
            }
        });
        (stored.collect(), models.additions)
    }

    fn lock(&self) -> MutexGuard<'_, Models> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reported tokens for one counted token of `model`; `None` as long as too few were compared.
    pub(super) fn ratio(&self, model: &str) -> Option<f64> {
        self.lock().by_name.get(model)?.ratio.value()
    }

    /// `policy` in Diarist's tokens, if the provider of `model` counts otherwise.
    pub(super) fn apply(&self, policy: Policy, model: &str) -> Policy {
        match self.ratio(model) {
            Some(ratio) => policy.for_token_ratio(ratio),
            None => policy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calibration_holds_a_bounded_number_of_models_and_drops_the_oldest() {
        let calibration = Calibration::default();
        for number in 0..MAX_MODELS {
            calibration.add_tokens(&number.to_string(), 4_000, 4_400);
        }
        calibration.add_tokens("0", 4_000, 4_400);
        calibration.add_tokens("new", 4_000, 4_800);
        let ratios = ["0", "1", "2", "new"].map(|model| calibration.ratio(model));
        assert_eq!(ratios, [Some(1.1), None, Some(1.1), Some(1.2)]);
        let models = calibration.0.lock().unwrap();
        assert_eq!(models.by_name.len(), MAX_MODELS as usize);
    }

    #[test]
    fn a_model_without_plausible_tokens_takes_no_room() {
        let calibration = Calibration::default();
        calibration.add_tokens("real", 4_000, 4_400);
        for number in 0..2 * MAX_MODELS {
            // Too short, or not plausible.
            calibration.add_tokens(&number.to_string(), 1, 1);
            calibration.add_tokens(&number.to_string(), 4_000, 4_000_000);
        }
        assert_eq!(calibration.ratio("real"), Some(1.1));
        assert_eq!(calibration.0.lock().unwrap().by_name.len(), 1);
    }

    #[test]
    fn a_model_with_too_few_tokens_is_dropped_before_a_calibrated_one() {
        let calibration = Calibration::default();
        calibration.add_tokens("real", 4_000, 4_400);
        for number in 0..2 * MAX_MODELS {
            calibration.add_tokens(&number.to_string(), 100, 110);
        }
        assert_eq!(calibration.ratio("real"), Some(1.1));
        let models = calibration.0.lock().unwrap();
        assert_eq!(models.by_name.len(), MAX_MODELS as usize);
    }

    #[test]
    fn stored_token_ratios_are_added_and_only_changed_ones_are_stored() {
        let (before, after) = (Calibration::default(), Calibration::default());
        before.add_tokens("a", 4_000, 4_400);
        before.add_tokens("b", 4_000, 4_800);
        before.add_tokens("nothing", 0, 4_800);
        before.add_tokens(&"x".repeat(LONGEST_NAME + 1), 4_000, 4_800);
        let (mut stored, last) = before.changed_since(0);
        stored.sort_by(|one, other| one.model.cmp(&other.model));
        assert_eq!(stored.len(), 2, "{stored:?}");
        assert_eq!(before.changed_since(last), (Vec::new(), last));
        before.add_tokens("b", 400, 480);
        let (changed, _) = before.changed_since(last);
        assert_eq!(changed[0].model, "b");

        // This process has learned something before the figures came.
        after.add_tokens("a", 4_000, 4_800);
        after.add_stored(&stored);
        let ratios = ["a", "b"].map(|model| after.ratio(model));
        assert_eq!(ratios, [Some(1.15), Some(1.2)]);
    }
}
