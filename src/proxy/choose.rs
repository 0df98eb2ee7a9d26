//! What goes out for one request: which snapshot, where its block stands, spliced into the body.
//!
//! Only chooses among what exists. The order of preference is INV-OPEN's: what the store says, what
//! this process knows, the client's own bytes.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::memory::{Asked, Memory};
use super::others;
use crate::history::{Link, Role, Scope, Spoken};
use crate::jobs::Prepared;
use crate::memory::select::{Before, Selection, Why, select, select_seen};
use crate::memory::transcript::{Entry, system_messages};
use crate::memory::{Snapshot, SnapshotMeta, Trim, render};
use crate::store::Used;
use crate::store::recall::{Asks, Lookup, Origin, Recall};
use crate::wire::{Insert, Placement};

/// Which rung of INV-OPEN a request stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rung {
    /// Nothing went wrong.
    Whole,
    /// The store failed; what this process knows served.
    Process,
    /// The store failed and this process knows nothing that fits; the original went out.
    Original,
    /// The changed request was refused; the original went out after it.
    Refused,
    /// The request was refused as too long; everything observed was applied and it went out again.
    Observed,
    /// The block was refused where it stood, and nothing fits without it; it went out again, one
    /// placement lower.
    Lowered,
    /// It did not fit its model; a model was asked to observe more of it, and waited for.
    Awaited,
    /// It did not fit its model; its oldest raw rounds were left out, with a note.
    Trimmed,
}

impl Rung {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Process => "process",
            Self::Original => "original",
            Self::Refused => "refused",
            Self::Observed => "observed",
            Self::Lowered => "lowered",
            Self::Awaited => "awaited",
            Self::Trimmed => "trimmed",
        }
    }
}

/// What stands in for the oldest messages: observations, a note that some were left out, or both.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) snapshot: Option<Arc<Snapshot>>,
    pub(super) trim: Option<Trim>,
    pub(super) placement: Placement,
}

impl Block {
    /// How many of the client's messages are not sent as they are.
    pub(super) fn covered(&self) -> usize {
        let observed = self.snapshot.as_ref().map_or(0, |s| s.meta.to_count);
        self.trim.map_or(observed, |trim| trim.to_count)
    }

    /// The one of them that is sent all the same.
    pub(super) fn pin(&self) -> Option<usize> {
        match (&self.trim, &self.snapshot) {
            (Some(trim), _) => trim.pin,
            (None, Some(snapshot)) => snapshot.meta.pin,
            (None, None) => None,
        }
    }

    /// The places of the chain that are neither sent nor observed.
    fn gap(&self, trim: &Trim) -> Range<usize> {
        let observed = self.snapshot.as_ref().map_or(0, |s| s.meta.to_count);
        observed..trim.to_count
    }

    /// How many messages of the client are neither sent nor observed.
    fn left_out(&self, asked: &Asked) -> Option<usize> {
        let gone = self.gap(self.trim.as_ref()?);
        Some(gone.filter(|place| asked.sent(*place).is_some()).count())
    }

    /// How many the note speaks of: what stands nowhere in the request, be it as a pin or word for word
    /// in the note itself.
    fn noted(&self, asked: &Asked, trim: &Trim) -> usize {
        let told = |place: &usize| {
            let role = asked.history.turns()[*place].message.role;
            match asked.sent(*place) {
                Some(_) => trim.pin != Some(*place) && role != Role::System,
                None => trim.wording >= render::COUNTS_DROPPED,
            }
        };
        self.gap(trim).filter(told).count()
    }

    /// The text, in order.
    fn segments(&self, asked: &Asked) -> Cow<'_, [String]> {
        let observed = self.snapshot.as_ref().map(|s| s.segments.as_slice());
        let Some(trim) = self.trim else {
            return observed.unwrap_or_default().into();
        };
        let spoken: Vec<(usize, Spoken)> = self
            .gap(&trim)
            .filter(|index| asked.history.turns()[*index].message.role == Role::System)
            .filter_map(|index| Some((index + 1, asked.parsed.spoken(asked.sent(index)?)?)))
            .collect();
        let entries: Vec<Entry<'_>> = spoken
            .iter()
            .map(|(count, spoken)| Entry {
                count: *count,
                seen_ms: 0,
                live: false,
                pause_ms: 0,
                spoken,
            })
            .collect();
        let left_out = self.noted(asked, &trim);
        let system = system_messages(&entries);
        render::trimmed(observed, trim.wording, left_out, &system).into()
    }
}

