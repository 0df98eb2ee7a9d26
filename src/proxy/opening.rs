//! The beginning of a stream: some providers answer 200 and say in the first event that they do not take
//! the request.
//!
//! The head has gone on by then, comments pass at once, and so does whatever does not begin as an error
//! does. What does is held until the event is complete, which takes what the upstream takes to write it;
//! a long one passes as it comes. Decides what that event says, never what is done about it: that is
//! [`super::late`]'s. Called by `remember` and the ladder.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use serde_json::Value;
use tokio::sync::mpsc;

use super::body::ProxyBody;
use super::sse::{BlockEnds, EventReader};
use crate::upstream::BoxError;
use crate::wire::usage::{Blame, Excess, Reason, reason_without_status};

/// An error is a few hundred bytes; an event longer than this is none and is not held.
const HELD: usize = 16 * 1024;

/// What an error begins with, as far as providers were seen to write one into a stream. An answer's
/// first key is its id nearly everywhere.
const ERROR_KEYS: [&str; 7] = [
    "error", "object", "message", "type", "code", "status", "detail",
];

/// What a stream begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// An answer, as far as can be told.
    Answer,
    /// That the prompt does not fit the model.
    TooLong(Option<Excess>),
    /// That the request is refused for what it holds.
    Declined(Blame),
    /// Another error.
    Error,
    /// Nothing: it ended, or broke off, before that.
    Nothing,
}

/// Whether the beginning of this answer can be looked at: a stream of events in plain bytes, whose
/// length nobody was told.
pub(super) fn can_look<B>(answer: &Response<B>) -> bool {
    let headers = answer.headers();
    answer.status() == StatusCode::OK
        && is_event_stream(headers)
        && !headers.contains_key(header::CONTENT_ENCODING)
        && !headers.contains_key(header::CONTENT_LENGTH)
}

pub(super) fn is_event_stream(headers: &http::HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| {
            value
                .trim_start()
                .to_ascii_lowercase()
                .starts_with("text/event-stream")
        })
}

/// Reads a stream up to the end of its first event.
#[derive(Debug)]
struct Opening {
    ends: BlockEnds,
    reader: EventReader,
    /// The event that is not complete yet.
    pending: Vec<u8>,
}

/// What is to become of the bytes that came.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// They are the beginning of something.
    Hold,
    /// They say nothing.
    Pass,
    /// The first event is complete.
    Said(Said),
}

impl Opening {
    fn new() -> Self {
        Self {
            ends: BlockEnds::new(),
            reader: EventReader::default(),
            pending: Vec::new(),
        }
    }

    fn push(&mut self, data: &[u8]) -> Verdict {
        let mut first = None;
        self.reader.push(data, &mut |event| {
            first.get_or_insert_with(|| said(event));
        });
        if let Some(said) = first {
            return Verdict::Said(said);
        }
        let mut rest = data;
        while let Some(end) = self.ends.next_end(rest) {
            rest = &rest[end..];
            self.pending.clear();
        }
        if self.pending.len() + rest.len() > HELD {
            return Verdict::Said(Said::Answer);
        }
        self.pending.extend_from_slice(rest);
        match self.pending.is_empty() {
            true => Verdict::Pass,
            false if may_be_error(&self.pending) => Verdict::Hold,
            false => Verdict::Said(Said::Answer),
        }
    }
}

/// Whether an event that begins with this may become an error.
fn may_be_error(begun: &[u8]) -> bool {
    let begun = begun.strip_prefix(b"\xef\xbb\xbf").unwrap_or(begun);
    let mut lines = begun.split(|byte| matches!(byte, b'\n' | b'\r'));
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
    // With this one answers begin as well: what it says of itself tells them apart.
    if let (b"object", Some(rest)) = (key, rest) {
        return may_be_called_error(rest);
    }
    let whole = rest.is_some();
    ERROR_KEYS.iter().any(|known| {
        let known = known.as_bytes();
        known == key || !whole && known.starts_with(key)
    })
}

/// Whether what follows the key `object` may become the name of an error.
fn may_be_called_error(rest: &[u8]) -> bool {
    let value = rest.trim_ascii_start();
    let Some(value) = value.strip_prefix(b":") else {
        return value.is_empty();
    };
    let value = value.trim_ascii_start();
    let error = b"\"error\"";
    value.starts_with(error) || error.starts_with(value)
}

/// What the data of an event says. Never takes the words of an answer for those of an error.
fn said(event: &str) -> Said {
    let Ok(Value::Object(event_object)) = serde_json::from_str::<Value>(event) else {
        return Said::Answer;
    };
    let has = |key: &str| event_object.get(key).is_some_and(|value| !value.is_null());
    let fails = has("error") || event_object.get("object").is_some_and(|it| it == "error");
    if !fails || says_something(&event_object) {
        return Said::Answer;
    }
    match reason_without_status(event.as_bytes()) {
        Some(Reason::TooLong(excess)) => Said::TooLong(excess),
        Some(Reason::Declined(blame)) => Said::Declined(blame),
        None => Said::Error,
    }
}

