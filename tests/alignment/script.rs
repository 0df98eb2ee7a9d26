//! What a client sends, request by request, as data; and what of its conversation each request may tell
//! of. A row of the table is such a script and what is expected of its last request.

use serde_json::{Value, json};

use crate::alignment::harness::{conversation, work};

/// Stands in a message for the answer to the last request that asked for a summary.
pub const SUMMARY: &str = "@summary@";

/// One request.
#[derive(Clone)]
pub struct Ask {
    /// The conversation as its user sees it: what may be told of, and must be raw or told of in the end.
    pub logical: Vec<Value>,
    /// What may be told of beside it, and need not: what it replaced, what was dropped unobserved.
    pub beside: Vec<Value>,
    /// What is sent of it.
    pub sent: Vec<Value>,
    pub system: String,
    pub headers: Vec<(&'static str, &'static str)>,
    pub credential: &'static str,
    /// Fields beside model and messages.
    pub fields: Value,
    /// How often it is sent at one moment.
    pub times: usize,
    /// Its answer is the summary of what follows.
    pub summarises: bool,
}

impl Ask {
    pub fn from_messages(messages: &[Value]) -> Self {
        Self {
            logical: messages.to_vec(),
            beside: Vec::new(),
            sent: messages.to_vec(),
            system: "You are a patient assistant.".to_owned(),
            headers: Vec::new(),
            credential: "Bearer sk-test",
            fields: json!({}),
            times: 1,
            summarises: false,
        }
    }

    pub fn sending(mut self, sent: Vec<Value>) -> Self {
        self.sent = sent;
        self
    }

    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    pub fn with(mut self, fields: Value) -> Self {
        self.fields = fields;
        self
    }

    pub fn system(mut self, system: String) -> Self {
        self.system = system;
        self
    }

    pub fn header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((name, value));
        self
    }

    pub fn with_key(mut self, credential: &'static str) -> Self {
        self.credential = credential;
        self
    }

    /// A side call that asks for a summary; what it is asked of may be told of.
    pub fn summarising(mut self, logical: &[Value]) -> Self {
        self.logical = logical.to_vec();
        self.summarises = true;
        self
    }
}

/// What the last request is to tell of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Everything of the conversation that is not raw.
    All,
    /// The first so many messages, as far as they are not raw.
    UpTo(usize),
    /// Nothing.
    Nothing,
}

/// One line of the table.
pub struct Row {
    /// Which paragraph of the expectations it belongs to.
    pub item: u8,
    pub what: &'static str,
    pub asks: fn() -> Vec<Ask>,
    /// The conversation as a client sends it that changes nothing: what its observation costs.
    pub plain: fn() -> Vec<Value>,
    pub applied: Applied,
    /// Observer calls beyond those for `plain`, at most.
    pub extra: usize,
    /// Messages of the last request that go out raw, at most.
    pub raw: usize,
    /// What the audit says of the last request.
    pub reason: &'static [&'static str],
}

/// The growing beginnings of `all` from `from` messages to `to`: each asks.
pub fn grow(all: &[Value], from: usize, to: usize) -> Vec<Ask> {
    let turns = (from..=to).step_by(2);
    turns.map(|turn| Ask::from_messages(&all[..turn])).collect()
}

/// The same, sent as `shape` makes it.
pub fn shaped(all: &[Value], shape: impl Fn(&[Value]) -> Vec<Value>) -> Vec<Ask> {
    let mut asks = grow(all, 1, all.len());
    for ask in &mut asks {
        ask.sent = shape(&ask.logical);
    }
    asks
}

pub fn chat() -> Vec<Value> {
    conversation("it", 41)
}

pub fn tools() -> Vec<Value> {
    work("it", 41)
}

/// `trunk` as far as `at`, then `branch` as it is from there.
pub fn branched(trunk: &[Value], at: usize, branch: &[Value]) -> Vec<Value> {
    let mut all = trunk[..at].to_vec();
    all.extend_from_slice(&branch[at..]);
    all
}

pub fn message(role: &str, words: impl Into<String>) -> Value {
    json!({"role": role, "content": words.into()})
}

/// The message with other words.
pub fn reworded(message: &Value, words: impl FnOnce(&str) -> String) -> Value {
    let mut message = message.clone();
    let content = message["content"].as_str().unwrap_or_default();
    message["content"] = json!(words(content));
    message
}
