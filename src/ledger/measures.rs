//! The numbers of a group by name: for JSON, CSV and checks.

use serde_json::Value;

use super::totals::Totals;

/// One number; `None` if it is not known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    Count(Option<u64>),
    /// Between 0 and 1.
    Share(Option<f64>),
    Dollars(Option<f64>),
}

/// How a number is taken from the sums.
type Take = fn(&Totals) -> Measure;

/// All numbers, in the order of the output.
pub const MEASURES: &[(&str, Take)] = &[
    ("requests", |it| Measure::Count(Some(it.requests))),
    ("errors", |it| Measure::Count(Some(it.errors))),
    ("error_rate", |it| Measure::Share(it.error_rate())),
    ("active", |it| Measure::Count(Some(it.active))),
    ("active_share", |it| Measure::Share(it.active_share())),
    ("no_usage", |it| Measure::Count(Some(it.no_usage))),
    ("no_cached", |it| Measure::Count(Some(it.no_cached))),
    ("prompt_tokens", |it| Measure::Count(it.prompt_tokens())),
    ("cached_tokens", |it| Measure::Count(it.cached_tokens())),
    ("hit_rate", |it| Measure::Share(it.hit_rate())),
    ("cache_write_tokens", |it| {
        Measure::Count(it.cache_write_tokens())
    }),
    ("completion_tokens", |it| {
        Measure::Count(it.completion_tokens())
    }),
    ("reasoning_tokens", |it| {
        Measure::Count(it.reasoning_tokens())
    }),
    ("memory_calls", |it| Measure::Count(Some(it.memory_calls))),
    ("unusable_calls", |it| {
        Measure::Count(Some(it.unusable_calls))
    }),
    ("memory_prompt_tokens", |it| {
        Measure::Count(it.memory_prompt_tokens())
    }),
    ("memory_cached_tokens", |it| {
        Measure::Count(it.memory_cached_tokens())
    }),
    ("memory_completion_tokens", |it| {
        Measure::Count(it.memory_completion_tokens())
    }),
    ("cost", |it| Measure::Dollars(it.cost())),
    ("memory_cost", |it| Measure::Dollars(it.memory_cost())),
    ("without_diarist", |it| Measure::Dollars(it.without())),
    ("net", |it| Measure::Dollars(it.net())),
    ("unpriced_requests", |it| {
        Measure::Count(Some(it.unpriced_requests))
    }),
    ("unpriced_calls", |it| {
        Measure::Count(Some(it.unpriced_calls))
    }),
    ("without_prompt_tokens", |it| {
        Measure::Count(it.without_prompt_tokens())
    }),
    ("without_hit_rate", |it| {
        Measure::Share(it.without_hit_rate())
    }),
    ("unreported_prompt_tokens", |it| {
        Measure::Count(it.unreported_tokens())
    }),
    ("important_items", |it| Measure::Count(it.important_items())),
    ("lost_items", |it| Measure::Count(it.lost_items())),
    ("uncached_tokens", |it| Measure::Count(it.uncached_tokens())),
    ("without_low", |it| {
        Measure::Dollars(it.without_range().map(|(low, _)| low))
    }),
    ("without_high", |it| {
        Measure::Dollars(it.without_range().map(|(_, high)| high))
    }),
    ("net_low", |it| {
        Measure::Dollars(it.net_range().map(|(low, _)| low))
    }),
    ("net_high", |it| {
        Measure::Dollars(it.net_range().map(|(_, high)| high))
    }),
    ("impossible_usage", |it| {
        Measure::Count(Some(it.impossible_usage))
    }),
    ("one_sided_requests", |it| {
        Measure::Count(Some(it.one_sided_requests))
    }),
    ("unreported_requests", |it| {
        Measure::Count(Some(it.unreported_requests()))
    }),
];

impl Measure {
    pub fn number(self) -> Option<f64> {
        match self {
            Self::Count(count) => count.map(|count| count as f64),
            Self::Share(number) | Self::Dollars(number) => number.map(rounded),
        }
    }

    pub(super) fn to_json(self) -> Value {
        match self {
            Self::Count(count) => count.into(),
            Self::Share(number) | Self::Dollars(number) => number.map(rounded).into(),
        }
    }

    /// Digits without separators; empty if not known.
    pub(super) fn to_plain(self) -> String {
        match self {
            Self::Count(count) => count.map(|count| count.to_string()),
            Self::Share(number) | Self::Dollars(number) => {
                number.map(|number| rounded(number).to_string())
            }
        }
        .unwrap_or_default()
    }
}

/// To billionths: sums of binary fractions end in noise.
pub(super) fn rounded(number: f64) -> f64 {
    const BILLION: f64 = 1e9;
    let rounded = (number * BILLION).round() / BILLION;
    // Not "-0".
    rounded + 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_measure_is_empty_and_rounding_noise_is_removed() {
        assert_eq!(Measure::Count(None).to_plain(), "");
        assert_eq!(Measure::Dollars(None).to_json(), Value::Null);
        assert_eq!(Measure::Dollars(Some(0.1 + 0.2)).to_plain(), "0.3");
        assert_eq!(Measure::Dollars(Some(-1e-12)).to_plain(), "0");
        assert_eq!(
            Measure::Share(Some(1.0 / 3.0)).number(),
            Some(0.333_333_333)
        );
    }
}
