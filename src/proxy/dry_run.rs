//! Reads a request, selects its memory and follows refusals, without an upstream: the caller brings the answers.
//!
//! Decides nothing of its own: it takes the same steps as `chat_completions`. Called by tests only, above all by
//! the simulation, which plays client and upstream.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;

use super::answer_position::AnswerPosition;
use super::audit_entry::AuditEntry;
use super::memory::{Memory, MemoryRequest};
use super::read_request::read_request;
use super::received_body::ReceivedBody;
use super::retry::{OverflowShortening, SentRequest};
use super::select_memory::{SelectionGuard, select_memory};
use super::tee::AnswerMessage;
use crate::audit::RequestSpan;
use crate::history::{History, Scope};
use crate::jobs::Exchange;
use crate::llm::UpstreamRoute;
use crate::memory::Snapshot;
use crate::store::SentWith;
use crate::wire::usage::{Blame, Excess};

/// A request that memory may touch, and what it goes out as.
#[derive(Clone, Debug)]
pub struct DryRun {
    request: Arc<MemoryRequest>,
    answer_position: Arc<AnswerPosition>,
    sent: SentRequest,
    guard: Option<Arc<SelectionGuard>>,
}

impl DryRun {
    /// Reads the request and selects its memory. `None` if the request goes out verbatim.
    pub async fn start(memory: &Memory, parts: &Parts, received: &Bytes) -> Option<Self> {
        let mut entry = AuditEntry::new(memory.audit.as_ref(), RequestSpan::default());
        let mut hasher = memory.parsed_prefixes.hasher(Some(received.len() as u64));
        hasher.read(received, || memory.credential_hash(parts));
        let received = ReceivedBody {
            body: received.clone(),
            prefix_hashes: hasher.finish(),
        };
        let read = Box::pin(read_request(memory, parts, &received, &mut entry)).await;
        let (request, answer_position) = read.request.zip(read.answer_position)?;
        // The product does this when the answer has ended. Here the next request may come before.
        let read = |most| request.prefix(most);
        let tenant = &request.identity.scope.tenant;
        memory
            .parsed_prefixes
            .keep(tenant, &received.prefix_hashes, &received.body, read);
        let (outgoing, guard) = select_memory(memory, &request).await;
        entry.set_outgoing(&outgoing);
        Some(Self {
            request,
            answer_position: Arc::new(answer_position),
            sent: SentRequest::first(outgoing),
            guard: guard.map(Arc::new),
        })
    }

    /// The body that goes out.
    pub fn body(&self) -> Bytes {
        self.sent.outgoing.frames.concat().into()
    }

    /// What the request is sent with.
    pub fn sent_with(&self) -> SentWith {
        self.sent.outgoing.sent_with().clone()
    }

    /// The name of its fallback.
    pub fn fallback(&self) -> &'static str {
        self.sent.outgoing.fallback.name()
    }

    /// The reason for its selection.
    pub fn why(&self) -> &'static str {
        self.sent.outgoing.why
    }

    /// Whether memory is withheld that the request may belong to.
    pub fn is_withheld(&self) -> bool {
        self.request.lookup.withheld
    }

    /// The owner.
    pub fn scope(&self) -> &Scope {
        &self.request.identity.scope
    }

    /// For an aligned request: the index of the message at each place of the chain.
    pub fn aligned_positions(&self) -> Option<Vec<Option<usize>>> {
        let alignment = self.request.alignment.as_ref()?;
        let places = 0..self.request.history.len();
        Some(
            places
                .map(|place| alignment.positions.request_index(place))
                .collect(),
        )
    }

    /// The chain that memory knows the request by.
    pub fn history(&self) -> &Arc<History> {
        &self.request.history
    }

    /// The snapshot in the place of the oldest messages.
    pub fn snapshot(&self) -> Option<&Snapshot> {
        self.sent.outgoing.snapshot().map(|snapshot| &**snapshot)
    }

    /// The request was refused as too long: makes it shorter, step by step. `route` returns its route.
    pub fn retry_shorter<'a>(
        &'a self,
        memory: &'a Memory,
        route: &'a (dyn Fn() -> Option<UpstreamRoute> + Sync),
    ) -> DryRunShortening<'a> {
        let refused = self.sent.clone();
        DryRunShortening {
            first: self,
            shortening: OverflowShortening::new(memory, &self.request, route, refused),
        }
    }

    /// The request was declined: the original, if anything was changed.
    pub async fn fall_back_to_original(&self, memory: &Memory, blame: Blame) -> Option<Self> {
        let original = self
            .sent
            .fall_back_to_original(memory, &self.request, blame);
        Some(Self {
            sent: original.await?,
            ..self.clone()
        })
    }

    /// The upstream accepted the request, maybe after it declined another one: learns from both.
    pub fn record_accepted(&self, memory: &Memory) {
        self.sent.record_accepted(memory, &self.request);
    }

    /// The upstream accepted the request: equal requests go out alike from now on, however its answer ends.
    pub fn accept(&self) {
        if let Some(guard) = &self.guard {
            guard.accept();
        }
    }

    /// The upstream answers with this message, as JSON.
    pub fn record_answer(&self, message: &serde_json::Value) {
        self.answer_position
            .record_answers(&[&AnswerMessage::from_message(message)]);
    }

    /// The answer has ended well: the exchange to record. `route_hash` is the hash of the route that jobs may
    /// borrow.
    pub fn exchange(&self, route_hash: Option<[u8; 32]>, at_ms: i64) -> Exchange {
        MemoryRequest::clone(&self.request).into_exchange(self.sent_with(), route_hash, at_ms)
    }
}

/// A request that does not fit its model, shorter with every step.
pub struct DryRunShortening<'a> {
    first: &'a DryRun,
    shortening: OverflowShortening<'a>,
}

impl std::fmt::Debug for DryRunShortening<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shorter").finish_non_exhaustive()
    }
}

impl DryRunShortening<'_> {
    /// The next request, after the last one was too long by `excess`.
    pub async fn next(&mut self, excess: Option<Excess>) -> Option<DryRun> {
        let sent = self.shortening.next(excess).await?;
        Some(DryRun {
            sent,
            ..self.first.clone()
        })
    }

    /// The next request, after the last one was declined.
    pub async fn other_placement(&mut self, blame: Blame) -> Option<DryRun> {
        let sent = self.shortening.move_block(blame).await?;
        Some(DryRun {
            sent,
            ..self.first.clone()
        })
    }

    /// The upstream accepted the last request.
    pub fn record_accepted(&self) {
        self.shortening.record_accepted();
    }

    /// No step helped: the client gets the first refusal.
    pub fn give_up(self) {
        self.shortening.give_up();
    }
}
