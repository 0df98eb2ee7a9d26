//! The classes of failure of a model call, and the text that may be kept of one.

use std::error::Error as _;
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use zeroize::Zeroizing;

use super::reported_usage::ReportedUsage;
use crate::memory::prompt::Prompt;
use crate::wire::usage::{Excess, RefusalKind, error_message, excess, is_content_filter, refusal};

/// Why a model call failed, by what can be done about it.
///
/// The message is the provider's own, at most 2,000 characters, without prompts and credentials. Of a refusal and of a content
/// filter it is ours: their words are about the conversation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The same call may succeed later: 429.
    #[error("the model endpoint limits the rate: {message}")]
    RateLimited {
        retry_after: Option<Duration>,
        message: String,
    },
    /// The same call may succeed later: no connection, 408, 425, 5xx, no answer in time.
    #[error("the model endpoint failed: {message}")]
    Transient {
        retry_after: Option<Duration>,
        message: String,
    },
    /// The same call may succeed later: no answer within the deadline. It may be billed all the same.
    #[error("the model endpoint failed: {message}")]
    Timeout { message: String },
    /// The call was not made: a budget is spent, or a breaker is open. It may be made after `retry_after`.
    #[error("the model is not called now: {message}")]
    NotMade {
        retry_after: Duration,
        message: String,
    },
    /// The model or a content filter declines this prompt.
    #[error("the model refused: {message}")]
    Refused { message: String },
    /// The prompt does not fit the model.
    #[error("the prompt is too long for the model: {message}")]
    TooLong {
        message: String,
        /// By how much, if the refusal states it.
        excess: Option<Excess>,
    },
    /// The credential is not accepted.
    #[error("the model endpoint does not accept the credential: {message}")]
    Unauthorised { message: String },
    /// The endpoint rejects this request without a reason that can be corrected: 400, 422. The
    /// same call will fail again; one with another prompt may not.
    #[error("the model endpoint rejects the call: {message}")]
    Rejected { message: String },
    /// Every such call will fail: the model, address or account does not exist.
    #[error("the model call is not possible: {message}")]
    Fatal { message: String },
}

impl CallError {
    /// Whether the same call is worth another try, after a [`super::backoff()`].
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::RateLimited { .. }
                | Self::Transient { .. }
                | Self::Timeout { .. }
                | Self::NotMade { .. }
        )
    }

    /// How long the endpoint asks to be left alone, or we leave it alone.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::Transient { retry_after, .. } => {
                *retry_after
            }
            Self::NotMade { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    /// Whether a [`super::Breaker`] should count it: the endpoint failed, not only this prompt.
    #[must_use]
    pub fn blames_endpoint(&self) -> bool {
        match self {
            Self::NotMade { .. } => false,
            Self::Unauthorised { .. } => true,
            _ => self.is_retryable(),
        }
    }

    /// Its class in one word.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            Self::RateLimited { .. } => "rate_limited",
            Self::Transient { .. } => "transient",
            Self::Timeout { .. } => "late",
            Self::NotMade { .. } => "not_made",
            Self::Refused { .. } => "refused",
            Self::TooLong { .. } => "too_long",
            Self::Unauthorised { .. } => "unauthorised",
            Self::Rejected { .. } => "rejected",
            Self::Fatal { .. } => "fatal",
        }
    }

    /// The provider's message, or ours if there is none.
    #[must_use]
    pub fn message(&self) -> &str {
        match self {
            Self::RateLimited { message, .. }
            | Self::Transient { message, .. }
            | Self::Timeout { message }
            | Self::NotMade { message, .. }
            | Self::Refused { message }
            | Self::TooLong { message, .. }
            | Self::Unauthorised { message }
            | Self::Rejected { message }
            | Self::Fatal { message } => message,
        }
    }

    /// Whether a model worked on the prompt, so that the call costs although nothing was reported.
    #[must_use]
    pub fn is_billed(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Refused { .. })
    }

    /// The error in an answer whose status reports one, or whose body does despite its status.
    pub(super) fn from_answer(
        status: StatusCode,
        retry_after: Option<Duration>,
        bytes: &[u8],
        redaction: &Redaction<'_>,
    ) -> Self {
        let body = serde_json::from_slice::<Value>(bytes).ok();
        let outer = status.as_u16();
        // Gateways wrap their provider's status into 400 and 502. The inner status says more.
        let inner = body.as_ref().and_then(inner_status);
        let status = inner
            .filter(|_| matches!(outer, 400 | 502))
            .unwrap_or(outer);
        let provider_message = body.as_ref().and_then(error_message);
        let is_filtered = is_content_filter(bytes);
        let message = match (provider_message, &body) {
            // A content filter says what it found in the conversation.
            (_, Some(body)) if is_filtered => filter_message(outer, body),
            (Some(provider_message), _) => redaction.clean(&provider_message),
            // A body in an unknown form may contain anything, so it is not repeated.
            _ => format!("status {outer}, {} bytes", bytes.len()),
        };
        if matches!(refusal(status, bytes), Some(RefusalKind::TooLong)) {
            let excess = excess(bytes);
            return Self::TooLong { message, excess };
        }
        match status {
            429 => Self::RateLimited {
                retry_after,
                message,
            },
            408 | 425 | 500..=599 => Self::Transient {
                retry_after,
                message,
            },
            400..=499 if is_filtered => Self::Refused { message },
            401 | 403 => Self::Unauthorised { message },
            400 | 413 | 422 if !is_unknown_model(&message) => Self::Rejected { message },
            _ => Self::Fatal { message },
        }
    }
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedCall {
    pub error: CallError,
    /// What the endpoint reported about its cost: a model may have worked all the same.
    pub usage: Option<Box<ReportedUsage>>,
}

