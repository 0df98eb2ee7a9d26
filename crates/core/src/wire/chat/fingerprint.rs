//! Computes the fingerprint of a message.
//!
//! Two spellings of one message have the same fingerprint; everything else has another one. Only
//! differences that real clients were seen to make on their own are left out. Tool call ids enter by
//! their order.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::arguments;
use super::attachment_bytes::attachment_bytes;
use super::content::{ContentItem, items};
use super::fields::{Answer, Custom, Fields, Function, ToolCall};
use crate::history::{self, Batch, Encoder, Message, Pepper, Role, is_random_id};

/// Reads messages in order and computes their fingerprints.
#[derive(Debug)]
pub(super) struct Reader<'m> {
    batch: Batch,
    /// Each call by its id: in the newest message with that id.
    calls: HashMap<Box<str>, Call>,
    /// The messages so far, still without a fingerprint.
    pending: Vec<PendingMessage>,
    /// The messages before these, which were read with an earlier body.
    before: &'m [Message],
    /// Each call in `before`, once one of them is answered.
    calls_before: Option<HashMap<&'m str, Call>>,
}

/// What is known of a call when its result is read.
#[derive(Clone, Copy, Debug)]
struct Call {
    /// Its position in its message.
    position: usize,
    /// Whether an id of its message was drawn at random.
    random_ids: bool,
}

#[derive(Debug)]
struct PendingMessage {
    role: Role,
    calls: Arc<[Box<str>]>,
    answers: Option<Arc<str>>,
    random_ids: bool,
    encoded: Encoded,
    span: Range<usize>,
}

/// What is found while a message is encoded.
#[derive(Debug, Default)]
struct Encoded {
    /// See [`Message::distinctive_bytes`].
    distinctive_bytes: u32,
    /// See [`Message::attachment_bytes`].
    attachment_bytes: usize,
}

impl<'m> Reader<'m> {
    /// No messages.
    pub(super) fn new(pepper: &Pepper) -> Self {
        Self::resume(pepper, &[])
    }

    /// Reads the messages that follow `before`.
    pub(super) fn resume(pepper: &Pepper, before: &'m [Message]) -> Self {
        Self {
            batch: Batch::new(pepper),
            calls: HashMap::new(),
            pending: Vec::new(),
            before,
            calls_before: None,
        }
    }

    /// How many messages were read, those before these included.
    pub(super) fn count(&self) -> usize {
        self.before.len() + self.pending.len()
    }

    /// The call with this `id`: in the newest message with that id.
    fn call(&mut self, id: &str) -> Option<Call> {
        if let Some(call) = self.calls.get(id) {
            return Some(*call);
        }
        let before = self.before;
        let calls = self.calls_before.get_or_insert_with(|| {
            let calls = |message: &'m Message| {
                let random_ids = message.random_ids;
                let calls = message.calls.iter().enumerate().rev();
                calls.map(move |(position, id)| {
                    let call = Call {
                        position,
                        random_ids,
                    };
                    (&**id, call)
                })
            };
            before.iter().flat_map(calls).collect()
        });
        calls.get(id).copied()
    }

    /// Reads the next message, whose range is `span`.
    pub(super) fn message(&mut self, fields: &Fields<'_>, span: Range<usize>) {
        let calls = calls(fields);
        let answers: Option<Arc<str>> = fields.answers.as_ref().map(|answer| match answer {
            Answer::Call(id) => (**id).into(),
            Answer::Function(name) => legacy_id(name).into(),
        });
        let answered = answers.as_ref().map(|id| self.call(id));
        let encoder = self.batch.encoder();
        let encoded = encode(fields, encoder);
        if let Some(position) = answered {
            match position {
                Some(call) => encoder.count("answers", call.position),
                None => encoder.mark("answers nothing"),
            }
        }
        self.batch.next_message();
        // Backwards, so that of two calls with one id the first one is answered.
        let random_ids =
            has_random_ids(fields) || answered.flatten().is_some_and(|it| it.random_ids);
        for (position, id) in calls.iter().enumerate().rev() {
            let call = Call {
                position,
                random_ids,
            };
            self.calls.insert(id.clone(), call);
        }
        self.pending.push(PendingMessage {
            role: fields.role,
            calls,
            answers,
            random_ids,
            encoded,
            span,
        });
    }

    /// The messages that were read, without those before these.
    pub(super) fn finish(self) -> Vec<Message> {
        let fingerprints = self.batch.finish();
        let messages = self.pending.into_iter().zip(fingerprints);
        messages
            .map(|(pending, fingerprint)| Message {
                fingerprint,
                role: pending.role,
                calls: pending.calls,
                answers: pending.answers,
                random_ids: pending.random_ids,
                distinctive_bytes: pending.encoded.distinctive_bytes,
                attachment_bytes: u32::try_from(pending.encoded.attachment_bytes)
                    .unwrap_or(u32::MAX),
                span: pending.span,
            })
            .collect()
    }
}

