//! The thresholds that decisions use, and what is known about prompt caches and models.
//!
//! Values only: the config module checks them, `advance` decides with them. The recorder uses the policy
//! for the model of the conversation.

use std::time::Duration;

use super::CostRules;

/// Thresholds in tokens, all absolute. See `config/example.toml` for meaning and sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Raw history at which a snapshot is due (published default: 30,000).
    pub message_tokens: u32,
    /// The least raw history in one chunk (published default: 0.2 of `message_tokens`).
    pub buffer_tokens: u32,
    /// Whether each turn is observed when it ends, however short it is.
    pub buffer_on_idle: bool,
    /// Raw history that an activation aims to keep (published default: 0.2 of `message_tokens`).
    pub retention_floor: u32,
    /// Raw history from which an activation takes whatever is ready (default: 1.2 ×
    /// `message_tokens`).
    pub block_after: u32,
    /// Observations at which a reflection is due (published default: 40,000).
    pub observation_tokens: u32,
    /// Observations from which a reflection is prepared (default: half of `observation_tokens`).
    pub reflect_from: u32,
    /// Observations at which code shortens the log if no model did (default: 1.2 ×
    /// `observation_tokens`).
    pub observation_limit: u32,
    /// Whether raw history may use the part of both budgets that the observations leave.
    pub share_token_budget: bool,
    /// Tokens of a block besides its parts: preamble and message overhead.
    pub block_overhead: u32,
    /// When observations may replace messages before `message_tokens` is reached.
    pub early_activation: EarlyTriggers,
    /// When a reflection may replace observations before `observation_tokens` is reached.
    pub early_reflection: EarlyTriggers,
    /// How costs are weighed; `None` for decisions by the thresholds above alone.
    pub costs: Option<CostRules>,
}

impl Policy {
    /// The thresholds while `tokens` of observations are sent. With a shared budget, raw history
    /// may use what they leave of it: 70,000 with 30,000 + 40,000 and no observations.
    #[must_use]
    pub fn with_observations(self, tokens: u32) -> Self {
        if !self.share_token_budget {
            return self;
        }
        let total = self.message_tokens.saturating_add(self.observation_tokens);
        let extra_tokens = total
            .saturating_sub(tokens)
            .saturating_sub(self.message_tokens);
        Self {
            message_tokens: self.message_tokens.saturating_add(extra_tokens),
            block_after: self.block_after.saturating_add(extra_tokens),
            ..self
        }
    }

    /// How far raw history may grow while an activation waits for a better moment. INV-BOUND allows
    /// 1.2 × `message_tokens`, whatever `block_after` is.
    #[must_use]
    pub fn max_pending_tokens(&self) -> u32 {
        let bound = self.message_tokens.saturating_add(self.message_tokens / 5);
        self.block_after.min(bound)
    }
}

/// Moments at which the prompt cache is lost anyway, so that an activation costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EarlyTriggers {
    /// After this idle time.
    pub idle: IdleTrigger,
    /// If another model is asked than before.
    pub model_change: bool,
}

impl EarlyTriggers {
    /// Never.
    pub const NEVER: Self = Self {
        idle: IdleTrigger::Never,
        model_change: false,
    };
}

/// How long a conversation has to be idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdleTrigger {
    /// Idle time triggers nothing.
    #[default]
    Never,
    /// For this long.
    After(Duration),
    /// For as long as its provider keeps a prompt in its cache.
    Auto,
}

impl IdleTrigger {
    /// The idle time, if the provider's cache lives for `lifetime`.
    #[must_use]
    pub fn duration(self, lifetime: Duration) -> Option<Duration> {
        match self {
            Self::Never => None,
            Self::After(time) => Some(time),
            Self::Auto => Some(lifetime),
        }
    }
}

