//! Reads a chat completion.

use http::StatusCode;
use serde_json::Value;

use super::error::Redaction;
use super::{CallError, CallSettings, Finish, RawResponse, Reply};
use crate::wire::usage::Usage;

/// Reads an answer whose status said success.
pub(super) fn parse(
    answer: &RawResponse,
    settings: &CallSettings,
    redaction: &Redaction<'_>,
) -> Result<Reply, CallError> {
    let Ok(body) = serde_json::from_slice::<Value>(&answer.body) else {
        return Err(transient("the answer is not JSON"));
    };
    if body.get("error").is_some_and(|error| !error.is_null()) {
        // A gateway's way to say that its provider failed after the head was out.
        let failed = RawResponse {
            status: StatusCode::BAD_GATEWAY,
            retry_after: answer.retry_after,
            body: answer.body.clone(),
        };
        return Err(CallError::from_answer(&failed, redaction));
    }
    let Some(choice) = body.pointer("/choices/0") else {
        return Err(transient("the answer has no choice"));
    };
    let refusal = choice.pointer("/message/refusal").and_then(Value::as_str);
    if let Some(words) = refusal.filter(|words| !words.is_empty()) {
        return Err(CallError::Refused {
            message: redaction.clean(words),
        });
    }
    let finish = finish(choice)?;
    let model = body.get("model").and_then(Value::as_str);
    Ok(Reply {
        text: text(choice.pointer("/message/content")),
        usage: Usage::in_answer(&body).unwrap_or_default(),
        finish,
        model: model.unwrap_or(&settings.model).to_owned(),
    })
}

/// Why the answer ended. Gateways pass on the words of the models behind them, in any case, and one
/// appends what its filter found.
fn finish(choice: &Value) -> Result<Finish, CallError> {
    let reason = choice.get("finish_reason").and_then(Value::as_str);
    let reason = reason.unwrap_or_default().to_ascii_lowercase();
    match reason.split(':').next().unwrap_or_default().trim() {
        "content_filter" | "refusal" | "safety" | "recitation" | "blocklist"
        | "prohibited_content" | "spii" => Err(CallError::Refused {
            message: "a content filter ended the answer".to_owned(),
        }),
        "error" | "abort" | "aborted" | "insufficient_system_resource" => {
            Err(transient("the model broke off in its answer"))
        }
        "stop" => Ok(Finish::Stop),
        "length" | "model_length" | "max_tokens" | "max_output_tokens" => Ok(Finish::Length),
        _ => Ok(Finish::Other),
    }
}

/// Content is a string, or parts of which the text ones count.
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
