use futures_util::{StreamExt as _, stream};

use super::*;

const REFUSAL: &str = r#"{"error":{"message":"This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.","code":"context_length_exceeded"}}"#;
const WORDS: &str = r#"{"choices":[{"index":0,"delta":{"content":"prompt is too long"}}]}"#;

#[test]
fn only_an_error_is_taken_for_one() {
    let too_long = Said::TooLong(Some(Excess {
        window: 8_192,
        sent: 9_000,
    }));
    for (event, expected) in [
        (REFUSAL, too_long),
        (
            r#"{"object":"error","message":"Input is too long","code":400}"#,
            Said::TooLong(None),
        ),
        (r#"{"error":{"message":"overloaded"}}"#, Said::Error),
        (r#"{"error":"rate","code":429}"#, Said::Error),
        (
            r#"{"error":{"message":"roles must alternate","type":"BadRequestError","code":400}}"#,
            Said::Declined(Blame::Place),
        ),
        (
            r#"{"error":{"message":"no","code":400},"choices":[{"delta":{"content":"So"}}]}"#,
            Said::Answer,
        ),
        (WORDS, Said::Answer),
        (r#"{"choices":[],"prompt_filter_results":[]}"#, Said::Answer),
        (r#"{"error":null,"choices":[]}"#, Said::Answer),
        (
            r#"{"id":"x","error":{"message":"prompt is too long"},"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            Said::TooLong(None),
        ),
        (
            r#"{"error":{"message":"prompt is too long"},"choices":[{"delta":{"content":"So"}}]}"#,
            Said::Answer,
        ),
        (r#"{"message":"prompt is too long"}"#, Said::Answer),
        ("prompt is too long", Said::Answer),
        ("[DONE]", Said::Answer),
    ] {
        assert_eq!(said(event), expected, "{event}");
    }
}

/// Says what it heard, and goes on with other words where it is told to.
struct Ear(
    tokio::sync::mpsc::UnboundedSender<Said>,
    Option<&'static str>,
);

impl Hears for Ear {
    async fn heard(self, said: Said, _: Beside) -> Option<ProxyBody> {
        self.0.send(said).expect("somebody listens");
        let other = self.1?;
        Some(super::super::body::full(Bytes::from_static(
            other.as_bytes(),
        )))
    }
}

type Sender = tokio::sync::mpsc::UnboundedSender<&'static str>;

/// A body whose pieces come when they are sent, what is heard of it, and it as it goes on.
fn live(
    other: Option<&'static str>,
) -> (
    Sender,
    tokio::sync::mpsc::UnboundedReceiver<Said>,
    ProxyBody,
) {
    let (send, mut pieces) = tokio::sync::mpsc::unbounded_channel::<&'static str>();
    let frames = stream::poll_fn(move |cx| pieces.poll_recv(cx))
        .map(|piece| Ok::<_, BoxError>(Frame::data(Bytes::from_static(piece.as_bytes()))));
    let (tell, heard) = tokio::sync::mpsc::unbounded_channel();
    let body = StreamBody::new(frames).boxed_unsync();
    (send, heard, listened(body, Ear(tell, other)))
}

async fn next(body: &mut ProxyBody) -> Bytes {
    let frame = body.frame().await.expect("a frame").expect("no error");
    frame.into_data().expect("data")
}

#[tokio::test]
async fn every_event_goes_on_when_it_is_there_and_as_it_came() {
    let (send, mut heard, mut body) = live(None);
    send.send(": working\n\n").unwrap();
    assert_eq!(next(&mut body).await, ": working\n\n");
    assert!(heard.try_recv().is_err(), "a comment says nothing");
    send.send("event: x\ndata: {\"err").unwrap();
    let pending = futures_util::poll!(body.frame());
    assert!(pending.is_pending(), "it may be an error");
    send.send("or\":null,\"choices\":[{}]}\n\n").unwrap();
    assert_eq!(next(&mut body).await, "event: x\ndata: {\"err");
    assert_eq!(next(&mut body).await, "or\":null,\"choices\":[{}]}\n\n");
    assert_eq!(heard.recv().await, Some(Said::Answer));
    // From here on nothing is held.
    send.send("data: {").unwrap();
    assert_eq!(next(&mut body).await, "data: {");
    drop(send);
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn what_begins_as_an_answer_does_is_not_held() {
    for begun in [
        "data: {\"id",
        "data:{ \"ch",
        "data: [D",
        "data: {\"errors\"",
        "data: {\"object\": \"chat",
        "data: {\"object\":null",
    ] {
        let (send, mut heard, mut body) = live(None);
        send.send(begun).unwrap();
        assert_eq!(next(&mut body).await, begun);
        assert_eq!(heard.recv().await, Some(Said::Answer), "{begun}");
    }
    for begun in [
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
        assert!(may_be_error(begun.as_bytes()), "{begun}");
    }
}

#[tokio::test]
async fn a_refusal_is_replaced_by_what_goes_on_instead_or_passes() {
    for other in [None, Some("data: other\n\n")] {
        for pieces in [1, 7, 1 << 20] {
            let text = format!("\u{feff}: hm\r\n\r\ndata: {REFUSAL}\r\n\r\ndata: [DONE]\r\n\r\n");
            let frames = text.as_bytes().chunks(pieces);
            let frames: Vec<Result<_, BoxError>> = frames
                .map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))))
                .collect();
            let (tell, mut heard) = tokio::sync::mpsc::unbounded_channel();
            let body = StreamBody::new(stream::iter(frames)).boxed_unsync();
            let body = listened(body, Ear(tell, other));
            let came = body.collect().await.unwrap().to_bytes();
            assert!(matches!(heard.recv().await, Some(Said::TooLong(Some(_)))));
            match other {
                None => assert_eq!(came, text, "in pieces of {pieces}"),
                Some(other) => assert!(came.ends_with(other.as_bytes()), "{came:?}"),
            }
            assert_eq!(
                other.is_some(),
                memchr::memmem::find(&came, b"maximum context").is_none()
            );
        }
    }
}

#[tokio::test]
async fn what_is_too_long_to_be_an_error_is_not_held() {
    let (send, mut heard, mut body) = live(None);
    let long: &'static str = "x".repeat(HELD + 1).leak();
    send.send("data: {\"error\":").unwrap();
    send.send(long).unwrap();
    assert_eq!(next(&mut body).await, "data: {\"error\":");
    assert_eq!(next(&mut body).await, long);
    assert_eq!(heard.recv().await, Some(Said::Answer));
}

#[tokio::test]
async fn what_breaks_before_it_said_anything_breaks_for_the_client() {
    let frames: Vec<Result<Frame<Bytes>, BoxError>> = vec![
        Ok(Frame::data(Bytes::from_static(b"data: {"))),
        Err("reset".into()),
    ];
    let (tell, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let body = StreamBody::new(stream::iter(frames)).boxed_unsync();
    let mut body = listened(body, Ear(tell, None));
    assert_eq!(next(&mut body).await, "data: {");
    assert!(body.frame().await.expect("an end").is_err());
    assert_eq!(heard.recv().await, Some(Said::Nothing));
}

#[tokio::test]
async fn an_answer_that_is_only_looked_at_is_whole_afterwards() {
    for first in [REFUSAL, WORDS] {
        let text = format!("data: {first}\n\ndata: more\n\n");
        let frames: Vec<Result<_, BoxError>> = text
            .as_bytes()
            .chunks(9)
            .map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))))
            .collect();
        let body = StreamBody::new(stream::iter(frames)).boxed_unsync();
        let (beside, _passing) = mpsc::channel(BESIDE);
        let (answer, said) = look(Response::new(body), &beside).await;
        assert_eq!(said == Said::Answer, first == WORDS);
        let whole = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(whole, text);
    }
}

/// Looks at a second stream as the ladder does.
struct Again(ProxyBody);

impl Hears for Again {
    async fn heard(self, _: Said, beside: Beside) -> Option<ProxyBody> {
        let (answer, _) = look(Response::new(self.0), &beside).await;
        Some(answer.into_body())
    }
}

#[tokio::test]
async fn what_keeps_a_second_stream_alive_passes_before_it_says_anything() {
    let (send, mut pieces) = mpsc::unbounded_channel::<&'static str>();
    let frames = stream::poll_fn(move |cx| pieces.poll_recv(cx))
        .map(|piece| Ok::<_, BoxError>(Frame::data(Bytes::from_static(piece.as_bytes()))));
    let again = Again(StreamBody::new(frames).boxed_unsync());
    let refused = format!("data: {REFUSAL}\n\n");
    let mut body = listened(super::super::body::full(refused.into()), again);
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
