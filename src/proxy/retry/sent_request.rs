//! A request that goes out, and what was tried for it before.
//!
//! [`SentRequest`] passes through every phase after the selection: it is sent, refused, replaced, and at
//! last accepted. It names the first fallback, the original; which fallback is due decides
//! [`super::attempt`]. Sends nothing.

use std::sync::Arc;

use super::super::capabilities::CacheAddition;
use super::super::fallback::Fallback;
use super::super::memory::{Memory, MemoryRequest};
use super::super::outgoing_request::{Extras, OutgoingRequest};
use super::declined::DeclinedRequest;
use crate::memory::Snapshot;
use crate::wire::usage::Blame;

/// A request as it goes out, and what was tried before it.
#[derive(Clone, Debug)]
pub(in crate::proxy) struct SentRequest {
    pub(in crate::proxy) outgoing: OutgoingRequest,
    pub(super) attempts: Attempts,
}

/// One way to make a request fit its model. [`super::overflow`] has their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverflowStep {
    /// The block that was declined, without what was at fault: one placement lower, or without what was added beside
    /// it.
    MoveBlock,
    /// Everything observed so far, in one new snapshot.
    ApplyObservations,
    /// The same observations without the section about other conversations.
    DropPeerMemory,
    /// The client's own bytes.
    SendOriginal,
    /// The rest is observed while the client waits.
    ObserveAndWait,
    /// The oldest raw rounds are left out.
    Trim,
}

/// What was tried for one request. A status and a first event of a stream share it, so that no step is
/// taken twice and no client waits twice for the Observer.
#[derive(Clone, Debug, Default)]
pub(super) struct Attempts {
    /// The request that was declined last: the upstream refused what it holds, not its length.
    pub(super) declined: Option<Arc<DeclinedRequest>>,
    /// The steps taken because the request was too long, in order.
    steps: Vec<OverflowStep>,
    /// Whether a request that asks for usage was refused for its length alone.
    pub(super) usage_accepted: bool,
    /// The snapshot of everything observed, without the section about other conversations.
    pub(super) applied_snapshot: Option<Arc<Snapshot>>,
    /// The bytes of the largest request with a block that was too long.
    pub(super) largest_bytes: usize,
}

impl Attempts {
    /// How often `step` was taken.
    pub(super) fn count(&self, step: OverflowStep) -> usize {
        self.steps.iter().filter(|taken| **taken == step).count()
    }

    pub(super) fn record(&mut self, step: OverflowStep) {
        self.steps.push(step);
    }

    /// `outgoing` was refused as too long.
    pub(super) fn record_too_long(&mut self, outgoing: &OutgoingRequest) {
        if outgoing.block.is_some() {
            self.largest_bytes = self.largest_bytes.max(outgoing.bytes);
        } else {
            self.record(OverflowStep::SendOriginal);
        }
        self.usage_accepted |= outgoing.asks_usage;
    }

    /// The same attempts after `declined` was refused: its block may be moved, even if another one was.
    fn after_declined(mut self, declined: DeclinedRequest) -> Self {
        self.steps.retain(|step| *step != OverflowStep::MoveBlock);
        self.declined = Some(Arc::new(declined));
        self
    }
}

impl SentRequest {
    /// The first request: nothing was tried before it.
    pub(in crate::proxy) fn first(outgoing: OutgoingRequest) -> Self {
        Self {
            outgoing,
            attempts: Attempts::default(),
        }
    }

    /// The original, to be sent after this request was declined. `None` if nothing of it was changed.
    pub(in crate::proxy) async fn fall_back_to_original(
        &self,
        memory: &Memory,
        request: &MemoryRequest,
        blame: Blame,
    ) -> Option<Self> {
        let refused = &self.outgoing;
        if !refused.is_changed() {
            return None;
        }
        let nothing = Extras::default();
        let original = OutgoingRequest::new(request, None, nothing, refused.why, Fallback::Refused);
        let declined = DeclinedRequest::new(memory, request, refused, blame);
        Some(Self {
            outgoing: original.or_equal_request(memory, request, refused).await,
            attempts: self.attempts.clone().after_declined(declined),
        })
    }

    /// The upstream accepted this request, maybe after it declined another one: learns from both.
    pub(in crate::proxy) fn record_accepted(&self, memory: &Memory, request: &MemoryRequest) {
        let accepted = &self.outgoing;
        if let Some(snapshot) = accepted.snapshot() {
            memory
                .capabilities
                .record_accepted_snapshot(&request.model, snapshot.meta.id);
        }
        for addition in CacheAddition::ALL {
            if accepted.has(addition) {
                let capabilities = &memory.capabilities;
                capabilities.record_addition_accepted(addition, &request.model);
            }
        }
        match &self.attempts.declined {
            Some(declined) => declined.learn(memory, request, accepted),
            None if accepted.is_changed() => memory
                .capabilities
                .record_accepted_change(request.tenant_model()),
            None => {}
        }
    }
}
