//! Shortens a request that does not fit its model, one step after the other.
//!
//! [`STEPS`] has their order. Steps that cost nothing come first: everything observed so far is applied, and a
//! block that made the request longer goes. What comes after that, the operator decides (`overflow`). Sends
//! nothing: [`super::attempt`] asks for the next request for as long as the last one is refused.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::capabilities::{self, CacheAddition};
use super::super::fallback::Fallback;
use super::super::memory::{Memory, MemoryRequest, Overflow};
use super::super::outgoing_request::{Block, Extras, OutgoingRequest};
use super::super::select_memory::block_placement;
use super::super::singleflight::run_exclusive;
use super::declined::{DeclinedRequest, Fault};
use super::sent_request::{OverflowStep, SentRequest};
use super::trim::{self, Share};
use crate::jobs::{OversizedRequest, PreparedSnapshot};
use crate::llm::UpstreamRoute;
use crate::memory::{Snapshot, SnapshotMeta};
use crate::store::SentWith;
use crate::wire::Placement;
use crate::wire::usage::{Blame, Excess};

/// How long the client waits while everything observed is applied: a read and a short write.
const APPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// How often one request is trimmed. If the refusal says how much was too much, once is enough; if not, each
/// time halves what was sent.
const MAX_TRIMS: usize = 3;

/// The steps in the order in which they are tried, and how often each may be taken.
const STEPS: [(OverflowStep, usize); 6] = [
    (OverflowStep::MoveBlock, 1),
    (OverflowStep::ApplyObservations, 1),
    // The section about other conversations goes before anything of the conversation itself. The step yields
    // nothing for a request without that section, so it needs no limit.
    (OverflowStep::DropPeerMemory, usize::MAX),
    (OverflowStep::SendOriginal, 1),
    (OverflowStep::ObserveAndWait, 1),
    (OverflowStep::Trim, MAX_TRIMS),
];

/// The share of the raw messages that stays raw if the rest is observed: the observations need room too.
const RAW_SHARE: Share = (2, 3);

/// Sizes are compared in bytes, but models count tokens: observations are full of names and numbers, and may
/// hold up to twice as many tokens per byte as the messages they stand for.
const OBSERVATION_DENSITY: (usize, usize) = (2, 1);

/// A request that does not fit its model, shorter with every step.
pub(in crate::proxy) struct OverflowShortening<'a> {
    memory: &'a Memory,
    request: &'a MemoryRequest,
    route: &'a (dyn Fn() -> Option<UpstreamRoute> + Sync),
    /// The request that was too long at first.
    first: OutgoingRequest,
    /// The request that goes out, or was refused, last.
    last: SentRequest,
}

impl<'a> OverflowShortening<'a> {
    /// `refused` was too long. `route` returns its route to the upstream, which the Observer may borrow.
    pub(in crate::proxy) fn new(
        memory: &'a Memory,
        request: &'a MemoryRequest,
        route: &'a (dyn Fn() -> Option<UpstreamRoute> + Sync),
        refused: SentRequest,
    ) -> Self {
        let first = refused.outgoing.clone();
        let mut last = refused;
        // A content filter refuses the words elsewhere too, and a signature any change at all.
        last.attempts.declined = last.attempts.declined.filter(|it| it.fault.can_move());
        Self {
            memory,
            request,
            route,
            first,
            last,
        }
    }

    /// The request that goes out instead of the last one, which was too long by `excess`. `None` if no step
    /// is left.
    pub(in crate::proxy) async fn next(&mut self, excess: Option<Excess>) -> Option<SentRequest> {
        let refused = self.last.outgoing.clone();
        let shorter = self.next_step(&refused, excess).await?;
        Some(self.set_last(shorter).await)
    }

    /// The request that goes out instead of the last one, which was declined. `None` if nothing was at fault
    /// that it can do without.
    pub(in crate::proxy) async fn move_block(&mut self, blame: Blame) -> Option<SentRequest> {
        let (memory, request) = (self.memory, self.request);
        let mut declined = DeclinedRequest::new(memory, request, &self.last.outgoing, blame);
        if !declined.fault.can_move() {
            return None;
        }
        if declined.fault == Fault::Usage && self.last.attempts.usage_accepted {
            declined.fault = Fault::Placement;
        }
        self.last.attempts.declined = Some(Arc::new(declined));
        let moved = self.moved_block()?;
        Some(self.set_last(moved).await)
    }

