//! Reads the copy of an answer: usage, finish reasons, refusals, and the text of the first choices.
//!
//! The text is hashed when the exchange is recorded, and never stored. Called by [`super`]'s reader.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::Value;

use super::answer_fields::{self, Answer, MAX_CHOICES};
use super::answer_message::AnswerMessage;
use crate::proxy::decode::{Decoder, Encoding};
use crate::proxy::sse::EventReader;
use crate::wire::usage::{RawUsage, RefusalKind, Usage, refusal_without_status};

/// A longer JSON answer is not read. The longest model answers are about 500 KB; base64 images in answers reach a few
/// MB.
const MAX_JSON: usize = 8 * 1024 * 1024;

/// The beginning of a stream of events.
const EVENT_PREFIX: &[u8] = b"data:";

/// Choices whose text is kept: the most that OpenAI gives.
const MAX_MESSAGES: u64 = 128;

/// How some servers write in every piece of a stream that it has not ended.
pub(super) const NO_REASONS: [&str; 2] = ["", "null"];

/// Whether the value of `error` is an error. Some servers write one in every answer that says nothing.
fn says_something(error: &Value) -> bool {
    match error {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(members) => !members.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::Array(_) => true,
    }
}

/// Reads the pieces of one body.
pub(super) struct Capture {
    decoder: Option<Decoder>,
    format: BodyFormat,
    summary: Summary,
}

enum BodyFormat {
    Events(Box<EventReader>),
    Json(Vec<u8>),
    /// The body was read to its end, or given up. What was read before still counts.
    Done,
}

impl Capture {
    pub(super) fn new(streaming: bool, encoding: Encoding) -> Self {
        Self {
            decoder: Some(Decoder::new(encoding)),
            format: if streaming {
                BodyFormat::Events(Box::default())
            } else {
                BodyFormat::Json(Vec::new())
            },
            summary: Summary {
                complete: true,
                ..Summary::default()
            },
        }
    }

    pub(super) fn push(&mut self, piece: Bytes) {
        let Some(decoder) = &mut self.decoder else {
            return;
        };
        match decoder.push(piece) {
            Ok(decoded) => self.push_decoded(&decoded),
            Err(_) => self.give_up(),
        }
    }

    /// Bytes that [`Capture::finish`] has to parse.
    pub(super) fn unparsed_bytes(&self) -> usize {
        match &self.format {
            BodyFormat::Json(body) => body.len(),
            BodyFormat::Events(_) | BodyFormat::Done => 0,
        }
    }

    /// What was read so far.
    pub(super) fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Reads what has arrived so far. If the body is not complete JSON yet, it is parsed again when more of it has come.
    pub(super) fn read_json(&mut self) {
        let BodyFormat::Json(body) = &mut self.format else {
            return;
        };
        // Reading all of it at each piece would take quadratic time, so it is read only where it may have ended.
        let may_be_whole = body.trim_ascii_end().ends_with(b"}");
        if may_be_whole && let Some(answer) = answer_fields::read(body) {
            self.summary.read_answer(answer, body);
            self.format = BodyFormat::Done;
        } else if body.starts_with(EVENT_PREFIX) {
            // A stream without the content type of one.
            let body = std::mem::take(body);
            let (mut reader, summary) = (Box::<EventReader>::default(), &mut self.summary);
            reader.push(&body, &mut |data| summary.read_event(data));
            self.format = BodyFormat::Events(reader);
        }
    }

    pub(super) fn finish(mut self) -> Summary {
        match self.decoder.take().map(|mut decoder| decoder.finish()) {
            Some(Ok(rest)) => self.push_decoded(&rest),
            Some(Err(_)) => self.summary.complete = false,
            None => {}
        }
        if let BodyFormat::Events(reader) = &mut self.format {
            let summary = &mut self.summary;
            reader.finish(&mut |data| summary.read_event(data));
            summary.complete &= reader.is_complete();
        }
        // A body that is not JSON says nothing about usage; the capture is complete all the same.
        self.read_json();
        self.summary
    }

    fn push_decoded(&mut self, decoded: &[u8]) {
        match &mut self.format {
            BodyFormat::Events(reader) => {
                let summary = &mut self.summary;
                reader.push(decoded, &mut |data| summary.read_event(data));
            }
            BodyFormat::Json(body) if body.len() + decoded.len() <= MAX_JSON => {
                body.extend_from_slice(decoded);
            }
            BodyFormat::Json(_) => self.give_up(),
            BodyFormat::Done => {}
        }
    }

