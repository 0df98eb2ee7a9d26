//! The tee: the client gets every frame as it came, whatever becomes of the copy, and exactly one
//! value says what the answer was.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod usage_shapes;

use std::convert::Infallible;
use std::io::Write as _;
use std::time::Duration;

use bytes::Bytes;
use diarist::proxy::decode::Encoding;
use diarist::proxy::tee::{AnswerMessage, EndReason, ObservedAnswer, OnAnswer, TeeSpec, tee};
use diarist::tasks::Tasks;
use diarist::wire::usage::Usage;
use futures_util::{FutureExt as _, stream};
use http::{HeaderMap, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Full, StreamBody, channel::Channel};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

const STREAM: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Grüße\"}}]}\n\n\
    data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n\
    data: [DONE]\n\n";
const ANSWER: &str = "{\"choices\":[{\"index\":0,\"message\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}";

fn usage() -> Usage {
    Usage {
        prompt: Some(7),
        completion: Some(2),
        ..Usage::default()
    }
}

fn spec(streaming: bool, encoding: Encoding) -> TeeSpec {
    TeeSpec {
        streaming,
        encoding,
        filter_usage: false,
    }
}

/// Nobody wants to know what was said.
fn ignore_answer() -> OnAnswer {
    Box::new(|_| {})
}

/// What the model said is known before the client has the last of it: the frame that says why it has ended,
/// the last byte of what was promised, or the end.
#[tokio::test]
async fn the_answer_is_reported_before_its_last_byte_is_sent() {
    let (whole, stream) = (ANSWER.as_bytes(), STREAM.as_bytes());
    let done = STREAM.find("data: [DONE]").unwrap();
    let events_apart = body(vec![&stream[..done], &stream[done..]]);
    assert_text_at_poll(events_apart, events(), "Grüße", 1).await;
    let promised = Full::new(Bytes::from_static(whole));
    assert_text_at_poll(promised, spec(false, Encoding::Identity), "x", 1).await;
    let chunked = body(vec![&whole[..20], &whole[20..]]);
    assert_text_at_poll(chunked, spec(false, Encoding::Identity), "x", 2).await;
}

/// What only looks like the end is none; and a stream need not say that it is one.
#[tokio::test]
async fn the_text_done_inside_an_answer_does_not_end_it() {
    let says = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Say [DONE] \"}}]}\n\n";
    let more = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"twice.\"}}]}\n\n";
    let ends = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    for spec in [events(), spec(false, Encoding::Identity)] {
        let (sender, receiver) = std::sync::mpsc::sync_channel(8);
        let on_answer: OnAnswer = Box::new(move |messages: &[&AnswerMessage]| {
            sender.send(messages[0].text().to_owned()).unwrap();
        });
        let pieces = [says, more, ends].map(str::as_bytes).to_vec();
        let (mut teed, _observed) = tee(body(pieces), spec, on_answer);
        for _ in 0..3 {
            teed.frame().await.unwrap().unwrap();
        }
        // The client has the reason why it ended, and may go on.
        assert_eq!(receiver.try_iter().last().unwrap(), "Say [DONE] twice.");
    }
}

/// The client may go on with any choice.
#[tokio::test]
async fn every_choice_is_read_after_a_byte_order_mark() {
    let choice = |index: usize| {
        let message = format!("choice {index}");
        serde_json::json!({"index": index, "finish_reason": "stop",
            "message": {"role": "assistant", "content": message}})
    };
    let choices: Vec<_> = (0..128).map(choice).collect();
    let answer = format!("\u{feff}{}", serde_json::json!({ "choices": choices }));
    let (sender, receiver) = std::sync::mpsc::channel();
    let on_answer: OnAnswer = Box::new(move |messages: &[&AnswerMessage]| {
        let texts: Vec<String> = messages
            .iter()
            .map(|message| message.text().to_owned())
            .collect();
        sender.send(texts).unwrap();
    });
    let spec = spec(false, Encoding::Identity);
    let (teed, _observed) = tee(body(vec![answer.as_bytes()]), spec, on_answer);
    teed.collect().await.unwrap();
    let texts = receiver.try_iter().last().unwrap();
    assert_eq!(texts.len(), 128);
    assert_eq!(texts[127], "choice 127");
}