fn calls(fields: &Fields<'_>) -> Arc<[Box<str>]> {
    let calls = fields.tool_calls.iter().map(|call| (*call.id).into());
    let legacy = fields
        .function_call
        .iter()
        .map(|call| legacy_id(&call.name));
    let calls: Vec<Box<str>> = calls.chain(legacy).collect();
    // An empty one takes no memory of its own.
    if calls.is_empty() {
        Arc::default()
    } else {
        calls.into()
    }
}

/// Whether the id of one of its calls was drawn at random. The legacy form has no ids.
fn has_random_ids(fields: &Fields<'_>) -> bool {
    let is_random = |call: &ToolCall<'_>| {
        let function = call.function.as_ref().map(|function| &*function.name);
        let custom = call.custom.as_ref().map(|custom| &*custom.name);
        is_random_id(&call.id, function.or(custom).unwrap_or_default())
    };
    fields.tool_calls.iter().any(is_random)
}

/// The legacy form has no ids: a result names the function, and only one call can be open.
fn legacy_id(name: &str) -> Box<str> {
    format!("fn:{name}").into()
}

/// Encodes the message.
fn encode(fields: &Fields<'_>, encoder: &mut Encoder) -> Encoded {
    let mut encoded = Encoded::default();
    encoder.text("role", fields.role.name());
    if let Some(name) = &fields.name {
        encoder.text("name", name);
    }
    for item in items(fields) {
        match item {
            ContentItem::Text(text) => {
                let bytes = history::distinctive_bytes(fields.role, &text);
                encoded.distinctive_bytes = encoded.distinctive_bytes.saturating_add(bytes);
                encoder.text("content", &text);
            }
            ContentItem::Part(part) => {
                encoded.attachment_bytes += attachment_bytes(&part);
                encoder.mark("part");
                part.encode(encoder);
            }
        }
    }
    if let Some(refusal) = &fields.refusal {
        encoder.text("refusal", refusal);
    }
    for (position, call) in fields.tool_calls.iter().enumerate() {
        encoder.count("call", position);
        match (&call.function, &call.custom) {
            (Some(function), _) => encode_function(function, encoder),
            (None, Some(custom)) => encode_custom(custom, encoder),
            (None, None) => {}
        }
    }
    if let Some(call) = &fields.function_call {
        encoder.mark("function_call");
        encode_function(call, encoder);
    }
    if !fields.audio.is_empty() {
        encoder.mark("audio");
        fields.audio.encode(encoder);
    }
    for (key, value) in &fields.unknown {
        encoder.text("field", key);
        value.encode(encoder);
    }
    encoded
}

/// Arguments count by their meaning if they have one ([`arguments::parse`]), otherwise as they are: they may be code. Clients
/// repair such arguments in five ways, one of them by renaming the tool. Then the call is recognised by its id.
fn encode_function(call: &Function<'_>, encoder: &mut Encoder) {
    encoder.text("tool", &call.name);
    let text = call.arguments.as_deref().unwrap_or_default();
    match arguments::parse(text) {
        Some(arguments) => arguments.encode(encoder),
        None => encoder.text("arguments", text.trim()),
    }
}

fn encode_custom(call: &Custom<'_>, encoder: &mut Encoder) {
    encoder.text("custom tool", &call.name);
    encoder.text("input", call.input.as_deref().unwrap_or_default());
}
