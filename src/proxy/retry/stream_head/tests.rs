use futures_util::{StreamExt as _, stream};

use super::*;
use crate::wire::usage::{Blame, Excess};

const REFUSAL: &str = r#"{"error":{"message":"This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.","code":"context_length_exceeded"}}"#;
const WORDS: &str = r#"{"choices":[{"index":0,"delta":{"content":"prompt is too long"}}]}"#;

#[test]
fn only_an_error_event_is_classified_as_an_error() {
    let too_long = FirstEvent::Refused(RefusalReason::TooLong(Some(Excess {
        window: 8_192,
        sent: 9_000,
    })));
    for (event, expected) in [
        (REFUSAL, too_long),
        (
            r#"{"object":"error","message":"Input is too long","code":400}"#,
            FirstEvent::Refused(RefusalReason::TooLong(None)),
        ),
        (r#"{"error":{"message":"overloaded"}}"#, FirstEvent::Error),
        (r#"{"error":"rate","code":429}"#, FirstEvent::Error),
        (
            r#"{"error":{"message":"roles must alternate","type":"BadRequestError","code":400}}"#,
            FirstEvent::Refused(RefusalReason::Declined(Blame::Placement)),
        ),
        (
            r#"{"error":{"message":"no","code":400},"choices":[{"delta":{"content":"So"}}]}"#,
            FirstEvent::Answer,
        ),
        (WORDS, FirstEvent::Answer),
        (
            r#"{"choices":[],"prompt_filter_results":[]}"#,
            FirstEvent::Answer,
        ),
        (r#"{"error":null,"choices":[]}"#, FirstEvent::Answer),
        (
            r#"{"id":"x","error":{"message":"prompt is too long"},"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            FirstEvent::Refused(RefusalReason::TooLong(None)),
        ),
        (
            r#"{"error":{"message":"prompt is too long"},"choices":[{"delta":{"content":"So"}}]}"#,
            FirstEvent::Answer,
        ),
        (r#"{"message":"prompt is too long"}"#, FirstEvent::Answer),
        ("prompt is too long", FirstEvent::Answer),
        ("[DONE]", FirstEvent::Answer),
    ] {
        assert_eq!(classify_event(event), expected, "{event}");
    }
}

/// Reports the first event, and continues with other text if it has any.
struct Ear(
    tokio::sync::mpsc::UnboundedSender<FirstEvent>,
    Option<&'static str>,
);

impl FirstEventHandler for Ear {
    async fn on_first_event(
        self,
        first_event: FirstEvent,
        _: KeepAliveSender,
    ) -> Option<ProxyBody> {
        self.0.send(first_event).expect("somebody listens");
        let other = self.1?;
        Some(crate::proxy::body::full(Bytes::from_static(
            other.as_bytes(),
        )))
    }
}

type Sender = tokio::sync::mpsc::UnboundedSender<&'static str>;

/// A body whose pieces arrive when they are sent, its first event, and the body that goes to the client.
fn live(
    other: Option<&'static str>,
) -> (
    Sender,
    tokio::sync::mpsc::UnboundedReceiver<FirstEvent>,
    ProxyBody,
) {
    let (send, mut pieces) = tokio::sync::mpsc::unbounded_channel::<&'static str>();
    let frames = stream::poll_fn(move |cx| pieces.poll_recv(cx))
        .map(|piece| Ok::<_, BoxError>(Frame::data(Bytes::from_static(piece.as_bytes()))));
    let (events_sender, events) = tokio::sync::mpsc::unbounded_channel();
    let body = StreamBody::new(frames).boxed_unsync();
    (
        send,
        events,
        hold_first_event(body, Ear(events_sender, other)),
    )
}

async fn next(body: &mut ProxyBody) -> Bytes {
    let frame = body.frame().await.expect("a frame").expect("no error");
    frame.into_data().expect("data")
}

#[tokio::test]
async fn only_the_first_event_is_held_and_all_pass_unchanged() {
    let (send, mut events, mut body) = live(None);
    send.send(": working\n\n").unwrap();
    assert_eq!(next(&mut body).await, ": working\n\n");
    assert!(events.try_recv().is_err(), "a comment says nothing");
    send.send("event: x\ndata: {\"err").unwrap();
    let pending = futures_util::poll!(body.frame());
    assert!(pending.is_pending(), "it may be an error");
    send.send("or\":null,\"choices\":[{}]}\n\n").unwrap();
    assert_eq!(next(&mut body).await, "event: x\ndata: {\"err");
    assert_eq!(next(&mut body).await, "or\":null,\"choices\":[{}]}\n\n");
    assert_eq!(events.recv().await, Some(FirstEvent::Answer));
    // From here on nothing is held.
    send.send("data: {").unwrap();
    assert_eq!(next(&mut body).await, "data: {");
    drop(send);
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn an_event_that_begins_like_an_answer_is_not_held() {
    for partial in [
        "data: {\"id",
        "data:{ \"ch",
        "data: [D",
        "data: {\"errors\"",
        "data: {\"object\": \"chat",
        "data: {\"object\":null",
    ] {
        let (send, mut events, mut body) = live(None);
        send.send(partial).unwrap();
        assert_eq!(next(&mut body).await, partial);
        assert_eq!(events.recv().await, Some(FirstEvent::Answer), "{partial}");
    }
    for partial in [
        "data",
        "data: ",
        "data: {",
        "data: {\"",
        "data: {\"e",
        "data: {\"error\": {",
        "data: {\"object\"",
        "data: {\"object\" : \"er",
        "data: {\"object\":\"error\",\"message\"",
    ] {
        assert!(may_be_error(partial.as_bytes()), "{partial}");
    }
}

#[tokio::test]
async fn a_refused_stream_is_replaced_by_the_retry_or_forwarded() {
    for other in [None, Some("data: other\n\n")] {
        for pieces in [1, 7, 1 << 20] {
            let text = format!("\u{feff}: hm\r\n\r\ndata: {REFUSAL}\r\n\r\ndata: [DONE]\r\n\r\n");
            let frames = text.as_bytes().chunks(pieces);
            let frames: Vec<Result<_, BoxError>> = frames
                .map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))))
                .collect();
            let (events_sender, mut events) = tokio::sync::mpsc::unbounded_channel();
            let body = StreamBody::new(stream::iter(frames)).boxed_unsync();
            let body = hold_first_event(body, Ear(events_sender, other));
            let received = body.collect().await.unwrap().to_bytes();
            assert!(matches!(
                events.recv().await,
                Some(FirstEvent::Refused(RefusalReason::TooLong(Some(_))))
            ));
            match other {
                None => assert_eq!(received, text, "in pieces of {pieces}"),
                Some(other) => assert!(received.ends_with(other.as_bytes()), "{received:?}"),
            }
            assert_eq!(
                other.is_some(),
                memchr::memmem::find(&received, b"maximum context").is_none()
            );
        }
    }
}

#[tokio::test]
async fn an_event_too_long_for_an_error_is_not_held() {
    let (send, mut events, mut body) = live(None);
    let long: &'static str = "x".repeat(MAX_HELD_BYTES + 1).leak();
    send.send("data: {\"error\":").unwrap();
    send.send(long).unwrap();
    assert_eq!(next(&mut body).await, "data: {\"error\":");
    assert_eq!(next(&mut body).await, long);
    assert_eq!(events.recv().await, Some(FirstEvent::Answer));
}

#[tokio::test]
async fn a_stream_that_breaks_before_its_first_event_breaks_for_the_client() {
    let frames: Vec<Result<Frame<Bytes>, BoxError>> = vec![
        Ok(Frame::data(Bytes::from_static(b"data: {"))),
        Err("reset".into()),
    ];
    let (events_sender, mut events) = tokio::sync::mpsc::unbounded_channel();
    let body = StreamBody::new(stream::iter(frames)).boxed_unsync();
    let mut body = hold_first_event(body, Ear(events_sender, None));
    assert_eq!(next(&mut body).await, "data: {");
    assert!(body.frame().await.expect("an end").is_err());
    assert_eq!(events.recv().await, Some(FirstEvent::Missing));
}

#[tokio::test]
async fn reading_the_first_event_leaves_the_answer_complete() {
    for first in [REFUSAL, WORDS] {
        let text = format!("data: {first}\n\ndata: more\n\n");
        let frames: Vec<Result<_, BoxError>> = text
            .as_bytes()
            .chunks(9)
            .map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))))
            .collect();
        let body = StreamBody::new(stream::iter(frames)).boxed_unsync();
        let (beside, _passing) = mpsc::channel(KEEP_ALIVE_BUFFER);
        let (answer, first_event) = read_first_event(Response::new(body), &beside).await;
        assert_eq!(first_event == FirstEvent::Answer, first == WORDS);
        let whole = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(whole, text);
    }
}

