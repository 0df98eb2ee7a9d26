//! Which conversations follow prices, and which prices they follow.
//!
//! A price of `[memory.cost]` wins. Then come the prices of the models, the operator's before the shipped ones, and
//! then what the provider publishes about its cache. Decides nothing about a conversation: `memory::advance` does,
//! with the rules that come from here.

use std::sync::Arc;

use crate::llm::Models;
use crate::memory::{CostRules, Policy, with_cache_prices};
use crate::model_prices::{ModelPrice, PriceTable};

/// The section `[memory.cost]`. Prices are thousandths of what an uncached prompt token of the conversation's model
/// costs; `None` for those of the models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostSettings {
    /// A prompt token from the cache.
    pub cache_read: Option<u32>,
    /// A prompt token that the cache did not hold.
    pub cache_write: Option<u32>,
    /// A prompt token of the Observer and the Reflector.
    pub observer_input: Option<u32>,
    /// A token of their answers.
    pub observer_output: Option<u32>,
    /// How much dearer than without memory a conversation may become, in thousandths of its cost.
    pub max_loss: u32,
    /// Raw history at which memory is made and used whatever it costs.
    pub history_limit: u32,
}

/// The policy that weighs costs.
#[derive(Clone, Debug)]
pub struct CostAware {
    /// The thresholds where costs decide, still without prices.
    pub policy: Policy,
    /// Whether a price that nobody knows is assumed. Otherwise the published thresholds apply to such a conversation.
    pub assumes_prices: bool,
    /// The section of the configuration.
    pub cost: CostSettings,
    /// The prices of models.
    pub prices: Arc<PriceTable>,
}

/// What a token of an answer costs where only the price of a prompt token is known: four to eight times as much with
/// most models, 2026-11.
const OUTPUT_FACTOR: u32 = 5;

/// An Observer of unknown price is taken to be as dear as the conversation's model.
const SAME_PRICE: u32 = 1_000;

impl CostAware {
    /// The policy for conversations with `model` at `host`. `memory_models` are those of both phases, `None` standing
    /// for `model`. The result is `None` if the published thresholds apply.
    pub(super) fn policy_for(
        &self,
        host: &str,
        model: &str,
        memory_models: [Option<&Models>; 2],
    ) -> Option<Policy> {
        let conversation = self.prices.find(model).filter(|price| price.input > 0.0);
        let derived = conversation.and_then(|price| self.memory_price(price, model, memory_models));
        let cost = &self.cost;
        let known_input = cost.observer_input.or(derived.map(|(input, _)| input));
        if known_input.is_none() && !self.assumes_prices {
            return None;
        }
        let observer_input = known_input.unwrap_or(SAME_PRICE);
        let derived_output = derived.map(|(_, output)| output);
        let cache = |price: fn(&ModelPrice) -> f64| {
            conversation.map(|model| thousandths(price(model), model.input))
        };
        let rules = CostRules {
            cache_read: cost.cache_read.or_else(|| cache(|price| price.cached)),
            cache_write: cost.cache_write.or_else(|| cache(|price| price.write)),
            observer_input,
            observer_output: cost
                .observer_output
                .or(derived_output)
                .unwrap_or_else(|| observer_input.saturating_mul(OUTPUT_FACTOR)),
            max_loss: cost.max_loss,
            history_limit: cost.history_limit,
        };
        Some(Policy {
            costs: Some(with_cache_prices(rules, host, model)),
            ..self.policy
        })
    }

    /// One of `models` that has no price, if its conversations follow thresholds for that reason.
    pub(super) fn unpriced<'a>(&self, models: &'a Models) -> Option<&'a str> {
        let matters = !self.assumes_prices && self.cost.observer_input.is_none();
        let mut names = models.names().filter(|_| matters);
        names.find(|name| self.prices.find(name).is_none())
    }

    /// The prices of prompts and answers of the dearest model that writes memory. `None` if one is not known.
    fn memory_price(
        &self,
        conversation: &ModelPrice,
        model: &str,
        memory_models: [Option<&Models>; 2],
    ) -> Option<(u32, u32)> {
        let own = memory_models.contains(&None).then_some(model);
        let configured = memory_models.into_iter().flatten();
        let names = configured.flat_map(Models::names).chain(own);
        names.into_iter().try_fold((0, 0), |(input, output), name| {
            let price = self.prices.find(name)?;
            Some((
                input.max(thousandths(price.input, conversation.input)),
                output.max(thousandths(price.output, conversation.input)),
            ))
        })
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "no price is negative, and `as` saturates"
)]
fn thousandths(price: f64, unit: f64) -> u32 {
    (price / unit * 1_000.0).round() as u32
}
