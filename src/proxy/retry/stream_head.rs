//! Reads the beginning of a stream: some providers answer 200 and refuse the request in the first event.
//!
//! The client has the head by then. Comments are forwarded at once, and so are events that do not look like an
//! error. One that does is buffered until it is complete, up to 16 KiB. Decides what that event says, never
//! what follows: that is [`super::stream`]. Also used by [`super::answer`], for the streams that follow.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use serde_json::Value;
use tokio::sync::mpsc;

use super::super::body::ProxyBody;
use super::super::sse::{BlockEnds, EventReader, is_event_stream};
use crate::upstream::BoxError;
use crate::wire::usage::{RefusalReason, refusal_reason_without_status};

/// An error is a few hundred bytes. A longer event is not an error and is not held back.
const MAX_HELD_BYTES: usize = 16 * 1024;

/// The first keys of the errors that providers write into streams. An answer's first key is its id nearly
/// everywhere.
const ERROR_KEYS: [&str; 7] = [
    "error", "object", "message", "type", "code", "status", "detail",
];

/// How a stream begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FirstEvent {
    /// With an answer, or an event of unknown meaning.
    Answer,
    /// A refusal of the request: another one may help.
    Refused(RefusalReason),
    /// Another error.
    Error,
    /// Nothing: the stream ended, or broke off, before its first event.
    Missing,
}

/// Whether the beginning of this answer can be read: a stream of events, not compressed, without a
/// `content-length`.
pub(in crate::proxy) fn is_readable_stream<B>(answer: &Response<B>) -> bool {
    let headers = answer.headers();
    answer.status() == StatusCode::OK
        && is_event_stream(headers)
        && !headers.contains_key(header::CONTENT_ENCODING)
        && !headers.contains_key(header::CONTENT_LENGTH)
}

/// Reads a stream up to the end of its first event.
#[derive(Debug)]
struct FirstEventReader {
    ends: BlockEnds,
    reader: EventReader,
    /// The event that is not complete yet.
    pending: Vec<u8>,
}

/// What happens to the bytes read so far.
#[derive(Debug, PartialEq, Eq)]
enum HoldDecision {
    /// They may become an error: wait for more.
    Hold,
    /// Only comments: forward them.
    Pass,
    /// The first event is complete.
    Decided(FirstEvent),
}

impl FirstEventReader {
    fn new() -> Self {
        Self {
            ends: BlockEnds::new(),
            reader: EventReader::default(),
            pending: Vec::new(),
        }
    }

    fn push(&mut self, data: &[u8]) -> HoldDecision {
        let mut first = None;
        self.reader.push(data, &mut |event| {
            first.get_or_insert_with(|| classify_event(event));
        });
        if let Some(first_event) = first {
            return HoldDecision::Decided(first_event);
        }
        let mut rest = data;
        while let Some(end) = self.ends.next_end(rest) {
            rest = &rest[end..];
            self.pending.clear();
        }
        if self.pending.len() + rest.len() > MAX_HELD_BYTES {
            return HoldDecision::Decided(FirstEvent::Answer);
        }
        self.pending.extend_from_slice(rest);
        match self.pending.is_empty() {
            true => HoldDecision::Pass,
            false if may_be_error(&self.pending) => HoldDecision::Hold,
            false => HoldDecision::Decided(FirstEvent::Answer),
        }
    }
}

/// Whether an incomplete event that begins with `partial` may become an error.
fn may_be_error(partial: &[u8]) -> bool {
    let partial = partial.strip_prefix(b"\xef\xbb\xbf").unwrap_or(partial);
    let mut lines = partial.split(|byte| matches!(byte, b'\n' | b'\r'));
    let Some(data) = lines.find_map(|line| line.strip_prefix(b"data:")) else {
        return true;
    };
    let Some(object) = data.trim_ascii_start().strip_prefix(b"{") else {
        return data.trim_ascii().is_empty();
    };
    let Some(key) = object.trim_ascii_start().strip_prefix(b"\"") else {
        return object.trim_ascii().is_empty();
    };
    let mut parts = key.splitn(2, |byte| *byte == b'"');
    let (key, rest) = (parts.next().unwrap_or_default(), parts.next());
    // Answers begin with this key too. Its value tells them apart.
    if let (b"object", Some(rest)) = (key, rest) {
        return may_be_error_object(rest);
    }
    let whole = rest.is_some();
    ERROR_KEYS.iter().any(|error_key| {
        let error_key = error_key.as_bytes();
        error_key == key || !whole && error_key.starts_with(key)
    })
}

/// Whether the text after the key `object` may become the value `error`.
fn may_be_error_object(rest: &[u8]) -> bool {
    let value = rest.trim_ascii_start();
    let Some(value) = value.strip_prefix(b":") else {
        return value.is_empty();
    };
    let value = value.trim_ascii_start();
    let error = b"\"error\"";
    value.starts_with(error) || error.starts_with(value)
}

/// What the data of an event means. An event with words of the model is never an error.
fn classify_event(event: &str) -> FirstEvent {
    let Ok(Value::Object(event_object)) = serde_json::from_str::<Value>(event) else {
        return FirstEvent::Answer;
    };
    let has = |key: &str| event_object.get(key).is_some_and(|value| !value.is_null());
    let fails = has("error") || event_object.get("object").is_some_and(|it| it == "error");
    if !fails || has_content(&event_object) {
        return FirstEvent::Answer;
    }
    match refusal_reason_without_status(event.as_bytes()) {
        Some(reason) => FirstEvent::Refused(reason),
        None => FirstEvent::Error,
    }
}