/// What goes out.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) frames: Vec<Bytes>,
    pub(super) bytes: usize,
    pub(super) block: Option<Block>,
    pub(super) asks_usage: bool,
    pub(super) messages: Option<usize>,
    /// What of the client's messages the snapshot stands for.
    pub(super) shape: Option<Shape>,
    pub(super) why: &'static str,
    pub(super) rung: Rung,
    /// What was refused for what it holds, where this goes out without it.
    pub(super) instead_of: Option<Arc<Declined>>,
    used: Used,
}

/// What an upstream refused of a request, other than its length.
#[derive(Debug)]
pub(super) struct Declined {
    pub(super) choice: Choice,
    /// Whether what was at fault is the question for usage, as far as can be told; else it is the block.
    pub(super) about_usage: bool,
}

/// What of the client's messages a snapshot stands for. Indices count those after the leading ones.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// Where the raw tail begins.
    pub(super) cut: usize,
    /// Messages before that which stay raw in front of the block.
    pub(super) front: Vec<usize>,
    /// The one that stands raw between block and tail.
    pub(super) pin: Option<usize>,
    /// How many are neither sent nor observed.
    pub(super) trimmed: Option<usize>,
}

impl Shape {
    fn of(asked: &Asked, block: &Block) -> Self {
        let (covered, pin) = (block.covered(), block.pin());
        let Some(seen) = &asked.seen else {
            return Self {
                cut: covered,
                front: Vec::new(),
                pin,
                trimmed: block.left_out(asked),
            };
        };
        let cut = seen.view.cut(covered);
        Self {
            cut,
            front: seen.view.front(cut),
            pin: pin.and_then(|pin| seen.view.sent(pin)),
            trimmed: block.left_out(asked),
        }
    }
}

impl Choice {
    /// The client's bytes as they came.
    pub(super) fn verbatim(body: Bytes) -> Self {
        Self {
            bytes: body.len(),
            frames: vec![body],
            block: None,
            asks_usage: false,
            messages: None,
            shape: None,
            why: "verbatim",
            rung: Rung::Whole,
            instead_of: None,
            used: Used::default(),
        }
    }

    /// Whether anything but the client's bytes goes out.
    pub(super) fn is_changed(&self) -> bool {
        self.block.is_some() || self.asks_usage
    }

    /// The snapshot whose observations are sent.
    pub(super) fn snapshot(&self) -> Option<&Arc<Snapshot>> {
        self.block.as_ref()?.snapshot.as_ref()
    }

    /// How many of the client's messages are not sent as they are.
    pub(super) fn covered(&self) -> usize {
        self.block.as_ref().map_or(0, Block::covered)
    }

    /// As the store keeps it.
    pub(super) fn used(&self) -> &Used {
        &self.used
    }

    /// The request with `block`, and usage asked for if `asks_usage`.
    pub(super) fn of(
        asked: &Asked,
        block: Option<Block>,
        asks_usage: bool,
        why: &'static str,
        rung: Rung,
    ) -> Self {
        let segments = block.as_ref().map(|block| block.segments(asked));
        let insert = block.as_ref().zip(segments.as_deref());
        let shape = block.as_ref().map(|block| Shape::of(asked, block));
        let insert = insert.zip(shape.as_ref());
        let insert = insert.map(|((block, segments), shape)| Insert {
            cut: shape.cut,
            front: &shape.front,
            pin: shape.pin,
            segments,
            placement: block.placement,
            reminder: render::REMINDER,
            bridge: render::BRIDGE,
        });
        let splice = asked.parsed.splice(insert.as_ref(), asks_usage);
        let messages = insert.as_ref().map_or(0, |insert| {
            asked.parsed.inserted(insert).wrapping_sub(insert.cut)
        });
        let messages = asked.parsed.message_count().wrapping_add(messages);
        let used = Used {
            snapshot: block
                .as_ref()
                .and_then(|b| Some(b.snapshot.as_ref()?.meta.id)),
            placement: block
                .as_ref()
                .map_or_else(String::new, |b| b.placement.name().to_owned()),
            asked_usage: asked.may_ask_usage().then_some(asks_usage),
            trimmed: block.as_ref().and_then(|block| block.trim),
        };
        drop(segments);
        Self {
            shape,
            frames: splice.frames(asked.parsed.body()),
            bytes: splice.len(),
            block,
            asks_usage,
            messages: Some(messages),
            why,
            rung,
            instead_of: None,
            used,
        }
    }