/// How long a prompt of `model` at `host` counts as cached for [`IdleTrigger::Auto`], if the request asked for
/// `retention`. Unknown providers count as short: then an early activation only comes a little too early.
///
/// It decides when an activation may come early, with the numbers of the published observational memory
/// (`activateAfterIdle: "auto"`). [`CacheRules::for_model`](super::prompt_cache::CacheRules::for_model) explains misses in
/// the audit, with the numbers that the providers document; they differ for OpenAI, for Google and for
/// servers of one's own.
#[must_use]
pub fn cache_lifetime(host: &str, model: &str, retention: Option<&str>) -> Duration {
    const MINUTES: u64 = 60;
    const HOURS: u64 = 60 * MINUTES;
    let seconds = match CacheProvider::for_model(host, model) {
        CacheProvider::OpenAi => match retention {
            Some("24h") => HOURS,
            Some("in_memory" | "in-memory") => 5 * MINUTES,
            _ if is_short_lived(model_name(model)) => 5 * MINUTES,
            _ => HOURS,
        },
        CacheProvider::Google => 24 * HOURS,
        CacheProvider::DeepSeek => HOURS,
        CacheProvider::Groq => 2 * HOURS,
        // An hour if a mark for Anthropic's cache says so.
        CacheProvider::Other if retention == Some("1h") => HOURS,
        CacheProvider::Mistral | CacheProvider::Other => 5 * MINUTES,
    };
    Duration::from_secs(seconds)
}

/// Models of OpenAI that keep prompts for minutes; newer ones keep them for an hour.
pub(super) fn is_short_lived(model: &str) -> bool {
    let model = model.to_ascii_lowercase();
    let family = |name: &str| {
        model
            .strip_prefix(name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    model.starts_with("gpt-4")
        || ["gpt-5", "gpt-5.1", "gpt-5.2", "gpt-5.3", "gpt-5.4"]
            .into_iter()
            .any(family)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheProvider {
    OpenAi,
    Google,
    DeepSeek,
    Groq,
    Mistral,
    /// Anthropic, xAI, OpenRouter and unknown ones: five minutes.
    Other,
}

impl CacheProvider {
    /// By host, if it is a provider's own. Behind a gateway, the first part of the model name
    /// decides ("openai/gpt-5"). Not behind OpenRouter, which spreads requests over many providers.
    pub(super) fn for_model(host: &str, model: &str) -> Self {
        let by_domain = [
            ("openai.com", Self::OpenAi),
            ("openai.azure.com", Self::OpenAi),
            ("googleapis.com", Self::Google),
            ("deepseek.com", Self::DeepSeek),
            ("groq.com", Self::Groq),
            ("mistral.ai", Self::Mistral),
            ("anthropic.com", Self::Other),
            ("x.ai", Self::Other),
            ("openrouter.ai", Self::Other),
        ];
        if let Some((_, provider)) = by_domain
            .into_iter()
            .find(|(domain, _)| is_in_domain(host, domain))
        {
            return provider;
        }
        match provider_prefix(model) {
            Some("openai" | "azure") => Self::OpenAi,
            Some("google" | "gemini" | "vertex_ai" | "models") => Self::Google,
            Some("deepseek") => Self::DeepSeek,
            Some("groq") => Self::Groq,
            // On Hugging Face it is "mistralai", so that is the name at servers of one's own.
            Some("mistral") => Self::Mistral,
            _ => Self::Other,
        }
    }
}

/// Whether `host` is OpenAI's, Azure OpenAI's or Mistral's: all document `prompt_cache_key`.
#[must_use]
pub fn documents_cache_key(host: &str) -> bool {
    let provider = CacheProvider::for_model(host, "");
    matches!(provider, CacheProvider::OpenAi | CacheProvider::Mistral)
}

/// Whether `model` at `host` documents `prompt_cache_breakpoint`: GPT-5.6 and later ones of OpenAI and Azure OpenAI.
#[must_use]
pub fn documents_cache_breakpoint(host: &str, model: &str) -> bool {
    let is_openai = CacheProvider::for_model(host, "") == CacheProvider::OpenAi;
    is_openai && has_cache_breakpoints(&model_name(model).to_ascii_lowercase())
}

/// Whether `name` is GPT-5.6 or a later version: these store a prompt up to breakpoints, and charge for it.
pub(super) fn has_cache_breakpoints(name: &str) -> bool {
    let version = name.strip_prefix("gpt-").map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        rest[..end.unwrap_or(rest.len())].to_owned()
    });
    let Some(version) = version else { return false };
    let (major, minor) = version.split_once('.').unwrap_or((&version, "0"));
    let numbers = (major.parse::<u32>(), minor.parse::<u32>());
    matches!(numbers, (Ok(major), Ok(minor)) if (major, minor) >= (5, 6))
}

/// The header by which the provider at `host` routes a conversation to where its prompt is cached, as documented.
#[must_use]
pub fn affinity_header(host: &str) -> Option<&'static str> {
    [
        ("x.ai", "x-grok-conv-id"),
        ("fireworks.ai", "x-session-affinity"),
        ("openrouter.ai", "x-session-id"),
    ]
    .into_iter()
    .find_map(|(domain, header)| is_in_domain(host, domain).then_some(header))
}