    fn give_up(&mut self) {
        self.summary.complete = false;
        self.decoder = None;
        self.format = BodyFormat::Done;
    }
}

/// What has been read so far.
#[derive(Debug, Default)]
pub(super) struct Summary {
    pub(super) usage: Option<Usage>,
    pub(super) raw_usage: Option<RawUsage>,
    pub(super) refusal: bool,
    pub(super) error: Option<&'static str>,
    /// Every byte was read.
    pub(super) complete: bool,
    /// What the model says, by choice.
    messages: BTreeMap<u64, AnswerMessage>,
    done: bool,
    /// Finish reasons by choice. A choice that has begun and not ended has `None`.
    choices: BTreeMap<u64, Option<String>>,
}

impl Summary {
    /// What the model has said so far, without what was too long to keep.
    pub(super) fn messages(&self) -> Vec<&AnswerMessage> {
        let messages = self.messages.values();
        messages.filter(|message| message.is_complete()).collect()
    }

    /// Another number than before if the model has said more.
    pub(super) fn changes(&self) -> u64 {
        let pieces: u64 = self.messages.values().map(AnswerMessage::changes).sum();
        self.messages.len() as u64 + pieces
    }

    pub(super) fn is_done(&self) -> bool {
        let all_ended = self.choices.values().all(Option::is_some);
        self.done || (all_ended && !self.choices.is_empty())
    }

    /// The text of the first choice, if it was read whole.
    pub(super) fn take_text(&mut self) -> Option<String> {
        let first = self
            .messages
            .get(&0)
            .filter(|message| self.complete && message.is_complete());
        first
            .map(|message| message.text().to_owned())
            .filter(|text| !text.is_empty())
    }

    pub(super) fn finish_reasons(&self) -> Vec<String> {
        self.choices.values().flatten().cloned().collect()
    }

    /// One event of a stream.
    fn read_event(&mut self, data: &str) {
        if data.trim() == "[DONE]" {
            self.done = true;
        } else if let Some(chunk) = answer_fields::read(data.as_bytes()) {
            self.read_answer(chunk, data.as_bytes());
        }
    }

    /// Reads a whole answer, or one chunk of it. `text` is its text.
    fn read_answer(&mut self, answer: Answer<'_>, text: &[u8]) {
        let (usage, raw_usage) = answer.reports.read();
        if let Some(later) = usage {
            self.usage.get_or_insert_default().update(later);
        }
        if let Some(later) = raw_usage {
            self.raw_usage.get_or_insert_default().update(later);
        }
        // vLLM's errors are objects of this name, with the fields of the error beside it.
        let has_error = answer.error.as_ref().is_some_and(says_something)
            || answer.object.is_some_and(|object| object == "error");
        if has_error && self.error.is_none() {
            let too_long = refusal_without_status(text) == Some(RefusalKind::TooLong);
            self.error = Some(if too_long { "too_long" } else { "error" });
        }
        for (place, choice) in answer.choices.iter().enumerate() {
            let index = choice.index.as_ref().and_then(Value::as_u64);
            let index = index.unwrap_or(place as u64);
            if index >= MAX_CHOICES as u64 {
                continue;
            }
            let ended = self.choices.entry(index).or_default();
            let reason = choice.finish_reason.as_ref().and_then(Value::as_str);
            if let Some(reason) = reason.filter(|reason| !NO_REASONS.contains(reason)) {
                self.refusal |= matches!(reason, "content_filter" | "refusal");
                *ended = Some(reason.to_owned());
            }
            // What is not kept may be a refusal all the same.
            let (mut beyond, mut beside) = (AnswerMessage::default(), AnswerMessage::default());
            let choice_message = if index < MAX_MESSAGES {
                self.messages.entry(index).or_default()
            } else {
                &mut beyond
            };
            match (&choice.delta, choice.message) {
                (Some(delta), message) => {
                    choice_message.push_delta(delta);
                    if let Some(message) = message {
                        beside.set_message(message);
                    }
                }
                (None, Some(message)) => choice_message.set_message(message),
                (None, None) => {}
            }
            self.refusal |= choice_message.is_refusal() || beside.is_refusal();
        }
    }
}
