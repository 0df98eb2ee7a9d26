//! What is done, step by step, for a request that does not fit its model.
//!
//! What costs nothing comes first: everything observed is applied; where the block itself made the
//! request longer, it goes. Beyond that the operator decides ([`Overflow`]). Nothing here sends
//! anything: [`super::ladder`] asks for the next step for as long as the last one was refused.

use std::sync::Arc;
use std::time::Duration;

use super::choose::{Block, Choice, Rung, place};
use super::ladder::Refused;
use super::memory::{Asked, Memory, Overflow};
use crate::memory::{Snapshot, Trim, measure, render, trim};
use crate::wire::Placement;
use crate::wire::chat::Parsed;
use crate::wire::usage::Excess;

/// How long a refusal is held back while what is observed is applied: a read and a short write.
const APPLYING: Duration = Duration::from_secs(2);

/// How often one request is trimmed. Where the refusal says how much was too much, once is enough;
/// where not, each time halves what was sent.
const TRIMS: usize = 3;

/// Of what a model reads, so much is used by what was trimmed to fit: room for the answer, and for the
/// turns that follow, each of which would otherwise be refused and cost the prompt cache again.
const FILLED: (u64, u64) = (4, 5);

/// Where the refusal does not say how much was too much.
const HALF: (u64, u64) = (1, 2);

/// The steps that are left for one request.
pub(super) struct Steps<'a> {
    memory: &'a Memory,
    asked: &'a Asked,
    applied: bool,
    shrunk: bool,
    trims: usize,
}

impl<'a> Steps<'a> {
    pub(super) fn begin(memory: &'a Memory, asked: &'a Asked) -> Self {
        Self {
            memory,
            asked,
            applied: false,
            shrunk: false,
            trims: 0,
        }
    }

    /// What to send instead of what was `refused`; `None` where nothing is left to do.
    pub(super) async fn next(&mut self, refused: &Refused) -> Option<Choice> {
        if !std::mem::replace(&mut self.applied, true)
            && let Some(shorter) = self.alike_or_applied(&refused.choice).await
        {
            return Some(shorter);
        }
        if !std::mem::replace(&mut self.shrunk, true) && self.block_is_longer(&refused.choice) {
            return Some(self.choice(None, &refused.choice, Rung::Refused));
        }
        match self.memory.overflow {
            Overflow::Pass | Overflow::Observe(_) => None,
            Overflow::Trim if self.trims < TRIMS => {
                self.trims += 1;
                self.trimmed(refused).await
            }
            Overflow::Trim => None,
        }
    }

    fn choice(&self, block: Option<Block>, refused: &Choice, rung: Rung) -> Choice {
        Choice::of(self.asked, block, refused.asks_usage, "too_long", rung)
    }

    /// What an equal request went out with after the same refusal, else everything observed.
    async fn alike_or_applied(&self, refused: &Choice) -> Option<Choice> {
        let (memory, asked) = (self.memory, self.asked);
        let settled = memory
            .recall
            .settled(&asked.identity.scope, asked.history.tip()?);
        if let Some(settled) = settled.filter(|settled| settled != refused.used())
            && let Some(alike) = Choice::alike(memory, asked, &settled, refused).await
            && alike.covered() > refused.covered()
        {
            let rung = match &alike.block {
                Some(block) if block.trim.is_some() => Rung::Trimmed,
                _ => Rung::Observed,
            };
            return Some(self.choice(alike.block, refused, rung));
        }
        // Where no block may stand, nothing is applied.
        self.placement(refused, None)?;
        let snapshot = self.applied(refused).await?;
        let placement = self.placement(refused, Some(&snapshot))?;
        let block = Block {
            snapshot: Some(snapshot),
            trim: None,
            placement,
        };
        (block.covered() > refused.covered())
            .then(|| self.choice(Some(block), refused, Rung::Observed))
    }

    /// Where the block stands: where it stood, else where that of `snapshot` would.
    fn placement(&self, refused: &Choice, snapshot: Option<&Snapshot>) -> Option<Placement> {
        let placed = refused.block.as_ref().map(|block| block.placement);
        placed.or_else(|| place(self.memory, self.asked, snapshot))
    }

    /// The snapshot of everything observed. Where it takes too long for this request, the next one
    /// finds it.
    async fn applied(&self, refused: &Choice) -> Option<Arc<Snapshot>> {
        let (asked, sent) = (self.asked, refused.used().snapshot);
        let (scope, history) = (&asked.identity.scope, &asked.history);
        let (zone, keep) = (asked.identity.zone(), asked.writes);
        let applying = self.memory.jobs.overflow(scope, history, sent, zone, keep);
        let Ok(applied) = tokio::time::timeout(APPLYING, applying).await else {
            tracing::warn!("the log could not be applied within {APPLYING:?}");
            return None;
        };
        applied
            .inspect_err(|error| tracing::warn!(error = %error, "the log could not be applied"))
            .ok()
            .flatten()
    }

    /// Whether the block made the request longer than the client's own: then its own may fit.
    fn block_is_longer(&self, refused: &Choice) -> bool {
        refused.block.is_some() && refused.bytes > self.asked.parsed.body().len()
    }

    /// The oldest raw rounds left out.
    async fn trimmed(&self, refused: &Refused) -> Option<Choice> {
        if self.asked.seen.is_some() {
            // Its client drops messages by itself, and is left to do so.
            return None;
        }
        let placement = self.placement(&refused.choice, None)?;
        let trim = self.cut(refused).await?;
        let block = Block {
            snapshot: refused.choice.snapshot().cloned(),
            trim: Some(trim),
            placement,
        };
        Some(self.choice(Some(block), &refused.choice, Rung::Trimmed))
    }

    /// Where the history is cut so that what is left fits.
    async fn cut(&self, refused: &Refused) -> Option<Trim> {
        let asked = self.asked;
        let (parsed, history) = (Arc::clone(&asked.parsed), Arc::clone(&asked.history));
        let (covered, bytes) = (refused.choice.covered(), refused.choice.bytes);
        let pin = refused.choice.block.as_ref().and_then(Block::pin);
        let begun = refused.choice.block.is_some();
        let (excess, model) = (refused.excess, asked.model.clone());
        // Every message is read again: not on a thread that serves others.
        let weighed = tokio::task::spawn_blocking(move || {
            let weights = weigh(&parsed, &model);
            let raw = (covered..weights.len()).chain(pin);
            let raw_bytes: usize = raw
                .clone()
                .map(|index| parsed.messages()[index].span.len())
                .sum();
            let rest = u64::from(measure::estimate_bytes(bytes.saturating_sub(raw_bytes)));
            let sent = rest + raw.map(|index| u64::from(weights[index])).sum::<u64>();
            let note = if begun {
                0
            } else {
                u64::from(render::preamble_tokens(1))
            };
            let budget = allowed(sent, excess).saturating_sub(rest + note);
            trim::cut(&history, &weights, covered, budget)
        });
        weighed.await.ok().flatten()
    }
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

fn weigh(parsed: &Parsed, model: &str) -> Vec<u32> {
    let weigh = |index| {
        let said = parsed.spoken(index);
        said.map_or(0, |said| measure::estimate(&said, model))
    };
    (0..parsed.messages().len()).map(weigh).collect()
}
