//! The first fork of a request's path: chat completion, WebSocket tunnel, or any other request.
//!
//! Any other request is forwarded and its answer streamed back, both unread. Called by [`super::Proxy::handle`].

use std::sync::{Arc, Once};

use http::request::Parts;
use http::{HeaderValue, Method, Request, Response};
use http_body::Body as _;
use hyper::body::Incoming;

use super::abort::Abort;
use super::body::{Discard, IdleTimeout, OutBody, Pace, ProxyBody, Upload, with_guard};
use super::body_budget::LARGE_BYTES;
use super::error::ProxyError;
use super::memory::Memory;
use super::pass_entry::PassEntry;
use super::places::Peer;
use super::rejections::Rejection;
use super::shared::Shared;
use super::{chat_completions, forward, headers, respond, upgrade};
use crate::telemetry;

/// What the path of every chat completion ends with.
const CHAT_COMPLETIONS: [&str; 2] = ["chat", "completions"];

/// Forwards one request and streams the answer back. A chat completion continues in
/// [`chat_completions::handle`], if there is room for its body.
///
/// # Errors
/// If the client gets an answer of Diarist instead of the upstream's.
pub(super) async fn handle(
    shared: &Arc<Shared>,
    memory: Option<&Arc<Memory>>,
    request: Request<Incoming>,
) -> Result<Response<ProxyBody>, Rejection> {
    let (parts, body) = request.into_parts();
    let audit = memory.and_then(|memory| memory.audit.as_ref());
    let refuse = |parts: &Parts, error| shared.rejections.begin(audit, parts, error);
    // The client may send its whole body before it reads why it is refused.
    let refuse_unread = |parts: &Parts, body: IdleTimeout<Incoming>, error| {
        Discard::new(&shared.tasks, parts).run(body);
        refuse(parts, error)
    };
    let with_idle_limit = |body| IdleTimeout::new(body, shared.limits.request_idle);
    if !headers::is_only_chunked(&parts.headers) {
        let body = with_idle_limit(body);
        return Err(refuse_unread(&parts, body, ProxyError::TransferCoding));
    }
    let peer = parts.extensions.get::<Peer>().copied();
    let abort = Abort::for_client(&parts);
    match route(memory, &parts, &body).map_err(|error| refuse(&parts, error))? {
        Handler::Chat(memory) => {
            // It takes its place when its body is in. If there is none, its body need not come.
            if let Err(error) = shared.places.check(peer) {
                return Err(refuse_unread(&parts, with_idle_limit(body), error));
            }
            // A body that is larger than the limit gets its 413 below.
            let announced = body.size_hint().lower();
            let most = shared.limits.max_body_bytes as u64;
            let is_strange = is_large(&body) && is_stranger(memory, &parts);
            let reserved = shared.body_budget.reserve(announced.min(most), is_strange);
            if let Some(reserved) = reserved {
                let body = (body, reserved);
                // Boxed, since it is large and the server moves it several times before it first runs.
                let answer = chat_completions::handle(shared, memory, parts, body, abort);
                return Box::pin(answer).await;
            }
            let body =
                IdleTimeout::paced(body, shared.limits.request_idle, shared.limits.body_pace);
            let place = match shared.places.take(peer) {
                Ok(place) => place,
                Err(error) => return Err(refuse_unread(&parts, body, error)),
            };
            let response = pass_unread(shared, memory, parts, body, abort).await?;
            Ok(response.map(|body| with_guard(body, place)))
        }
        Handler::Tunnel => {
            let place = shared.places.take(peer);
            let place = place.map_err(|error| refuse(&parts, error))?;
            let response = upgrade::tunnel(shared, memory.map(Arc::as_ref), parts).await?;
            Ok(response.map(|body| with_guard(body, place)))
        }
        Handler::Pass => {
            let body = IdleTimeout::paced(body, shared.limits.request_idle, upload_pace(shared));
            let place = match shared.places.take(peer) {
                Ok(place) => place,
                Err(error) => return Err(refuse_unread(&parts, body, error)),
            };
            let has_memory = memory.is_some_and(|memory| memory.enabled);
            let without_memory = has_memory && is_unknown_chat(&parts);
            let mut response = pass(shared, memory.map(Arc::as_ref), parts, body, abort).await?;
            if without_memory {
                set_bypass(&mut response, "bypass; reason=path");
            }
            Ok(response.map(|body| with_guard(body, place)))
        }
    }
}

