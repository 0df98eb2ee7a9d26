//! What an error body says: its messages, codes, parameters and status.
//!
//! Reads only what a provider says about the error, never parts of the request that an error echoes, so a
//! user who writes "prompt is too long" causes nothing. Knows the spellings in the field, decides nothing
//! about the request: that is done by [`mod@super::refusal`] and [`mod@super::blame`].

use serde_json::Value;

use super::excess::Excess;

/// An error body has a few hundred bytes; anything longer is an echo.
pub(super) const MAX_READ_BYTES: usize = 64 * 1024;
/// How many levels of JSON are followed. Gateways nest the causes of other gateways, in practice up to
/// four deep, with two levels for each.
pub(super) const CAUSE_DEPTH: usize = 8;

/// Whether an answer with this status can be a refusal of the request's content, so that its body is
/// worth reading. Credentials (401 to 403), rates (429) and failures of the server (5xx) never mean
/// that a prompt is too long, whatever they say.
#[must_use]
pub fn is_refusal_status(status: u16) -> bool {
    matches!(status, 400 | 413 | 422)
}

/// Whether an answer with this status can be the refusal of what Diarist changed. Firewalls and gateways use many
/// statuses for a body that they do not like. Payment (402), a proxy's password (407), timeouts (408), early data
/// (425), rates (429) and gateways without their server (502 to 504) cannot mean that: the original would get the
/// same answer.
#[must_use]
pub fn is_change_refusal_status(status: u16) -> bool {
    matches!(status, 400..=501) && !matches!(status, 402 | 407 | 408 | 425 | 429)
}

const FILTER_CODES: [&str; 7] = [
    "content_filter",
    "content_policy_violation",
    "ContentPolicyViolationError",
    "moderation_blocked",
    // Azure's inner error, and Alibaba's in both of its spellings.
    "ResponsibleAIPolicyViolation",
    "data_inspection_failed",
    "DataInspectionFailed",
];

/// Wordings for refused content under a less specific code: DeepSeek's and OpenAI's, in lower case.
const FILTER_WORDINGS: [&str; 2] = ["content exists risk", "violating our usage policy"];

/// What an error body says, without what it echoes.
#[derive(Default)]
pub(super) struct ErrorReport {
    pub(super) messages: Vec<String>,
    codes: Vec<String>,
    pub(super) params: Vec<String>,
    /// The sizes that llama.cpp gives in fields beside its message.
    excess_in_fields: Option<Excess>,
}

impl ErrorReport {
    pub(super) fn parse(body: &[u8]) -> Self {
        let mut report = Self::default();
        match serde_json::from_slice::<Value>(body) {
            Ok(json) => report.walk(&json, CAUSE_DEPTH),
            Err(_) => report
                .messages
                .push(String::from_utf8_lossy(body).into_owned()),
        }
        report
    }

    pub(super) fn walk(&mut self, value: &Value, depth: usize) {
        match value {
            Value::String(text) => self.text(text, depth),
            Value::Array(items) => {
                for item in items.iter().take(8) {
                    self.walk(item, depth);
                }
            }
            Value::Object(fields) if depth > 0 => {
                for key in [
                    "error", "message", "msg", "detail", "cause", "metadata", "raw",
                ] {
                    if let Some(inner) = fields.get(key) {
                        self.walk(inner, depth - 1);
                    }
                }
                for key in ["code", "type", "status"] {
                    match fields.get(key) {
                        Some(Value::String(code)) => self.codes.push(code.clone()),
                        Some(Value::Number(code)) => self.codes.push(code.to_string()),
                        _ => {}
                    }
                }
                if let Some(param) = fields.get("param").and_then(Value::as_str) {
                    self.params.push(param.to_owned());
                }
                let count = |key: &str| fields.get(key).and_then(Value::as_u64);
                if let (Some(window), Some(sent)) = (count("n_ctx"), count("n_prompt_tokens")) {
                    self.excess_in_fields =
                        self.excess_in_fields.or_else(|| Excess::new(window, sent));
                }
                // FastAPI's validation errors: the last part of `loc` is the field.
                let forbidden =
                    fields.get("type").and_then(Value::as_str) == Some("extra_forbidden");
                if forbidden
                    && let Some(Value::Array(location)) = fields.get("loc")
                    && let Some(name) = location.iter().rev().find_map(Value::as_str)
                {
                    self.params.push(name.to_owned());
                }
            }
            _ => {}
        }
    }

    /// A message may itself be a whole error in JSON.
    fn text(&mut self, text: &str, depth: usize) {
        if depth > 0
            && text.trim_start().starts_with(['{', '['])
            && let Ok(inner) = serde_json::from_str::<Value>(text)
        {
            self.walk(&inner, depth - 1);
        } else {
            self.messages.push(text.to_owned());
        }
    }

