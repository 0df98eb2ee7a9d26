//! What is done, step by step, for a request that does not fit its model.
//!
//! What costs nothing comes first: everything observed is applied; where the block itself made the
//! request longer, it goes. Beyond that the operator decides ([`Overflow`]). Nothing here sends
//! anything: [`super::ladder`] asks for the next step for as long as the last one was refused.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::choice::{Block, Choice, Rung};
use super::choose::place;
use super::declined::{Declined, Fault};
use super::manners;
use super::memory::{Asked, Memory, Overflow};
use super::turns::in_turn;
use crate::jobs::{Prepared, TooLong};
use crate::llm::BorrowedRoute;
use crate::memory::{Snapshot, SnapshotMeta, Trim, measure, render, select, trim};
use crate::store::Used;
use crate::wire::Placement;
use crate::wire::chat::Parsed;
use crate::wire::usage::{Blame, Excess};

/// How long a refusal is held back while what is observed is applied: a read and a short write.
const APPLYING: Duration = Duration::from_secs(2);

/// How often one request is trimmed. Where the refusal says how much was too much, once is enough;
/// where not, each time halves what was sent.
const TRIMS: usize = 3;

/// Of what a model reads, so much is used by what was trimmed to fit: room for the answer, and for the
/// turns that follow, each of which would otherwise be refused and cost the prompt cache again.
const FILLED: (u64, u64) = (4, 5);

/// Of that, so much is left raw where the rest is observed: the observations need room as well.
const OBSERVED: (u64, u64) = (2, 3);

/// Requests are compared by their bytes, models count tokens: notes are full of names and numbers and may
/// hold up to twice as many in a byte as the words they stand for.
const DENSER: (usize, usize) = (2, 1);

/// Where the refusal does not say how much was too much.
const HALF: (u64, u64) = (1, 2);

/// The steps that are left for one request.
pub(super) struct Steps<'a> {
    memory: &'a Memory,
    asked: &'a Asked,
    way: &'a (dyn Fn() -> Option<BorrowedRoute> + Sync),
    /// What was refused for what it holds, not for its length, and may be taken elsewhere.
    declined: Option<Arc<Declined>>,
    pub(super) tried: Tried,
}

/// What was tried for one request, be it told of its length by a status or in the stream of its answer: no
/// step is taken twice, and nobody waits twice for the Observer.
#[derive(Clone, Debug, Default)]
pub(super) struct Tried {
    /// What was declined, without what was at fault.
    elsewhere: bool,
    /// Whether one that asks for usage was refused for its length alone.
    took_usage: bool,
    applied: bool,
    /// What was applied, without what other conversations know.
    plain: Option<Arc<Snapshot>>,
    /// Whether the client's own request went out.
    own: bool,
    /// The bytes of the largest request that was refused with a block.
    largest: usize,
    observed: bool,
    trims: usize,
}

impl Tried {
    /// The same, where something else was declined since.
    pub(super) fn but_elsewhere(self) -> Self {
        Self {
            elsewhere: false,
            ..self
        }
    }
}

impl<'a> Steps<'a> {
    /// `first` was refused as too long, after so much was `tried`; `way` is how it went to the upstream.
    pub(super) fn begin(
        memory: &'a Memory,
        asked: &'a Asked,
        way: &'a (dyn Fn() -> Option<BorrowedRoute> + Sync),
        first: &Choice,
        tried: Tried,
    ) -> Self {
        Self {
            memory,
            asked,
            way,
            declined: elsewhere(first.instead_of.clone()),
            tried,
        }
    }

