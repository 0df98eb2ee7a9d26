//! What is done, step by step, for a request that does not fit its model.
//!
//! What costs nothing comes first: everything observed is applied; where the block itself made the
//! request longer, it goes. Beyond that the operator decides ([`Overflow`]). Nothing here sends
//! anything: [`super::ladder`] asks for the next step for as long as the last one was refused.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::capabilities;
use super::declined_request::{DeclinedRequest, Fault};
use super::memory::{Memory, MemoryRequest, Overflow};
use super::outgoing_request::{Block, Fallback, OutgoingRequest};
use super::select_memory::block_placement;
use super::singleflight::run_exclusive;
use crate::jobs::{OversizedRequest, Prepared};
use crate::llm::UpstreamRoute;
use crate::memory::{Snapshot, SnapshotMeta, Trim, message_tokens, render, select, trim};
use crate::store::SentWith;
use crate::wire::Placement;
use crate::wire::chat::ChatRequest;
use crate::wire::usage::{Blame, Excess};

/// How long a refusal is held back while what is observed is applied: a read and a short write.
const APPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// How often one request is trimmed. Where the refusal says how much was too much, once is enough;
/// where not, each time halves what was sent.
const MAX_TRIMS: usize = 3;

/// Of what a model reads, so much is used by what was trimmed to fit: room for the answer, and for the
/// turns that follow, each of which would otherwise be refused and cost the prompt cache again.
const TARGET_FILL: (u64, u64) = (4, 5);

/// Of that, so much is left raw where the rest is observed: the observations need room as well.
const RAW_SHARE: (u64, u64) = (2, 3);

/// Requests are compared by their bytes, models count tokens: notes are full of names and numbers and may
/// hold up to twice as many in a byte as the words they stand for.
const OBSERVATION_DENSITY: (usize, usize) = (2, 1);

/// Where the refusal does not say how much was too much.
const HALF: (u64, u64) = (1, 2);

/// The steps that are left for one request.
pub(super) struct OverflowRetries<'a> {
    memory: &'a Memory,
    request: &'a MemoryRequest,
    route: &'a (dyn Fn() -> Option<UpstreamRoute> + Sync),
    /// What was refused for what it holds, not for its length, and may be taken elsewhere.
    declined: Option<Arc<DeclinedRequest>>,
    pub(super) attempts: OverflowAttempts,
}

/// What was tried for one request, be it told of its length by a status or in the stream of its answer: no
/// step is taken twice, and nobody waits twice for the Observer.
#[derive(Clone, Debug, Default)]
pub(super) struct OverflowAttempts {
    /// What was declined, without what was at fault.
    tried_other_placement: bool,
    /// Whether one that asks for usage was refused for its length alone.
    usage_accepted: bool,
    observations_applied: bool,
    /// What was applied, without what other conversations know.
    applied_snapshot: Option<Arc<Snapshot>>,
    /// Whether the client's own request went out.
    original_sent: bool,
    /// The bytes of the largest request that was refused with a block.
    largest_bytes: usize,
    waited_for_observer: bool,
    trims: usize,
}

impl OverflowAttempts {
    /// The same, where something else was declined since.
    pub(super) fn reset_placement(self) -> Self {
        Self {
            tried_other_placement: false,
            ..self
        }
    }
}

impl<'a> OverflowRetries<'a> {
    /// `first` was refused as too long, after so much was `tried`; `way` is how it went to the upstream.
    pub(super) fn new(
        memory: &'a Memory,
        request: &'a MemoryRequest,
        route: &'a (dyn Fn() -> Option<UpstreamRoute> + Sync),
        first: &OutgoingRequest,
        attempts: OverflowAttempts,
    ) -> Self {
        Self {
            memory,
            request,
            route,
            declined: if_movable(first.declined.clone()),
            attempts,
        }
    }

