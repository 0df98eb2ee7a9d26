//! A conversation whose every message can be told apart, the client that sends it in its own way, and
//! what came of each request. The judge shares nothing with what it judges: it reads marks out of the
//! bodies that the provider got.

use std::collections::BTreeSet;
use std::sync::Arc;

use diarist_provider::{CallerKind, DefaultScript, RecordedRequest, Reply, ScriptInput, script};
use serde_json::{Value, json};

use crate::memory::rig::Rig;

/// The text of message `number` of conversation `name`: its mark stands at its beginning, where an
/// Observer that shortens what it is shown keeps it.
pub fn text(name: &str, number: usize) -> String {
    let words = [
        "harbour", "copper", "lantern", "meadow", "violin", "glacier", "saddle", "orchard",
    ];
    let spoken: Vec<String> = (0..28)
        .map(|at| {
            format!(
                "{}{}",
                words[(number * 7 + at * 3) % words.len()],
                (number * 31 + at) % 97
            )
        })
        .collect();
    format!("({name}#{number}) {}.", spoken.join(" "))
}

pub fn user(name: &str, number: usize) -> Value {
    json!({"role": "user", "content": text(name, number)})
}

pub fn assistant(name: &str, number: usize) -> Value {
    json!({"role": "assistant", "content": text(name, number)})
}

/// The first `count` messages of a conversation in turns.
pub fn conversation(name: &str, count: usize) -> Vec<Value> {
    (0..count)
        .map(|number| {
            if number % 2 == 0 {
                user(name, number)
            } else {
                assistant(name, number)
            }
        })
        .collect()
}

/// The same where every answer calls a tool: user, call, result, answer.
pub fn work(name: &str, count: usize) -> Vec<Value> {
    (0..count)
        .map(|number| match number % 4 {
            0 => user(name, number),
            1 => json!({"role": "assistant", "content": null, "tool_calls": [{
                "id": format!("call_{name}Zq8t{number}"), "type": "function",
                "function": {"name": "read", "arguments": format!("{{\"path\":\"{name}/{number}\"}}")}}]}),
            2 => json!({"role": "tool", "tool_call_id": format!("call_{name}Zq8t{}", number - 1),
                        "content": text(name, number)}),
            _ => assistant(name, number),
        })
        .collect()
}

pub fn system(text: &str) -> Value {
    json!({"role": "system", "content": text})
}

/// All marks in `text`.
pub fn marks(text: &str) -> BTreeSet<String> {
    text.split('(')
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(mark, _)| mark)
        .filter(|mark| mark.contains('#') && mark.len() < 30)
        .map(str::to_owned)
        .collect()
}

/// A body, which no failure prints.
pub struct Body(pub String);

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// Thresholds that a short conversation reaches, and room for all that is observed of it.
pub fn chat_settings() -> [(&'static str, &'static str); 2] {
    [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
        ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "20000"),
    ]
}

/// With a provider that is like all others.
pub async fn roomy() -> Rig {
    Rig::with(diarist_provider::Options::default(), &chat_settings()).await
}

/// From now on the model answers with `message`; without one, with what it likes.
pub fn set_answer(rig: &Rig, message: Option<&Value>) {
    match message.map(Reply::recorded) {
        Some(reply) => rig
            .provider
            .script(CallerKind::Actor, move |_: &ScriptInput<'_>| reply.clone()),
        None => rig
            .provider
            .script(CallerKind::Actor, DefaultScript::default()),
    }
}

/// What one request led to.
#[derive(Debug)]
pub struct SentRequest {
    /// `reason` of the audit.
    pub reason: String,
    /// Marks the block tells of.
    pub in_block: BTreeSet<String>,
    /// Messages of the client that went out.
    pub raw: usize,
    /// Messages of the client that did not.
    pub left_out: usize,
    /// Calls of the Observer so far.
    pub calls: usize,
    /// What the client was answered.
    pub answer: String,
    /// The body as the provider got it.
    pub body: Body,
}

/// One client with its own way of sending.
pub struct Client<'a> {
    pub rig: &'a mut Rig,
    pub credential: &'static str,
    pub headers: Vec<(&'static str, &'static str)>,
    pub system: Option<String>,
    /// Fields beside model and messages.
    pub fields: Value,
}