    /// What to send instead of what was `refused`; `None` where nothing is left to do.
    pub(super) async fn next(
        &mut self,
        refused: &Choice,
        excess: Option<Excess>,
    ) -> Option<Choice> {
        let tried = &mut self.tried;
        if refused.block.is_some() {
            tried.largest = tried.largest.max(refused.bytes);
        } else {
            tried.own = true;
        }
        tried.took_usage |= refused.asks_usage;
        if !std::mem::replace(&mut tried.elsewhere, true)
            && let Some(lower) = self.lowered()
        {
            return Some(lower);
        }
        if !std::mem::replace(&mut self.tried.applied, true)
            && let Some(shorter) = self.alike_or_applied(refused).await
        {
            return Some(shorter);
        }
        // What others know goes before anything of the conversation itself.
        if let Some(shorter) = self.untold(refused).await {
            return Some(shorter);
        }
        // Where the block itself made the request longer.
        if refused.block.is_some()
            && let Some(own) = self.own(refused, (1, 1))
        {
            return Some(own);
        }
        let shorter = match self.asked.treatment.overflow {
            // What is only read may leave no trace, and what was observed for it would be lost.
            Overflow::Observe(within) if self.asked.writes && !self.tried.observed => {
                self.tried.observed = true;
                self.awaited(refused, excess, within).await
            }
            Overflow::Trim if self.tried.trims < TRIMS => {
                self.tried.trims += 1;
                self.trimmed(refused, excess).await
            }
            Overflow::Pass | Overflow::Observe(_) | Overflow::Trim => None,
        };
        shorter.or_else(|| self.own(refused, DENSER))
    }

    /// What to send instead of `refused`, which was refused for what it holds; `None` where nothing of
    /// it could be at fault that it can do without.
    pub(super) fn elsewhere(&mut self, refused: &Choice, blame: Blame) -> Option<Choice> {
        let mut declined = Declined::of(self.memory, self.asked, refused, blame);
        if !declined.fault.may_go_elsewhere() {
            return None;
        }
        if declined.fault == Fault::Usage && self.tried.took_usage {
            declined.fault = Fault::Placement;
        }
        self.declined = Some(Arc::new(declined));
        self.lowered()
    }

    /// The block that was declined, without what was at fault: without the question for usage, else one
    /// placement lower. Without the block it is too long.
    fn lowered(&self) -> Option<Choice> {
        let declined = &self.declined.as_ref()?.choice;
        let block = declined.block.clone()?;
        let placement = self.allowed(block.placement)?;
        let block = Block { placement, ..block };
        let asks_usage = declined.asks_usage && self.tried.took_usage;
        // What was done about its length says more than where it stands.
        let rung = match declined.rung {
            rung @ (Rung::Observed | Rung::Awaited | Rung::Trimmed) => rung,
            _ => Rung::Lowered,
        };
        Some(self.choice(Some(block), asks_usage, rung))
    }

    /// `placement`, or what is left of it after what was declined.
    fn allowed(&self, placement: Placement) -> Option<Placement> {
        let misplaced = self.declined.as_ref();
        let misplaced = misplaced.filter(|it| it.fault == Fault::Placement);
        match misplaced.and_then(|it| it.choice.block.as_ref()) {
            Some(block) => manners::below(placement, block.placement),
            None => Some(placement),
        }
    }

    /// The client's own request, once, where it may be shorter than what was refused: where its bytes are
    /// fewer than this multiple of those.
    fn own(&mut self, refused: &Choice, denser: (usize, usize)) -> Option<Choice> {
        let bytes = self.asked.parsed.body().len();
        let may_fit = bytes * denser.1 < self.tried.largest * denser.0;
        (may_fit && !std::mem::replace(&mut self.tried.own, true))
            .then(|| self.choice(None, refused.asks_usage, Rung::Refused))
    }

    fn choice(&self, block: Option<Block>, asks_usage: bool, rung: Rung) -> Choice {
        Choice::of(self.asked, block, asks_usage, "too_long", rung)
            .instead_of(self.declined.clone())
    }

    /// What an equal request went out with after the same refusal, else everything observed.
    async fn alike_or_applied(&mut self, refused: &Choice) -> Option<Choice> {
        if let Some(alike) = self.alike(refused).await {
            return Some(alike);
        }
        // Where no block may stand, nothing is applied.
        self.placement(refused, None)?;
        let prepared = self.applied(refused).await?;
        let snapshot = Arc::clone(prepared.best());
        self.tried.plain = Some(prepared.snapshot);
        let placement = self.placement(refused, Some(&snapshot))?;
        let block = Block {
            snapshot: Some(snapshot),
            trim: None,
            placement,
        };
        (block.covered() > refused.covered())
            .then(|| self.choice(Some(block), refused.asks_usage, Rung::Observed))
    }

