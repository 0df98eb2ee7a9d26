//! Sends a request once, and says what its answer means.
//!
//! Reads an error body up to 64 KiB and puts it together again, so the client can still get it. Decides
//! nothing about what goes out next: that is [`super::attempt`]. What a refusal names, `wire::usage` reads.

use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::Value;

use super::super::body::{self, OutBody, ProxyBody};
use super::super::decode::{Decoder, Encoding};
use super::super::decoded_stream::decode_stream;
use super::super::error::ProxyError;
use super::super::forward;
use super::super::outgoing_request::OutgoingRequest;
use super::super::shared::Shared;
use super::super::sse::is_event_stream;
use super::sent_request::SentRequest;
use super::stream_head::{self, FirstEvent, KeepAliveSender};
use crate::wire::usage::{
    RefusalReason, is_change_refusal_status, is_refusal_status, refusal_reason,
    refusal_reason_without_status,
};

/// The upstream's answer, and the request that it answers.
pub(in crate::proxy) struct UpstreamAnswer {
    pub(in crate::proxy) response: Response<ProxyBody>,
    pub(in crate::proxy) sent: SentRequest,
}

/// How an answer reaches the client.
#[derive(Clone, Copy, Debug)]
pub(super) enum AnswerForm<'a> {
    /// As a whole answer, whatever its status.
    Whole,
    /// As the rest of a stream whose head the client has already: only another stream can follow. Keep-alive
    /// comments pass to the client meanwhile.
    ContinuedStream(&'a KeepAliveSender),
}

/// What an answer means for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The answer is the client's.
    Accepted,
    /// The upstream refused the request, and another one may help.
    Refused(RefusalReason),
    /// An answer that cannot continue the client's stream.
    Unusable,
    /// A stream that ended, or broke off, before its first event.
    Empty,
}

/// Sends `outgoing` and waits for the head of the answer.
pub(super) async fn send_once(
    shared: &Shared,
    parts: &Parts,
    outgoing: &OutgoingRequest,
    form: AnswerForm<'_>,
) -> Result<Response<ProxyBody>, ProxyError> {
    let mut parts = parts.clone();
    let continues_stream = matches!(form, AnswerForm::ContinuedStream(_));
    let needs_identity = outgoing.asks_usage || continues_stream;
    if needs_identity {
        // The event that answers our own question for usage is taken out again, which needs a plain
        // stream. And if the head has gone to the client, it named no content encoding.
        parts.headers.insert(
            header::ACCEPT_ENCODING,
            HeaderValue::from_static("identity"),
        );
    }
    if let Some((name, value)) = &outgoing.affinity {
        parts.headers.insert(name.clone(), value.clone());
    }
    let out = OutBody::Segments(outgoing.frames.clone());
    let response = forward::send(&shared.upstream, parts, out).await?;
    let response = response
        .map(|body| body::IdleTimeout::new(body, shared.limits.response_idle).boxed_unsync());
    // Whoever announces the length of a refusal announces that of the answer to the original, too.
    let response = if outgoing.is_changed() || continues_stream {
        without_stream_length(response)
    } else {
        response
    };
    // Some upstreams compress all the same.
    Ok(if needs_identity {
        decode_stream(response)
    } else {
        response
    })
}

/// Whether `answer` may refuse `outgoing`. If nothing was changed, only a prompt that is too long counts;
/// any other refusal is about the client's own bytes.
pub(super) fn is_possible_refusal(
    answer: &Response<ProxyBody>,
    outgoing: &OutgoingRequest,
) -> bool {
    let status = answer.status().as_u16();
    is_refusal_status(status) || outgoing.is_changed() && is_change_refusal_status(status)
}

/// Error bodies are a few hundred bytes. More is not read.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// What `answer` means, and the answer as it was.
pub(super) async fn classify(
    answer: Response<ProxyBody>,
    outgoing: &OutgoingRequest,
    form: AnswerForm<'_>,
) -> (Response<ProxyBody>, Outcome) {
    if is_possible_refusal(&answer, outgoing) {
        let (answer, reason) = read_refusal(answer).await;
        let outcome = match (reason, form) {
            (Some(reason), _) => Outcome::Refused(reason),
            (None, AnswerForm::Whole) => Outcome::Accepted,
            (None, AnswerForm::ContinuedStream(_)) => Outcome::Unusable,
        };
        return (answer, outcome);
    }
    match form {
        AnswerForm::Whole if may_be_json_error(&answer) => {
            let is_changed = outgoing.is_changed();
            let (answer, outcome) = read_json_error(answer, is_changed).await;
            let too_long = matches!(outcome, Outcome::Refused(RefusalReason::TooLong(_)));
            // If nothing was changed, any other refusal is about the client's own bytes.
            let counts = is_changed || too_long;
            (answer, if counts { outcome } else { Outcome::Accepted })
        }
        AnswerForm::Whole => (answer, Outcome::Accepted),
        AnswerForm::ContinuedStream(_) if !stream_head::is_readable_stream(&answer) => {
            (answer, Outcome::Unusable)
        }
        AnswerForm::ContinuedStream(keep_alive) => {
            let (answer, first_event) = stream_head::read_first_event(answer, keep_alive).await;
            let outcome = match first_event {
                FirstEvent::Answer => Outcome::Accepted,
                FirstEvent::Refused(reason) => Outcome::Refused(reason),
                FirstEvent::Error => Outcome::Unusable,
                FirstEvent::Missing => Outcome::Empty,
            };
            (answer, outcome)
        }
    }
}