    pub(super) fn has_code(&self, codes: &[&str]) -> bool {
        self.codes.iter().any(|code| codes.contains(&code.as_str()))
    }

    pub(super) fn is_about_limits(&self) -> bool {
        self.has_code(&[
            "429",
            "rate_limit_exceeded",
            "rate_limit_error",
            "insufficient_quota",
            "RESOURCE_EXHAUSTED",
        ])
    }

    /// Whether it names a status or cause that is not the fault of the request's content. Some of
    /// these have the type of a bad request all the same.
    pub(super) fn names_other_cause(&self) -> bool {
        let causes = ["invalid_api_key", "model_not_found", "model_not_allowed"];
        self.statuses()
            .any(|status| !is_change_refusal_status(status))
            || self.has_code(&causes)
    }

    /// Whether it names a failure of the server, by its code or its words.
    pub(super) fn names_server_failure(&self) -> bool {
        const CODES: [&str; 9] = [
            "server_error",
            "api_error",
            "overloaded_error",
            "internal_error",
            "internal_server_error",
            "InternalServerError",
            "service_unavailable",
            "timeout_error",
            "UNAVAILABLE",
        ];
        const WORDINGS: [&str; 7] = [
            "overloaded",
            "unavailable",
            "try again",
            "server had an error",
            "internal error",
            "internal server error",
            "timed out",
        ];
        let says = |message: &String| {
            let message = message.to_lowercase();
            WORDINGS.iter().any(|wording| message.contains(wording))
        };
        self.has_code(&CODES) || self.messages.iter().any(says)
    }

    /// The status that the error names itself, for errors that come without one.
    pub(super) fn status(&self) -> Option<u16> {
        self.statuses().next()
    }

    /// The codes that are statuses of errors.
    fn statuses(&self) -> impl Iterator<Item = u16> {
        let codes = self.codes.iter().filter_map(|code| code.parse().ok());
        codes.filter(|status| (400..600).contains(status))
    }

    /// Whether it says that the request is at fault: by its code, or by words that servers use for
    /// nothing else.
    pub(super) fn blames_request(&self) -> bool {
        const CODES: [&str; 11] = [
            "invalid_request_error",
            "invalid_request",
            "invalid_prompt",
            "invalid_value",
            "BadRequestError",
            "BadRequest",
            "bad_request",
            "bad_request_error",
            "INVALID_ARGUMENT",
            "UnprocessableEntityError",
            "unprocessable_entity",
        ];
        // Local servers render the prompt after they have sent the head, and give no code.
        let cannot_render = |message: &String| {
            let message = message.to_lowercase();
            let template = ["jinja", "chat template", "prompt template"];
            template.iter().any(|wording| message.contains(wording))
        };
        let status = self.statuses().any(is_change_refusal_status);
        status || self.has_code(&CODES) || self.messages.iter().any(cannot_render)
    }

    pub(super) fn is_filtered(&self) -> bool {
        let says = |message: &String| {
            let message = message.to_lowercase();
            FILTER_WORDINGS
                .iter()
                .any(|wording| message.contains(wording))
        };
        self.has_code(&FILTER_CODES) || self.messages.iter().any(says)
    }

    /// Whether the prompt does not fit, by what it says or by its status. Gateways with a limit for bodies say 413 in HTML, or
    /// in any words. A shorter request may pass.
    pub(super) fn is_too_long_with(&self, status: u16) -> bool {
        let is_too_large = status == PAYLOAD_TOO_LARGE && !self.names_limits();
        is_refusal_status(status) && (is_too_large || self.is_too_long())
    }

    /// See [`mod@super::refusal`].
    pub(super) fn excess(&self) -> Option<Excess> {
        let in_words = || self.messages.iter().find_map(|it| Excess::from_message(it));
        let any = || self.excess_in_fields.or_else(in_words);
        self.is_too_long().then(any).flatten()
    }

    fn is_too_long(&self) -> bool {
        self.has_code(&TOO_LONG_CODES)
            || self
                .messages
                .iter()
                .any(|message| says_too_long(&message.to_lowercase()))
    }

    /// Whether its words name a quota, a bill or a rate.
    pub(super) fn names_limits(&self) -> bool {
        self.contains_any(&LIMIT_WORDINGS)
    }

    pub(super) fn contains_any(&self, wordings: &[&str]) -> bool {
        self.any_text(&|text| wordings.iter().any(|wording| text.contains(wording)))
    }

