//! Reads token usage in every provider's form, and the meaning of a refusal.
//!
//! Decides which numbers of an answer are the prompt, the cache read, the cache write and the completion. A
//! missing number stays missing and never becomes 0. Never looks at content, and never guesses a number by
//! the rule of another provider. Called for the upstream's answers and for model calls: the proxy reads
//! refusals by [`refusal_reason`], `llm` by [`refusal()`].

mod blame;
mod error_report;
mod excess;
mod raw;
mod refusal;
mod reports;

use serde_json::Value;

pub use blame::{Blame, RefusalReason, refusal_reason, refusal_reason_without_status};
pub use error_report::{is_change_refusal_status, is_refusal_status};
pub use excess::Excess;
pub use raw::RawUsage;
pub use refusal::{
    RefusalKind, error_message, excess, is_content_filter, refusal, refusal_without_status,
};
pub use reports::UsageReports;

/// Tokens of one answer. `prompt` is the whole prompt, cache reads and writes included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt: Option<u64>,
    /// Read from the provider's prompt cache.
    pub cached: Option<u64>,
    /// Written to the provider's prompt cache, if the provider reports it.
    pub cache_write: Option<u64>,
    /// The whole answer, reasoning included.
    pub completion: Option<u64>,
    /// The part of the answer that is reasoning.
    pub reasoning: Option<u64>,
    /// More was reported of the cache than the whole prompt has, so `cached` and `cache_write` were left out.
    pub impossible_cache: bool,
}

impl Usage {
    /// Without the numbers of the cache if the whole prompt is smaller than they are: a gateway that counts wrong. Call
    /// it when the answer has ended, since a stream reports in pieces.
    #[must_use]
    pub fn checked(self) -> Self {
        let of_cache = self.cached.into_iter().chain(self.cache_write);
        let of_cache = of_cache.fold(0, u64::saturating_add);
        if self.prompt.is_none_or(|prompt| of_cache <= prompt) {
            return self;
        }
        Self {
            cached: None,
            cache_write: None,
            impossible_cache: true,
            ..self
        }
    }

    /// Reads one `usage` object; `None` if it has no known number.
    #[must_use]
    pub fn from_json(usage: &Value) -> Option<Self> {
        let usage = Self {
            prompt: prompt(usage),
            cached: cached(usage),
            cache_write: cache_write(usage),
            completion: completion(usage),
            reasoning: reasoning(usage),
            impossible_cache: false,
        };
        (usage != Self::default()).then_some(usage)
    }

    /// Reads llama.cpp's `timings`. `prompt_n` counts what was not in the cache.
    fn from_timings(timings: &Value) -> Option<Self> {
        let cached = first(timings, &["cache_n"])?;
        let computed = first(timings, &["prompt_n"]);
        Some(Self {
            prompt: computed.map(|computed| computed.saturating_add(cached)),
            cached: Some(cached),
            completion: first(timings, &["predicted_n"]),
            ..Self::default()
        })
    }

    /// Takes the numbers of a later report of the same answer. Numbers that it leaves out stay:
    /// Anthropic's last event repeats only what has changed.
    pub fn update(&mut self, later: Self) {
        self.prompt = later.prompt.or(self.prompt);
        self.cached = later.cached.or(self.cached);
        self.cache_write = later.cache_write.or(self.cache_write);
        self.completion = later.completion.or(self.completion);
        self.reasoning = later.reasoning.or(self.reasoning);
    }
}

fn prompt(usage: &Value) -> Option<u64> {
    if let Some(total) = first(
        usage,
        &["prompt_tokens", "promptTokenCount", "total_input_tokens"],
    ) {
        return Some(total);
    }
    if let Some(input) = first(usage, &["input_tokens"]) {
        // Only Anthropic's own API counts cache reads and writes separately from the input; it
        // is also the only one with these names beside `input_tokens`.
        let apart = ["cache_read_input_tokens", "cache_creation_input_tokens"];
        let apart = apart.iter().filter_map(|path| first(usage, &[path]));
        return Some(apart.fold(input, u64::saturating_add));
    }
    let hit = first(usage, &["prompt_cache_hit_tokens"])?;
    Some(hit.saturating_add(first(usage, &["prompt_cache_miss_tokens"])?))
}