    /// The upstream accepted the last request.
    #[cfg(feature = "testing")]
    pub(in crate::proxy) fn record_accepted(&self) {
        self.last.record_accepted(self.memory, self.request);
    }

    /// No step helped. Returns the first request: equal requests go out like it until they are decided anew.
    pub(in crate::proxy) fn give_up(self) -> OutgoingRequest {
        if let Some(tip) = self.request.history.tip() {
            let (scope, last) = (&self.request.identity.scope, self.last.outgoing.sent_with());
            let (cache, first) = (&self.memory.cache, self.first.sent_with().clone());
            cache.replace_refused_send(scope, (tip, &self.request.model), last, first);
        }
        self.first
    }

    async fn set_last(&mut self, outgoing: OutgoingRequest) -> SentRequest {
        let refused = &self.last.outgoing;
        self.last.outgoing = outgoing
            .or_equal_request(self.memory, self.request, refused)
            .await;
        self.last.clone()
    }

    /// Takes the first step of [`STEPS`] that is left and yields a request.
    async fn next_step(
        &mut self,
        refused: &OutgoingRequest,
        excess: Option<Excess>,
    ) -> Option<OutgoingRequest> {
        self.last.attempts.record_too_long(refused);
        for (step, limit) in STEPS {
            if self.last.attempts.count(step) >= limit || !self.applies(step, refused) {
                continue;
            }
            self.last.attempts.record(step);
            if let Some(shorter) = self.take(step, refused, excess).await {
                return Some(shorter);
            }
        }
        // The last resort: the original may have more bytes than what was refused, but fewer tokens.
        let original_sent = self.last.attempts.count(OverflowStep::SendOriginal) > 0;
        if original_sent || !self.original_may_fit(OBSERVATION_DENSITY) {
            return None;
        }
        self.last.attempts.record(OverflowStep::SendOriginal);
        Some(self.outgoing(None, refused.extras(), Fallback::Refused))
    }

    /// Whether `step` makes sense for what was `refused`, under the operator's policy.
    fn applies(&self, step: OverflowStep, refused: &OutgoingRequest) -> bool {
        match step {
            OverflowStep::MoveBlock
            | OverflowStep::ApplyObservations
            | OverflowStep::DropPeerMemory => true,
            OverflowStep::SendOriginal => refused.block.is_some() && self.original_may_fit((1, 1)),
            // A request that may only read leaves no trace: observations made for it would be lost.
            OverflowStep::ObserveAndWait => {
                matches!(self.request.policy.overflow, Overflow::Observe(_)) && self.request.writes
            }
            OverflowStep::Trim => self.request.policy.overflow == Overflow::Trim,
        }
    }

    async fn take(
        &mut self,
        step: OverflowStep,
        refused: &OutgoingRequest,
        excess: Option<Excess>,
    ) -> Option<OutgoingRequest> {
        match step {
            OverflowStep::MoveBlock => self.moved_block(),
            OverflowStep::ApplyObservations => self.reuse_or_apply(refused).await,
            OverflowStep::DropPeerMemory => self.without_peer_memory(refused).await,
            OverflowStep::SendOriginal => {
                Some(self.outgoing(None, refused.extras(), Fallback::Refused))
            }
            OverflowStep::ObserveAndWait => self.observe_and_wait(refused, excess).await,
            OverflowStep::Trim => self.trim_oldest(refused, excess).await,
        }
    }

    /// Whether the client's bytes are fewer than `density` times those of the largest refused request.
    fn original_may_fit(&self, density: (usize, usize)) -> bool {
        let bytes = self.request.parsed.body().len();
        bytes * density.1 < self.last.attempts.largest_bytes * density.0
    }

    /// The declined block without what was at fault: one placement lower if that was its place, without the cache key
    /// or the breakpoint if it was that. It asks for usage only if a request that asked was refused for its length
    /// alone. Without the block, the request is too long.
    fn moved_block(&self) -> Option<OutgoingRequest> {
        let attempts = &self.last.attempts;
        let declined = &attempts.declined.as_ref()?.outgoing;
        let block = declined.block.clone()?;
        let placement = self.allowed_placement(block.placement)?;
        let block = Block { placement, ..block };
        let fault = attempts.declined.as_ref().map(|declined| declined.fault);
        let extras = Extras {
            usage: declined.asks_usage && attempts.usage_accepted,
            cache_key: declined.extras().cache_key
                && fault != Some(Fault::Cache(CacheAddition::Key)),
            cache_breakpoint: declined.extras().cache_breakpoint
                && fault != Some(Fault::Cache(CacheAddition::Breakpoint)),
        };
        // The audit rather names what was done about the length than the placement.
        let fallback = match declined.fallback {
            fallback @ (Fallback::Observed | Fallback::OverflowObserved | Fallback::Trimmed) => {
                fallback
            }
            _ => Fallback::LowerPlacement,
        };
        Some(self.outgoing(Some(block), extras, fallback))
    }

