//! Sends one request to the upstream: sets address, headers and framing. Changes nothing else.
//!
//! Called by `flow` and `retry`; `upgrade` uses [`prepare`].

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::Notify;

use super::body::{self, GatedBody, OutBody};
use super::error::ProxyError;
use super::headers;
use crate::upstream::{PreparedRequest, RequestBody, SendError, Upstream};

/// Sends a request and waits for the head of the response. Dropping the future cancels the request.
///
/// `parts` are the client's own; clone them to send a request again.
///
/// # Errors
/// If the target cannot be forwarded, the client's body fails or no response head arrives.
pub async fn send(
    upstream: &Upstream,
    parts: Parts,
    body: OutBody,
) -> Result<Response<Incoming>, ProxyError> {
    let request = prepare(upstream, parts, body)?;
    let response = upstream.send(request).await;
    let response = response.map_err(|error| to_proxy_error(upstream, error))?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let url = upstream.base_url();
        return Err(ProxyError::UnrequestedUpgrade { url });
    }
    Ok(response)
}

/// The request as the upstream gets it.
pub(super) fn prepare(
    upstream: &Upstream,
    mut parts: Parts,
    body: OutBody,
) -> Result<PreparedRequest, ProxyError> {
    let path_and_query = parts.uri.path_and_query().ok_or(ProxyError::Target(None))?;
    parts.uri = upstream
        .uri_for(path_and_query)
        .map_err(|error| ProxyError::Target(Some(error)))?;
    // Each connection has its own version.
    parts.version = Version::HTTP_11;
    // The rest of the extensions is hyper's record of the spelling of header names.
    parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
    parts.headers = headers::towards_upstream(parts.headers);
    set_framing(&mut parts, &body);
    let expects_continue =
        headers::lists(&parts.headers, &header::EXPECT, "100-continue") && !body.is_empty();
    let upload = body.clock();
    let mut request = Request::from_parts(parts, body.boxed());
    if expects_continue {
        let timeout = upstream.timeouts().expect_continue;
        let gate = upstream_continue(&mut request, timeout);
        request = request.map(|body| GatedBody::new(body, gate).boxed_unsync());
    }
    Ok(PreparedRequest { request, upload })
}

/// The error for a request that got no response head.
pub(super) fn to_proxy_error(upstream: &Upstream, error: SendError) -> ProxyError {
    match error {
        SendError::Body(cause) => body::wrapped_body_error(cause),
        source => ProxyError::Upstream {
            url: upstream.base_url(),
            source,
        },
    }
}

/// Sets the headers that describe the body's framing, if hyper would guess differently.
fn set_framing(parts: &mut Parts, body: &OutBody) {
    match body {
        OutBody::Segments(segments) => {
            let length: usize = segments.iter().map(bytes::Bytes::len).sum();
            parts
                .headers
                .insert(header::CONTENT_LENGTH, HeaderValue::from(length));
            // The body was read whole, and its trailers were not kept.
            parts.headers.remove(header::EXPECT);
            parts.headers.remove(header::TRAILER);
        }
        OutBody::Empty => {}
        OutBody::Stream(_) => {
            // With these methods, hyper takes a body of unknown length for no body.
            let bodiless = matches!(parts.method, Method::GET | Method::HEAD);
            if bodiless && !body.is_empty() && !parts.headers.contains_key(header::CONTENT_LENGTH) {
                let chunked = HeaderValue::from_static("chunked");
                parts.headers.insert(header::TRANSFER_ENCODING, chunked);
            }
        }
    }
}

/// Ready when the upstream sends `100 Continue`, or after `timeout`.
fn upstream_continue(
    request: &mut Request<RequestBody>,
    timeout: Duration,
) -> impl Future<Output = ()> + Send + use<> {
    let notify = Arc::new(Notify::new());
    let notified = Arc::clone(&notify);
    hyper::ext::on_informational(request, move |response| {
        if response.status() == StatusCode::CONTINUE {
            notify.notify_one();
        }
    });
    async move {
        tokio::select! {
            () = notified.notified() => {}
            () = tokio::time::sleep(timeout) => {}
        }
    }
}
