//! Tool rounds: every call is answered exactly once before anything else is said, and only calls are
//! answered.
//!
//! Called by [`super::inspect`] only. Knows no roles except `assistant` and `tool`.

use serde_json::Value;

use crate::message::{call_ids, role};
use crate::refusal::Refusal;

/// The open round: the calls of one assistant message, and which of them have results.
struct Round<'a> {
    requested_ids: Vec<&'a str>,
    answered_ids: Vec<&'a str>,
}

pub(super) fn check(messages: &[Value]) -> Result<(), Refusal> {
    let mut round: Option<Round<'_>> = None;
    for (at, message) in messages.iter().enumerate() {
        if role(message) == "tool" {
            let id = message
                .get("tool_call_id")
                .and_then(Value::as_str)
                .unwrap_or_default();
            answer(at, id, round.as_mut())?;
            continue;
        }
        close(at, round.take())?;
        let requested_ids: Vec<&str> = call_ids(message).collect();
        if !requested_ids.is_empty() {
            refuse_duplicate_ids(at, &requested_ids)?;
            round = Some(Round {
                requested_ids,
                answered_ids: Vec::new(),
            });
        }
    }
    close(messages.len(), round)
}

fn answer<'a>(at: usize, id: &'a str, round: Option<&mut Round<'a>>) -> Result<(), Refusal> {
    let Some(round) = round else {
        return Err(Refusal::invalid(
            "Invalid parameter: messages with role 'tool' must be a response to a preceding \
             message with 'tool_calls'.",
        )
        .param(format!("messages.[{at}].role")));
    };
    if round.answered_ids.contains(&id) {
        return Err(Refusal::invalid(format!(
            "Invalid parameter: duplicate 'tool_call_id' '{id}': each tool call takes one response."
        ))
        .param(format!("messages.[{at}].tool_call_id")));
    }
    if !round.requested_ids.contains(&id) {
        return Err(Refusal::invalid(format!(
            "Invalid parameter: 'tool_call_id' of '{id}' not found in 'tool_calls' of previous \
             message."
        ))
        .param(format!("messages.[{at}].tool_call_id")));
    }
    round.answered_ids.push(id);
    Ok(())
}

fn close(at: usize, round: Option<Round<'_>>) -> Result<(), Refusal> {
    let Some(round) = round else { return Ok(()) };
    let missing: Vec<&str> = round
        .requested_ids
        .iter()
        .filter(|id| !round.answered_ids.contains(id))
        .copied()
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Refusal::invalid(format!(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to \
         each 'tool_call_id'. The following tool_call_ids did not have response messages: {}",
        missing.join(", ")
    ))
    .param(format!("messages.[{at}].role")))
}

fn refuse_duplicate_ids(at: usize, requested_ids: &[&str]) -> Result<(), Refusal> {
    let duplicate = requested_ids
        .iter()
        .enumerate()
        .find(|(number, id)| requested_ids[..*number].contains(id));
    match duplicate {
        None => Ok(()),
        Some((number, id)) => Err(Refusal::invalid(format!(
            "Invalid parameter: duplicate tool call id '{id}' in one message."
        ))
        .param(format!("messages.[{at}].tool_calls[{number}].id"))),
    }
}
