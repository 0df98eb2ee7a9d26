//! A prompt as Anthropic counts it: in blocks, some of which have a mark for the prompt cache.
//!
//! A block is a tool, a part of a message's content, or a tool call. Called by `chat` for [`super::marked`]; pure.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::kind::MINUTE;
use crate::prompt::render_message;

/// A block, rendered, and how long its mark keeps the prompt up to here, if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) text: String,
    pub(crate) mark: Option<Duration>,
}

/// The blocks of a request, in the order of the prompt. A mark of the request itself is on its last block.
pub(crate) fn blocks(request: &Map<String, Value>) -> Vec<Block> {
    let list = |name: &str| request.get(name).and_then(Value::as_array);
    let mut blocks: Vec<Block> = list("tools").into_iter().flatten().map(tool).collect();
    for message in list("messages").into_iter().flatten() {
        push_message(message, &mut blocks);
    }
    if let Some(last) = blocks.last_mut() {
        last.mark = last.mark.or(mark(request));
    }
    blocks
}

fn tool(tool: &Value) -> Block {
    let (tool, mark) = without_mark(tool);
    Block {
        text: format!("<|tool|>{tool}\n"),
        mark,
    }
}

fn push_message(message: &Value, blocks: &mut Vec<Block>) {
    let (mut rest, own_mark) = without_mark(message);
    let Some(fields) = rest.as_object_mut() else {
        blocks.push(rendered(&rest, None));
        return;
    };
    let role = fields.get("role").cloned();
    let content = fields.remove("content");
    let calls = fields.remove("tool_calls");
    // The fields that belong to no part stand with the first block.
    let mut first = Some(rest);
    let mut push = |name: &str, value: Value, mark| {
        let mut block = first.take().unwrap_or_else(|| json!({ "role": role }));
        block[name] = value;
        blocks.push(rendered(&block, mark));
    };
    match content {
        Some(Value::Array(parts)) => {
            for part in &parts {
                let (part, mark) = without_mark(part);
                push("content", json!([part]), mark);
            }
        }
        Some(Value::Null) | None => {}
        Some(text) => push("content", text, None),
    }
    for call in calls.iter().filter_map(Value::as_array).flatten() {
        push("tool_calls", json!([call]), None);
    }
    if let Some(rest) = first {
        blocks.push(rendered(&rest, None));
    }
    if let Some(last) = blocks.last_mut() {
        last.mark = last.mark.or(own_mark);
    }
}

fn rendered(message: &Value, mark: Option<Duration>) -> Block {
    Block {
        text: render_message(message),
        mark,
    }
}

/// An object without its mark, which is no part of the prompt.
fn without_mark(value: &Value) -> (Value, Option<Duration>) {
    let mut value = value.clone();
    let fields = value.as_object_mut();
    let found = fields.and_then(|fields| {
        let found = mark(fields);
        fields.remove("cache_control");
        found
    });
    (value, found)
}

fn mark(fields: &Map<String, Value>) -> Option<Duration> {
    let mark = fields.get("cache_control")?.as_object()?;
    let is_long = mark.get("ttl").is_some_and(|ttl| ttl == "1h");
    Some(MINUTE * if is_long { 60 } else { 5 })
}
