//! The scripted upstream: reads the body, keeps nothing, and answers what a header of the request asks for. Calls of
//! memory are answered by [`crate::observer`]. Runs on the core for load.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, stream};
use http_body_util::{BodyExt as _, Either, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::conversation::Answer;
use crate::observer;
use crate::words::Writer;

/// The header with the wanted [`Answer`].
pub const ANSWER_HEADER: &str = "x-bench-answer";

/// The model that memory is configured with. Its calls are recognised by the beginning of their bodies.
pub const MEMORY_MODEL: &str = "bench-memory";

type Piece = Result<Frame<Bytes>, Infallible>;
type AnyBody = Either<Full<Bytes>, StreamBody<stream::BoxStream<'static, Piece>>>;

/// Serves until the process ends.
pub async fn serve(listen: SocketAddr) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        connections.spawn(async move {
            let serving = hyper::server::conn::http1::Builder::new();
            // A client that goes away is no failure of the upstream.
            let _ = serving
                .serve_connection(TokioIo::new(socket), service_fn(answer))
                .await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<AnyBody>, hyper::Error> {
    let (head, mut body) = request.into_parts();
    let mut first = Bytes::new();
    let mut whole = None;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        if first.is_empty() && !data.is_empty() {
            first = data.slice(..data.len().min(80));
            whole = is_of_memory(&first).then(BytesMut::new);
        }
        if let Some(whole) = &mut whole {
            whole.extend_from_slice(&data);
        }
    }
    if let Some(whole) = whole {
        let reply = tokio::task::spawn_blocking(move || observer::reply(&whole)).await;
        return Ok(json(at_once(&reply.unwrap_or_default(), 0)));
    }
    let answer_header = head.headers.get(ANSWER_HEADER);
    let wanted = answer_header.and_then(|header| Answer::read(header.to_str().ok()?));
    let wanted = wanted.unwrap_or_else(Answer::at_once);
    if wanted.deltas == 0 {
        return Ok(json(at_once(&wanted.words(), wanted.seed)));
    }
    let body = Either::Right(StreamBody::new(Box::pin(deltas(wanted)) as _));
    let mut response = Response::new(body);
    let kind = http::HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert("content-type", kind);
    Ok(response)
}

fn is_of_memory(beginning: &[u8]) -> bool {
    memchr::memmem::find(beginning, MEMORY_MODEL.as_bytes()).is_some()
}

fn json(body: String) -> Response<AnyBody> {
    let mut response = Response::new(Either::Left(Full::new(Bytes::from(body))));
    let kind = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert("content-type", kind);
    response
}

fn at_once(words: &str, seed: u64) -> String {
    let content = serde_json::Value::from(words);
    format!(
        r#"{{"id":"chatcmpl-{seed:016x}","object":"chat.completion","created":1772600000,"model":"bench-model","choices":[{{"index":0,"message":{{"role":"assistant","content":{content},"refusal":null}},"logprobs":null,"finish_reason":"stop"}}],"usage":{{"prompt_tokens":250,"completion_tokens":60,"total_tokens":310}}}}"#
    )
}

/// One event each `pace_ms`, the first at once; then the end of the answer and of the stream.
fn deltas(wanted: Answer) -> impl Stream<Item = Piece> + Send {
    let begin = Instant::now();
    let pace = Duration::from_millis(u64::from(wanted.pace_ms));
    let writer = Writer::new(wanted.seed);
    stream::unfold((writer, 0), move |(mut writer, place)| async move {
        if place > wanted.deltas {
            return None;
        }
        // The clock has steps of a millisecond: to wait for a time that has come takes until the next step.
        if place > 0 {
            tokio::time::sleep_until(begin + pace * place).await;
        }
        let event = if place == wanted.deltas {
            format!("{}data: [DONE]\n\n", event(wanted.seed, "{}", r#""stop""#))
        } else {
            let word = writer.below(0xFF_FFFF);
            let delta = format!(r#"{{"content":" word{word:06x}"}}"#);
            event(wanted.seed, &delta, "null")
        };
        let frame = Frame::data(Bytes::from(event));
        Some((Ok(frame), (writer, place + 1)))
    })
}

fn event(seed: u64, delta: &str, reason: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-{seed:016x}\",\"object\":\"chat.completion.chunk\",\"created\":1772600000,\"model\":\"bench-model\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{reason}}}]}}\n\n"
    )
}
