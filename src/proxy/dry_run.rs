//! What a request would go out as, without sending it: the reading, the choosing and what follows
//! from a refusal, for whoever brings the upstream's answer along.
//!
//! Decides nothing of its own. Called by the simulation, which plays client and upstream.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;

use super::answer_position::AnswerPosition;
use super::audit_entry::AuditEntry;
use super::memory::{Memory, MemoryRequest};
use super::read_request::read_request;
use super::retry::{OverflowShortening, SentRequest};
use super::select_memory::{SelectionGuard, select_memory};
use super::tee::AnswerMessage;
use crate::history::{History, Scope};
use crate::jobs::Exchange;
use crate::llm::UpstreamRoute;
use crate::memory::Snapshot;
use crate::store::SentWith;
use crate::wire::usage::{Blame, Excess};

/// A request that memory may touch, and what it goes out as.
#[derive(Clone, Debug)]
pub struct DryRun {
    request: MemoryRequest,
    answer_position: AnswerPosition,
    sent: SentRequest,
    guard: Option<Arc<SelectionGuard>>,
}

impl DryRun {
    /// Reads and chooses. `None` where the request goes out verbatim.
    pub async fn start(memory: &Memory, parts: &Parts, received: &Bytes) -> Option<Self> {
        let mut entry = AuditEntry::new(memory.audit.as_ref());
        let read = read_request(memory, parts, received, &mut entry).await;
        let (request, answer_position) = read.request.zip(read.answer_position)?;
        let (outgoing, guard) = select_memory(memory, &request).await;
        entry.set_outgoing(&outgoing);
        Some(Self {
            request,
            answer_position,
            sent: SentRequest::first(outgoing),
            guard: guard.map(Arc::new),
        })
    }

    /// The body that goes out.
    pub fn body(&self) -> Bytes {
        self.sent.outgoing.frames.concat().into()
    }

    /// What it was made with.
    pub fn sent_with(&self) -> SentWith {
        self.sent.outgoing.sent_with().clone()
    }

    /// The rung it stands on, by its name.
    pub fn fallback(&self) -> &'static str {
        self.sent.outgoing.fallback.name()
    }

    /// Why memory is what it is.
    pub fn why(&self) -> &'static str {
        self.sent.outgoing.why
    }

    /// Whether something that it may belong to is withheld from it.
    pub fn is_withheld(&self) -> bool {
        self.request.lookup.withheld
    }

    /// Whose it is.
    pub fn scope(&self) -> &Scope {
        &self.request.identity.scope
    }

    /// Where it is a view of another chain: which of its messages stands at each place of that.
    pub fn aligned_positions(&self) -> Option<Vec<Option<usize>>> {
        let alignment = self.request.alignment.as_ref()?;
        let places = 0..self.request.history.len();
        Some(
            places
                .map(|place| alignment.positions.request_index(place))
                .collect(),
        )
    }

    /// The chain that memory knows it by.
    pub fn history(&self) -> &Arc<History> {
        &self.request.history
    }

    /// The text that stands in for the oldest messages, where one does.
    pub fn snapshot(&self) -> Option<&Snapshot> {
        self.sent.outgoing.snapshot().map(|snapshot| &**snapshot)
    }

    /// It was refused as too long: what goes out instead, step by step. `way` is how it went.
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

    /// It was refused for something else: what goes out instead, if anything does.
    pub async fn fall_back_to_original(&self, memory: &Memory, blame: Blame) -> Option<Self> {
        let original = self
            .sent
            .fall_back_to_original(memory, &self.request, blame);
        Some(Self {
            sent: original.await?,
            ..self.clone()
        })
    }

    /// That was accepted, maybe where something else was refused: what is learned from it.
    pub fn record_accepted(&self, memory: &Memory) {
        self.sent.record_accepted(memory, &self.request);
    }

    /// The upstream has taken it: however its answer ends, it goes out alike from now on.
    pub fn accept(&self) {
        if let Some(guard) = &self.guard {
            guard.accept();
        }
    }

    /// The upstream answers it with this message, as JSON.
    pub fn record_answer(&self, message: &serde_json::Value) {
        self.answer_position
            .record_answers(&[AnswerMessage::from_message(message)]);
    }

    /// Its answer has ended well: what is handed over to be recorded; `way` is the hash of the way it
    /// lent its memory, if any.
    pub fn exchange(&self, route_hash: Option<[u8; 32]>, at_ms: i64) -> Exchange {
        self.request
            .clone()
            .into_exchange(self.sent_with(), route_hash, at_ms)
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
    /// The next step, where what went out last was refused with this `excess`.
    pub async fn next(&mut self, excess: Option<Excess>) -> Option<DryRun> {
        let sent = self.shortening.next(excess).await?;
        Some(DryRun {
            sent,
            ..self.first.clone()
        })
    }

    /// The same, where that was refused for what it holds.
    pub async fn other_placement(&mut self, blame: Blame) -> Option<DryRun> {
        let sent = self.shortening.move_block(blame).await?;
        Some(DryRun {
            sent,
            ..self.first.clone()
        })
    }

    /// What went out last was accepted.
    pub fn record_accepted(&self) {
        self.shortening.record_accepted();
    }

    /// Nothing helped: the client hears the first refusal.
    pub fn give_up(self) {
        self.shortening.give_up();
    }
}