/// `text` is heard with the poll of this number, the end being one, and not before.
async fn assert_text_at_poll<B>(upstream: B, spec: TeeSpec, text: &str, number: usize)
where
    B: Body<Data = Bytes, Error = Infallible> + Unpin,
{
    let (sender, receiver) = std::sync::mpsc::channel();
    let on_answer: OnAnswer = Box::new(move |messages: &[&AnswerMessage]| {
        let texts: Vec<String> = messages
            .iter()
            .map(|message| message.text().to_owned())
            .collect();
        sender.send(texts).unwrap();
    });
    let (mut teed, _observed) = tee(upstream, spec, on_answer);
    for poll in 1..=number {
        let _frame = teed.frame().await;
        let received = receiver.try_recv().ok();
        assert_eq!(received.is_some(), poll == number, "{text}, {poll}");
        assert!(received.is_none_or(|texts| texts == [text]));
    }
}

fn events() -> TeeSpec {
    spec(true, Encoding::Identity)
}

fn body(pieces: Vec<&[u8]>) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
    let frames = pieces
        .into_iter()
        .map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))))
        .collect::<Vec<_>>();
    StreamBody::new(stream::iter(frames))
}

/// What the client got, and what was observed.
async fn run<B>(body: B, spec: TeeSpec) -> (Bytes, ObservedAnswer)
where
    B: Body<Data = Bytes, Error = Infallible> + Unpin,
{
    let (teed, observed) = tee(body, spec, ignore_answer());
    let got = teed.collect().await.unwrap().to_bytes();
    (got, wait(observed).await)
}

async fn wait(observed: oneshot::Receiver<ObservedAnswer>) -> ObservedAnswer {
    tokio::time::timeout(Duration::from_secs(20), observed)
        .await
        .expect("one value always comes")
        .unwrap()
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

fn zstd(plain: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(plain, ruzstd::encoding::CompressionLevel::Fastest)
}

#[tokio::test]
async fn a_stream_in_pieces_of_any_size_is_read_completely() {
    for size in [1, 2, 3, 5, 17, 100, STREAM.len()] {
        let (got, observed) = run(body(STREAM.as_bytes().chunks(size).collect()), events()).await;
        assert_eq!(got, STREAM, "pieces of {size}");
        assert_eq!(observed.ended, EndReason::Complete);
        assert!(
            observed.saw_done && observed.capture_complete,
            "pieces of {size}"
        );
        assert!(!observed.refusal && observed.error.is_none());
        assert_eq!(observed.finish_reasons, ["stop"]);
        assert_eq!(observed.usage, Some(usage()));
        assert_eq!(observed.bytes, STREAM.len() as u64);
        assert!(observed.first_byte.is_some());
    }
}

#[tokio::test]
async fn the_usage_event_is_read_before_it_is_filtered_out() {
    let filter_spec = TeeSpec {
        filter_usage: true,
        ..events()
    };
    let report = STREAM.find("data: {\"choices\":[],").unwrap();
    let after = STREAM.find("data: [DONE]").unwrap();
    let expected = [&STREAM[..report], &STREAM[after..]].concat();
    for size in [1, 7, STREAM.len()] {
        let (got, observed) =
            run(body(STREAM.as_bytes().chunks(size).collect()), filter_spec).await;
        assert_eq!(got, expected);
        assert_eq!(observed.usage, Some(usage()));
        assert_eq!(observed.bytes, STREAM.len() as u64);
    }
}

#[tokio::test]
async fn each_frame_and_the_trailers_pass_unchanged() {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "1".parse().unwrap());
    let frames: Vec<Result<_, Infallible>> = vec![
        Ok(Frame::data(Bytes::from_static(b"data: {}"))),
        Ok(Frame::data(Bytes::new())),
        Ok(Frame::data(Bytes::from_static(b"\n\n"))),
        Ok(Frame::trailers(trailers.clone())),
    ];
    let (mut teed, observed) = tee(
        StreamBody::new(stream::iter(frames)),
        events(),
        ignore_answer(),
    );
    for expected in ["data: {}", "", "\n\n"] {
        let frame = teed.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), expected);
    }
    let last = teed.frame().await.unwrap().unwrap();
    assert_eq!(last.into_trailers().unwrap(), trailers);
    // A server may well drop the body now, without asking for its end.
    drop(teed);
    assert_eq!(wait(observed).await.ended, EndReason::Complete);
}