    /// The same observations without what other conversations know.
    async fn untold(&self, refused: &Choice) -> Option<Choice> {
        let (memory, asked) = (self.memory, self.asked);
        let told = &refused.snapshot()?.meta;
        let twin = |meta: &SnapshotMeta| {
            let alike = (meta.to, &meta.parts, meta.pin) == (told.to, &told.parts, told.pin);
            alike && meta.others.is_none()
        };
        // One that opens has none: without it the request is the client's own.
        told.others.as_ref().filter(|_| !told.opens())?;
        let applied = self.tried.plain.as_ref().filter(|plain| twin(&plain.meta));
        let snapshot = if let Some(plain) = applied {
            Arc::clone(plain)
        } else {
            let id = asked.lookup.candidates.iter().find(|meta| twin(meta))?.id;
            memory.recall.text(&asked.identity.scope, id).await?
        };
        let block = Block {
            snapshot: Some(snapshot),
            ..refused.block.clone()?
        };
        Some(self.choice(Some(block), refused.asks_usage, Rung::Observed))
    }

    /// What an equal request went out with after it was refused as this one was.
    async fn alike(&self, refused: &Choice) -> Option<Choice> {
        let (memory, asked) = (self.memory, self.asked);
        let tip = asked.history.tip()?;
        let settled = memory
            .recall
            .settled(&asked.identity.scope, tip, &asked.model)?;
        if settled == *refused.used() {
            return None;
        }
        let alike = Choice::alike(memory, asked, &settled, refused).await?;
        let rung = match &alike.block {
            Some(block) if block.trim.is_some() => Rung::Trimmed,
            _ => Rung::Observed,
        };
        (alike.covered() > refused.covered())
            .then(|| self.choice(alike.block, refused.asks_usage, rung))
    }

    /// What is left observed while the client waits, as much of it as has to be.
    async fn awaited(
        &self,
        refused: &Choice,
        excess: Option<Excess>,
        within: Duration,
    ) -> Option<Choice> {
        let asked = self.asked;
        let (scope, tip) = (&asked.identity.scope, asked.history.tip()?);
        // Of equal requests one has its history observed; the others wait for what comes of it.
        let turn = self.memory.rescuing.of(scope, tip, &asked.model);
        let observed = in_turn(&turn, within, |until| {
            self.observed_until(refused, excess, until)
        });
        observed.await?
    }

    async fn observed_until(
        &self,
        refused: &Choice,
        excess: Option<Excess>,
        until: Instant,
    ) -> Option<Choice> {
        let (memory, asked) = (self.memory, self.asked);
        let (scope, tip) = (&asked.identity.scope, asked.history.tip()?);
        if let Some(alike) = self.alike(refused).await {
            return Some(alike);
        }
        self.placement(refused, None)?;
        let to_count = self.cut(refused, excess, OBSERVED).await?.to_count;
        let way = (self.way)().map(Arc::new);
        let hash = way.as_ref().map(|way| way.hash());
        if let Some(way) = way.filter(|_| memory.jobs.borrows()) {
            memory.jobs.routes().lend(scope.tenant, way);
        }
        let now = memory.jobs.now_ms();
        let exchange = asked.clone().exchange(Used::default(), hash, now);
        let sent = refused.used().snapshot;
        let snapshot = memory
            .jobs
            .rescue(&exchange, sent, to_count, until)
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
        let choice = self.choice(Some(block), refused.asks_usage, Rung::Awaited);
        let (was, now) = (refused.used(), choice.used().clone());
        // Before the turn ends, so that the next one finds it.
        memory.recall.agree(scope, (tip, &asked.model), was, now);
        Some(choice)
    }

    /// Where the block stands: where it stood, else where that of `snapshot` would.
    fn placement(&self, refused: &Choice, snapshot: Option<&Snapshot>) -> Option<Placement> {
        let placed = refused.block.as_ref().map(|block| block.placement);
        let placement = placed.or_else(|| place(self.memory, self.asked, snapshot))?;
        self.allowed(placement)
    }

