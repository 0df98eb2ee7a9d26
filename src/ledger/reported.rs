//! The usage report of a provider, as its line repeats it: what is used beside the normalised numbers.
//!
//! Whatever a provider puts there, the line can be read.

use serde::Deserialize;
use serde_json::Value;

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
            cost: dollars.filter(|dollars| dollars.is_finite() && *dollars >= 0.0),
            hour_writes: hours.unwrap_or(0),
        }
    }

    /// The dollars that the provider says the request cost: OpenRouter does.
    pub fn cost(&self) -> Option<f64> {
        self.cost
    }

    /// Tokens that were written to the cache for an hour.
    pub fn hour_writes(&self) -> u64 {
        self.hour_writes
    }
}
