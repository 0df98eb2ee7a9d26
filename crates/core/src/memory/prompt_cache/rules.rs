//! The rules of the providers' prompt caches, as published, and an operator's own. Each row names its source and
//! its date. Decides nothing about requests. Called by the proxy for the audit.

use std::time::Duration;

use crate::memory::Pattern;
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
    /// Which beginnings of a prompt can be read.
    pub reads: CacheReads,
}

/// Which beginnings of a prompt a cache gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheReads {
    /// As much as is the same.
    AnyBeginning,
    /// Whole prompts that were sent before.
    WholePrompts,
    /// What was stored up to a mark. A later mark finds it so many blocks back, its own included.
    UpToMarks { look_back: u32 },
}

const MINUTES: u64 = 60;
const HOURS: u64 = 60 * MINUTES;

impl CacheRules {
    /// The rules of the provider at `host` for `model`, if the request asked for `retention` (also the lifetime that its
    /// last mark asks for).
    ///
    /// Their lifetime explains misses in the audit, so it is what the provider documents. When an activation may come early
    /// is decided by [`cache_lifetime`](crate::memory::policy::cache_lifetime), with the numbers of the published
    /// observational memory; they differ for OpenAI, for Google and for servers of one's own.
    #[must_use]
    pub fn for_model(host: &str, model: &str, retention: Option<&str>) -> Self {
        let provider = CacheProvider::for_model(host, model);
        let (minimum_tokens, step_tokens, seconds) = match provider {
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
            // docs.mistral.ai, prompt caching, 2026-11: blocks of 64 tokens. It publishes no lifetime.
            CacheProvider::Mistral => (64, 64, 5 * MINUTES),
            // docs.x.ai, 2026-10: no minimum and no lifetime; hits come in blocks of 128.
            CacheProvider::Other if is_grok(model) => (128, 128, 5 * MINUTES),
            // platform.claude.com, 2026-10: 5 minutes, or an hour where the mark says so, and a minimum for each model; it
            // counts in single tokens, and a step only makes `warm` less strict. Unknown providers count the same.
            CacheProvider::Other => {
                let minutes = if retention == Some("1h") { 60 } else { 5 };
                let minimum = anthropic_minimum(model);
                (minimum.unwrap_or(1_024), 128, minutes * MINUTES)
            }
        };
        Self {
            minimum_tokens,
            step_tokens,
            lifetime: Duration::from_secs(seconds),
            reads: match provider {
                // platform.openai.com, guide to prompt caching, 2026-10: since GPT-5.6, a prefix up to a breakpoint; it
                // stands at the end of the newest message.
                CacheProvider::OpenAi if reads_whole_prompts(model) => CacheReads::WholePrompts,
                // platform.claude.com, prompt caching, 2026-10.
                CacheProvider::Other if anthropic_minimum(model).is_some() => {
                    CacheReads::UpToMarks { look_back: 20 }
                }
                _ => CacheReads::AnyBeginning,
            },
        }
    }

