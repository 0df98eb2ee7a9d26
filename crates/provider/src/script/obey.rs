//! A model that does what its user's message says: for real client programs, whose own prompts and
//! tools nobody here writes.
//!
//! It looks at the newest message alone, so that its answer is the same whether older messages stand
//! before it or an observation block does; instructions that a client puts behind it are not for it.
//! Called by [`crate`] like any other script.

use serde_json::Value;

use super::{Ask, Call, Reply, Script, text, tool_names};
use crate::judge::role;

/// What a user's message asks for, each between its opening and the next `>>`:
///
/// - `CALL<<name {"arguments": 1}>>` calls that tool, where the request offers it; several in one
///   message are called at once;
/// - `SAY<<text>>` is answered with that text, word for word;
/// - anything else is answered with a sentence about it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Obey;

impl Script for Obey {
    fn reply(&self, ask: &Ask<'_>) -> Reply {
        let is_said = |message: &&Value| !["system", "developer"].contains(&role(message));
        let Some(last) = ask.messages.iter().rev().find(is_said) else {
            return Reply::say("");
        };
        let said = text(last);
        // A tool's result may quote what the user said, and is no order.
        let calls = if role(last) == "user" {
            calls(ask, &said)
        } else {
            Vec::new()
        };
        if !calls.is_empty() {
            return Reply {
                calls,
                ..Reply::default()
            };
        }
        if let Some(words) = between(&said, "SAY<<").next() {
            return Reply::say(words);
        }
        let number = blake3::hash(last.to_string().as_bytes());
        let words: Vec<&str> = said.split_whitespace().take(8).collect();
        Reply::say(format!(
            "Noted under {}: {}.",
            &number.to_hex()[..8],
            words.join(" ")
        ))
    }
}

fn calls(ask: &Ask<'_>, said: &str) -> Vec<Call> {
    let offered: Vec<&str> = tool_names(ask.request).collect();
    between(said, "CALL<<")
        .filter_map(|order| order.split_once(' '))
        .filter(|(name, _)| offered.contains(name))
        .enumerate()
        .map(|(n, (name, arguments))| {
            let hash = blake3::hash(format!("{said}{n}").as_bytes());
            Call {
                id: format!("call_{}", &hash.to_hex()[..16]),
                name: name.to_owned(),
                arguments: arguments.trim().to_owned(),
            }
        })
        .collect()
}

/// Every text in `said` between `opening` and the next `>>`.
fn between<'a>(said: &'a str, opening: &'a str) -> impl Iterator<Item = &'a str> {
    said.split(opening)
        .skip(1)
        .filter_map(|rest| rest.split_once(">>"))
        .map(|(order, _)| order)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Part;

    fn reply(request: &Value) -> Reply {
        let messages = request["messages"].as_array().expect("messages");
        Obey.reply(&Ask {
            request: request.as_object().expect("an object"),
            messages,
            part: Part::Actor,
            choice: 0,
        })
    }

    #[test]
    fn it_does_what_the_newest_message_says_and_looks_at_no_other() {
        let user = json!({"role": "user", "content": "SAY<<so be it>> please"});
        let alone = reply(&json!({"messages": [user]}));
        assert_eq!(alone.content.as_deref(), Some("so be it"));
        let before = json!({"role": "system", "content": "CALL<<look {}>>"});
        assert_eq!(reply(&json!({"messages": [before, user]})), alone);
        assert_eq!(reply(&json!({"messages": [user, before]})), alone);
    }

    #[test]
    fn it_calls_only_what_is_offered_and_never_for_a_tool() {
        let said = "CALL<<look {\"n\": 1}>> and CALL<<other {}>>";
        let tools = json!([{"type": "function", "function": {"name": "look"}}]);
        let asked = |role: &str| {
            reply(&json!({"messages": [{"role": role, "content": said}], "tools": tools}))
        };
        let called = asked("user").calls;
        assert_eq!(called.len(), 1);
        assert_eq!(called[0].arguments, "{\"n\": 1}");
        assert!(asked("tool").calls.is_empty());
    }
}
