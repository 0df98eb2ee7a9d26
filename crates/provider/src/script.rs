//! The answers of the model: a [`Script`] turns a request into a [`Reply`].
//!
//! Scripts are pure functions of the request (and of a seed), so a run can be repeated. They never see
//! sockets or headers. Called by `chat` for accepted requests.

mod directives;

use std::collections::HashMap;

pub use directives::DirectiveScript;

use serde_json::{Map, Value, json};

use super::caller::CallerKind;
use super::conversation::Conversation;
pub use super::message::text;
use super::message::{role, tool_names};
use super::prompt::render_message;

/// The input of a script.
#[derive(Debug)]
pub struct ScriptInput<'a> {
    /// The whole request.
    pub request: &'a Map<String, Value>,
    /// Its messages.
    pub messages: &'a [Value],
    /// Who sent the request.
    pub caller: CallerKind,
    /// The number of the choice, from 0.
    pub choice: u32,
}

impl ScriptInput<'_> {
    /// The texts of all messages with this role, in order, text parts joined.
    pub fn texts_by_role(&self, expected_role: &str) -> Vec<String> {
        self.messages
            .iter()
            .filter(|message| role(message) == expected_role)
            .map(text)
            .collect()
    }
}

/// An answer of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The text, if any.
    pub content: Option<String>,
    /// Tool calls.
    pub calls: Vec<ToolCall>,
    /// `reasoning_content`, as reasoning models of compatible providers send it.
    pub reasoning: Option<String>,
    /// `refusal`.
    pub refusal: Option<String>,
    /// `finish_reason`, if it is not `stop` or `tool_calls`.
    pub finish: Option<&'static str>,
}

/// One tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Its id.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// The arguments as the model wrote them.
    pub arguments: String,
}

impl Reply {
    /// A reply with only this text.
    pub fn text(content: impl Into<String>) -> Self {
        Self {
            content: Some(content.into()),
            ..Self::default()
        }
    }

    /// A reply that the content filter cut off before any text.
    pub fn filtered() -> Self {
        Self {
            content: Some(String::new()),
            refusal: Some("I can't help with that.".to_owned()),
            finish: Some("content_filter"),
            ..Self::default()
        }
    }

    /// The reply that became `message`, an assistant message of a recorded conversation.
    pub fn recorded(message: &Value) -> Self {
        let field = |value: &Value, pointer: &str| {
            let text = value.pointer(pointer).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let calls = message.get("tool_calls").and_then(Value::as_array);
        Self {
            content: message
                .get("content")
                .filter(|c| !c.is_null())
                .map(|_| text(message)),
            calls: calls
                .into_iter()
                .flatten()
                .map(|call| ToolCall {
                    id: field(call, "/id"),
                    name: field(call, "/function/name"),
                    arguments: field(call, "/function/arguments"),
                })
                .collect(),
            ..Self::default()
        }
    }
}

/// Decides what the model answers.
pub trait Script: Send + Sync {
    /// The reply to one request. Must depend only on the request and the script.
    fn reply(&self, input: &ScriptInput<'_>) -> Reply;
}

impl<F> Script for F
where
    F: Fn(&ScriptInput<'_>) -> Reply + Send + Sync,
{
    fn reply(&self, input: &ScriptInput<'_>) -> Reply {
        self(input)
    }
}

/// Always gives the same answer.
#[derive(Clone, Debug)]
pub struct FixedReply(pub String);

impl Script for FixedReply {
    fn reply(&self, _: &ScriptInput<'_>) -> Reply {
        Reply::text(self.0.as_str())
    }
}

/// Makes up an answer from the last message. Deterministic by seed. Calls a tool about every third time
/// a user speaks and tools are offered, sometimes two at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultScript {
    /// Another seed gives another conversation.
    pub seed: u64,
}

impl Script for DefaultScript {
    fn reply(&self, input: &ScriptInput<'_>) -> Reply {
        let Some(last) = input.messages.last() else {
            return Reply::text("");
        };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.seed.to_le_bytes());
        hasher.update(&input.choice.to_le_bytes());
        hasher.update(&input.messages.len().to_le_bytes());
        hasher.update(render_message(last).as_bytes());
        let digest = *hasher.finalize().as_bytes();

        let tools: Vec<&str> = tool_names(input.request).collect();
        if role(last) == "user" && !tools.is_empty() && digest[0].is_multiple_of(3) {
            let call_count = 1 + usize::from(digest[1].is_multiple_of(3));
            return Reply {
                calls: (0..call_count)
                    .map(|n| default_call(&tools, &digest, n))
                    .collect(),
                ..Reply::default()
            };
        }
        let topic: Vec<String> = text(last)
            .split_whitespace()
            .take(8)
            .map(str::to_owned)
            .collect();
        Reply::text(format!(
            "About \"{}\": noted under number {}.",
            topic.join(" "),
            u32::from_le_bytes([digest[2], digest[3], digest[4], 0])
        ))
    }
}

fn default_call(tools: &[&str], digest: &[u8; 32], number: usize) -> ToolCall {
    let pick = usize::from(digest[8 + number]) % tools.len();
    let number_seed = u64::from_le_bytes([
        digest[16], digest[17], digest[18], digest[19], digest[20], digest[21], digest[22], 0,
    ]);
    ToolCall {
        id: format!("call_{number_seed:014x}{number}"),
        name: tools[pick].to_owned(),
        arguments: json!({ "query": number_seed % 1000 }).to_string(),
    }
}

/// Replays recorded conversations: answers with the assistant message that followed the last messages
/// of the request in the recording.
///
/// The last six messages decide, then three, two, one. Enough messages stay raw behind any observation
/// block, and short repeated ones ("yes") are distinguished by the messages before them.
#[derive(Debug, Default)]
pub struct Replay {
    replies: HashMap<[u8; 32], Reply>,
}

/// How many last messages are compared, the most specific number first.
const CONTEXTS: [usize; 4] = [6, 3, 2, 1];

impl Replay {
    /// A script with the replies of all these conversations.
    pub fn from_conversations<'a>(
        conversations: impl IntoIterator<Item = &'a Conversation>,
    ) -> Self {
        let mut replies = HashMap::new();
        for conversation in conversations {
            let digests: Vec<_> = conversation.messages.iter().map(digest).collect();
            for at in conversation.requests() {
                for context in CONTEXTS.into_iter().filter(|context| *context <= at) {
                    replies
                        .entry(join_digests(&digests[at - context..at]))
                        .or_insert_with(|| Reply::recorded(&conversation.messages[at]));
                }
            }
        }
        Self { replies }
    }
}

impl Script for Replay {
    fn reply(&self, input: &ScriptInput<'_>) -> Reply {
        let from = input.messages.len().saturating_sub(CONTEXTS[0]);
        let digests: Vec<_> = input.messages[from..].iter().map(digest).collect();
        CONTEXTS
            .into_iter()
            .filter(|context| *context <= digests.len())
            .find_map(|context| {
                self.replies
                    .get(&join_digests(&digests[digests.len() - context..]))
            })
            .cloned()
            .unwrap_or_else(|| Reply::text("Nothing was recorded after this."))
    }
}

fn digest(message: &Value) -> [u8; 32] {
    *blake3::hash(render_message(message).as_bytes()).as_bytes()
}

fn join_digests(digests: &[[u8; 32]]) -> [u8; 32] {
    *blake3::hash(&digests.concat()).as_bytes()
}
