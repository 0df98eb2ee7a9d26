//! The usage report of a provider, as its line repeats it: what is used beside the normalised numbers.
//!
//! Whatever a provider puts there, the line can be read.

use serde::Deserialize;
use serde_json::Value;

/// The most dollars that one request can cost. No answer costs so much; a report that says more has a fault, and would
/// be more than all others together.
const MAX_COST: f64 = 10_000.0;

/// What is used of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "Fields")]
pub struct ReportedUsage {
    cost: Option<f64>,
    hour_writes: u64,
}

/// The fields that hold it, whatever is in them.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Fields {
    cost: Value,
    cache_creation: Value,
    prompt_tokens_details: Value,
}

impl From<Fields> for ReportedUsage {
    fn from(fields: Fields) -> Self {
        let Fields {
            cost,
            cache_creation,
            prompt_tokens_details,
        } = fields;
        Self::read(&cost, &cache_creation, &prompt_tokens_details)
    }
}

impl ReportedUsage {
    /// Reads a whole report.
    pub fn new(usage: &Value) -> Self {
        let field = |name: &str| &usage[name];
        Self::read(
            field("cost"),
            field("cache_creation"),
            field("prompt_tokens_details"),
        )
    }

    fn read(cost: &Value, cache_creation: &Value, prompt_details: &Value) -> Self {
        let dollars = cost.as_f64();
        // Anthropic has them on top, LiteLLM in the details of the prompt.
        let by_lifetime = [
            cache_creation,
            &prompt_details["cache_creation_token_details"],
        ];
        let mut hours = by_lifetime.into_iter();
        let hours = hours.find_map(|writes| writes["ephemeral_1h_input_tokens"].as_u64());
        Self {
            cost: dollars.filter(|dollars| (0.0..=MAX_COST).contains(dollars)),
            hour_writes: hours.unwrap_or(0),
        }
    }

    /// The dollars that the provider says the request cost: OpenRouter does. `None` if that cannot be.
    pub fn cost(&self) -> Option<f64> {
        self.cost
    }

    /// Tokens that were written to the cache for an hour.
    pub fn hour_writes(&self) -> u64 {
        self.hour_writes
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cost_that_no_request_has_counts_as_not_reported() {
        let cost = |dollars: Value| ReportedUsage::new(&json!({ "cost": dollars })).cost();
        for possible in [0.0, 0.5, 10_000.0] {
            assert_eq!(cost(json!(possible)), Some(possible));
        }
        for impossible in [
            json!(-0.5),
            json!(10_001),
            json!(1e12),
            json!(1e300),
            json!("1"),
        ] {
            assert_eq!(cost(impossible), None);
        }
    }
}
