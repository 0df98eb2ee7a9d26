//! WebSocket connections: carried as bytes once both sides agree, never looked into.
//!
//! Nothing a client sends after its request head reaches the upstream before the upstream has
//! switched: hyper keeps those bytes until then.

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode, Version};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::abort::Abort;
use super::body::{self, OutBody, ProxyBody};
use super::{Proxy, ProxyError, flow, forward, headers};
use crate::tasks::Hold;
use crate::telemetry;

const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
const UPGRADE_TOKEN: HeaderValue = HeaderValue::from_static("Upgrade");

/// Whether a client asks for a WebSocket. Other protocols (h2c above all, which would carry
/// requests past this proxy) are not offered: their `Upgrade` header ends here.
pub(super) fn is_asked_for(parts: &Parts) -> bool {
    parts.version == Version::HTTP_11
        && parts.method == Method::GET
        && names_websocket(&parts.headers)
}

fn names_websocket(headers: &HeaderMap) -> bool {
    headers::lists(headers, &CONNECTION, "upgrade")
        && headers::lists(headers, &UPGRADE, "websocket")
}

/// Asks the upstream; if it switches, connects both sides, otherwise its answer is the client's.
pub(super) async fn tunnel(
    proxy: &Proxy,
    mut parts: Parts,
) -> Result<Response<ProxyBody>, ProxyError> {
    let Some(client_side) = parts.extensions.remove::<OnUpgrade>() else {
        return Err(ProxyError::Target(None));
    };
    let abort = Abort::for_client(&parts);
    let mut request = forward::prepare(&proxy.upstream, parts, OutBody::Empty)?;
    ask_for_websocket(request.headers_mut());
    let mut response = proxy
        .upstream
        .send_upgradable(request)
        .await
        .map_err(forward::refused)?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(flow::stream_back(proxy, response, abort));
    }
    if !names_websocket(response.headers()) {
        return Err(ProxyError::UnaskedUpgrade);
    }
    let upstream_side = hyper::upgrade::on(&mut response);
    let (stopped, hold) = (proxy.tasks.token(), proxy.tasks.hold());
    proxy.tasks.spawn("tunnel", async move {
        stopped
            .run_until_cancelled(connect(client_side, upstream_side, hold))
            .await;
    });
    let (mut parts, _) = response.into_parts();
    parts.headers = headers::towards_client(parts.headers);
    ask_for_websocket(&mut parts.headers);
    Ok(Response::from_parts(parts, body::empty()))
}

fn ask_for_websocket(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, UPGRADE_TOKEN);
    headers.insert(UPGRADE, WEBSOCKET);
}

async fn connect(client_side: OnUpgrade, upstream_side: OnUpgrade, _hold: Hold) {
    let (client, upstream) = match futures_util::try_join!(client_side, upstream_side) {
        Ok(sides) => sides,
        Err(error) => {
            tracing::debug!("a tunnel did not open: {error}");
            return;
        }
    };
    metrics::gauge!(telemetry::TUNNELS).increment(1.0);
    carry(client, upstream).await;
    metrics::gauge!(telemetry::TUNNELS).decrement(1.0);
}

async fn carry(client: Upgraded, upstream: Upgraded) {
    let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
    if let Err(error) = copy_bidirectional(&mut client, &mut upstream).await {
        tracing::debug!("a tunnel broke: {error}");
    }
}
