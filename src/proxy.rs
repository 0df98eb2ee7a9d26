//! The way of one request.
//!
//! [`Proxy`] is what all requests share. [`flow`] is one request read from top to bottom; the rest
//! are its phases. Called by `server`, once for each request of the data port. Whatever happens,
//! the caller gets a response: [`respond`] is the one place where an error becomes one.

pub mod abort;
mod answer_position;
mod audit_entry;
pub mod body;
pub mod capabilities;
mod chat_completions;
mod declined_request;
pub mod decode;
mod decoded_stream;
#[cfg(feature = "testing")]
mod dry_run;
mod error;
mod flow;
pub mod forward;
pub mod headers;
pub mod identify;
mod memory;
pub mod mode;
mod outgoing_request;
mod overflow;
mod peer_memory;
mod request_metrics;
pub mod respond;
mod retry;
mod select_memory;
mod singleflight;
pub mod sse;
mod stream_head;
mod stream_retry;
pub mod tee;
mod upgrade;
mod upstream_route;
pub mod usage_filter;

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::sync::Semaphore;

pub use self::body::{OutBody, ProxyBody};
#[cfg(feature = "testing")]
pub use self::dry_run::{DryRun, DryRunShortening};
pub use self::error::{ProxyError, Side};
pub use self::memory::{AskUsage, Memory, Overflow, RequestPolicy};
use self::request_metrics::RequestMetrics;
pub use self::singleflight::Singleflight;
use crate::tasks::Tasks;
use crate::upstream::Upstream;

/// How much, and how long, one request may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests between head and end of answer, over all connections. One more is answered 429.
    pub max_requests: usize,
    /// Bytes of a body that has to be read whole. Bodies that stream through have no limit.
    pub max_body_bytes: usize,
    /// Longest pause between two pieces of a request's body.
    pub request_idle: Duration,
    /// Longest pause between two pieces of a response's body. Reasoning models pause for minutes.
    pub response_idle: Duration,
    /// How long a tunnel may stay without a byte in either direction.
    pub tunnel_idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_requests: 4096,
            max_body_bytes: 32 << 20,
            request_idle: Duration::from_mins(1),
            response_idle: Duration::from_mins(5),
            tunnel_idle: Duration::from_mins(5),
        }
    }
}

/// What all requests share.
#[derive(Debug)]
pub struct Proxy {
    upstream: Upstream,
    limits: Limits,
    request_permits: Arc<Semaphore>,
    tasks: Tasks,
    memory: Option<Arc<Memory>>,
}

impl Proxy {
    /// A proxy that passes everything on; [`Proxy::remembering`] gives it memory.
    #[must_use]
    pub fn new(upstream: Upstream, limits: Limits, tasks: Tasks) -> Self {
        Self {
            memory: None,
            upstream,
            limits,
            request_permits: Arc::new(Semaphore::new(
                limits.max_requests.min(Semaphore::MAX_PERMITS),
            )),
            tasks,
        }
    }

    /// With memory for chat completions.
    #[must_use]
    pub fn with_memory(self, memory: Memory) -> Self {
        Self {
            memory: Some(Arc::new(memory)),
            ..self
        }
    }

    /// What memory requests share, if there is memory.
    pub fn memory(&self) -> Option<&Arc<Memory>> {
        self.memory.as_ref()
    }

    /// Answers one request. Dropping the future is a client's hang-up: it takes back whatever was
    /// asked of the upstream.
    pub async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<ProxyBody> {
        let request_metrics = RequestMetrics::start(&request);
        let Ok(permit) = Arc::clone(&self.request_permits).try_acquire_owned() else {
            let error = ProxyError::TooManyRequests(self.limits.max_requests);
            return request_metrics.track_body(respond::error(&error));
        };
        let response = match flow::handle(&self, request).await {
            Ok(response) => response,
            Err(error) => respond::error(&error),
        };
        request_metrics.track_body(response.map(|body| body::with_guard(body, permit)))
    }
}
