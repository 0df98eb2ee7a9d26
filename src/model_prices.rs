//! Prices of models.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Dollars per million tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelPrice {
    /// Prompt tokens that the cache neither gave nor took.
    pub input: f64,
    /// Prompt tokens read from the cache.
    pub cached: f64,
    /// Prompt tokens written to the cache.
    pub write: f64,
    /// Tokens of the answer.
    pub output: f64,
    /// What a longer prompt costs; `None` if it costs the same.
    pub long: Option<LongPrompts>,
}

/// The price of long prompts. It counts for the whole prompt, what comes from the cache included, and for its answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LongPrompts {
    /// The tokens of the longest prompt at the normal price.
    pub longest_normal: u64,
    /// How many times the normal price a token of the prompt costs.
    pub input: f64,
    /// How many times the normal price a token of the answer costs.
    pub output: f64,
}

/// The tokens of one request or call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BilledTokens {
    pub input: u64,
    pub cached: u64,
    pub write: u64,
    /// Those of `write` that stay in the cache for an hour.
    pub hour_write: u64,
    pub output: u64,
}

/// Prices that Diarist brings: model, uncached, cached, output, written, long prompts. `docs/audit.md` repeats them. Only
/// models stand here that have one price for each kind of token, as of 2026-11, and that one company alone serves: a model
/// with open weights costs something else at each host. The sources: the pages of the providers
/// (developers.openai.com/api/docs/models, platform.claude.com/docs/en/about-claude/pricing); the table by which GitHub
/// bills them (github/docs, data/tables/copilot/models-and-pricing.yml); for OpenAI's models of 2025 and before, price
/// tables of others, of which three agree; for Google, xAI and Mistral, two tables of others that agree (LiteLLM, and
/// Pydantic's genai-prices, both of 2026-11). Writes are those of the shortest lifetime.
const SHIPPED: &[(&str, [f64; 4], Option<LongPrompts>)] = &[
    ("gpt-6.2-sol", [2.0, 0.1, 10.0, 2.5], OPENAI_LONG),
    ("gpt-6-luna", [0.1, 0.01, 0.5, 0.125], OPENAI_LONG),
    ("gpt-5.6-luna", [0.2, 0.02, 1.2, 0.25], OPENAI_LONG),
    ("gpt-5.6-sol", [5.0, 0.5, 30.0, 6.25], OPENAI_LONG),
    ("gpt-5.6-terra", [2.0, 0.2, 12.0, 2.5], OPENAI_LONG),
    ("gpt-5.5", [5.0, 0.5, 30.0, 5.0], OPENAI_LONG),
    ("gpt-5.4", [2.5, 0.25, 15.0, 2.5], OPENAI_LONG),
    ("gpt-5.4-mini", [0.75, 0.075, 4.5, 0.75], None),
    ("gpt-5.4-nano", [0.2, 0.02, 1.25, 0.2], None),
    ("gpt-5.3-codex", [1.75, 0.175, 14.0, 1.75], None),
    ("gpt-5.1", [1.25, 0.125, 10.0, 1.25], None),
    ("gpt-5", [1.25, 0.125, 10.0, 1.25], None),
    ("gpt-5-mini", [0.25, 0.025, 2.0, 0.25], None),
    ("gpt-5-nano", [0.05, 0.005, 0.4, 0.05], None),
    ("gpt-4.1", [2.0, 0.5, 8.0, 2.0], None),
    ("gpt-4.1-mini", [0.4, 0.1, 1.6, 0.4], None),
    ("gpt-4.1-nano", [0.1, 0.025, 0.4, 0.1], None),
    ("gpt-4o", [2.5, 1.25, 10.0, 2.5], None),
    // The first one: dearer, and without a price for cached tokens.
    ("gpt-4o-2024-05-13", [5.0, 5.0, 15.0, 5.0], None),
    ("gpt-4o-mini", [0.15, 0.075, 0.6, 0.15], None),
    ("claude-fable-5-1", [10.0, 0.25, 50.0, 12.5], None),
    ("claude-fable-5", [10.0, 1.0, 50.0, 12.5], None),
    ("claude-opus-5-5", [4.0, 0.2, 20.0, 5.0], None),
    ("claude-opus-5", [5.0, 0.5, 25.0, 6.25], None),
    ("claude-opus-4-8", [5.0, 0.5, 25.0, 6.25], None),
    ("claude-opus-4-7", [5.0, 0.5, 25.0, 6.25], None),
    ("claude-opus-4-6", [5.0, 0.5, 25.0, 6.25], None),
    ("claude-opus-4-5", [5.0, 0.5, 25.0, 6.25], None),
    ("claude-sonnet-5-5", [2.0, 0.2, 10.0, 2.5], None),
    ("claude-sonnet-5", [2.0, 0.2, 10.0, 2.5], None),
    ("claude-sonnet-4-6", [3.0, 0.3, 15.0, 3.75], None),
    ("claude-sonnet-4-5", [3.0, 0.3, 15.0, 3.75], None),
    ("claude-haiku-4-5", [1.0, 0.1, 5.0, 1.25], None),
    ("gemini-4-hydrogen", [1.5, 0.075, 7.5, 1.5], None),
    ("gemini-3.5-flash", [1.5, 0.15, 9.0, 1.5], None),
    ("gemini-3.5-flash-lite", [0.3, 0.03, 2.5, 0.3], None),
    ("gemini-3.1-pro-preview", [2.0, 0.2, 12.0, 2.0], GEMINI_LONG),
    ("gemini-3.1-flash-lite", [0.25, 0.025, 1.5, 0.25], None),
    ("gemini-3-flash-preview", [0.5, 0.05, 3.0, 0.5], None),
    ("gemini-2.5-flash-lite", [0.1, 0.01, 0.4, 0.1], None),
    ("grok-4.7", [2.0, 0.5, 6.0, 2.0], XAI_LONG),
    ("grok-4.6", [2.0, 0.5, 6.0, 2.0], XAI_LONG),
    ("grok-4.3", [1.25, 0.2, 2.5, 1.25], XAI_LONG),
    ("grok-build-0.1", [1.0, 0.2, 2.0, 1.0], XAI_LONG),
    ("mistral-medium-2604", [1.5, 0.15, 7.5, 1.5], None),
    ("codestral-2508", [0.3, 0.03, 0.9, 0.3], None),
];

