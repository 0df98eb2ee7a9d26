//! The prices that cost-aware decisions use.
//!
//! Values only: the config module checks them, `advance` decides with them. All prices are shares of what one
//! uncached prompt token of the conversation's model costs, so no currency and no price table is needed.

/// What reading from the cache and writing to it cost where no price is known, in thousandths of an uncached token:
/// what most providers charge, 2026-10.
pub(super) const UNKNOWN: (u32, u32) = (100, 1_000);

/// How a policy weighs costs. `None` in a policy: it follows its thresholds alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostRules {
    /// The price of a prompt token from the cache, in thousandths; `None` for what is known of the provider.
    pub cache_read: Option<u32>,
    /// The price of a prompt token that the cache did not hold, in thousandths; `None` as above.
    pub cache_write: Option<u32>,
    /// The price of a prompt token of the Observer and the Reflector, in thousandths.
    pub observer_input: u32,
    /// The price of a token of their answers, in thousandths.
    pub observer_output: u32,
    /// How much dearer than without memory a conversation may become, in thousandths of its cost.
    pub max_loss: u32,
    /// Raw history at which memory is made and used whatever it costs.
    pub history_limit: u32,
}

impl CostRules {
    /// The prices as factors: from the cache, not from the cache.
    pub(super) fn cache(&self) -> (f64, f64) {
        let factor = |thousandths: u32| f64::from(thousandths) / 1_000.0;
        (
            factor(self.cache_read.unwrap_or(UNKNOWN.0)),
            factor(self.cache_write.unwrap_or(UNKNOWN.1)),
        )
    }

    /// The cost of calls of memory that read and write so many tokens.
    pub(super) fn calls(&self, read: f64, written: f64) -> f64 {
        (read * f64::from(self.observer_input) + written * f64::from(self.observer_output))
            / 1_000.0
    }
}
