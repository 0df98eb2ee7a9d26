//! One choice of an answer, as the client will send it back: the message itself, or the pieces of a stream put
//! together. Called by [`super::capture`].

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::wire::usage::member;

/// A longer answer, in bytes, is not put together, and so nothing is marked by it.
const MAX_BYTES: usize = 1024 * 1024;

/// More tool calls than a model makes at once. A message with more is not put together.
const MAX_CALLS: usize = 1024;

/// One message of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerMessage {
    text: String,
    refusal: String,
    calls: Vec<Call>,
    /// The message, if it came in one piece.
    message: Option<Value>,
    size: usize,
    /// What was added so far, in pieces.
    changes: u64,
}

/// A tool call, as far as its pieces have come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Call {
    index: u64,
    id: String,
    name: String,
    arguments: String,
}

impl AnswerMessage {
    /// A message that came in one piece.
    pub fn from_message(message: &Value) -> Self {
        let mut answer = Self::default();
        answer.set_message(message.clone());
        answer
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its refusal; clients show it like a text.
    pub fn refusal(&self) -> &str {
        &self.refusal
    }

    /// Whether all of it was kept.
    pub(super) fn is_complete(&self) -> bool {
        self.size <= MAX_BYTES
    }

    /// Another number than before if anything was added.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// The message as JSON, with the role of the model. Empty if it was too long to keep.
    pub fn json(&self) -> String {
        if !self.is_complete() {
            return String::new();
        }
        let assembled = self.message.is_none().then(|| self.assemble());
        let message = self.message.as_ref().or(assembled.as_ref());
        let members = message.and_then(Value::as_object);
        let written = members.map(|members| serde_json::to_string(&AsAssistant(members)));
        // Objects whose names are texts can always be written.
        written.and_then(Result::ok).unwrap_or_default()
    }

    fn assemble(&self) -> Value {
        let mut message = json!({"content": self.text});
        if !self.refusal.is_empty() {
            message["refusal"] = json!(self.refusal);
        }
        if !self.calls.is_empty() {
            let calls = self.calls.iter().map(|call| {
                let function = json!({"name": call.name, "arguments": call.arguments});
                json!({"id": call.id, "type": "function", "function": function})
            });
            message["tool_calls"] = calls.collect();
        }
        message
    }

    /// Takes a message that came in one piece.
    pub(super) fn set_message(&mut self, message: Value) {
        if !message.is_object() {
            return;
        }
        self.changes += 1;
        self.push_content(&message);
        self.push_refusal(&message);
        if self.is_complete() {
            self.message = Some(message);
        }
    }

    /// Adds one piece of a stream.
    pub(super) fn push_delta(&mut self, delta: &Value) {
        self.push_content(delta);
        self.push_refusal(delta);
        let calls = member(delta, "tool_calls").and_then(Value::as_array);
        for (place, piece) in calls.into_iter().flatten().enumerate() {
            self.push_call(piece, place as u64);
        }
    }

    fn push_content(&mut self, message: &Value) {
        let before = self.size;
        match member(message, "content") {
            Some(Value::String(text)) => append(&mut self.text, &mut self.size, Some(text)),
            // Some providers answer with parts, such as thinking and text.
            Some(Value::Array(parts)) => {
                for part in parts {
                    let text = member(part, "text").and_then(Value::as_str);
                    append(&mut self.text, &mut self.size, text);
                }
            }
            _ => {}
        }
        self.changes += u64::from(self.size > before);
    }

    fn push_refusal(&mut self, message: &Value) {
        let before = self.size;
        let refusal = member(message, "refusal").and_then(Value::as_str);
        append(&mut self.refusal, &mut self.size, refusal);
        self.changes += u64::from(self.size > before);
    }

    /// The tool call that a piece belongs to. Most servers number the calls; the others send each call whole.
    fn push_call(&mut self, piece: &Value, place: u64) {
        self.changes += 1;
        let index = member(piece, "index").and_then(Value::as_u64);
        let existing =
            index.and_then(|index| self.calls.iter().position(|call| call.index == index));
        if existing.is_none() && self.calls.len() >= MAX_CALLS {
            self.size = MAX_BYTES + 1;
            return;
        }
        let at = existing.unwrap_or_else(|| {
            self.calls.push(Call {
                index: index.unwrap_or(place),
                ..Call::default()
            });
            self.calls.len() - 1
        });
        let call = &mut self.calls[at];
        let function = |name: &str| member(member(piece, "function")?, name)?.as_str();
        let id = member(piece, "id").and_then(Value::as_str);
        if let Some(id) = id.filter(|id| !id.is_empty()) {
            id.clone_into(&mut call.id);
        }
        append(&mut call.name, &mut self.size, function("name"));
        append(&mut call.arguments, &mut self.size, function("arguments"));
    }
}

/// The members of a message, written as those of a message of the model, whatever role it says.
struct AsAssistant<'m>(&'m Map<String, Value>);