    /// `placement`, or the next lower one that was not declined. `None` if none is left.
    fn allowed_placement(&self, placement: Placement) -> Option<Placement> {
        let declined = self.last.attempts.declined.as_ref();
        let misplaced = declined.filter(|it| it.fault == Fault::Placement);
        match misplaced.and_then(|it| it.outgoing.block.as_ref()) {
            Some(block) => capabilities::lower_placement(placement, block.placement),
            None => Some(placement),
        }
    }

    /// Where a block stands: as in `refused`, or if that has none, where the block of `snapshot` would.
    fn placement(
        &self,
        refused: &OutgoingRequest,
        snapshot: Option<&Snapshot>,
    ) -> Option<Placement> {
        let placed = refused.block.as_ref().map(|block| block.placement);
        let placement = placed.or_else(|| block_placement(self.memory, self.request, snapshot))?;
        self.allowed_placement(placement)
    }

    fn outgoing(
        &self,
        block: Option<Block>,
        extras: Extras,
        fallback: Fallback,
    ) -> OutgoingRequest {
        OutgoingRequest::new(self.request, block, extras, "too_long", fallback)
    }

    /// The request that an equal one went out as after the same refusal; else everything observed.
    async fn reuse_or_apply(&mut self, refused: &OutgoingRequest) -> Option<OutgoingRequest> {
        if let Some(equal) = self.equal_request(refused).await {
            return Some(equal);
        }
        // If no placement is left, a new snapshot could not be sent.
        self.placement(refused, None)?;
        let prepared = self.apply_observations(refused).await?;
        let snapshot = Arc::clone(prepared.best());
        self.last.attempts.applied_snapshot = Some(prepared.snapshot);
        let placement = self.placement(refused, Some(&snapshot))?;
        let block = Block {
            snapshot: Some(snapshot),
            trim: None,
            placement,
        };
        (block.covered() > refused.covered())
            .then(|| self.outgoing(Some(block), refused.extras(), Fallback::Observed))
    }

    /// The snapshot of everything observed. If it is not stored within [`APPLY_TIMEOUT`], the next request
    /// will find it.
    async fn apply_observations(&self, refused: &OutgoingRequest) -> Option<PreparedSnapshot> {
        let request = self.request;
        let applying = self.memory.jobs.activate_all_observed(OversizedRequest {
            scope: request.identity.scope.clone(),
            history: Arc::clone(&request.history),
            model: request.model.clone(),
            sent_snapshot: refused.sent_with().snapshot,
            zone: request.identity.time_zone(),
            persist: request.writes,
            allows_peer_memory: request.shares_memory(),
            thread_key: request.identity.thread.key.clone(),
        });
        let Ok(applied) = tokio::time::timeout(APPLY_TIMEOUT, applying).await else {
            tracing::warn!(
                "a request was too long, and the observations of its conversation could not be applied \
                 within {APPLY_TIMEOUT:?}"
            );
            return None;
        };
        applied
            .inspect_err(|error| {
                tracing::warn!(
                    error = %error,
                    "a request was too long, and the observations of its conversation could not be applied"
                );
            })
            .ok()
            .flatten()
            .filter(|new| request.can_omit(new.snapshot.meta.to_count, new.snapshot.meta.pin))
    }

    /// The same observations without the section about other conversations.
    async fn without_peer_memory(&self, refused: &OutgoingRequest) -> Option<OutgoingRequest> {
        let (memory, request) = (self.memory, self.request);
        let with_peers = &refused.snapshot()?.meta;
        let same_observations = |meta: &SnapshotMeta| {
            let same = (meta.to, &meta.parts, meta.pin)
                == (with_peers.to, &with_peers.parts, with_peers.pin);
            same && meta.peer_memory.is_none()
        };
        // An introduction to a new conversation has no observations: without it, the request is the original.
        with_peers
            .peer_memory
            .as_ref()
            .filter(|_| !with_peers.is_peer_intro())?;
        let applied = self.last.attempts.applied_snapshot.as_ref();
        let applied = applied.filter(|plain| same_observations(&plain.meta));
        let snapshot = if let Some(plain) = applied {
            Arc::clone(plain)
        } else {
            let id = request
                .lookup
                .candidates
                .iter()
                .find(|meta| same_observations(meta))?
                .id;
            memory
                .cache
                .load_snapshot(&request.identity.scope, id)
                .await?
        };
        let block = Block {
            snapshot: Some(snapshot),
            ..refused.block.clone()?
        };
        Some(self.outgoing(Some(block), refused.extras(), Fallback::Observed))
    }

