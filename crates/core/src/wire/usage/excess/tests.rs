use serde_json::json;

use super::{Excess, summands};
use crate::wire::usage::{RefusalKind, excess, refusal};

/// Real wordings: the server, its message, the window and the size of the prompt.
const EXCESSES: [(&str, &str, (u64, u64)); 30] = [
    (
        "OpenAI",
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.",
        (128_000, 130_000),
    ),
    (
        "OpenAI",
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8000 in the messages, 1000 in the completion).",
        (8_192, 9_000),
    ),
    (
        "OpenAI",
        "This model's maximum context length is 8192 tokens. However, you requested 9300 tokens (9100 in the messages, 100 in the functions, and 100 in the completion).",
        (8_192, 9_300),
    ),
    (
        "OpenAI, completions",
        "This model's maximum context length is 4097 tokens, however you requested 6539 tokens (6283 in your prompt; 256 for the completion).",
        (4_097, 6_539),
    ),
    (
        "Azure",
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 289650 tokens.",
        (272_000, 289_650),
    ),
    (
        "Anthropic",
        "prompt is too long: 200251 tokens > 200000 maximum",
        (200_000, 200_251),
    ),
    (
        "Anthropic",
        "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input length or `max_tokens` and try again",
        (200_000, 242_959),
    ),
    (
        "Anthropic",
        "input length and `max_tokens` exceed context limit: 300000 + 64000 > 200000, decrease",
        (200_000, 364_000),
    ),
    (
        "Gemini",
        "The input token count (1,196,265) exceeds the maximum number of tokens allowed (1,048,575).",
        (1_048_575, 1_196_265),
    ),
    (
        "Mistral",
        "Prompt contains 32779 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        (32_768, 32_779),
    ),
    (
        "DeepSeek",
        "This model's maximum context length is 131072 tokens. However, you requested 404000 tokens (400000 in the messages, 4000 in the completion).",
        (131_072, 404_000),
    ),
    (
        "xAI",
        "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
        (131_072, 140_000),
    ),
    (
        "vLLM",
        "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens (112946 in the messages, 10000 in the completion).",
        (16_384, 122_946),
    ),
    (
        "vLLM",
        "This model's maximum context length is 32768 tokens. However, your request has 33000 input tokens.",
        (32_768, 33_000),
    ),
    (
        "vLLM",
        "You passed 8193 input tokens and requested 1024 output tokens. However, the model's context length is only 8192 tokens, resulting in a maximum input length of 7168 tokens. Please reduce the length of the input prompt.",
        (7_168, 8_193),
    ),
    (
        "vLLM",
        "The decoder prompt (length 9000) is longer than the maximum model length of 4096. Make sure that `max_model_len` is no smaller than the number of text tokens.",
        (4_096, 9_000),
    ),
    (
        "SGLang",
        "The input (9000 tokens) is longer than the model's context length (4096 tokens).",
        (4_096, 9_000),
    ),
    (
        "Text Generation Inference",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 9000 `inputs` tokens and 20 `max_new_tokens`",
        (4_096, 9_000),
    ),
    (
        "Moonshot",
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)",
        (262_144, 269_030),
    ),
    (
        "llama.cpp",
        "the request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it",
        (8_192, 9_000),
    ),
    (
        "llama-cpp-python",
        "Requested tokens (2285) exceed context window of 2048",
        (2_048, 2_285),
    ),
    (
        "OpenRouter",
        "This endpoint's maximum context length is 131072 tokens. However, you requested about 141607 tokens (10535 of text input, 131072 in the output).",
        (131_072, 141_607),
    ),
    (
        "OpenRouter",
        "This endpoint's maximum context length is 65536 tokens. However, you requested about 92208 tokens (60833 of text input, 10042 of tool input, 21333 in the output).",
        (65_536, 92_208),
    ),
    (
        "OpenRouter",
        "This endpoint's maximum context length is 65536 tokens. However, you requested about 192208 tokens (160833 of text input, 10042 of tool input, 21333 in the output).",
        (65_536, 192_208),
    ),
    (
        "Copilot",
        "prompt token count of 93854 exceeds the limit of 90000",
        (90_000, 93_854),
    ),
    (
        "LM Studio",
        "Trying to keep the first 10136 tokens when context the overflows. However, the model is loaded with context length of only 7866 tokens",
        (7_866, 10_136),
    ),
    (
        "LM Studio",
        "Input length 1581 exceeds context length 1500",
        (1_500, 1_581),
    ),
    (
        "LiteLLM",
        "litellm.ContextWindowExceededError: AnthropicException - prompt is too long: 209303 tokens > 200000 maximum. Received Model Group=large-20241022",
        (200_000, 209_303),
    ),
    (
        "a relay",
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens. (request id: 20251122123456789)",
        (128_000, 130_000),
    ),
    (
        "nobody's",
        "prompt is too long: requested 304000 tokens (300000 in the messages, 4000 in the completion), the model takes 128000",
        (128_000, 304_000),
    ),
];

