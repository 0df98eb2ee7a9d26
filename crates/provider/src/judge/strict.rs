//! The demands that only some providers make. Each is a flag of [`Rules`] and is checked alone.
//!
//! Called by [`super::inspect`] for requests that are well formed.

use serde_json::{Map, Value};

use super::rules::Rules;
use crate::message::{is_system, role};
use crate::refusal::Refusal;

pub(super) fn check(
    request: &Map<String, Value>,
    messages: &[Value],
    rules: &Rules,
) -> Result<(), Refusal> {
    if rules.template {
        template(messages)?;
    }
    if rules.single_system {
        single_system(messages)?;
    }
    if rules.system_first {
        system_first(messages)?;
    }
    if rules.alternate {
        alternate(messages)?;
    }
    if rules.json_object {
        json_object(request, messages)?;
    }
    if rules.signature {
        signature(messages)?;
    }
    Ok(())
}

/// Checks what the chat template would raise an exception for; renders nothing.
fn template(messages: &[Value]) -> Result<(), Refusal> {
    if messages.iter().skip(1).any(is_system) {
        return Err(Refusal::template(
            "System message must be at the beginning.",
        ));
    }
    Ok(())
}

fn single_system(messages: &[Value]) -> Result<(), Refusal> {
    match messages
        .iter()
        .enumerate()
        .filter(|(_, message)| is_system(message))
        .nth(1)
    {
        None => Ok(()),
        Some((at, _)) => Err(Refusal::invalid(
            "Only one system message is supported by this model.",
        )
        .param(format!("messages[{at}].role"))),
    }
}

fn system_first(messages: &[Value]) -> Result<(), Refusal> {
    let leading = messages
        .iter()
        .take_while(|message| is_system(message))
        .count();
    match messages[leading..].iter().position(is_system) {
        None => Ok(()),
        Some(offset) => Err(Refusal::invalid("System message must be at the beginning.")
            .param(format!("messages[{}].role", leading + offset))),
    }
}

/// Counts turns as the chat templates of strict models do: user messages, and assistant messages
/// without calls. Calls, results and system messages do not count.
fn alternate(messages: &[Value]) -> Result<(), Refusal> {
    let mut expected = "user";
    for (at, message) in messages.iter().enumerate() {
        let calls = message
            .get("tool_calls")
            .is_some_and(|calls| !calls.is_null());
        let role = match role(message) {
            role @ "user" => role,
            role @ "assistant" if !calls => role,
            // Not a turn, but an answer still needs a question before it.
            "assistant" if expected == "user" => "assistant",
            _ => continue,
        };
        if role != expected {
            return Err(Refusal::invalid(
                "After the optional system message, conversation roles must alternate \
                 user/assistant/user/assistant/...",
            )
            .param(format!("messages[{at}].role")));
        }
        expected = if role == "user" { "assistant" } else { "user" };
    }
    Ok(())
}

fn json_object(request: &Map<String, Value>, messages: &[Value]) -> Result<(), Refusal> {
    let requires_json = request
        .get("response_format")
        .and_then(|format| format.get("type"))
        .and_then(Value::as_str)
        == Some("json_object");
    if !requires_json
        || messages
            .iter()
            .filter_map(|m| m.get("content"))
            .any(says_json)
    {
        return Ok(());
    }
    Err(Refusal::invalid(
        "'messages' must contain the word 'json' in some form, to use 'response_format' of type \
         'json_object'.",
    )
    .param("messages"))
}

fn says_json(content: &Value) -> bool {
    match content {
        Value::String(text) => text.to_ascii_lowercase().contains("json"),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part.get("text"))
            .any(says_json),
        _ => false,
    }
}

/// The signature that this provider issues with a tool call and demands back. It is a function of the
/// call's id, so judging needs no memory. It is where Gemini's compatible endpoint puts it:
/// `extra_content.google.thought_signature` of the call.
pub fn signature_for(call_id: &str) -> String {
    let digest = blake3::derive_key(
        "diarist scripted provider tool call signature",
        call_id.as_bytes(),
    );
    let mut signature = String::from("sig_");
    for byte in &digest[..12] {
        use std::fmt::Write as _;
        // Writing to a String cannot fail.
        let _ = write!(signature, "{byte:02x}");
    }
    signature
}

fn signature(messages: &[Value]) -> Result<(), Refusal> {
    let turn = messages
        .iter()
        .rposition(|message| role(message) == "user")
        .map_or(0, |at| at + 1);
    for (at, message) in messages.iter().enumerate().skip(turn) {
        let calls = message.get("tool_calls").and_then(Value::as_array);
        for (number, call) in calls.into_iter().flatten().enumerate() {
            let id = call.get("id").and_then(Value::as_str).unwrap_or_default();
            let found = call
                .pointer("/extra_content/google/thought_signature")
                .and_then(Value::as_str);
            if found != Some(signature_for(id).as_str()) {
                return Err(Refusal::invalid(format!(
                    "Function call {id} is missing its thought_signature: the calls of the \
                     current turn must be sent back as they were issued."
                ))
                .param(format!("messages[{at}].tool_calls[{number}]")));
            }
        }
    }
    Ok(())
}
