//! WebSocket connections: once both sides agree, bytes are copied in both directions and never read.
//!
//! Nothing that a client sends behind its request head reaches the upstream before the upstream has switched:
//! hyper keeps those bytes until then. A tunnel without traffic is closed on both sides. Called by `flow`.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::{Instant, sleep_until};

use super::abort::Abort;
use super::body::{self, OutBody, ProxyBody};
use super::error::ProxyError;
use super::shared::Shared;
use super::{forward, headers, respond};
use crate::tasks::Hold;
use crate::telemetry;

const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
const UPGRADE_TOKEN: HeaderValue = HeaderValue::from_static("Upgrade");

/// Whether a client asks for a WebSocket. Other protocols are not offered, so their `Upgrade` header ends here.
/// The main case is h2c: it would carry requests past this proxy.
pub(super) fn is_websocket(parts: &Parts) -> bool {
    parts.version == Version::HTTP_11
        && parts.method == Method::GET
        && names_websocket(&parts.headers)
}

fn names_websocket(headers: &HeaderMap) -> bool {
    headers::lists(headers, &CONNECTION, "upgrade")
        && headers::lists(headers, &UPGRADE, "websocket")
}

/// Asks the upstream. If it switches, connects both sides; otherwise its answer is the client's.
pub(super) async fn tunnel(
    shared: &Shared,
    mut parts: Parts,
) -> Result<Response<ProxyBody>, ProxyError> {
    let Some(client_side) = parts.extensions.remove::<OnUpgrade>() else {
        return Err(ProxyError::Target(None));
    };
    let abort = Abort::for_client(&parts);
    let mut request = forward::prepare(&shared.upstream, parts, OutBody::Empty)?;
    set_websocket_headers(request.headers_mut());
    let upstream = &shared.upstream;
    let response = upstream.send_upgradable(request).await;
    let mut response = response.map_err(|error| forward::to_proxy_error(upstream, error))?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(respond::stream_back(
            response,
            shared.limits.response_idle,
            abort,
        ));
    }
    if !names_websocket(response.headers()) {
        let url = upstream.base_url();
        return Err(ProxyError::UnrequestedUpgrade { url });
    }
    let upstream_side = hyper::upgrade::on(&mut response);
    let (stopped, hold) = (shared.tasks.token(), shared.tasks.hold());
    let idle = shared.limits.tunnel_idle;
    shared.tasks.spawn("tunnel", async move {
        stopped
            .run_until_cancelled(connect(client_side, upstream_side, idle, hold))
            .await;
    });
    let (mut parts, _) = response.into_parts();
    parts.headers = headers::towards_client(parts.headers);
    set_websocket_headers(&mut parts.headers);
    Ok(Response::from_parts(parts, body::empty()))
}

fn set_websocket_headers(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, UPGRADE_TOKEN);
    headers.insert(UPGRADE, WEBSOCKET);
}

async fn connect(client_side: OnUpgrade, upstream_side: OnUpgrade, idle: Duration, _hold: Hold) {
    let (client, upstream) = match futures_util::try_join!(client_side, upstream_side) {
        Ok(sides) => sides,
        Err(error) => {
            tracing::debug!("a tunnel could not be opened: {error}");
            return;
        }
    };
    metrics::gauge!(telemetry::TUNNELS).increment(1.0);
    copy_both(TokioIo::new(client), TokioIo::new(upstream), idle).await;
    metrics::gauge!(telemetry::TUNNELS).decrement(1.0);
}

/// Carries bytes until one side breaks, both have ended, or none has moved for `idle`.
async fn copy_both<C, U>(client: C, mut upstream: U, idle: Duration)
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let activity = LastActivity::default();
    // Whatever is carried is read from the client or written to it.
    let mut tracked_client = ActivityStream {
        side: client,
        activity: activity.clone(),
    };
    let copied = tokio::select! {
        copied = copy_bidirectional(&mut tracked_client, &mut upstream) => copied,
        () = activity.wait_idle(idle) => {
            tracing::debug!("a tunnel was closed: it had no traffic for {idle:?}");
            return;
        }
    };
    if let Err(error) = copied {
        tracing::debug!("a tunnel broke: {error}");
    }
}

/// When a byte last moved.
#[derive(Clone, Debug)]
struct LastActivity(Arc<Mutex<Instant>>);

impl Default for LastActivity {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl LastActivity {
    fn touch(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Ready once none has moved for `limit`.
    async fn wait_idle(&self, limit: Duration) {
        loop {
            let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if last.elapsed() >= limit {
                return;
            }
            sleep_until(last + limit).await;
        }
    }
}

/// One side of a tunnel.
struct ActivityStream<S> {
    side: S,
    activity: LastActivity,
}

impl<S: AsyncRead + Unpin> AsyncRead for ActivityStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.side).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.activity.touch();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ActivityStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.side).poll_write(cx, bytes);
        if let Poll::Ready(Ok(1..)) = written {
            self.activity.touch();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.side).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.side).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::sleep;

    use super::*;

    const IDLE: Duration = Duration::from_mins(1);
    const NEARLY: Duration = Duration::from_secs(59);

    /// Each byte of either side buys both of them the whole time again.
    #[tokio::test(start_paused = true)]
    async fn a_tunnel_ends_when_no_byte_has_moved_for_so_long_and_not_before() {
        let (mut client, ours) = duplex(64);
        let (mut upstream, theirs) = duplex(64);
        let started = Instant::now();
        let carrying = copy_both(ours, theirs, IDLE);
        let talking = async {
            for _ in 0..3 {
                sleep(NEARLY).await;
                client.write_all(b"?").await.unwrap();
                assert_eq!(upstream.read_u8().await.unwrap(), b'?');
                sleep(NEARLY).await;
                upstream.write_all(b"!").await.unwrap();
                assert_eq!(client.read_u8().await.unwrap(), b'!');
            }
            let talked = started.elapsed();
            // Both ends see the end.
            assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
            assert_eq!(upstream.read(&mut [0]).await.unwrap(), 0);
            started.elapsed().checked_sub(talked)
        };
        let ((), silent) = tokio::join!(carrying, talking);
        assert_eq!(silent, Some(IDLE));
    }
}
