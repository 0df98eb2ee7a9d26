//! The form of a request: which parameters exist, their types, and what a message must have.
//!
//! Looks at one field or one message at a time. Rules about several messages are in [`super::rounds`]
//! and [`super::strict`]. Called by [`super::inspect`] only.

use serde_json::{Map, Value};

use super::rules::Rules;
use crate::refusal::Refusal;

/// Top-level parameters of chat completions, from the API reference of November 2026.
const KNOWN_PARAMETERS: &[&str] = &[
    "audio",
    "frequency_penalty",
    "function_call",
    "functions",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "metadata",
    "modalities",
    "model",
    "n",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning_effort",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "user",
    "verbosity",
    "web_search_options",
];

/// The longest `prompt_cache_key`.
const MAX_CACHE_KEY: usize = 64;

const ROLES: &[&str] = &[
    "system",
    "assistant",
    "user",
    "function",
    "tool",
    "developer",
];
const PARTS: &[&str] = &["text", "image_url", "input_audio", "file", "refusal"];

/// Checks everything except the messages, and returns the model's name.
pub(super) fn check<'a>(
    request: &'a Map<String, Value>,
    rules: &Rules,
) -> Result<&'a str, Refusal> {
    for key in request.keys() {
        let is_accepted =
            KNOWN_PARAMETERS.contains(&key.as_str()) || rules.extra_parameters.contains(key);
        let is_refused = match key.as_str() {
            "stream_options" => rules.refuse_stream_options,
            "prompt_cache_key" => rules.refuse_cache_key,
            _ => false,
        };
        if !is_accepted || is_refused {
            return Err(
                Refusal::invalid(format!("Unrecognized request argument supplied: {key}"))
                    .param(key)
                    .code("unknown_parameter"),
            );
        }
    }
    let model = match request.get("model") {
        Some(Value::String(model)) if !model.is_empty() => model.as_str(),
        Some(Value::Null) | None => {
            return Err(Refusal::invalid("you must provide a model parameter"));
        }
        Some(other) => return Err(wrong_type("model", "a string", other)),
    };
    check_types(request)?;
    check_stream(request)?;
    if rules.is_reasoning_model(model) {
        check_reasoning(request)?;
    }
    Ok(model)
}

fn check_types(request: &Map<String, Value>) -> Result<(), Refusal> {
    type Test = fn(&Value) -> bool;
    let tests: [(&str, &str, Test); 9] = [
        ("stream", "a boolean", Value::is_boolean),
        ("stream_options", "an object", Value::is_object),
        ("temperature", "a decimal", Value::is_number),
        ("max_tokens", "an integer", Value::is_u64),
        ("max_completion_tokens", "an integer", Value::is_u64),
        ("n", "an integer", Value::is_u64),
        ("tools", "an array of objects", Value::is_array),
        ("prompt_cache_key", "a string", Value::is_string),
        ("user", "a string", Value::is_string),
    ];
    for (key, expected, test) in tests {
        match request.get(key) {
            Some(value) if !value.is_null() && !test(value) => {
                return Err(wrong_type(key, expected, value));
            }
            _ => {}
        }
    }
    let cache_key = request.get("prompt_cache_key").and_then(Value::as_str);
    let length = cache_key.map_or(0, |key| key.chars().count());
    if length > MAX_CACHE_KEY {
        return Err(Refusal::invalid(format!(
            "Invalid 'prompt_cache_key': string too long. Expected a string with maximum length {MAX_CACHE_KEY}, \
             but got a string with length {length} instead."
        ))
        .param("prompt_cache_key")
        .code("string_above_max_length"));
    }
    if request.get("n").and_then(Value::as_u64) == Some(0) {
        return Err(Refusal::invalid(
            "Invalid 'n': integer below minimum value. Expected a value >= 1, but got 0 instead.",
        )
        .param("n")
        .code("integer_below_min_value"));
    }
    Ok(())
}

fn check_stream(request: &Map<String, Value>) -> Result<(), Refusal> {
    let has_options = request.get("stream_options").is_some_and(Value::is_object);
    let streaming = request.get("stream").and_then(Value::as_bool) == Some(true);
    if has_options && !streaming {
        return Err(Refusal::invalid(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        )
        .param("stream_options"));
    }
    Ok(())
}

fn check_reasoning(request: &Map<String, Value>) -> Result<(), Refusal> {
    if let Some(temperature) = request.get("temperature").and_then(Value::as_f64)
        && (temperature - 1.0).abs() > f64::EPSILON
    {
        return Err(Refusal::invalid(format!(
            "Unsupported value: 'temperature' does not support {temperature} with this model. \
             Only the default (1) value is supported."
        ))
        .param("temperature")
        .code("unsupported_value"));
    }
    if request
        .get("max_tokens")
        .is_some_and(|value| !value.is_null())
    {
        return Err(Refusal::invalid(
            "Unsupported parameter: 'max_tokens' is not supported with this model. \
             Use 'max_completion_tokens' instead.",
        )
        .param("max_tokens")
        .code("unsupported_parameter"));
    }
    Ok(())
}