    /// What to send instead of what was `refused`; `None` where nothing is left to do.
    pub(super) async fn next(
        &mut self,
        refused: &OutgoingRequest,
        excess: Option<Excess>,
    ) -> Option<OutgoingRequest> {
        let attempts = &mut self.attempts;
        if refused.block.is_some() {
            attempts.largest_bytes = attempts.largest_bytes.max(refused.bytes);
        } else {
            attempts.original_sent = true;
        }
        attempts.usage_accepted |= refused.asks_usage;
        if !std::mem::replace(&mut attempts.tried_other_placement, true)
            && let Some(lowered) = self.lower_placement()
        {
            return Some(lowered);
        }
        if !std::mem::replace(&mut self.attempts.observations_applied, true)
            && let Some(shorter) = self.reuse_or_apply(refused).await
        {
            return Some(shorter);
        }
        // What others know goes before anything of the conversation itself.
        if let Some(shorter) = self.without_peer_memory(refused).await {
            return Some(shorter);
        }
        // Where the block itself made the request longer.
        if refused.block.is_some()
            && let Some(original) = self.original(refused, (1, 1))
        {
            return Some(original);
        }
        let shorter = match self.request.policy.overflow {
            // What is only read may leave no trace, and what was observed for it would be lost.
            Overflow::Observe(within)
                if self.request.writes && !self.attempts.waited_for_observer =>
            {
                self.attempts.waited_for_observer = true;
                self.observe_and_wait(refused, excess, within).await
            }
            Overflow::Trim if self.attempts.trims < MAX_TRIMS => {
                self.attempts.trims += 1;
                self.trim_oldest(refused, excess).await
            }
            Overflow::Pass | Overflow::Observe(_) | Overflow::Trim => None,
        };
        shorter.or_else(|| self.original(refused, OBSERVATION_DENSITY))
    }

    /// What to send instead of `refused`, which was refused for what it holds; `None` where nothing of
    /// it could be at fault that it can do without.
    pub(super) fn other_placement(
        &mut self,
        refused: &OutgoingRequest,
        blame: Blame,
    ) -> Option<OutgoingRequest> {
        let mut declined = DeclinedRequest::new(self.memory, self.request, refused, blame);
        if !declined.fault.can_move() {
            return None;
        }
        if declined.fault == Fault::Usage && self.attempts.usage_accepted {
            declined.fault = Fault::Placement;
        }
        self.declined = Some(Arc::new(declined));
        self.lower_placement()
    }

    /// The block that was declined, without what was at fault: without the question for usage, else one
    /// placement lower. Without the block it is too long.
    fn lower_placement(&self) -> Option<OutgoingRequest> {
        let declined = &self.declined.as_ref()?.outgoing;
        let block = declined.block.clone()?;
        let placement = self.allowed(block.placement)?;
        let block = Block { placement, ..block };
        let asks_usage = declined.asks_usage && self.attempts.usage_accepted;
        // What was done about its length says more than where it stands.
        let fallback = match declined.fallback {
            fallback @ (Fallback::Observed | Fallback::OverflowObserved | Fallback::Trimmed) => {
                fallback
            }
            _ => Fallback::LowerPlacement,
        };
        Some(self.outgoing(Some(block), asks_usage, fallback))
    }

    /// `placement`, or what is left of it after what was declined.
    fn allowed(&self, placement: Placement) -> Option<Placement> {
        let misplaced = self.declined.as_ref();
        let misplaced = misplaced.filter(|it| it.fault == Fault::Placement);
        match misplaced.and_then(|it| it.outgoing.block.as_ref()) {
            Some(block) => capabilities::lower_placement(placement, block.placement),
            None => Some(placement),
        }
    }

    /// The client's own request, once, where it may be shorter than what was refused: where its bytes are
    /// fewer than this multiple of those.
    fn original(
        &mut self,
        refused: &OutgoingRequest,
        density: (usize, usize),
    ) -> Option<OutgoingRequest> {
        let bytes = self.request.parsed.body().len();
        let may_fit = bytes * density.1 < self.attempts.largest_bytes * density.0;
        (may_fit && !std::mem::replace(&mut self.attempts.original_sent, true))
            .then(|| self.outgoing(None, refused.asks_usage, Fallback::Refused))
    }

    fn outgoing(
        &self,
        block: Option<Block>,
        asks_usage: bool,
        fallback: Fallback,
    ) -> OutgoingRequest {
        OutgoingRequest::new(self.request, block, asks_usage, "too_long", fallback)
            .with_declined(self.declined.clone())
    }

