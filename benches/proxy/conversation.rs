//! Conversations as clients send them: the whole history in every request. Each has its own words in every message.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::words::Writer;

/// Bytes of an ordinary answer.
pub const ANSWER_BYTES: u32 = 600;

/// The key that clients use unless a row needs several tenants.
pub const KEY: &str = "bench-tenant-0";

/// What the upstream is asked to answer, in a header of the request. The client knows the words beforehand.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The seed of the words.
    pub seed: u64,
    /// Bytes of the words; of an answer at once.
    pub bytes: u32,
    /// Pieces of a stream; 0 for an answer at once.
    pub deltas: u32,
    /// Milliseconds between two pieces.
    pub pace_ms: u32,
}

impl Answer {
    /// The next answer at once, with words that no other answer has.
    pub fn at_once() -> Self {
        Self {
            seed: next_seed(),
            bytes: ANSWER_BYTES,
            deltas: 0,
            pace_ms: 0,
        }
    }

    /// The words of an answer at once.
    pub fn words(self) -> String {
        Writer::new(self.seed).text(self.bytes as usize)
    }

    /// As the header is written.
    pub fn header(self) -> String {
        format!(
            "{} {} {} {}",
            self.seed, self.bytes, self.deltas, self.pace_ms
        )
    }

    /// From the header.
    pub fn read(header: &str) -> Option<Self> {
        let mut fields = header.split(' ');
        Some(Self {
            seed: fields.next()?.parse().ok()?,
            bytes: fields.next()?.parse().ok()?,
            deltas: fields.next()?.parse().ok()?,
            pace_ms: fields.next()?.parse().ok()?,
        })
    }
}

/// One request, ready to be sent.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub body: Bytes,
    /// The client's key, which is its tenant.
    pub key: &'static str,
    pub answer: Answer,
}

/// A number that this run has not used before.
fn next_seed() -> u64 {
    static SEED: AtomicU64 = AtomicU64::new(1);
    SEED.fetch_add(1, Ordering::Relaxed)
}

/// A history that grows. Messages are kept as they are written into the body.
#[derive(Debug)]
pub struct Conversation {
    writer: Writer,
    key: &'static str,
    /// The fields of the body in front of the messages.
    head: String,
    /// Every message with the comma in front of it, after the system message.
    messages: Vec<String>,
    bytes: usize,
    calls: usize,
}

impl Conversation {
    /// A conversation that has a system message only.
    pub fn new(key: &'static str, stream: bool) -> Self {
        let head = format!(
            r#"{{"model":"bench-model","stream":{stream},"messages":[{{"role":"system","content":"You are a careful assistant. Answer briefly."}}"#
        );
        Self {
            writer: Writer::new(next_seed()),
            key,
            bytes: head.len() + 2,
            head,
            messages: Vec::new(),
            calls: 0,
        }
    }

    /// A new conversation whose body has about `bytes` bytes and ends with the user's words.
    pub fn grown(key: &'static str, stream: bool, bytes: usize) -> Self {
        let mut grown = Self::new(key, stream);
        // The last message takes what is left, so that a small body is one question.
        while grown.bytes + 1_600 < bytes {
            let room = bytes - grown.bytes;
            if room > 6_000 && grown.writer.below(2) == 0 {
                grown.tool_round();
            } else {
                grown.user(room / 3);
                grown.assistant();
            }
        }
        let left = bytes.saturating_sub(grown.bytes + 40);
        grown.user(left.max(60));
        grown
    }

    /// A new conversation of `count` short messages, 80 to 240 bytes each; ends with the user's words.
    pub fn counted(key: &'static str, count: usize) -> Self {
        let mut counted = Self::new(key, false);
        while counted.messages.len() < count {
            if counted.messages.len().is_multiple_of(2) {
                counted.short_user();
            } else {
                counted.short_assistant();
            }
        }
        if counted.messages.len().is_multiple_of(2) {
            counted.short_user();
        }
        counted
    }

    /// Adds what the model answered and a short question: the next turn.
    pub fn next_turn(&mut self, answer: Answer) {
        self.push("assistant", &answer.words());
        self.short_user();
    }

    /// Adds what the model answered and a question of `bytes` bytes.
    pub fn next_long_turn(&mut self, answer: Answer, bytes: usize) {
        self.push("assistant", &answer.words());
        self.user(bytes);
    }

    /// Leaves out the oldest messages after the system message, as clients do that keep a window: at least `count`, and
    /// so many that the rest begins with the user's words.
    pub fn drop_beginning(&mut self, count: usize) {
        let is_users = |message: &String| message.starts_with(r#",{"role":"user""#);
        let begins = self.messages.iter().skip(count).position(is_users);
        for message in self.messages.drain(..count + begins.unwrap_or(0)) {
            self.bytes -= message.len();
        }
    }

    /// The number of messages without the system message.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Bytes of the body.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The request for the next answer.
    pub fn request(&self, answer: Answer) -> Outgoing {
        let mut body = String::with_capacity(self.bytes);
        body.push_str(&self.head);
        for message in &self.messages {
            body.push_str(message);
        }
        body.push_str("]}");
        Outgoing {
            body: Bytes::from(body),
            key: self.key,
            answer,
        }
    }

    fn short_user(&mut self) {
        let bytes = 60 + self.writer.below(160);
        let text = self.writer.text(bytes);
        self.push("user", &text);
    }

    fn short_assistant(&mut self) {
        let bytes = 60 + self.writer.below(160);
        let text = self.writer.text(bytes);
        self.push("assistant", &text);
    }

    fn user(&mut self, most: usize) {
        let bytes = if self.messages.is_empty() {
            most.min(1_500)
        } else {
            most.min(300 + self.writer.below(1_200))
        };
        let text = self.writer.text(bytes);
        self.push("user", &text);
    }

    fn assistant(&mut self) {
        let bytes = 200 + self.writer.below(1_400);
        let text = self.writer.text(bytes);
        self.push("assistant", &text);
    }

    /// A question, a call, its result, the answer.
    fn tool_round(&mut self) {
        self.user(800);
        self.calls += 1;
        let call = format!("call_{:04}_{:08x}", self.calls, self.writer.below(1 << 32));
        let limit = self.writer.below(100);
        self.write(&format!(
            r#",{{"role":"assistant","content":null,"tool_calls":[{{"id":"{call}","type":"function","function":{{"name":"search","arguments":"{{\"path\":\"src/{call}.rs\",\"limit\":{limit}}}"}}}}]}}"#
        ));
        let bytes = 800 + self.writer.below(2_200);
        let result = serde_json::Value::from(self.writer.text(bytes));
        self.write(&format!(
            r#",{{"role":"tool","tool_call_id":"{call}","content":{result}}}"#
        ));
        self.assistant();
    }

    fn push(&mut self, role: &str, text: &str) {
        let content = serde_json::Value::from(text);
        self.write(&format!(r#",{{"role":"{role}","content":{content}}}"#));
    }

    fn write(&mut self, message: &str) {
        self.bytes += message.len();
        self.messages.push(message.to_owned());
    }
}

/// First requests of `count` conversations that nobody has had before, about `bytes` bytes each.
pub fn new_requests(count: usize, bytes: usize) -> Vec<Outgoing> {
    (0..count)
        .map(|_| Conversation::grown(KEY, false, bytes).request(Answer::at_once()))
        .collect()
}