impl Serialize for AsAssistant<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let others = self.0.iter().filter(|(name, _)| *name != "role");
        serializer.collect_map(
            std::iter::once(("role", &Value::from("assistant")))
                .chain(others.map(|(name, value)| (name.as_str(), value))),
        )
    }
}

/// Appends `words`, unless the message is too long already.
fn append(text: &mut String, size: &mut usize, words: Option<&str>) {
    let Some(words) = words else { return };
    *size = size.saturating_add(words.len());
    if *size <= MAX_BYTES {
        text.push_str(words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the client sends it back, whatever role the server wrote.
    #[test]
    fn a_message_is_one_of_the_model() {
        for message in [
            json!({"content": "Yes.", "x": [1]}),
            json!({"role": "bot", "content": "Yes.", "x": [1]}),
            json!({"content": "Yes.", "x": [1], "role": null}),
        ] {
            let answer = AnswerMessage::from_message(&message);
            let read: Value = serde_json::from_str(&answer.json()).unwrap();
            let expected = json!({"role": "assistant", "content": "Yes.", "x": [1]});
            assert_eq!(read, expected);
        }
        let mut streamed = AnswerMessage::default();
        streamed.push_delta(&json!({"content": "Yes."}));
        let read: Value = serde_json::from_str(&streamed.json()).unwrap();
        assert_eq!(read, json!({"role": "assistant", "content": "Yes."}));
    }

    /// Who was told what it says is told again only if it says more.
    #[test]
    fn what_says_more_has_changed() {
        let mut answer = AnswerMessage::default();
        let call = json!([{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]);
        let mut numbers = vec![answer.changes()];
        for delta in [
            json!({"content": "Yes"}),
            json!({"refusal": "No"}),
            json!({"tool_calls": call}),
        ] {
            answer.push_delta(&delta);
            assert!(!numbers.contains(&answer.changes()), "{delta}");
            numbers.push(answer.changes());
        }
        for nothing in [json!({}), json!({"content": "", "refusal": null})] {
            answer.push_delta(&nothing);
            assert_eq!(numbers.last(), Some(&answer.changes()), "{nothing}");
        }
    }

    /// A client that may send a text back must be known to have got it.
    #[test]
    fn text_is_read_in_every_form() {
        let in_parts = json!({"content": [
            {"type": "thinking", "thinking": "Let me see."},
            {"type": "text", "text": "Refunds take "},
            {"type": "text", "text": "a week."},
        ]});
        let refused = json!({"content": null, "refusal": "I cannot help with that."});
        let mut streamed = AnswerMessage::default();
        streamed.push_delta(&in_parts);
        streamed.push_delta(&refused);
        assert_eq!(streamed.text(), "Refunds take a week.");
        assert_eq!(streamed.refusal(), "I cannot help with that.");
        let at_once = [&in_parts, &refused].map(AnswerMessage::from_message);
        assert_eq!(at_once[0].text(), "Refunds take a week.");
        assert_eq!(at_once[1].refusal(), "I cannot help with that.");
    }
}
