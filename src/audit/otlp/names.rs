//! The one table of names: attributes of spans and metrics, as most programs know them today and as the newest GenAI
//! conventions have them. `docs/telemetry.md` shows it.
//!
//! Today: the conventions 1.36 of OpenTelemetry, and what was added to them up to 1.41. Newest: GenAI conventions 0.1.0,
//! chosen by `gen_ai_latest_experimental` in `OTEL_SEMCONV_STABILITY_OPT_IN`. Where both agree, there is one name.

/// What an attribute says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attribute {
    Operation,
    Provider,
    RequestModel,
    Stream,
    ConversationId,
    Compacted,
    InputTokens,
    CacheRead,
    CacheWrite,
    OutputTokens,
    Reasoning,
    FirstChunk,
    TokenType,
    ErrorType,
    ServerAddress,
    HttpMethod,
    HttpStatus,
    UrlPath,
    RequestId,
    Tenant,
    Memory,
    Reason,
    Rung,
    Snapshot,
    Replaced,
    Cause,
    Verdict,
    VerdictCause,
    ExpectedCached,
    Added,
    Call,
    Outcome,
}

use Attribute as A;

/// Each attribute, its name today, and its newest name.
pub(super) const ATTRIBUTES: &[(Attribute, &str, &str)] = &[
    (
        A::Operation,
        "gen_ai.operation.name",
        "gen_ai.operation.name",
    ),
    (A::Provider, "gen_ai.system", "gen_ai.provider.name"),
    (
        A::RequestModel,
        "gen_ai.request.model",
        "gen_ai.request.model",
    ),
    (A::Stream, "gen_ai.request.stream", "gen_ai.request.stream"),
    (
        A::ConversationId,
        "gen_ai.conversation.id",
        "gen_ai.conversation.id",
    ),
    (
        A::Compacted,
        "gen_ai.conversation.compacted",
        "gen_ai.conversation.compacted",
    ),
    (
        A::InputTokens,
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.input_tokens",
    ),
    (
        A::CacheRead,
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read.input_tokens",
    ),
    (
        A::CacheWrite,
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_write.input_tokens",
    ),
    (
        A::OutputTokens,
        "gen_ai.usage.output_tokens",
        "gen_ai.usage.output_tokens",
    ),
    (
        A::Reasoning,
        "gen_ai.usage.reasoning.output_tokens",
        "gen_ai.usage.reasoning.output_tokens",
    ),
    (
        A::FirstChunk,
        "gen_ai.response.time_to_first_chunk",
        "gen_ai.response.time_to_first_chunk",
    ),
    (A::TokenType, "gen_ai.token.type", "gen_ai.token.type"),
    (A::ErrorType, "error.type", "error.type"),
    (A::ServerAddress, "server.address", "server.address"),
    (A::HttpMethod, "http.request.method", "http.request.method"),
    (
        A::HttpStatus,
        "http.response.status_code",
        "http.response.status_code",
    ),
    (A::UrlPath, "url.path", "url.path"),
    (A::RequestId, "diarist.request.id", "diarist.request.id"),
    (A::Tenant, "diarist.tenant", "diarist.tenant"),
    (A::Memory, "diarist.memory", "diarist.memory"),
    (A::Reason, "diarist.memory.reason", "diarist.memory.reason"),
    (A::Rung, "diarist.memory.rung", "diarist.memory.rung"),
    (
        A::Snapshot,
        "diarist.memory.snapshot",
        "diarist.memory.snapshot",
    ),
    (
        A::Replaced,
        "diarist.memory.replaced_messages",
        "diarist.memory.replaced_messages",
    ),
    (A::Cause, "diarist.memory.cause", "diarist.memory.cause"),
    (A::Verdict, "diarist.cache.verdict", "diarist.cache.verdict"),
    (
        A::VerdictCause,
        "diarist.cache.cause",
        "diarist.cache.cause",
    ),
    (
        A::ExpectedCached,
        "diarist.cache.expected_tokens",
        "diarist.cache.expected_tokens",
    ),
    (A::Added, "diarist.added", "diarist.added"),
    (A::Call, "diarist.memory.call", "diarist.memory.call"),
    (
        A::Outcome,
        "diarist.memory.outcome",
        "diarist.memory.outcome",
    ),
];