    /// These rules, or those of a server of one's own if the answer of `model` at `host` came from one: vLLM, SGLang or
    /// llama.cpp. `looks_so` says that its address and its report look like theirs, see
    /// [`RawUsage::is_plain`](crate::wire::usage::RawUsage::is_plain).
    #[must_use]
    pub fn or_of_own_server(self, host: &str, model: &str, looks_so: bool) -> Self {
        let is_unknown = CacheProvider::for_model(host, model) == CacheProvider::Other
            && self.reads == CacheReads::AnyBeginning;
        if looks_so && is_unknown {
            OWN_SERVER
        } else {
            self
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

/// docs.vllm.ai, automatic prefix caching, 2026-10: blocks of 16 tokens, kept until their memory is needed. SGLang's radix
/// cache and llama.cpp's slots give back single tokens, for which a step only makes `warm` less strict.
const OWN_SERVER: CacheRules = CacheRules {
    minimum_tokens: 16,
    step_tokens: 16,
    lifetime: Duration::from_secs(24 * HOURS),
    reads: CacheReads::AnyBeginning,
};

fn is_grok(model: &str) -> bool {
    model_name(model).to_ascii_lowercase().starts_with("grok-")
}

fn openai_lifetime(model: &str, retention: Option<&str>) -> u64 {
    match retention {
        Some("24h") => 24 * HOURS,
        Some("in_memory" | "in-memory") => 5 * MINUTES,
        _ if is_short_lived(model_name(model)) => 5 * MINUTES,
        _ => 30 * MINUTES,
    }
}

/// GPT-5.6 and later.
fn reads_whole_prompts(model: &str) -> bool {
    let name = model_name(model).to_ascii_lowercase();
    let Some(version) = name.strip_prefix("gpt-") else {
        return false;
    };
    let mut numbers = version
        .split(['.', '-'])
        .map(|number| number.parse::<u32>().ok());
    let number = |number: Option<Option<u32>>| number.flatten().unwrap_or(0);
    let version = (number(numbers.next()), number(numbers.next()));
    // What follows a dash is a date.
    version >= (5, 6) && version.1 < 100 || version.0 > 5
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

/// The least prompt that Anthropic caches, by model; `None` for models of others. platform.claude.com, 2026-10; pages
/// disagree about Sonnet 4.6 and Opus 4.7, where the published table counts.
fn anthropic_minimum(model: &str) -> Option<u64> {
    let name = model_name(model).to_ascii_lowercase().replace('.', "-");
    let version = name.strip_prefix("claude-")?;
    let is_one_of = |versions: &[&str]| versions.iter().any(|known| version.starts_with(known));
    Some(if is_one_of(&["opus-5", "fable-5", "mythos-5"]) {
        512
    } else if is_one_of(&["opus-4-7"]) {
        2_048
    } else if is_one_of(&["opus-4-5", "opus-4-6", "haiku-4-5"]) {
        4_096
    } else {
        1_024
    })
}

/// What an operator says about the cache of some models (`audit.cache_rules`). An absent value stays as published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheRulesOverride {
    /// The requested models that it is for.
    pub model: Pattern,
    /// See [`CacheRules::minimum_tokens`].
    pub minimum_tokens: Option<u64>,
    /// See [`CacheRules::step_tokens`]. Not 0.
    pub step_tokens: Option<u64>,
    /// See [`CacheRules::lifetime`].
    pub lifetime: Option<Duration>,
    /// The cache reads up to marks, and a mark finds what is at most so many blocks before it.
    pub look_back: Option<u32>,
}

impl CacheRulesOverride {
    /// `published`, with the values of the first of `overrides` that is for `model`.
    #[must_use]
    pub fn apply(overrides: &[Self], model: &str, published: CacheRules) -> CacheRules {
        let own = overrides.iter().find(|own| own.model.matches(model));
        own.map_or(published, |own| CacheRules {
            minimum_tokens: own.minimum_tokens.unwrap_or(published.minimum_tokens),
            step_tokens: own.step_tokens.unwrap_or(published.step_tokens),
            lifetime: own.lifetime.unwrap_or(published.lifetime),
            reads: own
                .look_back
                .map_or(published.reads, |look_back| CacheReads::UpToMarks {
                    look_back,
                }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_rules_of_known_models_are_as_published() {
        let lifetime_minutes = |rules: CacheRules| rules.lifetime.as_secs() / 60;
        for (host, model, retention, minimum, step, lifetime) in [
            ("api.openai.com", "gpt-4o", None, 1_024, 128, 5),
            ("api.mistral.ai", "mistral-large-latest", None, 64, 64, 5),
            // A server of one's own names it as Hugging Face does.
            ("vllm", "mistralai/Mistral-Small", None, 1_024, 128, 5),
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
            ("api.x.ai", "grok-4", None, 128, 128, 5),
            ("127.0.0.1", "local", Some("24h"), 1_024, 128, 5),
            ("api.anthropic.com", "claude-opus-5", None, 512, 128, 5),
            (
                "openrouter.ai",
                "anthropic/claude-opus-4.7",
                None,
                2_048,
                128,
                5,
            ),
            (
                "openrouter.ai",
                "anthropic/claude-haiku-4.5",
                None,
                4_096,
                128,
                5,
            ),
            (
                "api.anthropic.com",
                "claude-opus-4-6-20260205",
                None,
                4_096,
                128,
                5,
            ),
            ("api.anthropic.com", "claude-sonnet-5", None, 1_024, 128, 5),
            (
                "api.anthropic.com",
                "claude-sonnet-5",
                Some("1h"),
                1_024,
                128,
                60,
            ),
        ] {
            let rules = CacheRules::for_model(host, model, retention);
            let found = (
                rules.minimum_tokens,
                rules.step_tokens,
                lifetime_minutes(rules),
            );
            assert_eq!(
                found,
                (minimum, step, lifetime),
                "{host} {model} {retention:?}"
            );
            let reads = match model {
                _ if model.contains("claude") => CacheReads::UpToMarks { look_back: 20 },
                "gpt-5.6" => CacheReads::WholePrompts,
                _ => CacheReads::AnyBeginning,
            };
            assert_eq!(rules.reads, reads, "{model}");
        }
    }

    #[test]
    fn openais_newer_models_read_whole_prompts() {
        for (model, whole) in [
            ("gpt-5.6", true),
            ("openai/gpt-5.6-mini", true),
            ("gpt-5.10-2026-08-07", true),
            ("gpt-6", true),
            ("gpt-5.5", false),
            ("gpt-5-2026-08-07", false),
            ("gpt-4.1", false),
            ("o3", false),
            ("gpt-oss", false),
        ] {
            assert_eq!(reads_whole_prompts(model), whole, "{model}");
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

    /// A prompt of 300 tokens is not too short for llama.cpp.
    #[test]
    fn a_self_hosted_server_caches_short_prompts() {
        for (host, model, looks_so, is_own) in [
            ("127.0.0.1", "qwen3", true, true),
            ("vllm", "Qwen/Qwen3-32B", true, true),
            ("127.0.0.1", "qwen3", false, false),
            ("127.0.0.1", "openai/gpt-5", true, false),
            ("127.0.0.1", "claude-sonnet-5", true, false),
        ] {
            let published = CacheRules::for_model(host, model, None);
            let rules = published.or_of_own_server(host, model, looks_so);
            let expected = if is_own { OWN_SERVER } else { published };
            assert_eq!(rules, expected, "{host} {model} {looks_so}");
        }
    }

    #[test]
    fn an_override_can_set_that_a_cache_reads_up_to_marks() {
        let own = CacheRulesOverride {
            model: Pattern::new("our-claude"),
            minimum_tokens: None,
            step_tokens: None,
            lifetime: None,
            look_back: Some(8),
        };
        let published = CacheRules::for_model("gateway.example", "our-claude", None);
        let applied = CacheRulesOverride::apply(&[own], "our-claude", published);
        assert_eq!(applied.reads, CacheReads::UpToMarks { look_back: 8 });
        assert_eq!(applied.minimum_tokens, published.minimum_tokens);
    }

    #[test]
    fn the_first_matching_override_changes_only_the_rules_that_it_sets() {
        let published = CacheRules::for_model("127.0.0.1", "qwen", None);
        let own = |model: &str, minimum_tokens| CacheRulesOverride {
            model: Pattern::new(model),
            minimum_tokens,
            step_tokens: Some(16),
            lifetime: None,
            look_back: None,
        };
        let overrides = [own("qwen*", Some(0)), own("*", None)];
        let applied = CacheRulesOverride::apply(&overrides, "qwen", published);
        assert_eq!((applied.minimum_tokens, applied.step_tokens), (0, 16));
        assert_eq!(applied.lifetime, published.lifetime);
        let other = CacheRulesOverride::apply(&overrides, "llama", published);
        assert_eq!((other.minimum_tokens, other.step_tokens), (1_024, 16));
        assert_eq!(CacheRulesOverride::apply(&[], "qwen", published), published);
    }
}