fn cached(usage: &Value) -> Option<u64> {
    first(
        usage,
        &[
            "prompt_tokens_details/cached_tokens",
            "input_tokens_details/cached_tokens",
            "prompt_tokens_details/cached_read_tokens",
            "input_tokens_details/cached_read_tokens",
            "prompt_cache_hit_tokens",
            "cache_read_input_tokens",
            "cachedContentTokenCount",
            "total_cached_tokens",
            "cached_tokens",
        ],
    )
}

fn cache_write(usage: &Value) -> Option<u64> {
    let whole = first(
        usage,
        &[
            "prompt_tokens_details/cache_write_tokens",
            "input_tokens_details/cache_write_tokens",
            "prompt_tokens_details/cached_write_tokens",
            "input_tokens_details/cached_write_tokens",
            "cache_creation_input_tokens",
            "prompt_tokens_details/cache_creation_tokens",
        ],
    );
    whole.or_else(|| {
        let by_lifetime = usage.get("cache_creation")?.as_object()?;
        by_lifetime
            .values()
            .filter_map(count)
            .reduce(u64::saturating_add)
    })
}

fn completion(usage: &Value) -> Option<u64> {
    let total = first(
        usage,
        &["completion_tokens", "output_tokens", "total_output_tokens"],
    );
    let total = total.map(|total| match reasoning_beside(usage, total) {
        Some(reasoning) => total.saturating_add(reasoning),
        None => total,
    });
    total.or_else(|| {
        // Gemini counts thoughts beside the candidates.
        let candidates = first(usage, &["candidatesTokenCount"])?;
        let thoughts = first(usage, &["thoughtsTokenCount"]).unwrap_or(0);
        Some(candidates.saturating_add(thoughts))
    })
}

/// The reasoning that `completion` does not contain; `None` if it does. xAI, and gateways in front of Gemini, count the
/// reasoning beside the answer, and bill both. Their own `total_tokens` says so, or more reasoning than answer does.
fn reasoning_beside(usage: &Value, completion: u64) -> Option<u64> {
    let reasoning = reasoning(usage)?;
    let sum =
        prompt(usage).map(|prompt| prompt.saturating_add(completion).saturating_add(reasoning));
    let is_in_total = reasoning > 0 && sum.is_some() && sum == first(usage, &["total_tokens"]);
    (is_in_total || reasoning > completion).then_some(reasoning)
}

fn reasoning(usage: &Value) -> Option<u64> {
    first(
        usage,
        &[
            "completion_tokens_details/reasoning_tokens",
            "output_tokens_details/reasoning_tokens",
            "thoughtsTokenCount",
            "reasoning_tokens",
        ],
    )
}

fn first(usage: &Value, paths: &[&str]) -> Option<u64> {
    paths
        .iter()
        .find_map(|path| at(usage, path).and_then(count))
}

/// The value at `path`: a name, or two with a slash between them. Every piece of a stream is searched, and
/// `Value::pointer` copies each name.
fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    // Names are short: to set up a search takes longer than to look at each byte.
    match path.bytes().position(|byte| byte == b'/') {
        Some(slash) => member(member(value, &path[..slash])?, &path[slash + 1..]),
        None => member(value, path),
    }
}

/// The member of an object. An answer has few, so they are compared one by one: [`Value::get`] makes a hash of the name,
/// which costs ten times as much.
#[must_use]
pub fn member<'v>(object: &'v Value, name: &str) -> Option<&'v Value> {
    let mut members = object.as_object()?.iter();
    members.find_map(|(key, value)| (key == name).then_some(value))
}

/// No answer has so many tokens. One number beyond it, from a gateway that subtracted too much, would be all that a sum
/// of a month shows.
const MOST_TOKENS: u64 = 1_000_000_000;

/// Reads a count. Some gateways write whole numbers as `12.0`; a negative, impossible or broken number counts as
/// missing.
fn count(value: &Value) -> Option<u64> {
    let whole = value.as_u64().or_else(|| {
        let float = value.as_f64()?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to be a whole number in the range that doubles hold exactly"
        )]
        (float.fract() == 0.0 && (0.0..9.0e15).contains(&float)).then_some(float as u64)
    });
    whole.filter(|count| *count <= MOST_TOKENS)
}

#[cfg(test)]
mod tests;