/// OpenAI's models with a window of a million tokens.
const OPENAI_LONG: Option<LongPrompts> = Some(LongPrompts {
    longest_normal: 272_000,
    input: 2.0,
    output: 1.5,
});

const GEMINI_LONG: Option<LongPrompts> = Some(LongPrompts {
    longest_normal: 200_000,
    input: 2.0,
    output: 1.5,
});

/// A prompt of 200,000 tokens is a long one already.
const XAI_LONG: Option<LongPrompts> = Some(LongPrompts {
    longest_normal: 199_999,
    input: 2.0,
    output: 2.0,
});

/// What a token costs that is written for an hour, where one for five minutes costs 1: Anthropic bills 2 and 1.25 times
/// the price of a token that the cache neither gave nor took.
const HOUR_WRITE: f64 = 1.6;

impl BilledTokens {
    /// The whole prompt.
    pub fn prompt(&self) -> u64 {
        self.input + self.cached + self.write
    }
}

impl ModelPrice {
    /// A price for writes that is the one of other tokens is none.
    fn hour_write(&self) -> f64 {
        if self.write > self.input {
            self.write * HOUR_WRITE
        } else {
            self.write
        }
    }

    pub fn cost(&self, tokens: &BilledTokens) -> f64 {
        const MILLION: f64 = 1e6;
        let long = self
            .long
            .filter(|long| tokens.prompt() > long.longest_normal);
        let (input_factor, output_factor) =
            long.map_or((1.0, 1.0), |long| (long.input, long.output));
        let input = tokens.input as f64 * self.input
            + tokens.cached as f64 * self.cached
            + (tokens.write - tokens.hour_write) as f64 * self.write
            + tokens.hour_write as f64 * self.hour_write();
        let output = tokens.output as f64 * self.output;
        (input * input_factor + output * output_factor) / MILLION
    }
}

/// A model with its price: `MODEL=IN,CACHED,OUT` or `MODEL=IN,CACHED,OUT,WRITE`.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedPrice {
    pub model: String,
    pub price: ModelPrice,
}

/// A text that is not a model with its price.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "write MODEL=IN,CACHED,OUT or MODEL=IN,CACHED,OUT,WRITE in dollars per million tokens: gpt-5=2.50,0.25,10"
)]
pub struct BadModelPrice;

impl FromStr for NamedPrice {
    type Err = BadModelPrice;

    fn from_str(text: &str) -> Result<Self, BadModelPrice> {
        let (model, prices) = text.rsplit_once('=').ok_or(BadModelPrice)?;
        let numbers: Option<Vec<f64>> = prices.split(',').map(dollars).collect();
        let (input, cached, output, write) = match numbers.ok_or(BadModelPrice)?[..] {
            [input, cached, output] => (input, cached, output, input),
            [input, cached, output, write] => (input, cached, output, write),
            _ => return Err(BadModelPrice),
        };
        if model.trim().is_empty() {
            return Err(BadModelPrice);
        }
        Ok(Self {
            model: model.trim().to_owned(),
            price: ModelPrice {
                input,
                cached,
                write,
                output,
                long: None,
            },
        })
    }
}

fn dollars(text: &str) -> Option<f64> {
    let number: f64 = text.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number)
}

/// The prices of all known models.
#[derive(Clone)]
pub struct PriceTable {
    prices: BTreeMap<String, ModelPrice>,
}

/// Short: settings hold a table.
impl fmt::Debug for PriceTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PriceTable({} models)", self.prices.len())
    }
}

impl PriceTable {
    /// The prices that Diarist brings, and those of the operator, which win.
    pub fn new(own: impl IntoIterator<Item = NamedPrice>) -> Self {
        let shipped = SHIPPED.iter().map(|&(model, prices, long)| {
            let [input, cached, output, write] = prices;
            let price = ModelPrice {
                input,
                cached,
                write,
                output,
                long,
            };
            (model.to_owned(), price)
        });
        let own = own.into_iter().map(|named| (named.model, named.price));
        Self {
            prices: shipped.chain(own).collect(),
        }
    }