/// Reads an answer that may be a refusal, and returns it as it was.
async fn read_refusal(
    response: Response<ProxyBody>,
) -> (Response<ProxyBody>, Option<RefusalReason>) {
    /// How long the rest of an error body may take. Then the client gets what there is, and no reason is known.
    const PATIENCE: Duration = Duration::from_secs(5);
    let (parts, rest) = response.into_parts();
    let (read, rest) = body::peek_within(rest, MAX_ERROR_BYTES, PATIENCE).await;
    let encoding = Encoding::from_header(parts.headers.get(header::CONTENT_ENCODING));
    // A body that cannot be decoded names no reason.
    let plain = plain(encoding, &read).unwrap_or_default();
    let reason = refusal_reason(parts.status.as_u16(), &plain);
    (
        Response::from_parts(parts, body::prepend(read, rest)),
        reason,
    )
}

/// Some gateways collect a stream and announce its length. Its first event may be a refusal all the same, and
/// what follows then has another length.
fn without_stream_length(mut response: Response<ProxyBody>) -> Response<ProxyBody> {
    if is_event_stream(response.headers()) {
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    response
}

/// Whether this can be one of the answers of servers that refuse a request with status 200.
fn may_be_json_error(answer: &Response<ProxyBody>) -> bool {
    let kind = answer.headers().get(header::CONTENT_TYPE);
    answer.status() == StatusCode::OK && kind.is_some_and(may_hold_json)
}

/// Whether a body of this content type can be JSON. Some servers call an error plain text.
fn may_hold_json(kind: &HeaderValue) -> bool {
    let kind = kind.as_bytes().to_ascii_lowercase();
    let essence = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    let essence = essence.trim_ascii();
    essence.ends_with(b"json") || essence == b"text/plain"
}

/// Reads an answer of status 200 as far as it may be an error, and returns it as it was. White space in front of the answer
/// to an unchanged request is not kept from the client. Whatever comes slowly, as lines of JSON do, is kept for some
/// seconds at most.
async fn read_json_error(
    answer: Response<ProxyBody>,
    is_changed: bool,
) -> (Response<ProxyBody>, Outcome) {
    /// How long each of the parts that are read may be kept from the client.
    const PATIENCE: Duration = Duration::from_secs(1);
    /// An error begins with its key, or with a few short members in front of it.
    const BEGINNING: usize = 128;
    let patience = if is_changed { PATIENCE } else { Duration::ZERO };
    let (parts, rest) = answer.into_parts();
    let encoding = Encoding::from_header(parts.headers.get(header::CONTENT_ENCODING));
    // What cannot be decoded is no error.
    let text = |read: &Bytes| plain(encoding, read).unwrap_or_default();
    let begins_object = |text: &[u8]| text.trim_ascii_start().starts_with(b"{");
    let (mut read, mut rest) = match encoding {
        Encoding::Identity => body::peek_blank(rest, patience).await,
        Encoding::Other => (Bytes::new(), Some(rest)),
        _ => body::peek_for(rest, BEGINNING, patience).await,
    };
    let mut outcome = Outcome::Accepted;
    if begins_object(&text(&read)) {
        if encoding == Encoding::Identity {
            (read, rest) = peek_more(read, rest, BEGINNING, PATIENCE).await;
        }
        if memchr::memmem::find(&text(&read), b"\"error\"").is_some() {
            (read, rest) = peek_more(read, rest, MAX_ERROR_BYTES, PATIENCE).await;
            let text = text(&read);
            let reason = refusal_reason_without_status(&text).filter(|_| is_error(&text));
            outcome = reason.map_or(Outcome::Accepted, Outcome::Refused);
        }
    }
    (
        Response::from_parts(parts, body::prepend(read, rest)),
        outcome,
    )
}

/// Reads more of a body of which `read` was read, until that has about `limit` bytes, and no longer than `patience`.
async fn peek_more(
    read: Bytes,
    rest: Option<ProxyBody>,
    limit: usize,
    patience: Duration,
) -> (Bytes, Option<ProxyBody>) {
    let missing = limit.saturating_sub(read.len());
    match rest {
        Some(unread) if missing > 0 => {
            let (more, rest) = body::peek_within(unread, missing, patience).await;
            ([read, more].concat().into(), rest)
        }
        rest => (read, rest),
    }
}

/// Whether `body` is an error, and no answer that says `"error"` somewhere.
fn is_error(body: &[u8]) -> bool {
    let Ok(Value::Object(members)) = serde_json::from_slice(body) else {
        return false;
    };
    let has = |name: &str| members.get(name).is_some_and(|value| !value.is_null());
    let fails = has("error") || members.get("object").is_some_and(|it| it == "error");
    fails && !has("choices")
}

fn plain(encoding: Encoding, read: &Bytes) -> Option<Bytes> {
    let mut decoder = Decoder::new(encoding);
    decoder.push(read.clone()).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use futures_util::StreamExt as _;
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    fn gzip(text: &str) -> Bytes {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap().into()
    }

    #[tokio::test]
    async fn a_compressed_error_with_status_200_is_read_and_the_answer_stays_as_it_was() {
        let error = r#"{"error":{"message":"a failure","code":400}}"#;
        let filler = "and so on, ".repeat(2_000);
        let answer = format!(r#"{{"id":"x","choices":[{{"message":{{"content":"{filler}"}}}}]}}"#);
        for (text, is_error) in [(error, true), (&answer, false)] {
            for (encoding, sent) in [
                ("identity", Bytes::from(text.to_owned())),
                ("gzip", gzip(text)),
            ] {
                let response = Response::builder()
                    .header(header::CONTENT_TYPE, "application/json")
                    .header(header::CONTENT_ENCODING, encoding)
                    .body(body::full(sent.clone()))
                    .unwrap();
                assert!(may_be_json_error(&response));
                let (response, outcome) = read_json_error(response, true).await;
                let is_refused = matches!(outcome, Outcome::Refused(_));
                assert_eq!(is_refused, is_error, "{encoding} {text:.40}");
                let whole = response.into_body().collect().await.unwrap();
                assert_eq!(whole.to_bytes(), sent, "{encoding}");
            }
        }
    }

    /// As a server behind a compressing gateway that works on its answer: one blank, and nothing more for long.
    #[tokio::test(start_paused = true)]
    async fn compressed_white_space_waits_for_a_second_and_not_for_an_unchanged_request() {
        for (is_changed, waited) in [(true, 1_000), (false, 0)] {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(b"\n").unwrap();
            encoder.flush().unwrap();
            let blank = Bytes::from(encoder.get_ref().clone());
            let first = futures_util::stream::iter([Ok(Frame::data(blank))]);
            let body = StreamBody::new(first.chain(futures_util::stream::pending()));
            let response = Response::builder()
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::CONTENT_ENCODING, "gzip")
                .body(body.boxed_unsync())
                .unwrap();
            let begin = tokio::time::Instant::now();
            let reading = read_json_error(response, is_changed);
            let limit = Duration::from_mins(1);
            let (_, outcome) = tokio::time::timeout(limit, reading).await.expect("an end");
            assert_eq!(outcome, Outcome::Accepted);
            assert_eq!(begin.elapsed().as_millis(), waited, "{is_changed}");
        }
    }

    /// Lines of JSON, one each second, and an error body whose end does not come.
    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_is_kept_from_the_client_for_some_seconds_at_most() {
        let slow = |first: &'static str, status: u16| {
            let lines = futures_util::stream::unfold(first, |line| async move {
                let frame = Ok(Frame::data(Bytes::from_static(line.as_bytes())));
                tokio::time::sleep(Duration::from_secs(3)).await;
                Some((frame, "{}\n"))
            });
            Response::builder()
                .status(status)
                .header(header::CONTENT_TYPE, "application/x-ndjson")
                .body(StreamBody::new(Box::pin(lines)).boxed_unsync())
                .unwrap()
        };
        let begin = tokio::time::Instant::now();
        let (_, outcome) = read_json_error(slow("{\"error\":null}\n", 200), false).await;
        assert_eq!(outcome, Outcome::Accepted);
        assert!(
            begin.elapsed() <= Duration::from_secs(5),
            "{:?}",
            begin.elapsed()
        );
        let begin = tokio::time::Instant::now();
        let (answer, _) = read_refusal(slow("{\"error\":", 400)).await;
        assert!(
            begin.elapsed() <= Duration::from_secs(6),
            "{:?}",
            begin.elapsed()
        );
        let first = answer.into_body().frame().await.unwrap().unwrap();
        assert!(first.into_data().unwrap().starts_with(b"{\"error\":"));
    }
}
