//! What an error body says: its messages, codes, parameters and status.
//!
//! Reads only what a provider says about the error, never parts of the request that an error echoes, so a
//! user who writes "prompt is too long" causes nothing. Knows the spellings in the field, decides nothing
//! about the request: that is done by [`mod@super::refusal`] and [`mod@super::blame`].

use serde_json::Value;

use super::excess::Excess;

/// An error body is a few hundred bytes; what is longer is an echo.
pub(super) const MAX_READ_BYTES: usize = 64 * 1024;
/// How many levels of JSON are followed: gateways in front of gateways nest their causes, up to four
/// deep in the field, each two levels.
pub(super) const CAUSE_DEPTH: usize = 8;

/// Whether an answer of this status can be a refusal of what the request holds, so that its body is
/// worth reading. Who asks (401 to 403), how often (429) and what is broken over there (5xx) are not:
/// none of them is ever an overflow, whatever they say.
#[must_use]
pub fn is_refusal_status(status: u16) -> bool {
    matches!(status, 400 | 413 | 422)
}

/// Whether an answer of this status can be the refusal of what was changed. Payment (402), time (408), the
/// rate (429) and a gateway without its server (502 to 504) are not: the same bytes would meet them again.
#[must_use]
pub fn is_change_refusal_status(status: u16) -> bool {
    is_refusal_status(status) || matches!(status, 401 | 403 | 404 | 405 | 415 | 500 | 501)
}

const FILTER_CODES: [&str; 7] = [
    "content_filter",
    "content_policy_violation",
    "ContentPolicyViolationError",
    "moderation_blocked",
    // Azure's inner error; Alibaba's, in both of its spellings.
    "ResponsibleAIPolicyViolation",
    "data_inspection_failed",
    "DataInspectionFailed",
];

/// What is said of a request's content under a code that says less: DeepSeek's and OpenAI's, in lower case.
const FILTER_WORDINGS: [&str; 2] = ["content exists risk", "violating our usage policy"];

/// What an error body says, apart from what it echoes.
#[derive(Default)]
pub(super) struct ErrorReport {
    pub(super) messages: Vec<String>,
    codes: Vec<String>,
    pub(super) params: Vec<String>,
    /// What llama.cpp counts, in fields beside its message.
    pub(super) excess: Option<Excess>,
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
                    self.excess = self.excess.or_else(|| Excess::new(window, sent));
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

    /// Whether it names a status, or a cause, that is no fault of what the request holds. Some of them are
    /// of the type of a bad request all the same.
    pub(super) fn names_other_cause(&self) -> bool {
        let causes = ["invalid_api_key", "model_not_found", "model_not_allowed"];
        self.statuses()
            .any(|status| !is_change_refusal_status(status))
            || self.has_code(&causes)
    }

    /// The status that it names, where none stands beside it.
    pub(super) fn status(&self) -> Option<u16> {
        self.statuses().next()
    }

    /// The codes that are statuses of errors.
    fn statuses(&self) -> impl Iterator<Item = u16> {
        let codes = self.codes.iter().filter_map(|code| code.parse().ok());
        codes.filter(|status| (400..600).contains(status))
    }

    /// Whether it says by its code, or in words that nothing else is told in, that the request is at fault.
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
        // Local servers render the prompt after their head has gone, and give no code.
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

    pub(super) fn is_too_long(&self) -> bool {
        self.has_code(&["context_length_exceeded", "exceed_context_size_error"])
            || self
                .messages
                .iter()
                .any(|message| says_too_long(&message.to_lowercase()))
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
        // Whatever is said of it: nothing else in a request is called so.
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

/// The published wordings of "the prompt does not fit". `message` is in lower case.
fn says_too_long(message: &str) -> bool {
    const PLAIN: [&str; 6] = [
        "context_length_exceeded",
        "maximum context length",
        "maximum prompt length",
        "prompt is too long",
        "input is too long",
        "reduce the length of",
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

/// "Unknown parameter: 'x'", "Unrecognized request argument supplied: x" and their kin.
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
    // ASCII lower case keeps every byte where it was, so one offset serves both.
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

/// A place inside `messages` is no parameter that could be left out.
fn is_parameter(name: &str) -> bool {
    !name.is_empty() && !name.starts_with("messages")
}
