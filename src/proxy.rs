//! The way of one request.
//!
//! [`Proxy`] is what all requests share. [`flow`] is one request read from top to bottom; the rest
//! are its phases. Called by `server`, once for each request of the data port. Whatever happens,
//! the caller gets a response: [`respond`] is the one place where an error becomes one.

pub mod abort;
pub mod body;
mod choice;
mod choose;
mod declined;
pub mod decode;
mod error;
mod flow;
pub mod forward;
pub mod headers;
mod hearing;
pub mod identify;
mod ladder;
mod late;
mod lend;
mod line;
pub mod manners;
mod memory;
pub mod mode;
mod opening;
mod others;
mod overflow;
mod plain;
mod rehearse;
mod remember;
pub mod respond;
pub mod sse;
pub mod tee;
mod turns;
mod upgrade;
pub mod usage_filter;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::sync::Semaphore;

pub use self::body::{OutBody, ProxyBody};
pub use self::error::{ProxyError, Side};
pub use self::memory::{AskUsage, Memory, Overflow, Treatment};
pub use self::rehearse::{Rehearsal, Shorter};
pub use self::turns::Turns;
use self::watch::Watch;
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
    places: Arc<Semaphore>,
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
            places: Arc::new(Semaphore::new(
                limits.max_requests.min(Semaphore::MAX_PERMITS),
            )),
            tasks,
        }
    }

    /// With memory for chat completions.
    #[must_use]
    pub fn remembering(self, memory: Memory) -> Self {
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
        let watch = Watch::begin(&request);
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            let error = ProxyError::TooManyRequests(self.limits.max_requests);
            return watch.until_end(respond::error(&error));
        };
        let response = match flow::handle(&self, request).await {
            Ok(response) => response,
            Err(error) => respond::error(&error),
        };
        watch.until_end(response.map(|body| body::hold(body, place)))
    }
}