/// Whether a chunk carries words of the model, or calls.
fn says_something(chunk: &serde_json::Map<String, Value>) -> bool {
    let choices = chunk.get("choices").and_then(Value::as_array);
    let said = |value: &Value| match value {
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    choices.into_iter().flatten().any(|choice| {
        let delta = choice.get("delta").and_then(Value::as_object);
        let mut fields = delta.into_iter().flatten();
        fields.any(|(key, value)| key != "role" && said(value))
    })
}

type Frames = VecDeque<Result<Frame<Bytes>, BoxError>>;

/// What passes to the client while it waits for a stream in the place of a refused one: the comments by which
/// an upstream keeps a connection alive. As many as fit; who reads the upstream waits for the client.
pub(super) type Beside = mpsc::Sender<Bytes>;

/// Comments on their way.
const BESIDE: usize = 8;

/// Whoever wants to know what a stream begins with.
pub(super) trait Hears: Send + 'static {
    /// The stream that goes on in the place of the one that began with this, if there is one. What is put
    /// into `beside` passes meanwhile.
    fn heard(self, said: Said, beside: Beside) -> impl Future<Output = Option<ProxyBody>> + Send;
}

/// `body`, frame by frame as it comes, but for its first event, which waits until `hears` knows of it.
/// Whoever drops it takes back whatever is done because of that.
pub(super) fn listened<H: Hears>(body: ProxyBody, hears: H) -> ProxyBody {
    let listening = Listening {
        body: Some(body),
        ready: Frames::new(),
        held: Frames::new(),
        open: Some((Opening::new(), hears)),
        deciding: None,
    };
    StreamBody::new(futures_util::stream::unfold(listening, Listening::step)).boxed_unsync()
}

struct Listening<H> {
    body: Option<ProxyBody>,
    /// What goes on now.
    ready: Frames,
    /// The beginning of what is not complete yet.
    held: Frames,
    open: Option<(Opening, H)>,
    /// What is done about what it began with, and what passes meanwhile.
    deciding: Option<Deciding>,
}

type Deciding = (BoxFuture<'static, Option<ProxyBody>>, mpsc::Receiver<Bytes>);

impl<H: Hears> Listening<H> {
    async fn step(mut self) -> Option<(Result<Frame<Bytes>, BoxError>, Self)> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some((frame, self));
            }
            if let Some((decided, passing)) = &mut self.deciding {
                tokio::select! {
                    biased;
                    Some(comment) = passing.recv() => {
                        self.ready.push_back(Ok(Frame::data(comment)));
                    }
                    other = decided => {
                        self.deciding = None;
                        self.go_on(other);
                    }
                }
                continue;
            }
            let frame = self.body.as_mut()?.frame().await;
            let Some((opening, _)) = &mut self.open else {
                return frame.map(|frame| (frame, self));
            };
            let verdict = heard(opening, frame.as_ref());
            if frame.is_none() {
                self.body = None;
            }
            self.held.extend(frame);
            match verdict {
                Verdict::Hold => {}
                Verdict::Pass => self.ready.append(&mut self.held),
                Verdict::Said(said) => self.tell(said),
            }
        }
    }

    fn tell(&mut self, said: Said) {
        if let Some((_, hears)) = self.open.take() {
            let (beside, passing) = mpsc::channel(BESIDE);
            self.deciding = Some((hears.heard(said, beside).boxed(), passing));
        }
    }

    fn go_on(&mut self, other: Option<ProxyBody>) {
        match other {
            Some(other) => {
                self.held.clear();
                self.body = Some(other);
            }
            None => self.ready.append(&mut self.held),
        }
    }
}

fn heard(opening: &mut Opening, frame: Option<&Result<Frame<Bytes>, BoxError>>) -> Verdict {
    match frame {
        Some(Ok(frame)) => match frame.data_ref() {
            Some(data) => opening.push(data),
            None => Verdict::Said(Said::Answer),
        },
        Some(Err(_)) | None => Verdict::Said(Said::Nothing),
    }
}

/// What `answer` begins with, and it as it was, but for its comments before that: they have passed `beside`.
pub(super) async fn look(
    answer: Response<ProxyBody>,
    beside: &Beside,
) -> (Response<ProxyBody>, Said) {
    let (parts, mut body) = answer.into_parts();
    let mut opening = Opening::new();
    let mut read = Frames::new();
    let said = loop {
        let frame = body.frame().await;
        let verdict = heard(&mut opening, frame.as_ref());
        read.extend(frame);
        match verdict {
            Verdict::Hold => {}
            Verdict::Pass => {
                let comments = read.drain(..).flatten();
                for data in comments.filter_map(|frame| frame.into_data().ok()) {
                    // Nobody listens any more where the client has gone.
                    let _ = beside.send(data).await;
                }
            }
            Verdict::Said(said) => break said,
        }
    };
    let rest = http_body_util::BodyStream::new(body);
    let whole = futures_util::StreamExt::chain(futures_util::stream::iter(read), rest);
    let body = StreamBody::new(whole).boxed_unsync();
    (Response::from_parts(parts, body), said)
}

#[cfg(test)]
mod tests;