    /// The snapshot of everything observed. Where it takes too long for this request, the next one
    /// finds it.
    async fn applied(&self, refused: &Choice) -> Option<Prepared> {
        let asked = self.asked;
        let applying = self.memory.jobs.overflow(TooLong {
            scope: asked.identity.scope.clone(),
            history: Arc::clone(&asked.history),
            model: asked.model.clone(),
            sent: refused.used().snapshot,
            zone: asked.identity.zone(),
            keep: asked.writes,
            shared: asked.shares(),
            key: asked.identity.thread.key.clone(),
        });
        let Ok(applied) = tokio::time::timeout(APPLYING, applying).await else {
            tracing::warn!("the log could not be applied within {APPLYING:?}");
            return None;
        };
        applied
            .inspect_err(|error| tracing::warn!(error = %error, "the log could not be applied"))
            .ok()
            .flatten()
            .filter(|new| asked.may_go(new.snapshot.meta.to_count, new.snapshot.meta.pin))
    }

    /// The oldest raw rounds left out.
    async fn trimmed(&self, refused: &Choice, excess: Option<Excess>) -> Option<Choice> {
        let placement = self.placement(refused, None)?;
        let trim = self.cut(refused, excess, (1, 1)).await?;
        let block = Block {
            snapshot: refused.snapshot().cloned(),
            trim: Some(trim),
            placement,
        };
        Some(self.choice(Some(block), refused.asks_usage, Rung::Trimmed))
    }

    /// Where the history is cut so that what is left fits into this share of what would.
    async fn cut(
        &self,
        refused: &Choice,
        excess: Option<Excess>,
        share: (u64, u64),
    ) -> Option<Trim> {
        let asked = self.asked;
        let (parsed, history) = (Arc::clone(&asked.parsed), Arc::clone(&asked.history));
        let (covered, bytes) = (refused.covered(), refused.bytes);
        let pin = refused.block.as_ref().and_then(Block::pin);
        let (begun, model) = (refused.block.is_some(), asked.model.clone());
        let seen = asked.seen.clone();
        // Which message of the request stands at each place of the chain.
        let sent: Vec<Option<usize>> = (0..history.len()).map(|at| asked.sent(at)).collect();
        // Every message is read again: not on a thread that serves others.
        let weighed = tokio::task::spawn_blocking(move || {
            let weights = weigh(&parsed, &sent, &model);
            let raw = (covered..weights.len()).chain(pin);
            let raw_bytes: usize = raw
                .clone()
                .filter_map(|place| Some(parsed.messages().get(sent[place]?)?.span.len()))
                .sum();
            let rest = u64::from(measure::estimate_bytes(bytes.saturating_sub(raw_bytes)));
            let sent = rest + raw.map(|place| u64::from(weights[place])).sum::<u64>();
            let note = if begun {
                0
            } else {
                u64::from(render::preamble_tokens(1))
            };
            let allowed = allowed(sent, excess) * share.0 / share.1;
            let budget = allowed.saturating_sub(rest + note);
            let may = |trim: &Trim| {
                let seen = seen.as_ref();
                seen.is_none_or(|seen| select::may_go(seen, trim.to_count, trim.pin))
            };
            trim::cut(&history, &weights, covered, budget, may)
        });
        weighed.await.ok().flatten()
    }
}

/// `declined`, if another place may help: words are as bad elsewhere, and so is any change of what is signed.
fn elsewhere(declined: Option<Arc<Declined>>) -> Option<Arc<Declined>> {
    declined.filter(|it| it.fault.may_go_elsewhere())
}

/// Of a request that weighs `sent`, how much may be left.
fn allowed(sent: u64, excess: Option<Excess>) -> u64 {
    let of = |(part, whole): (u64, u64)| sent.saturating_mul(part) / whole;
    match excess {
        // Weights and tokens are two units; what they have in common is the share.
        Some(Excess { window, sent: told }) if window < told => of((
            window.saturating_mul(FILLED.0),
            told.saturating_mul(FILLED.1),
        )),
        _ => of(HALF),
    }
}

/// What each place of the chain weighs in the request; nothing where it is not sent.
fn weigh(parsed: &Parsed, sent: &[Option<usize>], model: &str) -> Vec<u32> {
    let weigh = |index: &Option<usize>| {
        let said = index.and_then(|index| parsed.spoken(index));
        said.map_or(0, |said| measure::estimate(&said, model))
    };
    sent.iter().map(weigh).collect()
}
