//! The rules of the providers' prompt caches, as published. Each row names its source and its date.

use std::time::Duration;

use crate::memory::policy::{CacheProvider, is_short_lived, model_name};

/// What a provider's cache can hold, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheRules {
    /// A shorter prompt is never read from the cache.
    pub minimum_tokens: u64,
    /// Hits come in multiples of this.
    pub step_tokens: u64,
    /// After this time without a request, the provider may have dropped the prompt.
    pub lifetime: Duration,
}

const MINUTES: u64 = 60;
const HOURS: u64 = 60 * MINUTES;

impl CacheRules {
    /// The rules of the provider at `host` for `model`, if the request asked for `retention`.
    #[must_use]
    pub fn for_model(host: &str, model: &str, retention: Option<&str>) -> Self {
        let (minimum_tokens, step_tokens, seconds) = match CacheProvider::for_model(host, model) {
            // platform.openai.com, guide to prompt caching, 2026-10: from 1,024 tokens on, in steps of 128; kept
            // for 5 to 10 minutes without a request, for 24 hours if asked, for 30 minutes by newer models.
            CacheProvider::OpenAi => (1_024, 128, openai_lifetime(model, retention)),
            // ai.google.dev, context caching, 2026-10: from 2,048 tokens on (4,096 since version 3). It publishes
            // neither steps nor a lifetime for implicit caches.
            CacheProvider::Google => (google_minimum(model), 128, 5 * MINUTES),
            // api-docs.deepseek.com, context caching, 2026-10: units of 64 tokens, kept for hours to days.
            CacheProvider::DeepSeek => (64, 64, HOURS),
            // console.groq.com, prompt caching, 2026-10: kept for 2 hours without a request.
            CacheProvider::Groq => (1_024, 128, 2 * HOURS),
            // docs.x.ai and platform.claude.com, 2026-10: steps of 128, and 5 minutes. Unknown providers count the
            // same.
            CacheProvider::Other => (1_024, 128, 5 * MINUTES),
        };
        Self {
            minimum_tokens,
            step_tokens,
            lifetime: Duration::from_secs(seconds),
        }
    }

    /// How many of `tokens` at the beginning of a prompt can be in the cache.
    #[must_use]
    pub fn cacheable(&self, tokens: u64) -> u64 {
        if tokens < self.minimum_tokens {
            0
        } else {
            tokens - tokens % self.step_tokens
        }
    }
}

fn openai_lifetime(model: &str, retention: Option<&str>) -> u64 {
    match retention {
        Some("24h") => 24 * HOURS,
        Some("in_memory" | "in-memory") => 5 * MINUTES,
        _ if is_short_lived(model_name(model)) => 5 * MINUTES,
        _ => 30 * MINUTES,
    }
}

fn google_minimum(model: &str) -> u64 {
    let older = ["gemini-1", "gemini-2"];
    let name = model_name(model).to_ascii_lowercase();
    if older.iter().any(|family| name.starts_with(family)) {
        2_048
    } else {
        4_096
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_as_published() {
        let minutes = |rules: CacheRules| rules.lifetime.as_secs() / 60;
        for (host, model, retention, minimum, step, lifetime) in [
            ("api.openai.com", "gpt-4o", None, 1_024, 128, 5),
            ("api.openai.com", "gpt-5", Some("24h"), 1_024, 128, 24 * 60),
            ("api.openai.com", "gpt-5.6", None, 1_024, 128, 30),
            (
                "api.openai.com",
                "gpt-5.6",
                Some("in_memory"),
                1_024,
                128,
                5,
            ),
            (
                "generativelanguage.googleapis.com",
                "gemini-2.5-pro",
                None,
                2_048,
                128,
                5,
            ),
            (
                "generativelanguage.googleapis.com",
                "gemini-3-pro",
                None,
                4_096,
                128,
                5,
            ),
            (
                "gateway.example",
                "google/gemini-2.5-flash",
                None,
                2_048,
                128,
                5,
            ),
            ("api.deepseek.com", "deepseek-chat", None, 64, 64, 60),
            ("api.groq.com", "llama", None, 1_024, 128, 120),
            ("api.x.ai", "grok-4", None, 1_024, 128, 5),
            ("127.0.0.1", "local", Some("24h"), 1_024, 128, 5),
        ] {
            let rules = CacheRules::for_model(host, model, retention);
            let found = (rules.minimum_tokens, rules.step_tokens, minutes(rules));
            assert_eq!(
                found,
                (minimum, step, lifetime),
                "{host} {model} {retention:?}"
            );
        }
    }

    #[test]
    fn only_whole_steps_above_the_minimum_are_cacheable() {
        let rules = CacheRules::for_model("api.openai.com", "gpt-5", None);
        for (tokens, cacheable) in [
            (0, 0),
            (1_023, 0),
            (1_024, 1_024),
            (1_151, 1_024),
            (1_152, 1_152),
        ] {
            assert_eq!(rules.cacheable(tokens), cacheable);
        }
    }
}