/// Whether the models at `host` read each of several system messages. OpenAI and xAI document that messages of all roles may
/// stand in any order, Anthropic that its endpoint joins all system messages, and the templates that DeepSeek publishes for
/// its models join them too. The templates of many other models read the first one only (gpt-oss, Phi-4,
/// `SmolLM3`), or the last one only (the distilled models of DeepSeek R1), and say nothing of it. Azure also serves such models.
#[must_use]
pub fn reads_several_system_messages(host: &str) -> bool {
    ["openai.com", "anthropic.com", "deepseek.com", "x.ai"]
        .into_iter()
        .any(|domain| is_in_domain(host, domain))
}

/// Whether `host` is `domain` or below it. Asked dozens of times for one request.
fn is_in_domain(host: &str, domain: &str) -> bool {
    let start = host.len().checked_sub(domain.len());
    let Some((rest, end)) = start.and_then(|start| host.split_at_checked(start)) else {
        return false;
    };
    end.eq_ignore_ascii_case(domain) && (rest.is_empty() || rest.ends_with('.'))
}

/// Whether a request for `new` asks another model than one for `old`. Providers are compared up to a
/// dot ("openai.responses" is "openai") and only if both are named. An empty model is never another
/// one.
#[must_use]
pub fn is_another_model(old: &str, new: &str) -> bool {
    if old.is_empty() || new.is_empty() {
        return false;
    }
    if model_name(old) != model_name(new) {
        return true;
    }
    matches!((provider_prefix(old), provider_prefix(new)), (Some(old), Some(new)) if old != new)
}

fn provider_prefix(model: &str) -> Option<&str> {
    let (provider, _) = model.split_once('/')?;
    provider.split('.').next()
}

