//! The other routes of the provider: models, embeddings, and echoes for pass-through tests.
//!
//! A path with the segment `echo` returns the request's body as it arrives, with its trailers; if the
//! request asks for an upgrade, it switches protocols and returns bytes. `status/N` answers N;
//! `redirect` answers 307. Nothing is judged, everything is recorded. Called by [`super::server`].

use std::io;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONNECTION, CONTENT_TYPE, LOCATION, UPGRADE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use super::caller::CallerKind;
use super::judge::parse;
use super::record::{RequestWatch, Stage, Verdict};
use super::refusal::Refusal;
use super::request_handler::{RequestHandler, lock};
use super::sending::Body;

pub(super) async fn answer(
    handler: &RequestHandler,
    request: Request<Incoming>,
    mut watch: RequestWatch,
) -> io::Result<Response<Body>> {
    watch.update(|entry| entry.verdict = Verdict::NotJudged);
    let path = request.uri().path().to_owned();
    let segments: Vec<&str> = path
        .split('/')
        .filter(|segment| !segment.is_empty())
        .collect();
    if segments.contains(&"echo") {
        return if request.headers().contains_key(UPGRADE) {
            upgrade(handler, request, watch)
        } else {
            Ok(echo(request, watch))
        };
    }
    let body = handler.read(request.into_body(), &mut watch).await?;
    watch.set_stage(Stage::BeforeHead);
    let behaviour = lock(&handler.shared.schedule).take(CallerKind::Other);
    tokio::time::sleep(behaviour.before_head).await;
    let response = Response::builder().header("x-request-id", format!("req_{}", watch.number()));
    let (response, body) = match segments.as_slice() {
        [.., "status", status] => (
            response.status(*status).header(CONTENT_TYPE, "text/html"),
            format!("<html><body>{status}</body></html>"),
        ),
        [.., "redirect"] => (
            response.status(307).header(LOCATION, "/v1/echo"),
            String::new(),
        ),
        [.., "models"] => (response, models().to_string()),
        [.., "models", model] => (response, model_object(model).to_string()),
        [.., "embeddings"] => match embeddings(&body) {
            Ok(answer) => (response, answer.to_string()),
            Err(refusal) => (response.status(refusal.status), refusal.body().to_string()),
        },
        _ => {
            let refusal = Refusal::invalid(format!("Invalid URL ({path})"));
            (response.status(404), refusal.body().to_string())
        }
    };
    let mut response = response.body(()).map_err(io::Error::other)?;
    response
        .headers_mut()
        .entry(CONTENT_TYPE)
        .or_insert(HeaderValue::from_static("application/json"));
    Ok(handler.send_body(response, Bytes::from(body), &behaviour, watch))
}

/// Streams the request's body back, frame by frame, and reports the request's head in `x-echo-*`.
fn echo(request: Request<Incoming>, mut watch: RequestWatch) -> Response<Body> {
    let (head, body) = request.into_parts();
    watch.set_stage(Stage::BeforeFirstEvent);
    let frames = stream::unfold(Some((body, watch, Vec::new())), echo_frame);
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    let headers = response.headers_mut();
    for (name, value) in [
        ("x-echo-method", head.method.as_str()),
        ("x-echo-target", &head.uri.to_string()),
    ] {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    }
    for name in [http::header::CONTENT_TYPE, http::header::CONTENT_ENCODING] {
        if let Some(value) = head.headers.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    // Several values of one header must stay several.
    headers.append("set-cookie", HeaderValue::from_static("a=1"));
    headers.append("set-cookie", HeaderValue::from_static("b=2"));
    response
}

type EchoState = (Incoming, RequestWatch, Vec<u8>);

async fn echo_frame(
    state: Option<EchoState>,
) -> Option<(io::Result<Frame<Bytes>>, Option<EchoState>)> {
    let (mut body, mut watch, mut received) = state?;
    match body.frame().await {
        Some(Ok(frame)) => {
            if let Some(data) = frame.data_ref() {
                received.extend_from_slice(data);
                watch.set_stage(Stage::Streaming {
                    events: 0,
                    bytes: received.len(),
                });
            }
            Some((Ok(frame), Some((body, watch, received))))
        }
        Some(Err(error)) => Some((Err(io::Error::other(error)), None)),
        None => {
            watch.update(|entry| {
                entry.body_bytes = received.len();
                entry.body = received.into();
            });
            watch.complete();
            None
        }
    }
}

/// Switches to the requested protocol and returns its bytes until the client closes.
fn upgrade(
    handler: &RequestHandler,
    mut request: Request<Incoming>,
    mut watch: RequestWatch,
) -> io::Result<Response<Body>> {
    let protocol = request.headers().get(UPGRADE).cloned();
    let upgraded = hyper::upgrade::on(&mut request);
    let closing = handler.shared.closing.clone();
    handler.shared.tasks.spawn(async move {
        let echoing = async {
            let Ok(upgraded) = upgraded.await else { return };
            let (mut from, mut to) = tokio::io::split(TokioIo::new(upgraded));
            if tokio::io::copy(&mut from, &mut to).await.is_ok() {
                watch.complete();
            }
        };
        tokio::select! {
            () = echoing => {}
            () = closing.cancelled() => {}
        }
    });
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "upgrade")
        .header(
            UPGRADE,
            protocol.unwrap_or_else(|| HeaderValue::from_static("echo")),
        )
        .body(super::sending::full_body(Bytes::new()))
        .map_err(io::Error::other)
}

fn models() -> Value {
    let data: Vec<Value> = ["gpt-4o", "o3-mini", "observer-mini", "reflector-mini"]
        .into_iter()
        .map(model_object)
        .collect();
    json!({"object": "list", "data": data})
}

fn model_object(id: &str) -> Value {
    json!({"id": id, "object": "model", "created": 1_700_000_000, "owned_by": "scripted"})
}

/// One small vector for each input, made of its digest, so that equal inputs have equal vectors.
fn embeddings(body: &[u8]) -> Result<Value, Refusal> {
    let request = parse(body)?;
    let inputs: Vec<&str> = match request.get("input") {
        Some(Value::String(input)) => vec![input],
        Some(Value::Array(inputs)) => inputs.iter().filter_map(Value::as_str).collect(),
        _ => {
            return Err(Refusal::invalid("Missing required parameter: 'input'.")
                .param("input")
                .code("missing_required_parameter"));
        }
    };
    let data: Vec<Value> = inputs
        .iter()
        .enumerate()
        .map(|(index, input)| {
            let digest = blake3::hash(input.as_bytes());
            let vector: Vec<f64> = digest.as_bytes()[..8]
                .iter()
                .map(|byte| f64::from(*byte) / 255.0)
                .collect();
            json!({"object": "embedding", "index": index, "embedding": vector})
        })
        .collect();
    let tokens: usize = inputs.iter().map(|input| input.len().div_ceil(4)).sum();
    Ok(json!({
        "object": "list",
        "data": data,
        "model": request.get("model"),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }))
}