#[tokio::test]
async fn the_end_reason_is_hung_up_if_the_client_leaves() {
    let finished = STREAM.find("data: {\"choices\":[],").unwrap();
    for (taken, saw_done) in [
        (0, false),
        (20, false),
        (finished, true),
        (STREAM.len() - 1, true),
    ] {
        let (mut sender, upstream) = Channel::<Bytes, Infallible>::new(4);
        let (mut teed, observed) = tee(upstream, events(), ignore_answer());
        if taken > 0 {
            sender
                .send_data(Bytes::copy_from_slice(&STREAM.as_bytes()[..taken]))
                .await
                .unwrap();
            teed.frame().await.unwrap().unwrap();
        }
        drop(teed);
        let observed = wait(observed).await;
        assert_eq!(observed.ended, EndReason::HungUp, "after {taken}");
        assert_eq!(observed.saw_done, saw_done, "after {taken}");
        assert_eq!(observed.bytes, taken as u64);
        assert_eq!(observed.first_byte.is_some(), taken > 0);
    }
}

#[tokio::test]
async fn an_upstream_that_breaks_off_is_reported_as_upstream_error() {
    let frames = vec![
        Ok(Frame::data(Bytes::from_static(STREAM.as_bytes()))),
        Err("reset"),
    ];
    let (teed, observed) = tee(
        StreamBody::new(stream::iter(frames)),
        events(),
        ignore_answer(),
    );
    assert_eq!(teed.collect().await.unwrap_err(), "reset");
    let observed = wait(observed).await;
    assert_eq!(observed.ended, EndReason::UpstreamError);
    assert_eq!(observed.usage, Some(usage()));
}

#[tokio::test]
async fn no_frame_is_delayed() {
    for (count, size) in [(5_000, 100), (200, 64 * 1024)] {
        let mut piece = vec![b'x'; size];
        piece[size - 2..].fill(b'\n');
        let (mut teed, observed) = tee(body(vec![&piece; count]), events(), ignore_answer());
        for _ in 0..count {
            let frame = teed
                .frame()
                .now_or_never()
                .expect("never waits")
                .unwrap()
                .unwrap();
            assert_eq!(frame.into_data().unwrap().len(), size);
        }
        assert!(teed.frame().now_or_never().unwrap().is_none());
        let observed = wait(observed).await;
        assert_eq!(observed.ended, EndReason::Complete);
        assert_eq!(observed.bytes, (count * size) as u64);
        assert!(observed.capture_complete);
    }
}

/// Some servers write an empty reason in every piece. It ends nothing.
#[tokio::test]
async fn an_empty_finish_reason_does_not_end_the_answer() {
    for none in ["\"\"", "\"null\"", "null"] {
        let piece = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"x\"}},\"finish_reason\":{none}}}]}}\n\n"
        );
        let (calls, count) = std::sync::mpsc::channel();
        let on_answer: OnAnswer = Box::new(move |_| calls.send(()).unwrap());
        let (teed, observed) = tee(body(vec![piece.as_bytes(); 50]), events(), on_answer);
        teed.collect().await.unwrap();
        let observed = wait(observed).await;
        assert!(!observed.saw_done, "{none}");
        assert_eq!(observed.finish_reasons, [""; 0]);
        assert_eq!(count.try_iter().count(), 1, "read at the end only: {none}");
    }
}

#[tokio::test]
async fn an_empty_error_field_is_not_an_error() {
    for (error, is_error) in [
        ("null", false),
        ("false", false),
        ("\"\"", false),
        ("{}", false),
        ("\"x\"", true),
        ("{\"message\":\"x\"}", true),
    ] {
        let answer = ANSWER.replacen('{', &format!("{{\"error\":{error},"), 1);
        let (_, observed) = run(
            body(vec![answer.as_bytes()]),
            spec(false, Encoding::Identity),
        )
        .await;
        assert_eq!(observed.error.is_some(), is_error, "{error}");
    }
}

/// A model makes a few calls; a list of thousands is not put together, and passes all the same.
#[tokio::test]
async fn thousands_of_tool_calls_pass_but_are_not_collected() {
    let call = |index: usize| {
        format!("{{\"index\":{index},\"id\":\"c{index}\",\"function\":{{\"name\":\"f\"}}}}")
    };
    let calls: Vec<String> = (0..5_000).map(call).collect();
    let event = format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"tool_calls\":[{}]}},\"finish_reason\":\"tool_calls\"}}]}}\n\n",
        calls.join(",")
    );
    let (sender, messages) = std::sync::mpsc::channel();
    let on_answer: OnAnswer = Box::new(move |messages| sender.send(messages.len()).unwrap());
    let (teed, observed) = tee(body(vec![event.as_bytes()]), events(), on_answer);
    assert_eq!(teed.collect().await.unwrap().to_bytes(), event);
    assert!(wait(observed).await.saw_done);
    assert_eq!(messages.try_iter().max(), Some(0));
}