pub(super) fn model_name(model: &str) -> &str {
    model.split_once('/').map_or(model, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_that_document_a_cache_key_are_known() {
        for (host, key, breakpoint) in [
            ("api.openai.com", true, true),
            ("me.openai.azure.com", true, true),
            ("api.mistral.ai", true, false),
            ("api.x.ai", false, false),
            ("mistral.ai.example.com", false, false),
        ] {
            assert_eq!(documents_cache_key(host), key, "{host}");
            let breakpoints = documents_cache_breakpoint(host, "gpt-5.6-sol");
            assert_eq!(breakpoints, breakpoint, "{host}");
        }
    }

    #[test]
    fn a_shared_budget_gives_unused_observation_tokens_to_the_raw_history() {
        let policy = Policy {
            message_tokens: 30_000,
            buffer_tokens: 6_000,
            buffer_on_idle: false,
            retention_floor: 14_000,
            block_after: 36_000,
            observation_tokens: 40_000,
            reflect_from: 20_000,
            observation_limit: 48_000,
            share_token_budget: true,
            block_overhead: 300,
            early_activation: EarlyTriggers::NEVER,
            early_reflection: EarlyTriggers::NEVER,
            costs: None,
        };
        for (observations, raw) in [
            (0, 70_000),
            (10_000, 60_000),
            (39_999, 30_001),
            (40_000, 30_000),
            (90_000, 30_000),
        ] {
            let now = policy.with_observations(observations);
            assert_eq!(now.message_tokens, raw);
            assert_eq!(now.block_after - now.message_tokens, 6_000);
        }
        let plain = Policy {
            share_token_budget: false,
            ..policy
        };
        assert_eq!(plain.with_observations(0), plain);
    }

    #[test]
    fn cache_lifetimes_are_those_of_the_published_observational_memory() {
        let lifetime_minutes =
            |host, model, retention| cache_lifetime(host, model, retention).as_secs() / 60;
        let openai = |model| lifetime_minutes("api.openai.com", model, None);
        for short in [
            "gpt-4",
            "gpt-4o",
            "gpt-4.1-mini",
            "gpt-5",
            "gpt-5-mini",
            "gpt-5.1",
            "gpt-5.4-codex",
        ] {
            assert_eq!(openai(short), 5, "{short}");
        }
        for long in ["gpt-5.5", "gpt-5.40", "o3", "gpt-6"] {
            assert_eq!(openai(long), 60, "{long}");
        }
        assert_eq!(
            lifetime_minutes("api.openai.com", "gpt-4o", Some("24h")),
            60
        );
        assert_eq!(
            lifetime_minutes("api.openai.com", "o3", Some("in_memory")),
            5
        );
        assert_eq!(lifetime_minutes("me.openai.azure.com", "o3", None), 60);
        let google = "generativelanguage.googleapis.com";
        assert_eq!(lifetime_minutes(google, "gemini-3-pro", None), 24 * 60);
        assert_eq!(
            lifetime_minutes("api.deepseek.com", "deepseek-chat", None),
            60
        );
        assert_eq!(lifetime_minutes("api.groq.com", "llama", None), 120);
        for host in [
            "api.anthropic.com",
            "api.x.ai",
            "127.0.0.1",
            "notopenai.com",
        ] {
            assert_eq!(lifetime_minutes(host, "o3", None), 5, "{host}");
        }
        // A gateway names the provider in the model name, but OpenRouter uses many providers.
        assert_eq!(lifetime_minutes("gateway.example", "openai/o3", None), 60);
        assert_eq!(
            lifetime_minutes("gateway.example", "google/gemini-3", None),
            24 * 60
        );
        assert_eq!(lifetime_minutes("openrouter.ai", "openai/o3", None), 5);
    }

    #[test]
    fn cache_breakpoints_and_affinity_headers_are_known_for_documented_providers() {
        for (host, model, has_breakpoints) in [
            ("api.openai.com", "gpt-5.6", true),
            ("me.openai.azure.com", "GPT-5.10-mini", true),
            ("api.openai.com", "gpt-6", true),
            ("api.openai.com", "gpt-5.5", false),
            ("api.openai.com", "gpt-5", false),
            ("api.openai.com", "o5", false),
            ("gateway.example", "gpt-5.6", false),
        ] {
            let found = documents_cache_breakpoint(host, model);
            assert_eq!(found, has_breakpoints, "{host} {model}");
        }
        for (host, header) in [
            ("api.x.ai", Some("x-grok-conv-id")),
            ("api.fireworks.ai", Some("x-session-affinity")),
            ("openrouter.ai", Some("x-session-id")),
            ("max.ai", None),
            ("api.openai.com", None),
        ] {
            assert_eq!(affinity_header(host), header, "{host}");
        }
    }

    #[test]
    fn a_different_name_or_provider_means_a_different_model() {
        assert!(is_another_model("gpt-5", "gpt-5-mini"));
        assert!(is_another_model("openai/gpt-5", "azure/gpt-5"));
        for (old, new) in [
            ("gpt-5", "gpt-5"),
            ("openai/gpt-5", "openai.responses/gpt-5"),
            ("gpt-5", "openai/gpt-5"),
            ("", "gpt-5"),
            ("gpt-5", ""),
        ] {
            assert!(!is_another_model(old, new), "{old} {new}");
        }
    }
}