/// How fast the body of an upload has to come. It may be large and its client slow, so it has as long as the upstream has
/// for its answer, and longer for each byte that has come.
fn upload_pace(shared: &Shared) -> Pace {
    let pace = shared.limits.body_pace;
    Pace {
        grace: pace.grace.max(shared.upstream.timeouts().head),
        ..pace
    }
}

async fn pass(
    shared: &Shared,
    memory: Option<&Memory>,
    mut parts: Parts,
    mut body: IdleTimeout<Incoming>,
    abort: Abort,
) -> Result<Response<ProxyBody>, Rejection> {
    if !body.is_end_stream() {
        let upload = shared.places.take_upload();
        let audit = memory.and_then(|memory| memory.audit.as_ref());
        match upload {
            Ok(upload) => body = body.guarded(upload),
            Err(error) => {
                Discard::new(&shared.tasks, &parts).run(body);
                return Err(shared.rejections.begin(audit, &parts, error));
            }
        }
    }
    let mut entry = PassEntry::new(memory, &mut parts, body.size_hint().exact());
    let body = Box::new(Upload::new(body, Discard::new(&shared.tasks, &parts)));
    let response = forward::send(&shared.upstream, parts, OutBody::Stream(body))
        .await
        .inspect_err(|error| entry.set_failed(error))?;
    let response = respond::stream_back(response, shared.limits.response_idle, abort);
    Ok(entry.track(response))
}

/// Forwards a chat completion for whose body there is no room. It gets no memory, but it does not fail.
async fn pass_unread(
    shared: &Shared,
    memory: &Memory,
    parts: Parts,
    body: IdleTimeout<Incoming>,
    abort: Abort,
) -> Result<Response<ProxyBody>, Rejection> {
    metrics::counter!(telemetry::BODIES_UNREAD).increment(1);
    tracing::debug!("no room for one more body: the request is forwarded unread, without memory");
    let mut response = pass(shared, Some(memory), parts, body, abort).await?;
    set_bypass(&mut response, "bypass; reason=busy");
    Ok(response)
}

fn set_bypass(response: &mut Response<ProxyBody>, why: &'static str) {
    let why = HeaderValue::from_static(why);
    response.headers_mut().insert("x-diarist-memory", why);
}

/// Whether a request that passes is a chat completion by its path, but at an address that memory does not know.
/// The log says so once: the address is the same for each request of a client.
fn is_unknown_chat(parts: &Parts) -> bool {
    static WARNING: Once = Once::new();
    let is_chat = parts.method == Method::POST && chat_prefix(parts.uri.path()).is_some();
    if is_chat {
        WARNING.call_once(|| {
            tracing::warn!(
                "chat completions come to an address other than /v1/chat/completions and /chat/completions: they pass \
                 without memory. Let the base URL of the client end with /v1, and put the rest of the address into \
                 upstream.base_url. This is said once"
            );
        });
    }
    is_chat
}

/// Whether a body is large, or may become so.
fn is_large(body: &Incoming) -> bool {
    body.size_hint()
        .exact()
        .is_none_or(|bytes| bytes >= LARGE_BYTES)
}

/// Whether the upstream has accepted no request of this tenant yet.
fn is_stranger(memory: &Memory, parts: &Parts) -> bool {
    let owner = memory.owner(parts);
    owner.is_none_or(|owner| !memory.accepted_tenants.contains(&owner.tenant))
}

/// How a request is handled.
enum Handler<'a> {
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
) -> Result<Handler<'a>, ProxyError> {
    if parts.method == Method::CONNECT {
        return Err(ProxyError::Connect);
    }
    if upgrade::is_websocket(parts) && body.is_end_stream() {
        return Ok(Handler::Tunnel);
    }
    if let Some(memory) = memory
        && parts.method == Method::POST
        && matches!(chat_prefix(parts.uri.path()).as_deref(), Some([] | ["v1"]))
    {
        return Ok(Handler::Chat(memory));
    }
    Ok(Handler::Pass)
}

/// The parts of a path in front of `/chat/completions`; `None` if it does not end so. Servers ignore a slash too many,
/// so it does not cost a client its memory. The path goes to the upstream as it came.
fn chat_prefix(path: &str) -> Option<Vec<&str>> {
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let prefix = parts.len().checked_sub(CHAT_COMPLETIONS.len())?;
    (parts.split_off(prefix) == CHAT_COMPLETIONS).then_some(parts)
}
