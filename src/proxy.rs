//! The path of one request.
//!
//! [`Proxy::handle`] is called by `server`, once for each request of the data port, and always returns
//! a response: [`respond`] turns every error into one. Reading order: [`flow`] separates chat
//! completions from all others; [`chat_completions`] is the path of a chat completion; [`select_memory`] chooses its
//! snapshot; [`retry`] sends it and decides what follows a rejection. The state that all of them share
//! is in [`shared`] and [`memory`].

pub mod abort;
mod accepted_tenants;
mod answer_position;
mod audit_entry;
pub mod body;
mod body_budget;
mod cache_verdict;
pub mod capabilities;
mod chat_completions;
pub mod decode;
mod decoded_stream;
#[cfg(feature = "testing")]
mod dry_run;
mod error;
mod fallback;
mod flow;
pub mod forward;
pub mod headers;
pub mod holdout;
pub mod identify;
mod memory;
pub mod mode;
mod outgoing_request;
mod parsed_prefixes;
mod pass_entry;
mod peer_memory;
mod places;
mod read_request;
mod received_body;
mod rejections;
mod request_metrics;
pub mod respond;
mod retry;
mod select_memory;
mod sent_prompts;
mod shared;
mod singleflight;
pub mod sse;
pub mod tee;
pub mod unread_answers;
mod upgrade;
mod upstream_route;
pub mod usage_filter;

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;

pub use self::accepted_tenants::AcceptedTenants;
pub use self::body::{OutBody, Pace, ProxyBody};
use self::body_budget::BodyBudget;
#[cfg(feature = "testing")]
pub use self::dry_run::{DryRun, DryRunShortening};
pub use self::error::{ProxyError, Side};
pub use self::memory::{AddForCache, AskUsage, Memory, Overflow, RequestPolicy, SessionAffinity};
pub use self::parsed_prefixes::ParsedPrefixes;
use self::places::Places;
pub use self::places::{Peer, network};
use self::rejections::Rejections;
use self::request_metrics::RequestMetrics;
pub use self::sent_prompts::SentPrompts;
pub use self::shared::Limits;
use self::shared::Shared;
pub use self::singleflight::Singleflight;
use crate::audit::Audit;
use crate::tasks::Tasks;
use crate::upstream::Upstream;

/// The proxy. It answers every request of the data port.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    memory: Option<Arc<Memory>>,
}

impl Proxy {
    /// A proxy that forwards every request unchanged; [`Proxy::with_memory`] adds memory.
    #[must_use]
    pub fn new(upstream: Upstream, limits: Limits, tasks: Tasks) -> Self {
        respond::register_metrics();
        Self {
            memory: None,
            shared: Arc::new(Shared {
                body_budget: BodyBudget::new(limits.max_buffered_bytes),
                places: Places::new(limits.max_requests, limits.max_requests_per_address),
                rejections: Rejections::default(),
                upstream,
                limits,
                tasks,
            }),
        }
    }

    /// Adds memory for chat completions.
    #[must_use]
    pub fn with_memory(self, memory: Memory) -> Self {
        cache_verdict::register_metrics();
        Self {
            memory: Some(Arc::new(memory)),
            ..self
        }
    }

    /// The state that all chat completions share; `None` without memory.
    pub fn memory(&self) -> Option<&Arc<Memory>> {
        self.memory.as_ref()
    }

    /// Answers one request. If the client hangs up, the server drops this future, and the request
    /// to the upstream is cancelled with it.
    pub async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<ProxyBody> {
        let request_metrics = RequestMetrics::start(&request);
        let response = match flow::handle(&self.shared, self.memory.as_ref(), request).await {
            Ok(response) => response,
            Err(rejection) => rejection.into_response(),
        };
        request_metrics.track_body(response)
    }

    /// Answers a request that the server does not accept, and lets it have an audit line.
    pub fn refuse<B>(&self, request: &Request<B>, error: ProxyError) -> Response<ProxyBody> {
        let audit = self.audit();
        let (method, uri) = (request.method(), request.uri());
        let rejection = self.shared.rejections.refuse(audit, method, uri, error);
        rejection.into_response()
    }

    /// Lets a request whose head could not be read have an audit line. It was answered with so many bytes.
    pub fn note_unreadable_head(&self, error: &ProxyError, bytes_answered: usize) {
        if let Some(audit) = self.audit() {
            self.shared
                .rejections
                .note_unreadable_head(audit, error, bytes_answered);
        }
    }

    fn audit(&self) -> Option<&Audit> {
        self.memory.as_ref()?.audit.as_ref()
    }
}
