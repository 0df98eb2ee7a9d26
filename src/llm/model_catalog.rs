//! What is known of models by their names: their context windows, and which do not work for memory.
//!
//! For advice only, never for decisions: names say little, providers rename models, and most models
//! are not in these tables. Called by `diarist check`.

/// The context window of models in tokens, prompt and answer together, from the providers' model
/// pages (looked up in November 2026; for open models the training length from the model card). The
/// longest matching prefix of a name counts.
const WINDOWS: &[(&str, u32)] = &[
    // OpenAI: platform.openai.com/docs/models
    ("chatgpt-4o", 128_000),
    ("gpt-3.5-turbo", 16_385),
    ("gpt-4", 8_192),
    ("gpt-4-0125", 128_000),
    ("gpt-4-1106", 128_000),
    ("gpt-4-32k", 32_768),
    ("gpt-4-turbo", 128_000),
    ("gpt-4.1", 1_047_576),
    ("gpt-4o", 128_000),
    ("gpt-5", 400_000),
    ("gpt-5-chat", 128_000),
    ("gpt-oss", 131_072),
    ("o1", 200_000),
    ("o1-mini", 128_000),
    ("o1-preview", 128_000),
    ("o3", 200_000),
    ("o4-mini", 200_000),
    // Anthropic: docs.anthropic.com, models overview
    ("claude-3", 200_000),
    ("claude-haiku-4", 200_000),
    ("claude-opus-4", 200_000),
    ("claude-sonnet-4", 200_000),
    // Google: ai.google.dev/gemini-api/docs/models, Gemma model cards
    ("gemini-1.5", 1_048_576),
    ("gemini-2.0", 1_048_576),
    ("gemini-2.5", 1_048_576),
    ("gemma-2", 8_192),
    ("gemma-3", 131_072),
    ("gemma-3-1b", 32_768),
    ("gemma2", 8_192),
    // DeepSeek: api-docs.deepseek.com
    ("deepseek-chat", 128_000),
    ("deepseek-reasoner", 128_000),
    // Mistral: docs.mistral.ai, models
    ("mistral-large", 128_000),
    ("mistral-small", 128_000),
    ("mixtral-8x7b", 32_768),
    ("open-mistral-7b", 32_768),
    // Meta: model cards of Llama
    ("llama-2", 4_096),
    ("llama-3", 8_192),
    ("llama-3.1", 131_072),
    ("llama-3.2", 131_072),
    ("llama-3.3", 131_072),
    ("llama2", 4_096),
    ("llama3", 8_192),
    ("llama3.1", 131_072),
    ("llama3.2", 131_072),
    ("llama3.3", 131_072),
    // Others: their model pages
    ("kimi-k2", 131_072),
    ("moonshot-v1-8k", 8_192),
    ("moonshot-v1-32k", 32_768),
    ("phi-4", 16_384),
    ("qwen2.5", 32_768),
    ("grok-3", 131_072),
    ("grok-4", 256_000),
];

/// Name prefixes of models that do not work as Observer or Reflector, with the reason and its
/// source.
const UNSUITED: &[(&str, &str)] = &[
    (
        "o1-mini",
        "it refuses system messages, and the instructions are one (OpenAI, reasoning guide)",
    ),
    (
        "o1-preview",
        "it refuses system messages, and the instructions are one (OpenAI, reasoning guide)",
    ),
    (
        "o1-pro",
        "it answers through the Responses API alone (OpenAI, model page)",
    ),
    (
        "o3-pro",
        "it answers through the Responses API alone (OpenAI, model page)",
    ),
    (
        "gpt-5-pro",
        "it answers through the Responses API alone (OpenAI, model page)",
    ),
    (
        "gpt-5-codex",
        "it answers through the Responses API alone (OpenAI, model page)",
    ),
    (
        "gpt-3.5-turbo-instruct",
        "it does not speak chat completions (OpenAI, model page)",
    ),
    (
        "gemma-2",
        "its template refuses system messages (model card), and it reads 8,192 tokens",
    ),
    (
        "gemma2",
        "its template refuses system messages (model card), and it reads 8,192 tokens",
    ),
    (
        "claude-haiku-4-5",
        "it is reported to observe poorly (mastra-ai/mastra 13132, anthropics/claude-code 31515)",
    ),
    (
        "claude-sonnet-4-5",
        "it is reported to observe poorly (mastra-ai/mastra 13132, anthropics/claude-code 31515)",
    ),
    (
        "claude-opus-4-5",
        "it is reported to observe poorly (mastra-ai/mastra 13132, anthropics/claude-code 31515)",
    ),
];

