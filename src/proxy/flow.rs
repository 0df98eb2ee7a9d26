//! The first fork of a request's path: memory request, WebSocket tunnel, or any other request.
//!
//! A request without memory is forwarded and its answer streamed back, both unread. Called by
//! [`super::Proxy::handle`].

use std::sync::Arc;

use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body as _;
use hyper::body::Incoming;

use super::abort::Abort;
use super::body::{IdleTimeout, OutBody, ProxyBody};
use super::error::ProxyError;
use super::memory::Memory;
use super::shared::Shared;
use super::{chat_completions, forward, respond, upgrade};

/// The path of a memory request on the data port. The path of the upstream's base URL does not matter.
const CHAT_COMPLETIONS: &str = "/v1/chat/completions";

/// Forwards one request and streams the answer back. A memory request continues in
/// [`chat_completions::handle`].
///
/// # Errors
/// If the client gets an answer of Diarist instead of the upstream's.
pub(super) async fn handle(
    shared: &Arc<Shared>,
    memory: Option<&Arc<Memory>>,
    request: Request<Incoming>,
) -> Result<Response<ProxyBody>, ProxyError> {
    let (parts, body) = request.into_parts();
    let abort = Abort::for_client(&parts);
    match route(memory, &parts, &body)? {
        RequestKind::Chat(memory) => {
            chat_completions::handle(shared, memory, parts, body, abort).await
        }
        RequestKind::Tunnel => upgrade::tunnel(shared, parts).await,
        RequestKind::Pass => {
            let body = OutBody::Stream(IdleTimeout::new(body, shared.limits.request_idle));
            let response = forward::send(&shared.upstream, parts, body).await?;
            Ok(respond::stream_back(
                response,
                shared.limits.response_idle,
                abort,
            ))
        }
    }
}

/// How a request is handled.
enum RequestKind<'a> {
    /// A chat completion: memory may change it.
    Chat(&'a Arc<Memory>),
    /// A WebSocket request: becomes a byte tunnel if the upstream agrees.
    Tunnel,
    /// Any other request: forwarded unchanged.
    Pass,
}

/// Decides by method, path and headers.
fn route<'a>(
    memory: Option<&'a Arc<Memory>>,
    parts: &Parts,
    body: &Incoming,
) -> Result<RequestKind<'a>, ProxyError> {
    if parts.method == Method::CONNECT {
        return Err(ProxyError::Connect);
    }
    if upgrade::is_websocket(parts) && body.is_end_stream() {
        return Ok(RequestKind::Tunnel);
    }
    if let Some(memory) = memory
        && parts.method == Method::POST
        && parts.uri.path() == CHAT_COMPLETIONS
    {
        return Ok(RequestKind::Chat(memory));
    }
    Ok(RequestKind::Pass)
}
