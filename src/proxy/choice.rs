//! What goes out for one request: a block in the place of its oldest messages, spliced into the body.
//!
//! Says how a decision looks as bytes, and decides nothing. Made by `choose`, and by `overflow` where
//! something shorter is needed.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::declined::Declined;
use super::memory::{Asked, Memory};
use crate::history::{Role, Spoken};
use crate::memory::select::Why;
use crate::memory::transcript::{Entry, system_messages};
use crate::memory::{Snapshot, Trim, render};
use crate::store::Used;
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
    /// A content filter refused the words of the block twice in a row; the original went out at once.
    PassedOver,
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
            Self::PassedOver => "passed_over",
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
        let rung = match mine.rung {
            // It was not passed over yet.
            Rung::PassedOver if block.is_some() => Rung::Whole,
            rung => rung,
        };
        Some(Self::of(asked, block, asks_usage, why, rung))
    }
}

/// Whether `snapshot` stands in for a prefix of this very history.
fn covers(asked: &Asked, snapshot: &Snapshot) -> bool {
    let cut = snapshot.meta.to_count;
    snapshot.meta.opens() || asked.history.covered_by(&snapshot.meta.to, cut) == Some(cut)
}
