//! Whole conversations, of which a client sends growing prefixes. They are generated from a seed, or
//! read from JSON Lines.
//!
//! Used by the demo, by replays and by tests. A conversation is only data.

mod generate;

use serde::Deserialize;
use serde_json::{Value, json};

use super::message::role;

pub use generate::Style;

/// One conversation as its client stored it.
#[derive(Clone, Debug, Deserialize)]
pub struct Conversation {
    /// The name in reports.
    pub id: String,
    /// Where it came from.
    #[serde(default)]
    pub source: String,
    /// The tool schemas that the client sends with every request.
    #[serde(default)]
    pub tools: Option<Value>,
    /// All messages, in the API's form.
    pub messages: Vec<Value>,
    /// Facts planted in a generated conversation, for tests that check whether they survive.
    #[serde(skip)]
    pub facts: Vec<Fact>,
}

/// A fact that a user said once and expects to be remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Index of the message that says it.
    pub at: usize,
    /// The words that must survive, as they are in that message.
    pub words: String,
}

impl Conversation {
    /// Reads JSON Lines, one conversation in each line; empty lines are skipped.
    ///
    /// # Errors
    /// The error of `serde_json` for the first line that is not a conversation.
    pub fn read_all(lines: &str) -> serde_json::Result<Vec<Self>> {
        lines
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(serde_json::from_str)
            .collect()
    }

    /// The requests that a client makes over the conversation. For each assistant message, its
    /// index, which is the number of messages sent to get it.
    pub fn requests(&self) -> impl Iterator<Item = usize> {
        let messages = self.messages.iter().enumerate();
        messages
            .filter(|(at, message)| *at > 0 && role(message) == "assistant")
            .map(|(at, _)| at)
    }

    /// The request body with the first `message_count` messages.
    pub fn request(&self, message_count: usize, model: &str, stream: bool) -> Value {
        let mut request = json!({"model": model, "messages": self.messages[..message_count]});
        if let Some(tools) = self.tools.as_ref().filter(|tools| !tools.is_null()) {
            request["tools"] = tools.clone();
        }
        if stream {
            request["stream"] = json!(true);
        }
        request
    }
}