/// The messages, if there are any.
pub(super) fn messages(request: &Map<String, Value>) -> Result<&[Value], Refusal> {
    match request.get("messages") {
        None | Some(Value::Null) => {
            Err(Refusal::invalid("Missing required parameter: 'messages'.")
                .param("messages")
                .code("missing_required_parameter"))
        }
        Some(Value::Array(messages)) if messages.is_empty() => Err(Refusal::invalid(
            "Invalid 'messages': empty array. Expected an array with minimum length 1, \
             but got an empty array instead.",
        )
        .param("messages")
        .code("empty_array")),
        Some(Value::Array(messages)) => Ok(messages),
        Some(other) => Err(wrong_type("messages", "an array of objects", other)),
    }
}

/// Checks one message alone: a known role, and content if that role needs it.
pub(super) fn check_message(at: usize, message: &Value) -> Result<(), Refusal> {
    let field = |name: &str| format!("messages[{at}].{name}");
    let Some(fields) = message.as_object() else {
        return Err(wrong_type(&format!("messages[{at}]"), "an object", message));
    };
    let role = match fields.get("role") {
        Some(Value::String(role)) => role.as_str(),
        None | Some(Value::Null) => {
            return Err(Refusal::invalid(format!(
                "Missing required parameter: '{}'.",
                field("role")
            ))
            .param(field("role"))
            .code("missing_required_parameter"));
        }
        Some(other) => return Err(wrong_type(&field("role"), "a string", other)),
    };
    if !ROLES.contains(&role) {
        return Err(Refusal::invalid(format!(
            "Invalid value: '{role}'. Supported values are: '{}'.",
            ROLES.join("', '")
        ))
        .param(field("role"))
        .code("invalid_value"));
    }
    if role == "tool" && !fields.get("tool_call_id").is_some_and(Value::is_string) {
        return Err(Refusal::invalid(format!(
            "Missing required parameter: '{}'.",
            field("tool_call_id")
        ))
        .param(field("tool_call_id"))
        .code("missing_required_parameter"));
    }
    check_calls(at, fields)?;
    check_content(at, role, fields)
}

fn check_calls(at: usize, fields: &Map<String, Value>) -> Result<(), Refusal> {
    let Some(calls) = fields.get("tool_calls").filter(|calls| !calls.is_null()) else {
        return Ok(());
    };
    let name = format!("messages[{at}].tool_calls");
    let Some(calls) = calls.as_array() else {
        return Err(wrong_type(&name, "an array of objects", calls));
    };
    if calls.is_empty() {
        return Err(Refusal::invalid(format!(
            "Invalid '{name}': empty array. Expected an array with minimum length 1, \
             but got an empty array instead."
        ))
        .param(name)
        .code("empty_array"));
    }
    for (number, call) in calls.iter().enumerate() {
        let function = call.get("function");
        let text = |value: Option<&Value>| value.is_some_and(Value::is_string);
        let is_complete = text(call.get("id"))
            && text(function.and_then(|function| function.get("name")))
            && text(function.and_then(|function| function.get("arguments")));
        // Custom tools have another form; only function calls are checked.
        let custom = call.get("type").and_then(Value::as_str) == Some("custom");
        if !is_complete && !custom {
            let name = format!("{name}[{number}]");
            return Err(Refusal::invalid(format!(
                "Missing required parameter: '{name}' needs an id, a function name and arguments."
            ))
            .param(name)
            .code("missing_required_parameter"));
        }
    }
    Ok(())
}

fn check_content(at: usize, role: &str, fields: &Map<String, Value>) -> Result<(), Refusal> {
    let name = format!("messages[{at}].content");
    let present = |key: &str| fields.get(key).is_some_and(|value| !value.is_null());
    match fields.get("content") {
        Some(Value::String(_)) => Ok(()),
        Some(Value::Array(parts)) => check_parts(&name, parts),
        None | Some(Value::Null) => {
            let optional = role == "assistant"
                && ["tool_calls", "function_call", "refusal", "audio"]
                    .into_iter()
                    .any(present);
            if optional || role == "function" {
                return Ok(());
            }
            Err(Refusal::invalid(format!(
                "Invalid value for 'content': expected a string, got null. ({name})"
            ))
            .param(name))
        }
        Some(other) => Err(wrong_type(
            &name,
            "one of a string or array of objects",
            other,
        )),
    }
}

fn check_parts(name: &str, parts: &[Value]) -> Result<(), Refusal> {
    for (number, part) in parts.iter().enumerate() {
        let name = format!("{name}[{number}]");
        let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
        if !PARTS.contains(&kind) {
            return Err(Refusal::invalid(format!(
                "Invalid value: '{kind}'. Supported values are: '{}'.",
                PARTS.join("', '")
            ))
            .param(format!("{name}.type"))
            .code("invalid_value"));
        }
        if kind == "text" && !part.get("text").is_some_and(Value::is_string) {
            return Err(
                Refusal::invalid(format!("Missing required parameter: '{name}.text'."))
                    .param(format!("{name}.text"))
                    .code("missing_required_parameter"),
            );
        }
    }
    Ok(())
}

fn wrong_type(name: &str, expected: &str, actual: &Value) -> Refusal {
    let actual_type = match actual {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    Refusal::invalid(format!(
        "Invalid type for '{name}': expected {expected}, but got {actual_type} instead."
    ))
    .param(name)
    .code("invalid_type")
}
