//! Serves one connection, in HTTP/1 or HTTP/2, with the limits that hyper does not set by itself. Called by
//! [`super`], for both ports.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::activity::{ActiveRequest, Activity};
use super::bad_request::BadRequestAnswer;
use super::settings::Settings;
use super::socket::ClientStream;
use super::stream_tasks::StreamTasks;
use crate::proxy::abort::ResetOnClose;
use crate::proxy::{Peer, Proxy, ProxyBody, body, unread_answers};
use crate::tasks::Tasks;

/// How connections are served; shared by all of them.
#[derive(Debug)]
pub(super) struct ConnectionServer {
    http: auto::Builder<StreamTasks>,
    header_timeout: Duration,
    idle_timeout: Duration,
    write_timeout: Duration,
    max_head_bytes: usize,
    stopped: CancellationToken,
    /// The number of the next connection.
    next: AtomicU64,
}

impl ConnectionServer {
    pub(super) fn new(settings: &Settings, tasks: &Tasks) -> Arc<Self> {
        let mut http = auto::Builder::new(StreamTasks::new(tasks, settings.write_timeout));
        // hyper accepts no less than 8 KiB.
        let max_head_bytes = settings.max_head_bytes.max(8 << 10);
        // Without a timer, hyper's own timeouts do nothing.
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(settings.header_timeout)
            .max_buf_size(max_head_bytes)
            .preserve_header_case(true)
            .auto_date_header(false);
        http.http2()
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(settings.max_head_bytes).unwrap_or(u32::MAX))
            .max_concurrent_streams(settings.max_streams)
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(20))
            .adaptive_window(true)
            .auto_date_header(false);
        Arc::new(Self {
            http,
            header_timeout: settings.header_timeout,
            idle_timeout: settings.idle_timeout,
            write_timeout: settings.write_timeout,
            max_head_bytes,
            stopped: tasks.token(),
            next: AtomicU64::new(0),
        })
    }

    /// Serves a connection until it ends, is idle for too long, or everything is stopped. After `drain` is cancelled,
    /// it ends once its requests are answered. `audited_by` notes heads that cannot be read.
    pub(super) async fn serve<H, F>(
        &self,
        stream: TcpStream,
        drain: &CancellationToken,
        audited_by: Option<Arc<Proxy>>,
        handle: H,
    ) where
        H: Fn(Request<Incoming>) -> F,
        F: Future<Output = Response<ProxyBody>> + Send + 'static,
    {
        let activity = Arc::new(Activity::default());
        let reset = ResetOnClose::default();
        let connection = self.next.fetch_add(1, Ordering::Relaxed);
        // Without an address the client is gone already.
        let address = stream.peer_addr().map(|address| address.ip()).ok();
        let peer = address.map(|address| Peer {
            connection,
            address,
        });
        let service = service_fn(|mut request: Request<Incoming>| {
            let active_request = Activity::start(&activity);
            request.extensions_mut().insert(reset.clone());
            if let Some(peer) = peer {
                request.extensions_mut().insert(peer);
            }
            guard_answer(handle(request), active_request)
        });
        let stream = ClientStream::new(
            stream,
            reset.clone(),
            self.header_timeout,
            self.write_timeout,
            BadRequestAnswer::new(Arc::clone(&activity), self.max_head_bytes, audited_by),
        );
        let mut connection = pin!(
            self.http
                .serve_connection_with_upgrades(TokioIo::new(stream), service)
        );
        let mut closing = false;
        let ended = loop {
            tokio::select! {
                ended = connection.as_mut() => break ended,
                () = self.stopped.cancelled() => return,
                () = wait_for_close(&activity, self.idle_timeout, drain), if !closing => {
                    closing = true;
                    connection.as_mut().graceful_shutdown();
                }
                // In HTTP/2, the last bytes of an answer may wait for a client that never takes them.
                () = activity.idle_for(self.idle_timeout + self.write_timeout), if closing => return,
            }
        };
        if let Err(error) = ended {
            // Clients disconnect all the time, so this is logged only at debug level.
            tracing::debug!("a connection ended: {error}");
        }
    }

    /// Gives a connection one answer, whatever it requests, and closes it.
    pub(super) async fn refuse(
        &self,
        stream: TcpStream,
        audited_by: Arc<Proxy>,
        answer: impl Fn(&Request<Incoming>) -> Response<ProxyBody>,
    ) {
        let drain = CancellationToken::new();
        self.serve(stream, &drain, Some(audited_by), |request| {
            drain.cancel();
            std::future::ready(answer(&request))
        })
        .await;
    }
}

/// The answer of a request, whose body keeps the request active. A small future: hyper moves it several times, and has
/// room for one in each open connection.
fn guard_answer(
    answer: impl Future<Output = Response<ProxyBody>>,
    active_request: ActiveRequest,
) -> impl Future<Output = Result<Response<ProxyBody>, Infallible>> {
    let answer = Box::pin(answer);
    async move {
        let answer = answer.await;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            active_request.mark_upgraded();
        }
        let guarded = |body| unread_answers::watch(body::with_guard(body, active_request));
        Ok(answer.map(guarded))
    }
}

async fn wait_for_close(activity: &Activity, idle: Duration, drain: &CancellationToken) {
    tokio::select! {
        () = drain.cancelled() => {}
        () = activity.idle_for(idle) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_reserves_no_memory_for_a_request() {
        const BYTES: usize = 4096;
        let answer = async {
            let bytes = [1_u8; BYTES];
            std::future::ready(()).await;
            assert!(bytes.iter().all(|byte| *byte == 1));
            Response::new(body::empty())
        };
        assert!(size_of_val(&answer) > BYTES);
        let active_request = Activity::start(&Arc::default());
        assert!(size_of_val(&guard_answer(answer, active_request)) < BYTES / 8);
    }
}