    /// What an equal request went out with after the same refusal, else everything observed.
    async fn reuse_or_apply(&mut self, refused: &OutgoingRequest) -> Option<OutgoingRequest> {
        if let Some(equal) = self.equal_request(refused).await {
            return Some(equal);
        }
        // Where no block may stand, nothing is applied.
        self.placement(refused, None)?;
        let prepared = self.apply_observations(refused).await?;
        let snapshot = Arc::clone(prepared.best());
        self.attempts.applied_snapshot = Some(prepared.snapshot);
        let placement = self.placement(refused, Some(&snapshot))?;
        let block = Block {
            snapshot: Some(snapshot),
            trim: None,
            placement,
        };
        (block.covered() > refused.covered())
            .then(|| self.outgoing(Some(block), refused.asks_usage, Fallback::Observed))
    }

    /// The same observations without what other conversations know.
    async fn without_peer_memory(&self, refused: &OutgoingRequest) -> Option<OutgoingRequest> {
        let (memory, request) = (self.memory, self.request);
        let with_peers = &refused.snapshot()?.meta;
        let same_observations = |meta: &SnapshotMeta| {
            let same = (meta.to, &meta.parts, meta.pin)
                == (with_peers.to, &with_peers.parts, with_peers.pin);
            same && meta.peer_memory.is_none()
        };
        // One that opens has none: without it the request is the client's own.
        with_peers
            .peer_memory
            .as_ref()
            .filter(|_| !with_peers.is_peer_intro())?;
        let applied = self
            .attempts
            .applied_snapshot
            .as_ref()
            .filter(|plain| same_observations(&plain.meta));
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
        Some(self.outgoing(Some(block), refused.asks_usage, Fallback::Observed))
    }

    /// What an equal request went out with after it was refused as this one was.
    async fn equal_request(&self, refused: &OutgoingRequest) -> Option<OutgoingRequest> {
        let (memory, request) = (self.memory, self.request);
        let tip = request.history.tip()?;
        let sent_with = memory
            .cache
            .pinned(&request.identity.scope, tip, &request.model)?;
        if sent_with == *refused.sent_with() {
            return None;
        }
        let equal = OutgoingRequest::from_sent_with(memory, request, &sent_with, refused).await?;
        let fallback = match &equal.block {
            Some(block) if block.trim.is_some() => Fallback::Trimmed,
            _ => Fallback::Observed,
        };
        (equal.covered() > refused.covered())
            .then(|| self.outgoing(equal.block, refused.asks_usage, fallback))
    }

    /// What is left observed while the client waits, as much of it as has to be.
    async fn observe_and_wait(
        &self,
        refused: &OutgoingRequest,
        excess: Option<Excess>,
        within: Duration,
    ) -> Option<OutgoingRequest> {
        let request = self.request;
        let (scope, tip) = (&request.identity.scope, request.history.tip()?);
        // Of equal requests one has its history observed; the others wait for what comes of it.
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
        let to_count = self.find_trim(refused, excess, RAW_SHARE).await?.to_count;
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
            .observe_overflow(&exchange, sent, to_count, until)
            .await
            .inspect_err(|error| tracing::warn!(error = %error, "nothing could be observed"))
            .ok()??;
        let block = Block {
            placement: self.placement(refused, Some(&snapshot))?,
            snapshot: Some(snapshot),
            trim: None,
        };
        if block.covered() <= refused.covered() {
            return None;
        }
        let outgoing = self.outgoing(Some(block), refused.asks_usage, Fallback::OverflowObserved);
        let (previous_send, next_send) = (refused.sent_with(), outgoing.sent_with().clone());
        // Before the turn ends, so that the next one finds it.
        memory
            .cache
            .replace_refused_pin(scope, (tip, &request.model), previous_send, next_send);
        Some(outgoing)
    }

    /// Where the block stands: where it stood, else where that of `snapshot` would.
    fn placement(
        &self,
        refused: &OutgoingRequest,
        snapshot: Option<&Snapshot>,
    ) -> Option<Placement> {
        let placed = refused.block.as_ref().map(|block| block.placement);
        let placement = placed.or_else(|| block_placement(self.memory, self.request, snapshot))?;
        self.allowed(placement)
    }

