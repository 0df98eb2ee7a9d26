//! The beginning of a stream: some providers answer 200 and say in the first event that the prompt does
//! not fit.
//!
//! The head has gone on by then and nothing is held that a client could use: comments pass at once, and
//! the first event only waits until it is complete, which takes what the upstream takes to write it. A
//! long one passes as it comes. Decides what that event says, never what is done about it: that is
//! [`super::late`]'s. Called by `remember` and the ladder.

use std::collections::VecDeque;

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use serde_json::Value;

use super::body::ProxyBody;
use super::sse::{BlockEnds, EventReader};
use crate::upstream::BoxError;
use crate::wire::usage::{Excess, RefusalKind, excess, refusal};

/// An error is a few hundred bytes; an event longer than this is none and is not held.
const HELD: usize = 16 * 1024;

/// What a stream begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// An answer, as far as can be told.
    Answer,
    /// That the prompt does not fit the model.
    TooLong(Option<Excess>),
    /// Another error.
    Error,
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
    held: usize,
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
            held: 0,
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
        let mut ended = false;
        while let Some(end) = self.ends.next_end(rest) {
            rest = &rest[end..];
            ended = true;
        }
        self.held = if ended {
            rest.len()
        } else {
            self.held + rest.len()
        };
        match self.held {
            0 => Verdict::Pass,
            held if held > HELD => Verdict::Said(Said::Answer),
            _ => Verdict::Hold,
        }
    }
}

/// What the data of an event says. Never takes the words of an answer for those of an error.
fn said(event: &str) -> Said {
    let Ok(Value::Object(event_object)) = serde_json::from_str::<Value>(event) else {
        return Said::Answer;
    };
    let has = |key: &str| event_object.get(key).is_some_and(|value| !value.is_null());
    let answers = event_object
        .get("choices")
        .and_then(Value::as_array)
        .is_some_and(|choices| !choices.is_empty());
    let fails = has("error") || event_object.get("object").is_some_and(|it| it == "error");
    if answers || !fails {
        return Said::Answer;
    }
    // As the same words would be read under the status they belong to.
    match refusal(StatusCode::BAD_REQUEST.as_u16(), event.as_bytes()) {
        Some(RefusalKind::TooLong) => Said::TooLong(excess(event.as_bytes())),
        _ => Said::Error,
    }
}

type Frames = VecDeque<Result<Frame<Bytes>, BoxError>>;

/// Whoever wants to know what a stream begins with.
pub(super) trait Hears: Send + 'static {
    /// The stream that goes on in the place of the one that began with this, if there is one.
    fn heard(self, said: Said) -> impl Future<Output = Option<ProxyBody>> + Send;
}

/// `body`, frame by frame as it comes, but for its first event, which waits until `hears` knows of it.
/// Whoever drops it takes back whatever is done because of that.
pub(super) fn listened<H: Hears>(body: ProxyBody, hears: H) -> ProxyBody {
    let listening = Listening {
        body: Some(body),
        ready: Frames::new(),
        held: Frames::new(),
        open: Some((Opening::new(), hears)),
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
}

impl<H: Hears> Listening<H> {
    async fn step(mut self) -> Option<(Result<Frame<Bytes>, BoxError>, Self)> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some((frame, self));
            }
            let frame = self.body.as_mut()?.frame().await;
            let Some((opening, _)) = &mut self.open else {
                return frame.map(|frame| (frame, self));
            };
            let verdict = match &frame {
                Some(Ok(frame)) => match frame.data_ref() {
                    Some(data) => opening.push(data),
                    None => Verdict::Said(Said::Answer),
                },
                // Nobody knows what it would have said.
                Some(Err(_)) | None => Verdict::Said(Said::Error),
            };
            if frame.is_none() {
                self.body = None;
            }
            self.held.extend(frame);
            match verdict {
                Verdict::Hold => {}
                Verdict::Pass => self.ready.append(&mut self.held),
                Verdict::Said(said) => self.tell(said).await,
            }
        }
    }

    async fn tell(&mut self, said: Said) {
        let other = match self.open.take() {
            Some((_, hears)) => hears.heard(said).await,
            None => None,
        };
        match other {
            Some(other) => {
                self.held.clear();
                self.body = Some(other);
            }
            None => self.ready.append(&mut self.held),
        }
    }
}

/// What `answer` begins with, and it as it was.
pub(super) async fn look(answer: Response<ProxyBody>) -> (Response<ProxyBody>, Said) {
    let (parts, mut body) = answer.into_parts();
    let mut opening = Opening::new();
    let mut read = Frames::new();
    let said = loop {
        let frame = body.frame().await;
        let verdict = match &frame {
            Some(Ok(frame)) => match frame.data_ref() {
                Some(data) => opening.push(data),
                None => Verdict::Said(Said::Answer),
            },
            Some(Err(_)) | None => Verdict::Said(Said::Error),
        };
        read.extend(frame);
        if let Verdict::Said(said) = verdict {
            break said;
        }
    };
    let rest = http_body_util::BodyStream::new(body);
    let whole = futures_util::StreamExt::chain(futures_util::stream::iter(read), rest);
    let body = StreamBody::new(whole).boxed_unsync();
    (Response::from_parts(parts, body), said)
}

#[cfg(test)]
mod tests;
