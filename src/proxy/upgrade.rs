//! WebSocket connections: once both sides agree, bytes are copied in both directions and never read.
//!
//! Nothing that a client sends behind its request head reaches the upstream before the upstream has switched:
//! hyper keeps those bytes until then. A tunnel without traffic is closed on both sides. Called by `flow`.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
use super::memory::Memory;
use super::pass_entry::PassEntry;
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
    memory: Option<&Memory>,
    mut parts: Parts,
) -> Result<Response<ProxyBody>, ProxyError> {
    let mut entry = PassEntry::new(memory, &mut parts, None);
    let response = switch(shared, parts).await;
    let (response, sides) = response.inspect_err(|error| entry.set_failed(error))?;
    let Some(sides) = sides else {
        return Ok(entry.track(response));
    };
    entry.begin_tunnel();
    let (stopped, hold) = (shared.tasks.token(), shared.tasks.hold());
    let idle = shared.limits.tunnel_idle;
    shared.tasks.spawn("tunnel", async move {
        let carried = connect(sides, idle, hold, entry);
        stopped.run_until_cancelled(carried).await;
    });
    Ok(response)
}

/// Both sides of a tunnel, still in the hands of hyper.
struct Sides {
    client: OnUpgrade,
    upstream: OnUpgrade,
}

/// The answer for the client; with both sides if the upstream has switched.
async fn switch(
    shared: &Shared,
    mut parts: Parts,
) -> Result<(Response<ProxyBody>, Option<Sides>), ProxyError> {
    let Some(client) = parts.extensions.remove::<OnUpgrade>() else {
        return Err(ProxyError::Target(None));
    };
    let abort = Abort::for_client(&parts);
    let mut prepared = forward::prepare(&shared.upstream, parts, OutBody::Empty)?;
    set_websocket_headers(prepared.request.headers_mut());
    let upstream = &shared.upstream;
    let response = upstream.send(prepared).await;
    let mut response = response.map_err(|error| forward::to_proxy_error(upstream, error))?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let answer = respond::stream_back(response, shared.limits.response_idle, abort);
        return Ok((answer, None));
    }
    if !names_websocket(response.headers()) {
        let url = upstream.base_url();
        return Err(ProxyError::UnrequestedUpgrade { url });
    }
    let sides = Sides {
        client,
        upstream: hyper::upgrade::on(&mut response),
    };
    let (mut parts, _) = response.into_parts();
    parts.headers = headers::towards_client(parts.headers);
    set_websocket_headers(&mut parts.headers);
    Ok((Response::from_parts(parts, body::empty()), Some(sides)))
}

fn set_websocket_headers(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, UPGRADE_TOKEN);
    headers.insert(UPGRADE, WEBSOCKET);
}

async fn connect(sides: Sides, idle: Duration, _hold: Hold, entry: PassEntry) {
    let (client, upstream) = match futures_util::try_join!(sides.client, sides.upstream) {
        Ok(sides) => sides,
        Err(error) => {
            tracing::debug!("a tunnel could not be opened: {error}");
            return;
        }
    };
    let _open = telemetry::OpenCount::new(telemetry::TUNNELS);
    let mut line = TunnelLine {
        entry,
        traffic: Traffic::default(),
        is_whole: false,
    };
    let (client, upstream) = (TokioIo::new(client), TokioIo::new(upstream));
    line.is_whole = copy_both(client, upstream, idle, &line.traffic).await;
}

/// The audit line of a tunnel. It is written when this is dropped, also if the process stops before the tunnel has ended.
struct TunnelLine {
    entry: PassEntry,
    traffic: Traffic,
    is_whole: bool,
}

impl Drop for TunnelLine {
    fn drop(&mut self) {
        let (received, answered) = self.traffic.bytes();
        self.entry.end_tunnel(received, answered, self.is_whole);
    }
}

/// Carries bytes until one side breaks, both have ended, or none has moved for `idle`. Whether both have ended.
async fn copy_both<C, U>(client: C, mut upstream: U, idle: Duration, traffic: &Traffic) -> bool
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    // Whatever is carried is read from the client or written to it.
    let mut tracked_client = TrackedClient {
        side: client,
        traffic: traffic.clone(),
    };
    let copied = tokio::select! {
        copied = copy_bidirectional(&mut tracked_client, &mut upstream) => copied,
        () = traffic.wait_idle(idle) => {
            tracing::debug!("a tunnel was closed: it had no traffic for {idle:?}");
            return false;
        }
    };
    if let Err(error) = &copied {
        tracing::debug!("a tunnel broke: {error}");
    }
    copied.is_ok()
}

/// What a tunnel has carried. Clones share it.
#[derive(Clone, Debug)]
struct Traffic(Arc<Mutex<Carried>>);

#[derive(Debug)]
struct Carried {
    /// When a byte last moved.
    last: Instant,
    /// Bytes from the client, and to it.
    received: u64,
    answered: u64,
}

impl Default for Traffic {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Carried {
            last: Instant::now(),
            received: 0,
            answered: 0,
        })))
    }
}

impl Traffic {
    fn lock(&self) -> MutexGuard<'_, Carried> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, received: usize, answered: usize) {
        let mut carried = self.lock();
        carried.last = Instant::now();
        carried.received += received as u64;
        carried.answered += answered as u64;
    }

    fn bytes(&self) -> (u64, u64) {
        let carried = self.lock();
        (carried.received, carried.answered)
    }

    /// Ready once none has moved for `limit`.
    async fn wait_idle(&self, limit: Duration) {
        loop {
            let last = self.lock().last;
            if last.elapsed() >= limit {
                return;
            }
            sleep_until(last + limit).await;
        }
    }
}

/// The client's side of a tunnel.
struct TrackedClient<S> {
    side: S,
    traffic: Traffic,
}

impl<S: AsyncRead + Unpin> AsyncRead for TrackedClient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.side).poll_read(cx, buffer);
        let read_bytes = buffer.filled().len() - before;
        if read_bytes > 0 {
            self.traffic.add(read_bytes, 0);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TrackedClient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.side).poll_write(cx, bytes);
        if let Poll::Ready(Ok(written_bytes @ 1..)) = written {
            self.traffic.add(0, written_bytes);
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
    async fn a_tunnel_ends_only_after_the_idle_time_without_any_byte() {
        let (mut client, ours) = duplex(64);
        let (mut upstream, theirs) = duplex(64);
        let started = Instant::now();
        let traffic = Traffic::default();
        let carrying = copy_both(ours, theirs, IDLE, &traffic);
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
        let (is_whole, silent) = tokio::join!(carrying, talking);
        assert_eq!((is_whole, silent), (false, Some(IDLE)));
        assert_eq!(traffic.bytes(), (3, 3));
    }
}
