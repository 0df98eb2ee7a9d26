//! How many tokens providers count where Diarist counts one, by model: a running figure for each.
//!
//! The recorder adds to it, the request path reads it for the audit, and the thresholds follow it if the operator wants
//! that (`memory.calibrate_tokens`). A threshold decides what is made from now on. What was made stays, so no request
//! goes out otherwise than before. Lives in the memory of the process, for as many models as [`MAX_MODELS`].

use std::sync::{Arc, Mutex, PoisonError};

use foldhash::{HashMap, HashMapExt as _};

use super::exchange::Exchange;
use crate::memory::{Node, Policy, TokenRatio};
use crate::telemetry;

/// Clients choose the names of models. The one that nothing was added to for the longest time makes room.
const MAX_MODELS: usize = 256;

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
        let mut models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        models.additions += 1;
        let last = models.additions;
        if !models.by_name.contains_key(model) && models.by_name.len() >= MAX_MODELS {
            let oldest = models.by_name.iter().min_by_key(|(_, entry)| entry.last);
            let oldest = oldest.map(|(name, _)| name.clone());
            oldest.and_then(|name| models.by_name.remove(&name));
        }
        let entry = models.by_name.entry(model.to_owned()).or_default();
        entry.last = last;
        entry.ratio.add(counted, reported)
    }

    /// Reported tokens for one counted token of `model`; `None` as long as too few were compared.
    pub(super) fn ratio(&self, model: &str) -> Option<f64> {
        let models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        models.by_name.get(model)?.ratio.value()
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
    fn names_that_clients_invent_do_not_grow_it_and_the_oldest_goes_first() {
        let calibration = Calibration::default();
        for number in 0..MAX_MODELS {
            calibration.add_tokens(&number.to_string(), 4_000, 4_400);
        }
        calibration.add_tokens("0", 4_000, 4_400);
        calibration.add_tokens("new", 4_000, 4_800);
        let ratios = ["0", "1", "2", "new"].map(|model| calibration.ratio(model));
        assert_eq!(ratios, [Some(1.1), None, Some(1.1), Some(1.2)]);
        let models = calibration.0.lock().unwrap();
        assert_eq!(models.by_name.len(), MAX_MODELS);
    }
}