/// Whether a chunk carries words of the model, or tool calls.
fn has_content(chunk: &serde_json::Map<String, Value>) -> bool {
    let choices = chunk.get("choices").and_then(Value::as_array);
    let is_filled = |value: &Value| match value {
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    choices.into_iter().flatten().any(|choice| {
        let delta = choice.get("delta").and_then(Value::as_object);
        let mut fields = delta.into_iter().flatten();
        fields.any(|(key, value)| key != "role" && is_filled(value))
    })
}

type Frames = VecDeque<Result<Frame<Bytes>, BoxError>>;

/// Carries the comments by which an upstream keeps a connection alive, while the client waits for another
/// stream. Bounded: if the client does not read, the upstream is not read either.
pub(super) type KeepAliveSender = mpsc::Sender<Bytes>;

/// Comments in the channel.
const KEEP_ALIVE_BUFFER: usize = 8;

/// Decides what follows the first event of a stream.
pub(super) trait FirstEventHandler: Send + 'static {
    /// The stream that continues in the place of this one, or `None` to go on with this one. What is sent to
    /// `keep_alive` is forwarded to the client meanwhile.
    fn on_first_event(
        self,
        first_event: FirstEvent,
        keep_alive: KeepAliveSender,
    ) -> impl Future<Output = Option<ProxyBody>> + Send;
}

/// `body`, frame by frame as it comes, except for its first event, which waits for `handler`. Dropping the
/// returned body also drops the handler's future, and with it the requests that it has sent.
pub(super) fn hold_first_event<H: FirstEventHandler>(body: ProxyBody, handler: H) -> ProxyBody {
    let held_stream = HeldStream {
        body: Some(body),
        ready: Frames::new(),
        held: Frames::new(),
        undecided: Some((FirstEventReader::new(), handler)),
        pending_answer: None,
    };
    StreamBody::new(futures_util::stream::unfold(held_stream, HeldStream::step)).boxed_unsync()
}

struct HeldStream<H> {
    body: Option<ProxyBody>,
    /// Frames to forward now.
    ready: Frames,
    /// Frames of the event that is not complete yet.
    held: Frames,
    undecided: Option<(FirstEventReader, H)>,
    /// The future of the handler, and the comments that are forwarded meanwhile.
    pending_answer: Option<PendingAnswerStream>,
}

type PendingAnswerStream = (BoxFuture<'static, Option<ProxyBody>>, mpsc::Receiver<Bytes>);

impl<H: FirstEventHandler> HeldStream<H> {
    async fn step(mut self) -> Option<(Result<Frame<Bytes>, BoxError>, Self)> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some((frame, self));
            }
            if let Some((decided, passing)) = &mut self.pending_answer {
                tokio::select! {
                    biased;
                    Some(comment) = passing.recv() => {
                        self.ready.push_back(Ok(Frame::data(comment)));
                    }
                    other = decided => {
                        self.pending_answer = None;
                        self.resume(other);
                    }
                }
                continue;
            }
            let frame = self.body.as_mut()?.frame().await;
            let Some((reader, _)) = &mut self.undecided else {
                return frame.map(|frame| (frame, self));
            };
            let decision = push_frame(reader, frame.as_ref());
            if frame.is_none() {
                self.body = None;
            }
            self.held.extend(frame);
            match decision {
                HoldDecision::Hold => {}
                HoldDecision::Pass => self.ready.append(&mut self.held),
                HoldDecision::Decided(first_event) => self.handle_first_event(first_event),
            }
        }
    }

    fn handle_first_event(&mut self, first_event: FirstEvent) {
        if let Some((_, handler)) = self.undecided.take() {
            let (keep_alive, passing) = mpsc::channel(KEEP_ALIVE_BUFFER);
            self.pending_answer = Some((
                handler.on_first_event(first_event, keep_alive).boxed(),
                passing,
            ));
        }
    }

    fn resume(&mut self, replacement: Option<ProxyBody>) {
        match replacement {
            Some(replacement) => {
                self.held.clear();
                self.body = Some(replacement);
            }
            None => self.ready.append(&mut self.held),
        }
    }
}

fn push_frame(
    reader: &mut FirstEventReader,
    frame: Option<&Result<Frame<Bytes>, BoxError>>,
) -> HoldDecision {
    match frame {
        Some(Ok(frame)) => match frame.data_ref() {
            Some(data) => reader.push(data),
            None => HoldDecision::Decided(FirstEvent::Answer),
        },
        Some(Err(_)) | None => HoldDecision::Decided(FirstEvent::Missing),
    }
}

/// The first event of `answer`, and the answer as it was, except for comments before that event: they went to
/// `keep_alive`.
pub(super) async fn read_first_event(
    answer: Response<ProxyBody>,
    keep_alive: &KeepAliveSender,
) -> (Response<ProxyBody>, FirstEvent) {
    let (parts, mut body) = answer.into_parts();
    let mut reader = FirstEventReader::new();
    let mut read = Frames::new();
    let first_event = loop {
        let frame = body.frame().await;
        let decision = push_frame(&mut reader, frame.as_ref());
        read.extend(frame);
        match decision {
            HoldDecision::Hold => {}
            HoldDecision::Pass => {
                let comments = read.drain(..).flatten();
                for data in comments.filter_map(|frame| frame.into_data().ok()) {
                    // If the client has gone, nobody receives them.
                    let _ = keep_alive.send(data).await;
                }
            }
            HoldDecision::Decided(first_event) => break first_event,
        }
    };
    let rest = http_body_util::BodyStream::new(body);
    let whole = futures_util::StreamExt::chain(futures_util::stream::iter(read), rest);
    let body = StreamBody::new(whole).boxed_unsync();
    (Response::from_parts(parts, body), first_event)
}

#[cfg(test)]
mod tests;
