//! One request, read from top to bottom.

use std::sync::Arc;

use http::request::Parts;
use http::{Method, Request, Response, Version};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::abort::Abort;
use super::body::{IdleTimeout, OutBody, ProxyBody};
use super::{Memory, Proxy, ProxyError, chat_completions, forward, headers, upgrade};

/// The path of a memory request on the data port, whatever path the upstream's base URL has.
const CHAT_COMPLETIONS: &str = "/v1/chat/completions";

/// route → forward → stream back; a memory request goes its own way in [`remember`].
///
/// # Errors
/// Whatever keeps the upstream's answer from being the client's.
pub(super) async fn handle(
    proxy: &Arc<Proxy>,
    request: Request<Incoming>,
) -> Result<Response<ProxyBody>, ProxyError> {
    let (parts, body) = request.into_parts();
    let abort = Abort::for_client(&parts);
    match route(proxy, &parts, &body)? {
        RequestKind::Chat(memory) => {
            chat_completions::handle(proxy, memory, parts, body, abort).await
        }
        RequestKind::Tunnel => upgrade::tunnel(proxy, parts).await,
        RequestKind::Pass => {
            let body = OutBody::Stream(IdleTimeout::new(body, proxy.limits.request_idle));
            let response = forward::send(&proxy.upstream, parts, body).await?;
            Ok(stream_back(proxy, response, abort))
        }
    }
}

/// What a request is.
enum RequestKind<'a> {
    /// A chat completion, which may have memory.
    Chat(&'a Arc<Memory>),
    /// Becomes a byte tunnel if the upstream agrees.
    Tunnel,
    /// Passes untouched.
    Pass,
}

fn route<'a>(
    proxy: &'a Proxy,
    parts: &Parts,
    body: &Incoming,
) -> Result<RequestKind<'a>, ProxyError> {
    if parts.method == Method::CONNECT {
        return Err(ProxyError::Connect);
    }
    if upgrade::is_websocket(parts) && body.is_end_stream() {
        return Ok(RequestKind::Tunnel);
    }
    if let Some(memory) = &proxy.memory
        && parts.method == Method::POST
        && parts.uri.path() == CHAT_COMPLETIONS
    {
        return Ok(RequestKind::Chat(memory));
    }
    Ok(RequestKind::Pass)
}

/// The upstream's response as the client gets it, frame by frame.
pub(super) fn stream_back(
    proxy: &Proxy,
    response: Response<Incoming>,
    abort: Abort,
) -> Response<ProxyBody> {
    let (mut parts, body) = response.into_parts();
    parts.version = Version::HTTP_11;
    parts.headers = headers::towards_client(parts.headers);
    let body = IdleTimeout::new(body, proxy.limits.response_idle);
    Response::from_parts(parts, abort.guard(body).boxed_unsync())
}
