//! The marks for the prompt cache, `cache_control`: how many a request has.
//!
//! Decides nothing about the cache itself. Called by [`super::inspect_parsed`].

use serde_json::{Map, Value};

use crate::refusal::Refusal;

/// The most marks in one request (Anthropic, prompt caching).
const MAX_MARKS: usize = 4;

/// Refuses too many marks, in Anthropic's words.
pub(super) fn check(request: &Map<String, Value>) -> Result<(), Refusal> {
    let found: usize = request.values().map(count).sum();
    let found = found + usize::from(has_mark(request));
    if found <= MAX_MARKS {
        return Ok(());
    }
    Err(Refusal::invalid(format!(
        "A maximum of {MAX_MARKS} blocks with cache_control may be provided. Found {found}."
    )))
}

fn has_mark(object: &Map<String, Value>) -> bool {
    object.get("cache_control").is_some_and(Value::is_object)
}

fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(members) => {
            usize::from(has_mark(members)) + members.values().map(count).sum::<usize>()
        }
        _ => 0,
    }
}