#[test]
fn numbers_that_add_up_to_a_sum_are_found_among_others() {
    assert_eq!(summands(&[3, 5, 6, 10], 11), Some(vec![5, 6]));
    assert_eq!(summands(&[1, 2, 4, 8, 16], 13), Some(vec![1, 4, 8]));
    assert_eq!(summands(&[7, 9], 17), None);
    assert_eq!(summands(&[], 17), None);
}

#[test]
fn window_and_prompt_size_are_read_from_an_overflow_refusal() {
    let window_and_sent =
        |message: &str| Excess::from_message(message).map(|excess| (excess.window, excess.sent));
    for (who, message, expected) in EXCESSES {
        assert_eq!(window_and_sent(message), Some(expected), "{who}: {message}");
    }
    // Whatever the window is called, a part of what was sent may be larger than it.
    for message in [
        "requested 304000 tokens (300000 in the messages, 4000 in the completion), maximum context length is 128000",
        "maximum context length is 128000: requested 304000 tokens (300000 in the messages, 4000 in the completion)",
        "requested 304000 tokens (300000 in the messages, 4000 in the completion), over the 128000-token limit",
        "the context window of 128000 tokens is exceeded by a prompt of 300000 + 4000 tokens",
        "300000 + 4000 > 128000",
        "128000 is less than 304000 (300000 and 3000 and 1000)",
    ] {
        assert_eq!(
            window_and_sent(message),
            Some((128_000, 304_000)),
            "{message}"
        );
    }
    for silent in [
        "Input is too long for requested model.",
        "gpt-4o-2024-08-06 takes at most 128000 tokens",
        "messages[12] of 300 is too long",
        "200000 > 200000",
        "prompt too long; exceeded max context length by 1234 tokens",
        // The requested answer is too long, and the prompt is short.
        "'max_tokens' is too large: 32768. This model's maximum context length is 32768 tokens and your request has 1000 input tokens (32768 > 32768 - 1000).",
    ] {
        assert_eq!(window_and_sent(silent), None, "{silent}");
    }
    let fields = json!({"error": {"code": 400, "message": "the request exceeds the available context size. try increasing the context size or enable context shift",
        "type": "exceed_context_size_error", "n_prompt_tokens": 14_429, "n_ctx": 8_192}});
    let fields = excess(fields.to_string().as_bytes());
    let (window, sent) = (8_192, 14_429);
    assert_eq!(fields, Some(Excess { window, sent }), "llama.cpp");
}

/// A message with both numbers is recognised, with or without a code.
#[test]
fn a_refusal_with_both_numbers_is_recognised_as_too_long() {
    for (who, message, expected) in EXCESSES {
        let body = json!({"error": {"message": message}}).to_string();
        let found = refusal(400, body.as_bytes());
        assert_eq!(found, Some(RefusalKind::TooLong), "{who}: {message}");
        let excess = excess(body.as_bytes()).map(|excess| (excess.window, excess.sent));
        assert_eq!(excess, Some(expected), "{who}: {message}");
    }
}
