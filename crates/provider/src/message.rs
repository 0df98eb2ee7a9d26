//! Reads single fields of a request and of its messages: role, text, tool calls, tool names.
//!
//! A field that is missing or of another type reads as empty, so these functions never fail; whether a
//! request is well formed is decided by [`super::judge()`]. Shared by the judge, the scripts and the parts
//! that play a model.

use serde_json::{Map, Value};

/// The role of a message; `""` if it has none.
pub(super) fn role(message: &Value) -> &str {
    message
        .get("role")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(super) fn is_system(message: &Value) -> bool {
    matches!(role(message), "system" | "developer")
}

/// The ids of the tool calls of a message, in order.
pub(super) fn call_ids(message: &Value) -> impl Iterator<Item = &str> {
    message
        .get("tool_calls")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|call| call.get("id").and_then(Value::as_str).unwrap_or_default())
}

/// The text of a message: its string content, or its text parts joined.
pub fn text(message: &Value) -> String {
    match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts
            .iter()
            .filter_map(|part| part.get("text").and_then(Value::as_str))
            .collect(),
        _ => String::new(),
    }
}

/// The names of the function tools that a request offers.
pub(super) fn tool_names(request: &Map<String, Value>) -> impl Iterator<Item = &str> {
    request
        .get("tools")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|tool| tool.pointer("/function/name").and_then(Value::as_str))
}