/// Reads a second stream as `retry` does.
struct Again(ProxyBody);

impl FirstEventHandler for Again {
    async fn on_first_event(self, _: FirstEvent, beside: KeepAliveSender) -> Option<ProxyBody> {
        let (answer, _) = read_first_event(Response::new(self.0), &beside).await;
        Some(answer.into_body())
    }
}

#[tokio::test]
async fn keep_alive_comments_of_a_second_stream_pass_before_its_first_event() {
    let (send, mut pieces) = mpsc::unbounded_channel::<&'static str>();
    let frames = stream::poll_fn(move |cx| pieces.poll_recv(cx))
        .map(|piece| Ok::<_, BoxError>(Frame::data(Bytes::from_static(piece.as_bytes()))));
    let again = Again(StreamBody::new(frames).boxed_unsync());
    let refused = format!("data: {REFUSAL}\n\n");
    let mut body = hold_first_event(crate::proxy::body::full(refused.into()), again);
    for _ in 0..3 {
        assert!(futures_util::poll!(body.frame()).is_pending());
        send.send(": still here\n\n").unwrap();
        assert_eq!(next(&mut body).await, ": still here\n\n");
    }
    send.send("data: {\"id\"").unwrap();
    assert_eq!(next(&mut body).await, "data: {\"id\"");
    drop(send);
    assert!(body.frame().await.is_none());
}
