//! Whole conversations, from which a client sends growing prefixes: made up by seed, or read from
//! JSON Lines.
//!
//! Used by the demo, by replay and by tests. A conversation is data; nothing here talks to anyone.

mod generate;

use serde::Deserialize;
use serde_json::{Value, json};

use super::message::role;

pub use generate::Style;

/// One conversation as its client kept it.
#[derive(Clone, Debug, Deserialize)]
pub struct Conversation {
    /// A name for reports.
    pub id: String,
    /// Where it came from.
    #[serde(default)]
    pub source: String,
    /// The tool schemas the client sends with every request.
    #[serde(default)]
    pub tools: Option<Value>,
    /// All messages, in the API's form.
    pub messages: Vec<Value>,
    /// Facts planted in a made-up conversation, for tests that ask whether they survive.
    #[serde(skip)]
    pub facts: Vec<Fact>,
}

/// Something a user said once and expects to be remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Index of the message that says it.
    pub at: usize,
    /// The words that must survive, as they stand in that message.
    pub words: String,
}

impl Conversation {
    /// Reads JSON Lines, one conversation a line; empty lines are skipped.
    ///
    /// # Errors
    /// The first line that is not a conversation, as serde_json words it.
    pub fn read_all(lines: &str) -> serde_json::Result<Vec<Self>> {
        lines
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(serde_json::from_str)
            .collect()
    }

    /// The requests a client makes over the conversation: for each assistant message, its index,
    /// which is the number of messages sent to get it.
    pub fn requests(&self) -> impl Iterator<Item = usize> {
        let messages = self.messages.iter().enumerate();
        messages
            .filter(|(at, message)| *at > 0 && role(message) == "assistant")
            .map(|(at, _)| at)
    }

    /// The request body with the first `sent` messages.
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