impl<'a> Client<'a> {
    pub fn new(rig: &'a mut Rig) -> Self {
        Self {
            rig,
            credential: "Bearer sk-test",
            headers: Vec::new(),
            system: Some("You are a patient assistant.".to_owned()),
            fields: json!({}),
        }
    }

    pub fn body(&self, messages: &[Value]) -> Value {
        let system = self.system.iter().map(|text| system(text));
        let all: Vec<Value> = system.chain(messages.iter().cloned()).collect();
        let mut body = json!({"model": "gpt-test", "messages": all});
        for (name, value) in self.fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    }

    /// The same, where the model answers what the client will bring back: the upstream really gave it.
    /// Without an answer the model says what it likes.
    pub async fn send_with_answer(
        &mut self,
        messages: &[Value],
        answer: Option<&Value>,
    ) -> SentRequest {
        set_answer(self.rig, answer);
        let sent_request = self.send(messages).await;
        set_answer(self.rig, None);
        sent_request
    }

    /// Sends `messages`, gives memory its time, and checks what is true of every request: what did not
    /// go out was shown to the Observer, what went out is the client's, in its order, and nothing of
    /// it is told of that nobody said.
    pub async fn send(&mut self, messages: &[Value]) -> SentRequest {
        let body = self.body(messages);
        let answer = self
            .rig
            .send_as(self.credential, &self.headers, &body)
            .await;
        assert_eq!(
            answer.status,
            200,
            "{}",
            String::from_utf8_lossy(&answer.body)
        );
        self.rig.quiet().await;
        let record = self.rig.provider.record();
        let got = actor(&record).pop().unwrap();
        assert!(got.is_accepted());
        let sent: Vec<Value> = got.json().unwrap()["messages"].as_array().unwrap().clone();
        let client_messages: Vec<&Value> = sent.iter().filter(|m| messages.contains(m)).collect();
        let mut rest = messages.iter();
        for message in &client_messages {
            // A pinned message stands where nothing else of its neighbourhood does, still in order.
            assert!(rest.any(|m| m == *message), "out of order: {message}");
        }
        let shown = observed_marks(&record);
        let mut left_out = 0;
        for message in messages.iter().filter(|m| !sent.contains(m)) {
            left_out += 1;
            for mark in marks(&script::text(message)) {
                // A placeholder stands for what it replaced, or is what was observed.
                let first = mark.strip_prefix("gone-").unwrap_or(&mark);
                assert!(
                    shown.contains(&mark) || shown.contains(first),
                    "{mark} is neither sent nor was it observed"
                );
            }
        }
        let block: String = sent
            .iter()
            .filter(|m| !messages.contains(m))
            .map(|m| m["content"].as_str().unwrap_or_default())
            .collect();
        let line = self.rig.audit_entry(&answer).await;
        SentRequest {
            reason: line["reason"].as_str().unwrap_or_default().to_owned(),
            in_block: marks(&block),
            raw: client_messages.len(),
            left_out,
            calls: record
                .iter()
                .filter(|e| e.caller == CallerKind::Observer)
                .count(),
            answer: answer.json()["choices"][0]["message"]["content"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            body: Body(String::from_utf8_lossy(&got.body).into_owned()),
        }
    }
}

fn actor(record: &[Arc<RecordedRequest>]) -> Vec<Arc<RecordedRequest>> {
    let mut all = record.to_vec();
    all.retain(|entry| entry.caller == CallerKind::Actor);
    all
}

/// Marks of every message the Observer was ever shown.
pub fn observed_marks(record: &[Arc<RecordedRequest>]) -> BTreeSet<String> {
    record
        .iter()
        .filter(|entry| entry.caller == CallerKind::Observer)
        .flat_map(|entry| marks(&String::from_utf8_lossy(&entry.body)))
        .collect()
}