/// What a metric measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Metric {
    Duration,
    /// Today one histogram has all tokens, and an attribute says which.
    InputTokens,
    OutputTokens,
    CacheRead,
    CacheWrite,
    Reasoning,
}

/// Each metric, its name today if it has one, and its newest name.
pub(super) const METRICS: &[(Metric, Option<&str>, &str)] = &[
    (
        Metric::Duration,
        Some("gen_ai.client.operation.duration"),
        "gen_ai.client.inference.duration",
    ),
    (
        Metric::InputTokens,
        Some("gen_ai.client.token.usage"),
        "gen_ai.client.inference.usage.input_tokens",
    ),
    (
        Metric::OutputTokens,
        Some("gen_ai.client.token.usage"),
        "gen_ai.client.inference.usage.output_tokens",
    ),
    (
        Metric::CacheRead,
        None,
        "gen_ai.client.inference.usage.cache_read.input_tokens",
    ),
    (
        Metric::CacheWrite,
        None,
        "gen_ai.client.inference.usage.cache_write.input_tokens",
    ),
    (
        Metric::Reasoning,
        None,
        "gen_ai.client.inference.usage.reasoning.output_tokens",
    ),
];

/// Which names are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    Today,
    Newest,
}

impl Names {
    pub(super) fn attribute(self, attribute: Attribute) -> &'static str {
        let row = ATTRIBUTES.iter().find(|(known, ..)| *known == attribute);
        row.map_or("", |(_, today, newest)| match self {
            Self::Today => today,
            Self::Newest => newest,
        })
    }

    pub(super) fn metric(self, metric: Metric) -> Option<&'static str> {
        let row = METRICS.iter().find(|(known, ..)| *known == metric);
        row.and_then(|(_, today, newest)| match self {
            Self::Today => *today,
            Self::Newest => Some(newest),
        })
    }
}

/// What the conventions call the provider at `host`; `_OTHER` if they do not know it.
pub(super) fn provider(host: &str) -> &'static str {
    let host = host.to_ascii_lowercase();
    [
        ("openai.azure.com", "azure.ai.openai"),
        ("openai.com", "openai"),
        ("anthropic.com", "anthropic"),
        ("generativelanguage.googleapis.com", "gcp.gemini"),
        ("aiplatform.googleapis.com", "gcp.vertex_ai"),
        ("deepseek.com", "deepseek"),
        ("groq.com", "groq"),
        ("mistral.ai", "mistral_ai"),
        ("x.ai", "x_ai"),
        ("perplexity.ai", "perplexity"),
        ("cohere.com", "cohere"),
    ]
    .into_iter()
    .find_map(|(domain, name)| {
        let rest = host.strip_suffix(domain)?;
        (rest.is_empty() || rest.ends_with('.') || rest.ends_with('-')).then_some(name)
    })
    .unwrap_or("_OTHER")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_name_is_documented_and_no_two_attributes_share_a_name() {
        let document = include_str!("../../../docs/telemetry.md");
        let is_shown = |name: &str| document.contains(&format!("`{name}`"));
        for names in [Names::Today, Names::Newest] {
            let attributes = ATTRIBUTES.iter().map(|(what, ..)| names.attribute(*what));
            let different: BTreeSet<&str> = attributes.clone().collect();
            assert_eq!(different.len(), ATTRIBUTES.len(), "{names:?}");
            let metrics = METRICS.iter().filter_map(|(what, ..)| names.metric(*what));
            for name in attributes.chain(metrics) {
                assert!(is_shown(name), "{name} is not in docs/telemetry.md");
            }
        }
    }

    #[test]
    fn providers_are_known_by_their_hosts() {
        for (host, expected) in [
            ("api.openai.com", "openai"),
            ("me.openai.azure.com", "azure.ai.openai"),
            ("europe-west4-aiplatform.googleapis.com", "gcp.vertex_ai"),
            ("api.x.ai", "x_ai"),
            ("max.ai", "_OTHER"),
            ("localhost", "_OTHER"),
        ] {
            assert_eq!(provider(host), expected, "{host}");
        }
    }
}
