//! Reads the answer of a model call: a chat completion, or the error that it hides.

use std::time::Duration;

use http::StatusCode;
use serde_json::Value;

use super::call::CallSettings;
use super::error::{CallError, FailedCall, Redaction};
use super::lenient_json;
use super::reported_usage::ReportedUsage;

/// The answer of a model. The text may be empty.
#[derive(Clone)]
pub struct Reply {
    pub text: String,
    pub usage: ReportedUsage,
    pub finish: Finish,
    /// The model that answered, by its own report.
    pub model: String,
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply")
            .field("text_bytes", &self.text.len())
            .field("usage", &self.usage)
            .field("finish", &self.finish)
            .field("model", &self.model)
            .finish()
    }
}

/// Why an answer ended. A refusal is a [`CallError::Refused`] instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Stop,
    /// Cut by a token limit.
    Length,
    /// A reason that is absent or not known.
    Other,
}

/// A whole HTTP answer.
pub(super) struct RawResponse {
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<Duration>,
    pub(super) body: Vec<u8>,
}

impl RawResponse {
    /// The error that the status, or the body despite its status, reports.
    pub(super) fn error(&self, redaction: &Redaction<'_>) -> FailedCall {
        let error = self.error_with(self.status, redaction);
        match lenient_json::read(&self.body) {
            Some(body) => FailedCall::with_usage_in(error, &body),
            None => error.into(),
        }
    }

    fn error_with(&self, status: StatusCode, redaction: &Redaction<'_>) -> CallError {
        CallError::from_answer(status, self.retry_after, &self.body, redaction)
    }
}

/// Reads an answer whose status reports success.
pub(super) fn parse(
    answer: &RawResponse,
    settings: &CallSettings,
    redaction: &Redaction<'_>,
) -> Result<Reply, FailedCall> {
    let Some(body) = lenient_json::read(&answer.body) else {
        return Err(transient("the answer is no chat completion").into());
    };
    read_completion(answer, &body, settings, redaction)
        .map_err(|error| FailedCall::with_usage_in(error, &body))
}

fn read_completion(
    answer: &RawResponse,
    body: &Value,
    settings: &CallSettings,
    redaction: &Redaction<'_>,
) -> Result<Reply, CallError> {
    if body.get("error").is_some_and(|error| !error.is_null()) {
        // Gateways report a failure of their provider like this if the head was already sent.
        return Err(answer.error_with(StatusCode::BAD_GATEWAY, redaction));
    }
    let Some(choice) = body.pointer("/choices/0") else {
        return Err(transient("the answer has no choice"));
    };
    let refusal = choice.pointer("/message/refusal").and_then(Value::as_str);
    if refusal.is_some_and(|text| !text.is_empty()) {
        return Err(CallError::Refused {
            // Its words are about the conversation, and stand in no log.
            message: "it declined in words of its own".to_owned(),
        });
    }
    let finish = finish(choice)?;
    let model = body.get("model").and_then(Value::as_str);
    Ok(Reply {
        text: text(choice.pointer("/message/content")),
        usage: ReportedUsage::in_answer(body),
        finish,
        model: reported_model(model.unwrap_or(&settings.model)),
    })
}

/// The beginning of a model's name, which stands in each line of the audit and in the database. No real one is longer.
fn reported_model(name: &str) -> String {
    const MOST_CHARS: usize = 256;
    name.chars().take(MOST_CHARS).collect()
}

/// Why the answer ended. Gateways pass on the words of the models behind them, in any case, and one
/// appends the findings of its filter.
fn finish(choice: &Value) -> Result<Finish, CallError> {
    let reason = choice.get("finish_reason").and_then(Value::as_str);
    let reason = reason.unwrap_or_default().to_ascii_lowercase();
    match reason.split(':').next().unwrap_or_default().trim() {
        "content_filter" | "refusal" | "safety" | "recitation" | "blocklist"
        | "prohibited_content" | "spii" => Err(CallError::Refused {
            message: "a content filter ended the answer".to_owned(),
        }),
        "error" | "abort" | "aborted" | "insufficient_system_resource" => {
            Err(transient("the model ended its answer with an error"))
        }
        "stop" => Ok(Finish::Stop),
        "length" | "model_length" | "max_tokens" | "max_output_tokens" => Ok(Finish::Length),
        _ => Ok(Finish::Other),
    }
}

/// The text of a message: its content is a string, or has parts of which the text parts count.
fn text(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts
            .iter()
            .filter_map(|part| part.get("text")?.as_str())
            .collect(),
        _ => String::new(),
    }
}

fn transient(message: &str) -> CallError {
    CallError::Transient {
        retry_after: None,
        message: message.to_owned(),
    }
}