/// Parts of the names of models that do not chat.
const NON_CHAT: &[(&str, &str)] = &[
    ("embed", "it makes embeddings, it does not write"),
    ("whisper", "it writes down speech"),
    ("transcribe", "it writes down speech"),
    ("tts", "it speaks"),
    ("realtime", "it answers over a socket of its own"),
    ("dall-e", "it makes pictures"),
    ("gpt-image", "it makes pictures"),
    ("moderation", "it judges texts, it does not write"),
    ("rerank", "it orders texts, it does not write"),
];

/// Smaller models rarely keep the form of observations, let alone every number. Billions of
/// parameters.
const MIN_BILLIONS: f32 = 3.0;

/// The context window of `model` in tokens; `None` if it is not known.
#[must_use]
pub fn window(model: &str) -> Option<u32> {
    longest_prefix(&strip_owner(model), WINDOWS)
}

/// Why `model` does not work as Observer or Reflector; `None` if nothing is known against it.
#[must_use]
pub fn unsuited(model: &str) -> Option<String> {
    let name = strip_owner(model);
    if let Some(reason) = longest_prefix(&name, UNSUITED) {
        return Some(reason.to_owned());
    }
    if let Some((_, reason)) = NON_CHAT.iter().find(|(word, _)| name.contains(word)) {
        return Some((*reason).to_owned());
    }
    let billions = billions(&name)?;
    (billions < MIN_BILLIONS).then(|| {
        format!("with {billions} billion parameters it is too small to keep names and numbers")
    })
}

/// The name without its provider or owner.
fn strip_owner(model: &str) -> String {
    let name = model.rsplit('/').next().unwrap_or(model);
    name.trim().to_ascii_lowercase()
}

/// The value of the longest entry that `name` starts with, as a whole or up to a separator.
fn longest_prefix<T: Copy>(name: &str, table: &[(&str, T)]) -> Option<T> {
    table
        .iter()
        .filter(|(entry, _)| {
            name.strip_prefix(entry)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', ':', '@', '.']))
        })
        .max_by_key(|(entry, _)| entry.len())
        .map(|(_, value)| *value)
}

/// The size in the names of open models: `llama-3.2-1b-instruct`, `qwen2.5:0.5b`.
fn billions(name: &str) -> Option<f32> {
    name.split(['-', ':', '_'])
        .find_map(|word| word.strip_suffix('b')?.parse::<f32>().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_window_is_found_by_the_longest_matching_prefix() {
        for (model, expected) in [
            ("gpt-4", Some(8_192)),
            ("gpt-4-0613", Some(8_192)),
            ("gpt-4-turbo-2024-04-09", Some(128_000)),
            ("gpt-4o-mini", Some(128_000)),
            ("gpt-4.1-nano", Some(1_047_576)),
            ("openai/gpt-5-nano", Some(400_000)),
            ("gpt-5.2", Some(400_000)),
            ("gpt-40", None),
            ("meta-llama/Llama-3-8B-Instruct", Some(8_192)),
            ("llama3.1:8b", Some(131_072)),
            ("google/gemma-3-1b-it", Some(32_768)),
            ("my-own-model", None),
        ] {
            assert_eq!(window(model), expected, "{model}");
        }
    }

    #[test]
    fn unsuitable_models_are_recognised_with_a_reason() {
        for (model, word) in [
            ("o1-mini-2024-09-12", "system messages"),
            ("openai/o3-pro", "Responses API"),
            ("text-embedding-3-small", "embeddings"),
            ("gpt-4o-realtime-preview", "socket"),
            ("llama-3.2-1b-instruct", "1 billion"),
            ("qwen2.5:0.5b", "0.5 billion"),
            ("gemma2:9b", "system messages"),
            ("anthropic/claude-haiku-4-5-20251001", "poorly"),
        ] {
            let reason = unsuited(model).unwrap_or_default();
            assert!(reason.contains(word), "{model}: {reason:?}");
        }
        for model in [
            "gpt-5-nano",
            "gpt-4o-mini",
            "gemini-2.5-flash",
            "llama-3.3-70b",
            "mixtral-8x7b-instruct",
            "deepseek-chat",
            "o3-mini",
            "my-own-model",
        ] {
            assert_eq!(unsuited(model), None, "{model}");
        }
    }
}
