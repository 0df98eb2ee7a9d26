//! One connection: both protocols, with every limit hyper leaves open closed.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Settings;
use super::socket::ClientStream;
use crate::proxy::abort::ResetOnClose;
use crate::proxy::{ProxyBody, body};
use crate::tasks::Tasks;

/// How connections are served; one for all of them.
#[derive(Debug)]
pub(super) struct Rules {
    http: auto::Builder<Tasks>,
    header_timeout: Duration,
    idle_timeout: Duration,
    write_timeout: Duration,
    stopped: CancellationToken,
}

impl Rules {
    pub(super) fn new(settings: &Settings, tasks: &Tasks) -> Arc<Self> {
        let mut http = auto::Builder::new(tasks.clone());
        // Without a timer hyper's own timeouts are inert.
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(settings.header_timeout)
            // hyper refuses to go below 8 KiB.
            .max_buf_size(settings.max_head_bytes.max(8 << 10))
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
            stopped: tasks.token(),
        })
    }

    /// Serves a connection until it ends, falls idle, `leave` is cancelled and its requests are
    /// answered, or everything is stopped.
    pub(super) async fn serve<H, F>(&self, stream: TcpStream, leave: &CancellationToken, handle: H)
    where
        H: Fn(Request<Incoming>) -> F,
        F: Future<Output = Response<ProxyBody>> + Send + 'static,
    {
        let activity = Arc::new(Activity::default());
        let reset = ResetOnClose::default();
        let service = service_fn(|mut request: Request<Incoming>| {
            let busy = Activity::begin(&activity);
            request.extensions_mut().insert(reset.clone());
            let answer = handle(request);
            async move { Ok::<_, Infallible>(answer.await.map(|body| body::hold(body, busy))) }
        });
        let stream = ClientStream::new(
            stream,
            reset.clone(),
            self.header_timeout,
            self.write_timeout,
        );
        let mut connection = pin!(
            self.http
                .serve_connection_with_upgrades(TokioIo::new(stream), service)
        );
        let mut leaving = false;
        let ended = loop {
            tokio::select! {
                ended = connection.as_mut() => break ended,
                () = self.stopped.cancelled() => return,
                () = time_to_go(&activity, self.idle_timeout, leave), if !leaving => {
                    leaving = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        };
        if let Err(error) = ended {
            // Clients hang up all day; what they sent is not worth a line unless asked for.
            tracing::debug!("a connection ended: {error}");
        }
    }

    /// Gives a connection one answer, whatever it asks, and closes it.
    pub(super) async fn refuse(&self, stream: TcpStream, answer: impl Fn() -> Response<ProxyBody>) {
        let leave = CancellationToken::new();
        self.serve(stream, &leave, |_| {
            leave.cancel();
            std::future::ready(answer())
        })
        .await;
    }
}

async fn time_to_go(activity: &Activity, idle: Duration, leave: &CancellationToken) {
    tokio::select! {
        () = leave.cancelled() => {}
        () = activity.idle_for(idle) => {}
    }
}

/// Counts the requests of one connection.
#[derive(Debug)]
struct Activity {
    state: Mutex<(usize, Instant)>,
    changed: Notify,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            state: Mutex::new((0, Instant::now())),
            changed: Notify::new(),
        }
    }
}

/// A request of a connection, until its answer has ended.
#[derive(Debug)]
struct Busy(Arc<Activity>);

impl Activity {
    fn begin(this: &Arc<Self>) -> Busy {
        this.update(|requests| requests + 1);
        Busy(Arc::clone(this))
    }

    fn update(&self, change: impl Fn(usize) -> usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = (change(state.0), Instant::now());
        drop(state);
        self.changed.notify_one();
    }

    /// Ready once there has been no request for `limit`.
    async fn idle_for(&self, limit: Duration) {
        loop {
            let (requests, since) = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if requests > 0 {
                self.changed.notified().await;
            } else if since.elapsed() < limit {
                sleep_until(since + limit).await;
            } else {
                return;
            }
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.update(|requests| requests.saturating_sub(1));
    }
}
