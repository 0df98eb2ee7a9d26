//! Which snapshot a request goes out with, and where its block stands. How that looks is in `choice`.
//!
//! Only chooses among what exists. The order of preference is INV-OPEN's: what the store says, what
//! this process knows, the client's own bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::choice::{Block, Choice, Rung};
use super::memory::{AskUsage, Asked, Memory};
use super::others;
use crate::history::{Link, Scope};
use crate::jobs::Prepared;
use crate::memory::select::{Before, Selection, Why, select, select_seen};
use crate::memory::{Snapshot, SnapshotMeta};
use crate::store::Used;
use crate::store::recall::{Asks, Lookup, Origin, Recall};
use crate::wire::Placement;

/// A request that was settled. Dropped without an answer of the upstream, or with one that is no
/// success, it leaves no trace: the same request is decided anew.
#[derive(Debug)]
pub(super) struct Settled {
    recall: Arc<Recall>,
    scope: Scope,
    tip: Link,
    model: String,
    accepted: AtomicBool,
}

impl Settled {
    /// The upstream has taken it.
    pub(super) fn accept(&self) {
        self.accepted.store(true, Ordering::Relaxed);
    }
}

impl Drop for Settled {
    fn drop(&mut self) {
        let accepted = self.accepted.load(Ordering::Relaxed);
        let (recall, model) = (&self.recall, &self.model);
        recall.release(&self.scope, self.tip, model, accepted);
    }
}

/// Chooses for `asked`, and settles the choice so that a repetition goes out alike (INV-SAME).
pub(super) async fn choose(memory: &Memory, asked: &Asked) -> (Choice, Option<Settled>) {
    let changed = on_model_change(memory, asked).await;
    let lookup = changed.as_ref().unwrap_or(&asked.lookup);
    let picked = pick(memory, asked, lookup).await;
    let (selection, rung) = (picked.selection, picked.rung);
    let observed = selection.cut();
    let trim = match &lookup.before {
        Some(before) => before.trimmed,
        None => lookup.trim_for(&asked.model),
    };
    // What is passed over is the client's own, whole.
    let whole = rung == Rung::PassedOver;
    let trim = trim.filter(|trim| !whole && trim.to_count > observed && asked.fits(trim));
    let before = lookup.before.as_ref();
    let placement = before
        .and_then(|used| Placement::from_name(&used.placement))
        .or_else(|| place(memory, asked, picked.text.as_deref()));
    let block = placement
        .filter(|_| picked.text.is_some() || trim.is_some())
        .map(|placement| Block {
            snapshot: picked.text,
            trim,
            placement,
        });
    let why = match (&selection.snapshot, &block) {
        _ if rung == Rung::PassedOver => "filtered",
        (Some(_), None) => "no_placement",
        (_, Some(block)) if block.trim.is_some() && selection.why != Why::Repeated => "trimmed",
        _ if lookup.paused && selection.why != Why::Repeated => "observer_paused",
        _ => selection.why.name(),
    };
    let rung = match (&block, rung) {
        (Some(block), Rung::Whole) if block.trim.is_some() => Rung::Trimmed,
        (_, rung) => rung,
    };
    let asks_usage = asks_usage(memory, asked, lookup.before.as_ref());
    let choice = Choice::of(asked, block, asks_usage, why, rung);
    // What only a failing store kept from a request must not be held against its repetition.
    if picked.certain {
        settle(memory, asked, choice, lookup.before.is_some()).await
    } else {
        (choice, None)
    }
}

/// Where the block stands: where its snapshot was made to stand, unless the model refuses that.
pub(super) fn place(
    memory: &Memory,
    asked: &Asked,
    snapshot: Option<&Snapshot>,
) -> Option<Placement> {
    let (manners, asker) = (&memory.manners, asked.asker());
    match snapshot {
        Some(snapshot) => manners.placement_of(asker, &snapshot.meta.placement),
        None => manners.placement(asker),
    }
}

/// Whether the stream is asked for its usage: as it was before, else where the upstream takes that, or the
/// operator wants it asked whether or not that is known.
fn asks_usage(memory: &Memory, asked: &Asked, before: Option<&Used>) -> bool {
    let (manners, asker) = (&memory.manners, asked.asker());
    let always = asked.treatment.ask_usage == AskUsage::Always;
    let before = before.and_then(|used| used.asked_usage);
    let wanted = before.unwrap_or_else(|| always || manners.may_ask_usage(asker));
    asked.may_ask_usage() && wanted && !manners.refuses_usage(asker)
}

/// What is known of a request that asks another model than its conversation did before, with what was
/// committed because of it.
async fn on_model_change(memory: &Memory, asked: &Asked) -> Option<Lookup> {
    let known = &asked.lookup;
    // A store in trouble is not waited for.
    let new = known.before.is_none() && matches!(known.origin, Origin::Warm | Origin::Cold);
    if !new || !asked.writes {
        return None;
    }
    let (scope, history) = (&asked.identity.scope, &asked.history);
    let may_go = |count, pin| asked.may_go(count, pin);
    let committed = memory
        .jobs
        .on_model_change(scope, history, &asked.model, may_go);
    let mut lookup = known.clone();
    let Prepared { snapshot, bound } = committed.await?;
    let mut new = vec![snapshot.meta.clone()];
    new.extend(bound.map(|bound| bound.meta.clone()));
    new.retain(|meta| others::may_hold(meta, &asked.identity));
    lookup.candidates.extend(new);
    Some(lookup)
}