    /// The request that an equal one went out as after the same refusal, if it covers more.
    async fn equal_request(&self, refused: &OutgoingRequest) -> Option<OutgoingRequest> {
        let (memory, request) = (self.memory, self.request);
        let tip = request.history.tip()?;
        let sent_with = memory
            .cache
            .sent_with(&request.identity.scope, tip, &request.model)?;
        if sent_with == *refused.sent_with() {
            return None;
        }
        let equal = OutgoingRequest::from_sent_with(memory, request, &sent_with, refused).await?;
        let fallback = match &equal.block {
            Some(block) if block.trim.is_some() => Fallback::Trimmed,
            _ => Fallback::Observed,
        };
        (equal.covered() > refused.covered())
            .then(|| self.outgoing(equal.block, refused.extras(), fallback))
    }

    /// Has as much of the rest observed as necessary, while the client waits.
    async fn observe_and_wait(
        &self,
        refused: &OutgoingRequest,
        excess: Option<Excess>,
    ) -> Option<OutgoingRequest> {
        let Overflow::Observe(within) = self.request.policy.overflow else {
            return None;
        };
        let request = self.request;
        let (scope, tip) = (&request.identity.scope, request.history.tip()?);
        // Of equal requests, one has its history observed; the others wait for the result.
        let flight = self
            .memory
            .overflow_singleflight
            .flight(scope, tip, &request.model);
        let observed = run_exclusive(&flight, within, |until| {
            self.observe_until(refused, excess, until)
        });
        observed.await?
    }

    async fn observe_until(
        &self,
        refused: &OutgoingRequest,
        excess: Option<Excess>,
        until: Instant,
    ) -> Option<OutgoingRequest> {
        let (memory, request) = (self.memory, self.request);
        let (scope, tip) = (&request.identity.scope, request.history.tip()?);
        if let Some(equal) = self.equal_request(refused).await {
            return Some(equal);
        }
        self.placement(refused, None)?;
        let trim = trim::find_trim(request, refused, excess, RAW_SHARE).await?;
        let route = (self.route)().map(Arc::new);
        let hash = route.as_ref().map(|route| route.hash());
        if let Some(route) = route.filter(|_| memory.jobs.borrows_credentials()) {
            memory.jobs.routes().register(scope.tenant, route);
        }
        let now = memory.jobs.now_ms();
        let exchange = request
            .clone()
            .into_exchange(SentWith::default(), hash, now);
        let sent = refused.sent_with().snapshot;
        let snapshot = memory
            .jobs
            .observe_overflow(&exchange, sent, trim.to_count, until)
            .await
            .inspect_err(|error| {
                tracing::warn!(
                    error = %error,
                    "a request was too long, and its history could not be observed while the client waited"
                );
            })
            .ok()??;
        let block = Block {
            placement: self.placement(refused, Some(&snapshot))?,
            snapshot: Some(snapshot),
            trim: None,
        };
        if block.covered() <= refused.covered() {
            return None;
        }
        let outgoing = self.outgoing(Some(block), refused.extras(), Fallback::OverflowObserved);
        let (previous_send, next_send) = (refused.sent_with(), outgoing.sent_with().clone());
        // Before the flight ends, so that the next equal request finds it.
        memory
            .cache
            .replace_refused_send(scope, (tip, &request.model), previous_send, next_send);
        Some(outgoing)
    }

    /// Leaves out the oldest raw rounds.
    async fn trim_oldest(
        &self,
        refused: &OutgoingRequest,
        excess: Option<Excess>,
    ) -> Option<OutgoingRequest> {
        let placement = self.placement(refused, None)?;
        let trim = trim::find_trim(self.request, refused, excess, trim::WHOLE).await?;
        let block = Block {
            snapshot: refused.snapshot().cloned(),
            trim: Some(trim),
            placement,
        };
        Some(self.outgoing(Some(block), refused.extras(), Fallback::Trimmed))
    }
}
