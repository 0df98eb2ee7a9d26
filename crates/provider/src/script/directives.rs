//! A model that follows directives in the user's message, for real client programs with prompts and
//! tools of their own.
//!
//! It looks only at the newest message, so its answer is the same whether older messages or an
//! observation block stand before it. System messages that a client puts behind that message are
//! ignored. Called like any other script.

use serde_json::Value;

use super::{Reply, Script, ScriptInput, ToolCall};
use crate::message::{role, text, tool_names};

/// What a user's message asks for, each between its opening and the next `>>`:
///
/// - `CALL<<name {"arguments": 1}>>` calls that tool, where the request offers it; several in one
///   message are called at once;
/// - `SAY<<text>>` is answered with that text, word for word;
/// - anything else is answered with a sentence about it.
#[derive(Clone, Copy, Debug, Default)]
pub struct DirectiveScript;

impl Script for DirectiveScript {
    fn reply(&self, input: &ScriptInput<'_>) -> Reply {
        let is_not_system = |message: &&Value| !["system", "developer"].contains(&role(message));
        let Some(last) = input.messages.iter().rev().find(is_not_system) else {
            return Reply::text("");
        };
        let content = text(last);
        // A tool result may quote the user's directives; it gives none itself.
        let calls = if role(last) == "user" {
            calls_in(input, &content)
        } else {
            Vec::new()
        };
        if !calls.is_empty() {
            return Reply {
                calls,
                ..Reply::default()
            };
        }
        if let Some(words) = between(&content, "SAY<<").next() {
            return Reply::text(words);
        }
        let number = blake3::hash(last.to_string().as_bytes());
        let words: Vec<&str> = content.split_whitespace().take(8).collect();
        Reply::text(format!(
            "Noted under {}: {}.",
            &number.to_hex()[..8],
            words.join(" ")
        ))
    }
}

fn calls_in(input: &ScriptInput<'_>, content: &str) -> Vec<ToolCall> {
    let offered: Vec<&str> = tool_names(input.request).collect();
    between(content, "CALL<<")
        .filter_map(|directive| directive.split_once(' '))
        .filter(|(name, _)| offered.contains(name))
        .enumerate()
        .map(|(n, (name, arguments))| {
            let hash = blake3::hash(format!("{content}{n}").as_bytes());
            ToolCall {
                id: format!("call_{}", &hash.to_hex()[..16]),
                name: name.to_owned(),
                arguments: arguments.trim().to_owned(),
            }
        })
        .collect()
}

/// Every text in `content` between `opening` and the next `>>`.
fn between<'a>(content: &'a str, opening: &'a str) -> impl Iterator<Item = &'a str> {
    content
        .split(opening)
        .skip(1)
        .filter_map(|rest| rest.split_once(">>"))
        .map(|(directive, _)| directive)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::CallerKind;

    fn reply(request: &Value) -> Reply {
        let messages = request["messages"].as_array().expect("messages");
        DirectiveScript.reply(&ScriptInput {
            request: request.as_object().expect("an object"),
            messages,
            caller: CallerKind::Actor,
            choice: 0,
        })
    }

    #[test]
    fn the_script_follows_only_the_newest_message_that_is_no_system_message() {
        let user = json!({"role": "user", "content": "SAY<<so be it>> please"});
        let alone = reply(&json!({"messages": [user]}));
        assert_eq!(alone.content.as_deref(), Some("so be it"));
        let before = json!({"role": "system", "content": "CALL<<look {}>>"});
        assert_eq!(reply(&json!({"messages": [before, user]})), alone);
        assert_eq!(reply(&json!({"messages": [user, before]})), alone);
    }

    #[test]
    fn the_script_calls_only_offered_tools_and_never_for_a_tool_result() {
        let content = "CALL<<look {\"n\": 1}>> and CALL<<other {}>>";
        let tools = json!([{"type": "function", "function": {"name": "look"}}]);
        let replies_to = |role: &str| {
            reply(&json!({"messages": [{"role": role, "content": content}], "tools": tools}))
        };
        let called = replies_to("user").calls;
        assert_eq!(called.len(), 1);
        assert_eq!(called[0].arguments, "{\"n\": 1}");
        assert!(replies_to("tool").calls.is_empty());
    }
}