impl FailedCall {
    /// With the usage in the answer `body`.
    pub(super) fn with_usage_in(error: CallError, body: &Value) -> Self {
        let usage = ReportedUsage::in_answer(body);
        let is_reported = usage != ReportedUsage::default();
        Self {
            error,
            usage: is_reported.then(|| Box::new(usage)),
        }
    }
}

impl From<CallError> for FailedCall {
    fn from(error: CallError) -> Self {
        Self { error, usage: None }
    }
}

impl From<reqwest::Error> for CallError {
    fn from(error: reqwest::Error) -> Self {
        let fatal = error.is_builder();
        // The query of the URL may hold a key.
        let error = error.without_url();
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            message.push_str(": ");
            message.push_str(&inner.to_string());
            cause = inner.source();
        }
        let message = truncate(&message);
        if fatal {
            Self::Fatal { message }
        } else {
            Self::Transient {
                retry_after: None,
                message,
            }
        }
    }
}

/// What may be kept of the error of a content filter: its status, and its code and type if each is one word.
fn filter_message(status: u16, body: &Value) -> String {
    const MOST_CHARS: usize = 64;
    let is_word = |text: &&str| {
        text.len() <= MOST_CHARS
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
    };
    let mut message = format!("a content filter, status {status}");
    for name in ["code", "type"] {
        let value = body.pointer(&format!("/error/{name}"));
        let value = value.or_else(|| body.get(name)).and_then(Value::as_str);
        if let Some(value) = value.filter(is_word) {
            message.push_str(&format!(", {name} {value}"));
        }
    }
    message
}

/// Whether a refusal says that the model does not exist. Some report that with 400, although no
/// prompt is at fault.
fn is_unknown_model(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    message.contains("model")
        && [
            "not exist",
            "not a valid model",
            "not found",
            "unknown model",
            "invalid model",
        ]
        .iter()
        .any(|wording| message.contains(wording))
}

/// The status that an error body has as its code, as a number or in digits.
fn inner_status(body: &Value) -> Option<u16> {
    let code = body.pointer("/error/code").or_else(|| body.get("code"))?;
    let code = match code {
        Value::Number(code) => code.as_u64()?,
        Value::String(code) => code.parse().ok()?,
        _ => return None,
    };
    u16::try_from(code)
        .ok()
        .filter(|code| (400..600).contains(code))
}

/// The longest message kept, in characters: enough for every provider's own text.
const MAX_MESSAGE: usize = 2000;
/// The shortest piece of a prompt that counts as an echo, in characters.
const MIN_ECHO: usize = 32;
/// Shorter secrets are not removed, because that would blank out ordinary words.
const MIN_SECRET_LEN: usize = 8;

/// What an error message must not repeat.
pub(super) struct Redaction<'a> {
    secrets: Vec<Zeroizing<String>>,
    prompt: &'a Prompt,
}

impl<'a> Redaction<'a> {
    pub(super) fn new(mut secrets: Vec<Zeroizing<String>>, prompt: &'a Prompt) -> Self {
        secrets.retain(|secret| secret.len() >= MIN_SECRET_LEN);
        // A longer form may contain a shorter one.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self { secrets, prompt }
    }

    /// The part of a provider's message that may be kept.
    pub(super) fn clean(&self, message: &str) -> String {
        let mut message = message.to_owned();
        for secret in &self.secrets {
            message = replace_ignoring_case(&message, secret, "[credential]");
        }
        let message = truncate(&message);
        if self.echoes_prompt(&message) {
            return "the provider's message repeats the prompt and is left out".to_owned();
        }
        message
    }

    /// Compares windows of [`MIN_ECHO`] characters. An echo of twice that length contains at least
    /// one of them whole.
    fn echoes_prompt(&self, message: &str) -> bool {
        let characters: Vec<char> = message.chars().collect();
        characters.chunks_exact(MIN_ECHO).any(|window| {
            let window: String = window.iter().collect();
            self.prompt.user.contains(&window) || self.prompt.system.contains(&window)
        })
    }
}

/// `text` with `replacement` for each `pattern`, whatever the case of its ASCII letters.
fn replace_ignoring_case(text: &str, pattern: &str, replacement: &str) -> String {
    // Of equal length, so places in the one are places in the other.
    let (lower, pattern) = (text.to_ascii_lowercase(), pattern.to_ascii_lowercase());
    let (mut replaced, mut end) = (String::with_capacity(text.len()), 0);
    for (at, found) in lower.match_indices(&pattern) {
        replaced.push_str(&text[end..at]);
        replaced.push_str(replacement);
        end = at + found.len();
    }
    replaced.push_str(&text[end..]);
    replaced
}

fn truncate(message: &str) -> String {
    message.chars().take(MAX_MESSAGE).collect()
}

#[cfg(test)]
mod tests;
