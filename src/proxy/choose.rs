//! What goes out for one request: which snapshot, where its block stands, spliced into the body.
//!
//! Only chooses among what exists. The order of preference is INV-OPEN's: what the store says, what
//! this process knows, the client's own bytes.

use std::sync::Arc;

use bytes::Bytes;

use super::memory::{Asked, Memory};
use crate::memory::select::{Before, Selection, Why, select};
use crate::memory::{Snapshot, SnapshotMeta, render};
use crate::store::Used;
use crate::store::recall::{Lookup, Origin};
use crate::wire::{Insert, Placement, Splice};

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
}

impl Rung {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Process => "process",
            Self::Original => "original",
            Self::Refused => "refused",
            Self::Observed => "observed",
        }
    }
}

/// What goes out.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) frames: Vec<Bytes>,
    pub(super) bytes: usize,
    pub(super) snapshot: Option<Arc<Snapshot>>,
    pub(super) placement: Option<Placement>,
    pub(super) asks_usage: bool,
    pub(super) messages: Option<usize>,
    pub(super) why: &'static str,
    pub(super) rung: Rung,
}

impl Choice {
    /// The client's bytes as they came.
    pub(super) fn verbatim(body: Bytes) -> Self {
        Self {
            bytes: body.len(),
            frames: vec![body],
            snapshot: None,
            placement: None,
            asks_usage: false,
            messages: None,
            why: "verbatim",
            rung: Rung::Whole,
        }
    }

    /// Whether anything but the client's bytes goes out.
    pub(super) fn is_changed(&self) -> bool {
        self.snapshot.is_some() || self.asks_usage
    }

    /// As the store keeps it.
    pub(super) fn used(&self) -> Used {
        Used {
            snapshot: self.snapshot.as_ref().map(|snapshot| snapshot.meta.id),
            placement: self
                .placement
                .map_or_else(String::new, |p| p.name().to_owned()),
        }
    }

    /// The request with `snapshot`'s block at `placement`, and usage asked for if `asks_usage`.
    pub(super) fn of(
        asked: &Asked,
        snapshot: Option<(Arc<Snapshot>, Placement)>,
        asks_usage: bool,
        why: &'static str,
        rung: Rung,
    ) -> Self {
        let splice = match &snapshot {
            None => asked.parsed.splice(None, asks_usage),
            Some((snapshot, placement)) => {
                let insert = Insert {
                    cut: snapshot.meta.to_count,
                    pin: snapshot.meta.pin,
                    segments: &snapshot.segments,
                    placement: *placement,
                    reminder: render::REMINDER,
                };
                asked.parsed.splice(Some(&insert), asks_usage)
            }
        };
        let messages = messages_sent(asked, snapshot.as_ref().map(|(s, p)| (&**s, *p)));
        let (snapshot, placement) = snapshot.map_or((None, None), |(s, p)| (Some(s), Some(p)));
        Self::from_splice(
            asked, &splice, snapshot, placement, asks_usage, messages, why, rung,
        )
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the fields of the value it builds"
    )]
    fn from_splice(
        asked: &Asked,
        splice: &Splice,
        snapshot: Option<Arc<Snapshot>>,
        placement: Option<Placement>,
        asks_usage: bool,
        messages: usize,
        why: &'static str,
        rung: Rung,
    ) -> Self {
        Self {
            frames: splice.frames(asked.parsed.body()),
            bytes: splice.len(),
            snapshot,
            placement,
            asks_usage,
            messages: Some(messages),
            why,
            rung,
        }
    }
}

/// Chooses for `asked`, and settles the choice so that a repetition goes out alike (INV-SAME).
pub(super) async fn choose(memory: &Memory, asked: &Asked) -> Choice {
    let scope = &asked.identity.scope;
    let lookup = memory.recall.look(scope, &asked.history).await;
    let asks_usage = asked.parsed.stream()
        && asked.parsed.usage_asked().is_none()
        && memory.manners.may_ask_usage();
    let picked = pick(memory, asked, &lookup).await;
    let (selection, rung) = (picked.selection, picked.rung);
    let placed = picked.text.and_then(|snapshot| {
        let pinned = lookup
            .before
            .as_ref()
            .and_then(|used| Placement::from_name(&used.placement));
        let own = &snapshot.meta.placement;
        let placement = pinned.or_else(|| memory.manners.placement_of(&asked.model, own))?;
        Some((snapshot, placement))
    });
    let why = match (&selection.snapshot, &placed) {
        (Some(_), None) => "no_placement",
        _ if lookup.paused && selection.why != Why::Repeated => "observer_paused",
        _ => selection.why.name(),
    };
    let choice = Choice::of(asked, placed, asks_usage, why, rung);
    // What only a failing store kept from a request must not be held against its repetition.
    if picked.certain {
        settle(memory, asked, choice).await
    } else {
        choice
    }
}

/// What [`pick`] found.
struct Picked {
    selection: Selection,
    text: Option<Arc<Snapshot>>,
    rung: Rung,
    /// A store that works would not have found better.
    certain: bool,
}

/// The snapshot and its text, or the next best of which both are at hand.
async fn pick(memory: &Memory, asked: &Asked, lookup: &Lookup) -> Picked {
    let scope = &asked.identity.scope;
    let mut rung = match lookup.origin {
        Origin::Warm | Origin::Cold => Rung::Whole,
        Origin::Alone | Origin::Failed => Rung::Process,
    };
    let mut certain = lookup.origin != Origin::Failed;
    let mut selection = select(&asked.history, &lookup.candidates, lookup.before());
    let mut text = text(memory, asked, selection.snapshot.as_ref()).await;
    if selection.snapshot.is_some() && text.is_none() {
        (rung, certain) = (Rung::Process, false);
        let at_hand = memory.recall.at_hand(scope, &lookup.candidates);
        selection = select(&asked.history, &at_hand, Before::Unseen);
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

/// Two equal requests at one moment: the first to settle decides for both.
async fn settle(memory: &Memory, asked: &Asked, mine: Choice) -> Choice {
    let (Some(tip), scope) = (asked.history.tip(), &asked.identity.scope) else {
        return mine;
    };
    let used = memory.recall.settle(scope, tip, mine.used());
    if used == mine.used() {
        return mine;
    }
    let snapshot = match used.snapshot {
        None => None,
        Some(id) => match (
            memory.recall.text(scope, id).await,
            Placement::from_name(&used.placement),
        ) {
            (Some(snapshot), Some(placement)) if covers(asked, &snapshot) => {
                Some((snapshot, placement))
            }
            _ => return mine,
        },
    };
    Choice::of(
        asked,
        snapshot,
        mine.asks_usage,
        Why::Repeated.name(),
        mine.rung,
    )
}

/// Whether `snapshot` stands in for a prefix of this very history.
fn covers(asked: &Asked, snapshot: &Snapshot) -> bool {
    let cut = snapshot.meta.to_count;
    asked.history.covered_by(&snapshot.meta.to, cut) == Some(cut)
}

/// How many messages the outgoing body holds.
fn messages_sent(asked: &Asked, snapshot: Option<(&Snapshot, Placement)>) -> usize {
    let received = asked.parsed.message_count();
    let Some((snapshot, placement)) = snapshot else {
        return received;
    };
    received - snapshot.meta.to_count
        + asked.parsed.inserted(&Insert {
            cut: snapshot.meta.to_count,
            pin: snapshot.meta.pin,
            segments: &snapshot.segments,
            placement,
            reminder: render::REMINDER,
        })
}