/// Whoever hears it may fail: the client gets its answer, and what it was is told.
#[tokio::test]
async fn a_panic_in_the_answer_callback_does_not_reach_the_client() {
    let fault: OnAnswer = Box::new(|_| panic!("a planted fault"));
    let (teed, observed) = tee(body(vec![STREAM.as_bytes()]), events(), fault);
    assert_eq!(teed.collect().await.unwrap().to_bytes(), STREAM);
    let observed = wait(observed).await;
    assert_eq!(observed.ended, EndReason::Complete);
    assert_eq!(observed.text.as_deref(), Some("Grüße"));
}

#[tokio::test]
async fn non_streamed_answers_pass_and_are_read_up_to_a_limit() {
    let (got, observed) = run(
        body(vec![ANSWER.as_bytes()]),
        spec(false, Encoding::Identity),
    )
    .await;
    assert_eq!(got, ANSWER);
    assert!(observed.saw_done && observed.capture_complete);
    assert_eq!(observed.usage, Some(usage()));

    for (size, complete) in [(1_000_000, true), (9_000_000, false)] {
        let long = ANSWER.replace("\"x\"", &format!("\"{}\"", "x".repeat(size)));
        let pieces = long.as_bytes().chunks(100_000);
        let (mut sender, upstream) = Channel::<Bytes, Infallible>::new(1);
        let (teed, observed) = tee(upstream, spec(false, Encoding::Identity), ignore_answer());
        let send = async {
            for piece in pieces {
                sender
                    .send_data(Bytes::copy_from_slice(piece))
                    .await
                    .unwrap();
                tokio::task::yield_now().await;
            }
            drop(sender);
        };
        let (got, ()) = tokio::join!(teed.collect(), send);
        assert!(got.unwrap().to_bytes() == long);
        let observed = wait(observed).await;
        assert_eq!(observed.capture_complete, complete, "{size}");
        assert_eq!(observed.usage, complete.then(usage));
    }
}

#[tokio::test]
async fn compressed_answers_pass_compressed_and_are_read() {
    for (encoding, stream, answer) in [
        (
            Encoding::Gzip,
            gzip(STREAM.as_bytes()),
            gzip(ANSWER.as_bytes()),
        ),
        (
            Encoding::Zstd,
            zstd(STREAM.as_bytes()),
            zstd(ANSWER.as_bytes()),
        ),
    ] {
        for (bytes, streaming) in [(stream, true), (answer, false)] {
            // The filter has nothing to filter in bytes it cannot read.
            let filter_spec = TeeSpec {
                filter_usage: true,
                ..spec(streaming, encoding)
            };
            let (got, observed) = run(body(bytes.chunks(3).collect()), filter_spec).await;
            assert_eq!(got, bytes);
            assert!(
                observed.saw_done && observed.capture_complete,
                "{encoding:?}"
            );
            assert_eq!(observed.usage, Some(usage()));
        }
    }
    let unreadable = TeeSpec {
        filter_usage: true,
        ..spec(true, Encoding::Other)
    };
    let (got, observed) = run(body(vec![STREAM.as_bytes()]), unreadable).await;
    assert_eq!(got, STREAM);
    assert!(!observed.capture_complete);
}