    /// The snapshot of everything observed. Where it takes too long for this request, the next one
    /// finds it.
    async fn apply_observations(&self, refused: &OutgoingRequest) -> Option<Prepared> {
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
            tracing::warn!("the log could not be applied within {APPLY_TIMEOUT:?}");
            return None;
        };
        applied
            .inspect_err(|error| tracing::warn!(error = %error, "the log could not be applied"))
            .ok()
            .flatten()
            .filter(|new| request.can_omit(new.snapshot.meta.to_count, new.snapshot.meta.pin))
    }

    /// The oldest raw rounds left out.
    async fn trim_oldest(
        &self,
        refused: &OutgoingRequest,
        excess: Option<Excess>,
    ) -> Option<OutgoingRequest> {
        let placement = self.placement(refused, None)?;
        let trim = self.find_trim(refused, excess, (1, 1)).await?;
        let block = Block {
            snapshot: refused.snapshot().cloned(),
            trim: Some(trim),
            placement,
        };
        Some(self.outgoing(Some(block), refused.asks_usage, Fallback::Trimmed))
    }

    /// Where the history is cut so that what is left fits into this share of what would.
    async fn find_trim(
        &self,
        refused: &OutgoingRequest,
        excess: Option<Excess>,
        share: (u64, u64),
    ) -> Option<Trim> {
        let request = self.request;
        let (parsed, history) = (Arc::clone(&request.parsed), Arc::clone(&request.history));
        let (covered, bytes) = (refused.covered(), refused.bytes);
        let pin = refused.block.as_ref().and_then(Block::pin);
        let (has_block, model) = (refused.block.is_some(), request.model.clone());
        let alignment = request.alignment.clone();
        // Which message of the request stands at each place of the chain.
        let sent: Vec<Option<usize>> = (0..history.len())
            .map(|at| request.message_at(at))
            .collect();
        // Every message is read again: not on a thread that serves others.
        let pending_trim = tokio::task::spawn_blocking(move || {
            let tokens = count_tokens(&parsed, &sent, &model);
            let raw = (covered..tokens.len()).chain(pin);
            let raw_bytes: usize = raw
                .clone()
                .filter_map(|place| Some(parsed.messages().get(sent[place]?)?.span.len()))
                .sum();
            let rest = u64::from(message_tokens::estimate_bytes(
                bytes.saturating_sub(raw_bytes),
            ));
            let sent = rest + raw.map(|place| u64::from(tokens[place])).sum::<u64>();
            let note = if has_block {
                0
            } else {
                u64::from(render::preamble_tokens(1))
            };
            let allowed = allowed_tokens(sent, excess) * share.0 / share.1;
            let budget = allowed.saturating_sub(rest + note);
            let can_omit = |trim: &Trim| {
                let alignment = alignment.as_ref();
                alignment
                    .is_none_or(|alignment| select::can_omit(alignment, trim.to_count, trim.pin))
            };
            trim::trim_to_budget(&history, &tokens, covered, budget, can_omit)
        });
        pending_trim.await.ok().flatten()
    }
}

/// `declined`, if another place may help: words are as bad elsewhere, and so is any change of what is signed.
fn if_movable(declined: Option<Arc<DeclinedRequest>>) -> Option<Arc<DeclinedRequest>> {
    declined.filter(|it| it.fault.can_move())
}

/// Of a request that weighs `sent`, how much may be left.
fn allowed_tokens(sent: u64, excess: Option<Excess>) -> u64 {
    let share = |(part, whole): (u64, u64)| sent.saturating_mul(part) / whole;
    match excess {
        // Weights and tokens are two units; what they have in common is the share.
        Some(Excess {
            window,
            sent: sent_tokens,
        }) if window < sent_tokens => share((
            window.saturating_mul(TARGET_FILL.0),
            sent_tokens.saturating_mul(TARGET_FILL.1),
        )),
        _ => share(HALF),
    }
}

/// What each place of the chain weighs in the request; nothing where it is not sent.
fn count_tokens(parsed: &ChatRequest, sent: &[Option<usize>], model: &str) -> Vec<u32> {
    let count = |index: &Option<usize>| {
        let text = index.and_then(|index| parsed.plain_text(index));
        text.map_or(0, |text| message_tokens::estimate_message(&text, model))
    };
    sent.iter().map(count).collect()
}
