//! What the prompt caches of the providers cost, as published. A table: it decides nothing. Called by the jobs module.

use super::CostRules;
use super::cost_rules::UNKNOWN;
use super::policy::{CacheProvider, has_cache_breakpoints, model_name};

/// `rules` with the cache prices of the provider at `host` for `model`, where none are set.
#[must_use]
pub fn with_cache_prices(rules: CostRules, host: &str, model: &str) -> CostRules {
    let (read, write) = cache_prices(host, model);
    CostRules {
        cache_read: rules.cache_read.or(Some(read)),
        cache_write: rules.cache_write.or(Some(write)),
        ..rules
    }
}

/// What reading from the cache and writing to it cost, in thousandths of an uncached token. As the providers
/// publish it, 2026-10.
fn cache_prices(host: &str, model: &str) -> (u32, u32) {
    let name = model_name(model).to_ascii_lowercase();
    let host = host.to_ascii_lowercase();
    match CacheProvider::for_model(&host, model) {
        // Older models give a smaller discount; from GPT-5.6 on, writes cost a quarter more.
        CacheProvider::OpenAi if name.starts_with("gpt-4.1") => (250, 1_000),
        CacheProvider::OpenAi if name.starts_with("gpt-4") || name.starts_with("o1") => {
            (500, 1_000)
        }
        CacheProvider::OpenAi if name.starts_with("o3") || name.starts_with("o4") => (250, 1_000),
        CacheProvider::OpenAi if has_cache_breakpoints(&name) => (100, 1_250),
        CacheProvider::Groq => (500, 1_000),
        // Claude charges writes, on its own host and behind every gateway.
        _ if name.contains("claude") => (100, 1_250),
        _ if host.ends_with("x.ai") || name.starts_with("grok") => (250, 1_000),
        _ => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSET: CostRules = CostRules {
        cache_read: None,
        cache_write: None,
        observer_input: 100,
        observer_output: 500,
        max_loss: 100,
        history_limit: 100_000,
    };

    #[test]
    fn unset_cache_prices_are_those_of_the_provider() {
        for (host, model, read, write) in [
            ("api.openai.com", "gpt-4o-mini", 500, 1_000),
            ("api.openai.com", "gpt-4.1", 250, 1_000),
            ("api.openai.com", "o3", 250, 1_000),
            ("api.openai.com", "gpt-5", 100, 1_000),
            ("api.openai.com", "gpt-5.5-mini", 100, 1_000),
            ("api.openai.com", "gpt-5.6", 100, 1_250),
            ("gateway.example", "openai/gpt-5.10", 100, 1_250),
            ("api.anthropic.com", "claude-sonnet-5", 100, 1_250),
            ("openrouter.ai", "anthropic/claude-sonnet-5", 100, 1_250),
            ("api.x.ai", "grok-4", 250, 1_000),
            ("api.groq.com", "llama", 500, 1_000),
            ("api.deepseek.com", "deepseek-chat", 100, 1_000),
            ("127.0.0.1", "local", 100, 1_000),
        ] {
            let rules = with_cache_prices(UNSET, host, model);
            let found = (rules.cache_read, rules.cache_write);
            assert_eq!(found, (Some(read), Some(write)), "{host} {model}");
        }
        let set = CostRules {
            cache_read: Some(25),
            cache_write: Some(2_000),
            ..UNSET
        };
        assert_eq!(with_cache_prices(set, "api.groq.com", "llama"), set);
    }
}