#[tokio::test]
async fn ends_refusals_and_errors_of_answers_are_recognised() {
    let cases = [
        // No [DONE]: a finish reason on every choice is an end; on one of two it is none.
        (
            "data: {\"choices\":[{\"index\":0,\"finish_reason\":\"length\"}]}\n\n",
            true,
            false,
            false,
        ),
        (
            "data: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"},{\"index\":1,\"delta\":{}}]}\n\n",
            false,
            false,
            false,
        ),
        ("data:[DONE]", true, false, false),
        (
            "data: {\"choices\":[{\"delta\":{\"refusal\":\"No.\"}}]}\n\n",
            false,
            true,
            false,
        ),
        (
            "data: {\"choices\":[{\"delta\":{\"refusal\":null},\"finish_reason\":\"content_filter\"}]}\n\n",
            true,
            true,
            false,
        ),
        (
            "data: {\"error\":{\"message\":\"overloaded\"}}\n\n",
            false,
            false,
            true,
        ),
        (
            "event: ping\ndata: {\"error\":null}\n\n: comment\n\ndata: not json\n\n",
            false,
            false,
            false,
        ),
    ];
    for (text, saw_done, refusal, error) in cases {
        let (_, observed) = run(body(vec![text.as_bytes()]), events()).await;
        assert_eq!(observed.saw_done, saw_done, "{text}");
        assert_eq!(observed.refusal, refusal, "{text}");
        assert_eq!(observed.error.is_some(), error, "{text}");
        assert!(observed.capture_complete, "{text}");
    }
    // Its words are not kept: beyond the most choices, beside a piece, and after a megabyte.
    let long = "a".repeat(1024 * 1024 + 1);
    for refused in [
        r#"{"choices":[{"index":200,"message":{"role":"assistant","refusal":"No."}}]}"#.to_owned(),
        r#"{"choices":[{"index":200,"delta":{"refusal":"No."}}]}"#.to_owned(),
        r#"{"choices":[{"delta":{},"message":{"role":"assistant","refusal":"No."}}]}"#.to_owned(),
        format!(
            r#"{{"choices":[{{"message":{{"role":"assistant","content":"{long}","refusal":"No."}}}}]}}"#
        ),
    ] {
        let whole = spec(false, Encoding::Identity);
        let (_, observed) = run(body(vec![refused.as_bytes()]), whole).await;
        assert!(observed.refusal, "{}", &refused[..60]);
    }
    let failed = "{\"error\":{\"message\":\"no\",\"code\":502}}";
    let (_, observed) = run(
        body(vec![failed.as_bytes()]),
        spec(false, Encoding::Identity),
    )
    .await;
    assert!(observed.error == Some("error") && !observed.saw_done);
    let too_long = "{\"id\":1,\"error\":{\"message\":\"no\",\"code\":\"context_length_exceeded\"}}";
    let whole = spec(false, Encoding::Identity);
    let (_, observed) = run(body(vec![too_long.as_bytes()]), whole).await;
    assert_eq!(observed.error, Some("too_long"));
    let page = "<html>bad gateway</html>";
    let (_, observed) = run(body(vec![page.as_bytes()]), spec(false, Encoding::Identity)).await;
    assert!(observed.error.is_none() && observed.capture_complete && observed.usage.is_none());
}

#[tokio::test]
async fn an_answer_whose_receiver_is_gone_still_passes() {
    let (teed, observed) = tee(body(vec![STREAM.as_bytes()]), events(), ignore_answer());
    drop(observed);
    assert_eq!(teed.collect().await.unwrap().to_bytes(), STREAM);
}

/// Serves one request with a teed body over a socket. Returns the client's end.
async fn serve<B>(upstream: B, spec: TeeSpec) -> (TcpStream, oneshot::Receiver<ObservedAnswer>)
where
    B: Body<Data = Bytes, Error = Infallible> + Unpin + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (teed, observed) = tee(upstream, spec, ignore_answer());
    let teed = std::sync::Mutex::new(Some(teed));
    Tasks::new().spawn("server", async move {
        let (socket, _) = listener.accept().await.unwrap();
        let answer = service_fn(move |_| {
            let body = teed.lock().unwrap().take().expect("one request");
            async move { Ok::<_, Infallible>(Response::new(body)) }
        });
        // A client that hangs up makes the connection fail; the test asks what the tee made of it.
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(socket), answer)
            .await;
    });
    let mut client = TcpStream::connect(address).await.unwrap();
    let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    client.write_all(request).await.unwrap();
    (client, observed)
}

#[tokio::test]
async fn a_closed_client_socket_is_reported_as_hang_up() {
    let (mut sender, upstream) = Channel::<Bytes, Infallible>::new(4);
    let (mut client, observed) = serve(upstream, events()).await;
    sender
        .send_data(Bytes::from_static(b"data: {}\n\n"))
        .await
        .unwrap();
    let mut received = Vec::new();
    while !received.ends_with(b"data: {}\n\n\r\n") {
        assert!(client.read_buf(&mut received).await.unwrap() > 0);
    }
    drop(client);
    let observed = wait(observed).await;
    assert_eq!(observed.ended, EndReason::HungUp);
    assert!(!observed.saw_done);
    // The upstream's body is gone with it.
    assert!(sender.send_data(Bytes::from_static(b"more")).await.is_err());
}

#[tokio::test]
async fn a_body_of_known_length_is_complete_without_polling_its_end() {
    let (mut client, observed) = serve(
        Full::new(Bytes::from(ANSWER)),
        spec(false, Encoding::Identity),
    )
    .await;
    let mut received = Vec::new();
    client.read_to_end(&mut received).await.unwrap();
    assert!(received.ends_with(ANSWER.as_bytes()));
    let observed = wait(observed).await;
    assert_eq!(observed.ended, EndReason::Complete);
    assert_eq!(observed.usage, Some(usage()));
}