    /// This one, where `declined` was refused.
    pub(super) fn instead_of(self, declined: Option<Arc<Declined>>) -> Self {
        Self {
            instead_of: declined,
            ..self
        }
    }

    /// What an equal request is `used` to go out with; `None` where that cannot be had any more.
    pub(super) async fn alike(
        memory: &Memory,
        asked: &Asked,
        used: &Used,
        mine: &Self,
    ) -> Option<Self> {
        let snapshot = match used.snapshot {
            None => None,
            Some(id) => {
                let text = memory.recall.text(&asked.identity.scope, id).await;
                Some(text.filter(|snapshot| covers(asked, snapshot))?)
            }
        };
        let trim = used.trimmed;
        if trim.is_some_and(|trim| !asked.fits(&trim)) {
            return None;
        }
        let block = if snapshot.is_some() || trim.is_some() {
            Some(Block {
                snapshot,
                trim,
                placement: Placement::from_name(&used.placement)?,
            })
        } else {
            None
        };
        let asks_usage = used.asked_usage.unwrap_or(mine.asks_usage) && asked.may_ask_usage();
        let why = Why::Repeated.name();
        Some(Self::of(asked, block, asks_usage, why, mine.rung))
    }
}

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
    let trim = trim.filter(|trim| trim.to_count > observed && asked.fits(trim));
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
    let (manners, model) = (&memory.manners, &asked.model);
    match snapshot {
        Some(snapshot) => manners.placement_of(model, &snapshot.meta.placement),
        None => manners.placement(model),
    }
}

/// Whether the stream is asked for its usage: as it was before, else where the upstream takes that.
fn asks_usage(memory: &Memory, asked: &Asked, before: Option<&Used>) -> bool {
    let manners = &memory.manners;
    let before = before.and_then(|used| used.asked_usage);
    asked.may_ask_usage()
        && before.map_or_else(
            || manners.may_ask_usage(),
            |asked| asked && !manners.refuses_usage(),
        )
}

/// What is known of a request that asks another model than its conversation did before, with what was
/// committed because of it.
async fn on_model_change(memory: &Memory, asked: &Asked) -> Option<Lookup> {
    let known = &asked.lookup;
    let new = known.before.is_none() && known.origin == Origin::Warm;
    if !new || !asked.writes || asked.seen.is_some() {
        return None;
    }
    let (scope, history) = (&asked.identity.scope, &asked.history);
    let committed = memory.jobs.on_model_change(scope, history, &asked.model);
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

/// The snapshot and its text, or the next best of which both are at hand.
async fn pick(memory: &Memory, asked: &Asked, lookup: &Lookup) -> Picked {
    let scope = &asked.identity.scope;
    let mut rung = match lookup.origin {
        Origin::Warm | Origin::Cold => Rung::Whole,
        Origin::Alone | Origin::Failed => Rung::Process,
    };
    let mut certain = lookup.origin != Origin::Failed;
    let mut selection = selected(asked, &lookup.candidates, lookup.before());
    let mut text = text(memory, asked, selection.snapshot.as_ref()).await;
    if selection.snapshot.is_some() && text.is_none() {
        (rung, certain) = (Rung::Process, false);
        let at_hand = memory.recall.at_hand(scope, &lookup.candidates);
        selection = selected(asked, &at_hand, Before::Unseen);
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

/// Whether `snapshot` stands in for a prefix of this very history.
fn covers(asked: &Asked, snapshot: &Snapshot) -> bool {
    let cut = snapshot.meta.to_count;
    snapshot.meta.opens() || asked.history.covered_by(&snapshot.meta.to, cut) == Some(cut)
}