    /// Whether one of its texts, in lower case, satisfies `predicate`.
    pub(super) fn any_text(&self, predicate: &dyn Fn(&str) -> bool) -> bool {
        let mut texts = self.messages.iter().chain(&self.params);
        texts.any(|text| predicate(&text.to_lowercase()))
    }

    pub(super) fn unknown_parameter(&self) -> Option<String> {
        let unknown = self.has_code(&[
            "unknown_parameter",
            "unsupported_parameter",
            "unsupported_value",
            "extra_forbidden",
        ]);
        if unknown && let Some(param) = self.params.first() {
            return is_parameter(param).then(|| param.clone());
        }
        let named = self.messages.iter().find_map(|m| parameter_in_message(m));
        // Nothing else in a request has these names, so any mention of them counts.
        let about_usage = |message: &String| {
            ["stream_options", "include_usage"]
                .iter()
                .any(|name| message.contains(name))
        };
        named.or_else(|| {
            let mut texts = self.messages.iter().chain(&self.params);
            texts.any(about_usage).then(|| "stream_options".to_owned())
        })
    }
}

/// The status of a body that is too large.
const PAYLOAD_TOO_LARGE: u16 = 413;

/// Codes for a prompt that does not fit: OpenAI's, llama.cpp's, those of GitHub Models, Copilot and Z.ai, and that of
/// gateways with a limit for the body.
const TOO_LONG_CODES: [&str; 6] = [
    "context_length_exceeded",
    "exceed_context_size_error",
    "tokens_limit_reached",
    "model_max_prompt_tokens_exceeded",
    "model_context_window_exceeded",
    "request_too_large",
];

/// Wordings for a quota, a bill or a rate, in lower case, of servers that send no code for them.
const LIMIT_WORDINGS: [&str; 11] = [
    "per minute",
    "quota",
    "billing",
    "credit balance",
    "insufficient balance",
    "insufficient credit",
    "available credits",
    "spending limit",
    "rate limit",
    "ratelimit",
    "too many requests",
];

/// The published wordings for a prompt that does not fit. `message` is in lower case.
fn says_too_long(message: &str) -> bool {
    const PLAIN: [&str; 20] = [
        "context_length_exceeded",
        "maximum context length",
        "maximum prompt length",
        "prompt is too long",
        "input is too long",
        "reduce the length of",
        // vLLM; SGLang and Together; LM Studio, two times.
        "longer than the maximum model length",
        "longer than the model's context length",
        "initial prompt is greater than the context length",
        "tokens when context the overflows",
        // Text Generation Inference, two times.
        "`inputs` tokens + `max_new_tokens` must be",
        "`inputs` must have less than",
        // Moonshot, DashScope, Zhipu, MiniMax, Z.ai.
        "exceeded model token limit",
        "range of input length should be",
        "prompt exceeds max length",
        "context window exceeds limit",
        "model_context_window_exceeded",
        // Cohere; TensorRT-LLM.
        "too many tokens: total number of tokens in the prompt",
        "exceeds maximum input length",
        "exceeds the maximum allowed input length",
    ];
    if PLAIN.iter().any(|wording| message.contains(wording)) {
        return true;
    }
    let Some((before, after)) = message.split_once("exceed") else {
        return false;
    };
    let in_context = ["window", "length", "limit", "size"]
        .iter()
        .any(|noun| after.contains(&format!("context {noun}")));
    let any = |text: &str, wordings: &[&str]| wordings.iter().any(|it| text.contains(it));
    let counted = any(before, &["token count", "input tokens"])
        && any(after, &["the maximum", "the limit", "configured limit"]);
    in_context || counted
}

/// Reads the name in "Unknown parameter: 'x'", "Unrecognized request argument supplied: x" and similar
/// messages.
fn parameter_in_message(message: &str) -> Option<String> {
    const WORDINGS: [&str; 8] = [
        "unknown parameter",
        "unsupported parameter",
        "unsupported value",
        "unrecognized request argument supplied",
        "unrecognized request arguments supplied",
        "unknown name",
        "unknown field",
        "extra inputs are not permitted, field",
    ];
    // ASCII lower case keeps every byte in place, so one offset fits both.
    let lower = message.to_ascii_lowercase();
    let end = WORDINGS
        .iter()
        .find_map(|wording| lower.find(wording).map(|at| at + wording.len()))?;
    let name: String = message
        .get(end..)?
        .trim_start_matches([' ', ':', '\'', '"', '`'])
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '[' | ']'))
        .collect();
    let name = name.trim_end_matches(['.', '-']);
    is_parameter(name).then(|| name.to_owned())
}

/// Whether it is a parameter that could be left out; a place inside `messages` is none.
fn is_parameter(name: &str) -> bool {
    !name.is_empty() && !name.starts_with("messages")
}