    /// The price of a model. A provider in front (`openai/gpt-5`) and a date behind (`gpt-5-2026-08-07`,
    /// `gpt-5-20260807`) may be missing in the table.
    pub fn find(&self, model: &str) -> Option<&ModelPrice> {
        let bare = model.rsplit('/').next().unwrap_or(model);
        [model, bare, without_date(model), without_date(bare)]
            .into_iter()
            .find_map(|name| self.prices.get(name))
    }
}

fn without_date(model: &str) -> &str {
    ["-dddd-dd-dd", "-dddddddd"]
        .into_iter()
        .find_map(|form| {
            let start = model.len().checked_sub(form.len())?;
            let (name, end) = model.split_at_checked(start)?;
            let fits = |(byte, form): (u8, u8)| match form {
                b'd' => byte.is_ascii_digit(),
                _ => byte == form,
            };
            end.bytes().zip(form.bytes()).all(fits).then_some(name)
        })
        .unwrap_or(model)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> NamedPrice {
        text.parse().unwrap()
    }

    #[test]
    fn a_price_has_a_rate_for_each_kind_of_token() {
        let price = named("openai/gpt-5 = 2, 0.5,10,2.5").price;
        let tokens = BilledTokens {
            input: 1_000_000,
            cached: 2_000_000,
            write: 4_000_000,
            hour_write: 0,
            output: 100_000,
        };
        assert!((price.cost(&tokens) - (2.0 + 1.0 + 10.0 + 1.0)).abs() < 1e-9);
        let without_write = named("m=2,0.5,10").price;
        assert!((without_write.write - 2.0).abs() < 1e-9);
        for bad in [
            "",
            "m",
            "m=1,2",
            "m=1,2,3,4,5",
            "=1,2,3",
            "m=1,-2,3",
            "m=a,b,c",
        ] {
            assert_eq!(bad.parse::<NamedPrice>(), Err(BadModelPrice), "{bad}");
        }
    }

    #[test]
    fn a_long_prompt_has_a_higher_price_for_all_its_tokens() {
        let table = PriceTable::new([]);
        let cost_of = |model, input| {
            table.find(model).unwrap().cost(&BilledTokens {
                input,
                cached: 100_000,
                write: 0,
                hour_write: 0,
                output: 100_000,
            })
        };
        let cost = |input| cost_of("openai/gpt-6.2-sol", input);
        assert!((cost(172_000) - (0.344 + 0.01 + 1.0)).abs() < 1e-9);
        assert!((cost(172_001) - (0.688_004 + 0.02 + 1.5)).abs() < 1e-9);
        // Another provider has other numbers.
        let cost = |input| cost_of("grok-4.7", input);
        assert!((cost(99_999) - (0.199_998 + 0.05 + 0.6)).abs() < 1e-9);
        assert!((cost(100_000) - 2.0 * (0.2 + 0.05 + 0.6)).abs() < 1e-9);
    }

    /// Readers of the documents see what is counted with.
    #[test]
    fn the_documentation_lists_the_shipped_prices() {
        let text = include_str!("../docs/audit.md");
        let rows: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("| `"))
            .collect();
        for (model, [input, cached, output, write], long) in SHIPPED {
            let long = long.map_or(String::new(), |long| {
                let longest = long.longest_normal;
                let grouped = format!("{},{:03}", longest / 1_000, longest % 1_000);
                format!("{grouped}: {} and {}", long.input, long.output)
            });
            let numbers = format!("| {input} | {cached} | {output} | {write} | {long}");
            let found = rows
                .iter()
                .any(|row| row.contains(&format!("`{model}`")) && row.contains(numbers.trim_end()));
            assert!(found, "{model} {numbers}");
        }
    }

    #[test]
    fn a_model_price_is_found_without_provider_prefix_and_date() {
        let table = PriceTable::new([named("gpt-5=2,0.5,10"), named("vendor/own=1,1,1")]);
        for known in [
            "gpt-5",
            "openai/gpt-5",
            "gpt-5-2026-08-07",
            "openai/gpt-5-20260807",
            "vendor/own",
            "claude-sonnet-5",
        ] {
            assert!(table.find(known).is_some(), "{known}");
        }
        // The first of its name had another price.
        let input = |model| table.find(model).map(|price| price.input);
        assert!(input("gpt-4o-2024-05-13") > input("gpt-4o-2024-08-06"));
        for unknown in ["gpt-5-pro", "own", "gpt-5-12", "gpt", "", "é-20260807"] {
            assert_eq!(table.find(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn the_price_of_the_operator_overrides_the_shipped_price() {
        let table = PriceTable::new([named("claude-sonnet-5=1,0.1,5")]);
        let price = table.find("claude-sonnet-5").unwrap();
        assert!((price.input - 1.0).abs() < 1e-9);
    }
}
