//! One choice of an answer, as the client will send it back: the message itself, or the pieces of a stream put
//! together. Called by [`super::capture`].

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

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
    /// Whether it has a refusal, also if that is too long to keep.
    is_refusal: bool,
    calls: Vec<Call>,
    /// The JSON of the message, with the role of the model, if it came in one piece.
    message: Option<String>,
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
        answer.set_value(message.clone());
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

    /// Whether the model refused.
    pub(super) fn is_refusal(&self) -> bool {
        self.is_refusal
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
    pub fn json(&self) -> Cow<'_, str> {
        if !self.is_complete() {
            return Cow::Borrowed("");
        }
        match &self.message {
            Some(message) => Cow::Borrowed(message),
            None => Cow::Owned(self.assemble().to_string()),
        }
    }

    fn assemble(&self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.text});
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
    pub(super) fn set_message(&mut self, message: &RawValue) {
        if let Some(plain) = PlainMessage::read(message) {
            self.changes += 1;
            self.push_text(plain.content.as_deref());
            self.push_refusal(plain.refusal.as_deref());
            self.keep(|| message.get().to_owned());
        } else if let Ok(message) = serde_json::from_str(message.get()) {
            self.set_value(message);
        }
    }

    fn set_value(&mut self, message: Value) {
        if !message.is_object() {
            return;
        }
        self.changes += 1;
        self.push_content(&message);
        self.push_refusal(member(&message, "refusal").and_then(Value::as_str));
        self.keep(|| as_assistant(message));
    }

    fn keep(&mut self, message: impl FnOnce() -> String) {
        if self.is_complete() {
            self.message = Some(message());
        }
    }

    /// Adds one piece of a stream.
    pub(super) fn push_delta(&mut self, delta: &Value) {
        self.push_content(delta);
        self.push_refusal(member(delta, "refusal").and_then(Value::as_str));
        let calls = member(delta, "tool_calls").and_then(Value::as_array);
        for (place, piece) in calls.into_iter().flatten().enumerate() {
            self.push_call(piece, place as u64);
        }
    }

    fn push_content(&mut self, message: &Value) {
        match member(message, "content") {
            Some(Value::String(text)) => self.push_text(Some(text)),
            // Some providers answer with parts, such as thinking and text.
            Some(Value::Array(parts)) => {
                for part in parts {
                    self.push_text(member(part, "text").and_then(Value::as_str));
                }
            }
            _ => {}
        }
    }

    fn push_text(&mut self, text: Option<&str>) {
        self.changes += u64::from(text.is_some_and(|text| !text.is_empty()));
        append(&mut self.text, &mut self.size, text);
    }

    fn push_refusal(&mut self, refusal: Option<&str>) {
        let is_refusal = refusal.is_some_and(|refusal| !refusal.is_empty());
        self.is_refusal |= is_refusal;
        self.changes += u64::from(is_refusal);
        append(&mut self.refusal, &mut self.size, refusal);
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

/// What nearly all messages of models are: of their role, and with nothing to read but texts. It need not be taken apart.
#[derive(Deserialize)]
struct PlainMessage<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    refusal: Option<Cow<'a, str>>,
}

impl<'a> PlainMessage<'a> {
    /// `None` if `message` is anything else, or says a field twice.
    fn read(message: &'a RawValue) -> Option<Self> {
        let read: Self = serde_json::from_str(message.get()).ok()?;
        (read.role == "assistant").then_some(read)
    }
}

/// The JSON of `message`, an object, as a message of the model, whatever role it says.
fn as_assistant(mut message: Value) -> String {
    message["role"] = Value::from("assistant");
    message.to_string()
}

/// Appends `delta`, unless the message is too long already.
fn append(text: &mut String, size: &mut usize, delta: Option<&str>) {
    let Some(delta) = delta else { return };
    *size = size.saturating_add(delta.len());
    if *size <= MAX_BYTES {
        text.push_str(delta);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the client sends it back, whatever role the server wrote.
    #[test]
    fn an_answer_message_always_has_the_assistant_role() {
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

    /// A message that is kept as it was written is read like one that is taken apart.
    #[test]
    fn a_raw_message_and_a_parsed_message_are_read_alike() {
        for written in [
            r#"{"role":"assistant","content":"Yes.","refusal":null}"#,
            r#"{"content":"A \"line\"\n\u00e9", "role":"\u0061ssistant", "x":[1,{"role":"y"}]}"#,
            r#"{"role":"assistant","content":null,"refusal":"No."}"#,
            r#"{"role":"assistant","content":"","tool_calls":[{"id":"c","function":{"name":"f"}}]}"#,
            r#"{"role":"assistant","content":[{"type":"text","text":"Part."}]}"#,
            r#"{"role":"bot","content":"Yes."}"#,
            r#"{"role":null,"content":"Yes."}"#,
            r#"{"content":"Yes."}"#,
            r#"{"role":"assistant","content":"First.","content":"Second."}"#,
            r#"{"role":"assistant","role":"user","content":"Yes."}"#,
            r#"{"role":"assistant","content":7,"refusal":{}}"#,
            "{}",
        ] {
            let mut read = AnswerMessage::default();
            read.set_message(serde_json::from_str(written).unwrap());
            let apart: Value = serde_json::from_str(written).unwrap();
            let apart = AnswerMessage::from_message(&apart);
            let json =
                |message: &AnswerMessage| serde_json::from_str::<Value>(&message.json()).unwrap();
            assert_eq!(json(&read), json(&apart), "{written}");
            let texts = |message: &AnswerMessage| {
                (message.text.clone(), message.refusal.clone(), message.size)
            };
            assert_eq!(texts(&read), texts(&apart), "{written}");
            assert_eq!(read.changes, apart.changes, "{written}");
        }
        for nothing in ["null", "[1]", "7", r#""assistant""#] {
            let mut read = AnswerMessage::default();
            read.set_message(serde_json::from_str(nothing).unwrap());
            assert_eq!(read, AnswerMessage::default(), "{nothing}");
        }
    }

    /// What was reported is reported again only if the message has more.
    #[test]
    fn a_message_counts_as_changed_only_if_it_has_more_content() {
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