/// What [`pick`] found.
struct Picked {
    selection: Selection,
    text: Option<Arc<Snapshot>>,
    rung: Rung,
    /// A store that works would not have found better.
    certain: bool,
}

fn selected(asked: &Asked, candidates: &[SnapshotMeta], before: Before) -> Selection {
    match &asked.seen {
        None => select(&asked.history, candidates, before),
        Some(seen) => select_seen(seen, candidates, before),
    }
}

impl Picked {
    /// Nothing, instead of what was selected; nor an older one, which may say the same.
    fn over(selection: &Selection, certain: bool) -> Self {
        Self {
            selection: Selection {
                snapshot: None,
                why: selection.why,
            },
            text: None,
            rung: Rung::PassedOver,
            certain,
        }
    }
}

/// Whether what was selected is left out, since its words were refused. What went out with it before goes
/// out with it again (INV-SAME).
fn passes_over(memory: &Memory, asked: &Asked, selection: &Selection) -> bool {
    let (selected, manners) = (selection.snapshot.as_ref(), &memory.manners);
    selection.why != Why::Repeated
        && selected.is_some_and(|selected| manners.passes_over(&asked.model, selected.id))
}

/// What is sent instead of `selection`, whose words were refused: its observations alone, where it told of
/// other conversations beside them. What others know goes first, here as well.
fn untold(
    memory: &Memory,
    asked: &Asked,
    lookup: &Lookup,
    selection: &Selection,
) -> Option<Selection> {
    let told = selection.snapshot.as_ref()?;
    told.others.as_ref()?;
    let own = |other: &&SnapshotMeta| other.others.is_none() && other.parts == told.parts;
    let own: Vec<SnapshotMeta> = lookup.candidates.iter().filter(own).cloned().collect();
    let own = selected(asked, &own, Before::Unseen);
    (own.snapshot.is_some() && !passes_over(memory, asked, &own)).then_some(own)
}

/// The snapshot and its text, or the next best of which both are at hand.
async fn pick(memory: &Memory, asked: &Asked, lookup: &Lookup) -> Picked {
    let scope = &asked.identity.scope;
    let mut rung = match lookup.origin {
        Origin::Warm | Origin::Cold => Rung::Whole,
        Origin::Alone | Origin::Failed => Rung::Process,
    };
    let mut certain = lookup.origin != Origin::Failed;
    let mut selection = selected(asked, &lookup.candidates, lookup.before());
    if passes_over(memory, asked, &selection) {
        let Some(own) = untold(memory, asked, lookup, &selection) else {
            return Picked::over(&selection, certain);
        };
        selection = own;
    }
    let mut text = text(memory, asked, selection.snapshot.as_ref()).await;
    if selection.snapshot.is_some() && text.is_none() {
        (rung, certain) = (Rung::Process, false);
        let at_hand = memory.recall.at_hand(scope, &lookup.candidates);
        selection = selected(asked, &at_hand, Before::Unseen);
        if passes_over(memory, asked, &selection) {
            return Picked::over(&selection, certain);
        }
        text = self::text(memory, asked, selection.snapshot.as_ref()).await;
    }
    if rung == Rung::Process && text.is_none() {
        rung = Rung::Original;
    }
    Picked {
        selection,
        text,
        rung,
        certain: certain || rung == Rung::Process,
    }
}

/// The text of the snapshot that was selected. Another one under the same number, as a database put
/// in the place of the old one may hold, would leave out what it does not cover.
async fn text(
    memory: &Memory,
    asked: &Asked,
    selected: Option<&SnapshotMeta>,
) -> Option<Arc<Snapshot>> {
    let selected = selected?;
    let text = memory
        .recall
        .text(&asked.identity.scope, selected.id)
        .await?;
    if text.meta != *selected {
        memory.recall.clear();
        return None;
    }
    Some(text)
}

/// Two equal requests at one moment: the first to settle decides for both. `before` says that this is
/// how it went out before.
async fn settle(
    memory: &Memory,
    asked: &Asked,
    mine: Choice,
    before: bool,
) -> (Choice, Option<Settled>) {
    let (Some(tip), scope) = (asked.history.tip(), &asked.identity.scope) else {
        return (mine, None);
    };
    let asks = Asks {
        model: &asked.model,
        key: asked.identity.thread.key.as_deref(),
    };
    let used = memory
        .recall
        .settle(scope, tip, asks, mine.used().clone(), before);
    if let Some(seen) = &asked.seen {
        memory.recall.hold_sighting(scope, seen);
    }
    let settled = Settled {
        recall: Arc::clone(&memory.recall),
        scope: scope.clone(),
        tip,
        model: asked.model.clone(),
        accepted: AtomicBool::new(false),
    };
    let choice = if used == *mine.used() {
        mine
    } else {
        let alike = Choice::alike(memory, asked, &used, &mine).await;
        alike.unwrap_or(mine)
    };
    (choice, Some(settled))
}
