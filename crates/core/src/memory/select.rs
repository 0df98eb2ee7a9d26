//! Selects the snapshot that replaces the oldest messages of a request.
//!
//! This is the only decision about memory on the request path. It is a pure function of the chain and
//! its snapshots, so every replica and every repetition decides alike (INV-SAME). It counts no tokens
//! and reads no clock (INV-FREE). Called by the proxy, and by tests and replays.

use std::cmp::Reverse;

use crate::history::{History, Role};

use super::alignment::{Alignment, AlignmentKind};
use super::{SnapshotId, SnapshotMeta};

/// What the request with exactly this history was sent with before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviousSend {
    /// It was not sent before, as far as is known.
    NotSent,
    /// It was sent raw.
    Raw,
    /// It was sent with this snapshot.
    Snapshot(SnapshotId),
}

/// Why a selection was made; the audit records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectionReason {
    /// No snapshot covers a prefix of this history.
    NoSnapshot,
    /// Snapshots cover a prefix, but none may be used yet at this length.
    NotYet,
    /// Snapshots cover a prefix, but a cut there would break the request: it would split a tool
    /// round or hide the newest user message.
    Unsafe,
    /// The snapshot with the longest covered prefix.
    Longest,
    /// The same request was sent before and is sent in the same way again.
    Repeated,
    /// The longest covered prefix of another chain, which shares a run of messages with the request
    /// that cannot be chance.
    Aligned,
    /// The longest covered prefix of another chain, which the client replaced by a summary of it.
    Compacted,
    /// No snapshot covers a prefix. Memory of the user's other conversations stands before the
    /// whole history.
    PeerMemory,
}

impl SelectionReason {
    /// The name in the audit.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoSnapshot => "no_snapshot",
            Self::NotYet => "not_yet",
            Self::Unsafe => "unsafe_cut",
            Self::Longest => "longest",
            Self::Repeated => "repeated",
            Self::Aligned => "aligned",
            Self::Compacted => "compaction_link",
            Self::PeerMemory => "others",
        }
    }
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The snapshot to send; `None` sends the history raw.
    pub snapshot: Option<SnapshotMeta>,
    /// Why.
    pub reason: SelectionReason,
}

impl Selection {
    /// How many messages behind the leading system messages are replaced.
    pub fn cut(&self) -> usize {
        self.snapshot
            .as_ref()
            .map_or(0, |snapshot| snapshot.to_count)
    }

    /// The index of the message that stands raw between block and tail.
    pub fn pin(&self) -> Option<usize> {
        self.snapshot.as_ref().and_then(|snapshot| snapshot.pin)
    }
}

/// Selects among `candidates`, which may be any snapshots of the same owner; those of other chains are
/// ignored.
pub fn select(
    history: &History,
    candidates: &[SnapshotMeta],
    previous_send: PreviousSend,
) -> Selection {
    choose_snapshot(
        candidates,
        previous_send,
        |snapshot| snapshot.eligible_from <= history.len(),
        |snapshot| fit(history, snapshot),
        SelectionReason::Longest,
    )
}

/// The same for an aligned request. No request on this view was ever sent without the memory of the
/// chain, so a snapshot may be used at any length. A repeated request is sent as before.
pub fn select_aligned(
    alignment: &Alignment,
    candidates: &[SnapshotMeta],
    previous_send: PreviousSend,
) -> Selection {
    let reason = match alignment.kind {
        AlignmentKind::Continued => SelectionReason::Longest,
        AlignmentKind::Aligned => SelectionReason::Aligned,
        AlignmentKind::Compacted => SelectionReason::Compacted,
    };
    choose_snapshot(
        candidates,
        previous_send,
        |_| true,
        |snapshot| fit_aligned(alignment, snapshot),
        reason,
    )
}

fn choose_snapshot(
    candidates: &[SnapshotMeta],
    previous_send: PreviousSend,
    is_eligible: impl Fn(&SnapshotMeta) -> bool,
    fit: impl Fn(&SnapshotMeta) -> Fit,
    success_reason: SelectionReason,
) -> Selection {
    let fits = |snapshot: &&SnapshotMeta| fit(snapshot) == Fit::Whole;
    match previous_send {
        PreviousSend::Raw => {
            return Selection {
                snapshot: None,
                reason: SelectionReason::Repeated,
            };
        }
        PreviousSend::Snapshot(id) => {
            // A snapshot that was deleted since then cannot be sent again; select anew.
            if let Some(repeated) = candidates.iter().filter(fits).find(|s| s.id == id) {
                return Selection {
                    snapshot: Some(repeated.clone()),
                    reason: SelectionReason::Repeated,
                };
            }
        }
        PreviousSend::NotSent => {}
    }
    let best = candidates
        .iter()
        .filter(|snapshot| is_eligible(snapshot))
        .filter(fits)
        .max_by_key(|snapshot| rank(snapshot));
    let any_with = |expected: Fit| candidates.iter().any(|snapshot| fit(snapshot) == expected);
    let reason = match best {
        Some(best) if best.is_peer_intro() => SelectionReason::PeerMemory,
        Some(_) => success_reason,
        None if any_with(Fit::Whole) => SelectionReason::NotYet,
        None if any_with(Fit::Breaks) => SelectionReason::Unsafe,
        None => SelectionReason::NoSnapshot,
    };
    Selection {
        snapshot: best.cloned(),
        reason,
    }
}

/// The order of preference among snapshots. The one that covers more wins. Of two with the same
/// coverage, the smaller one wins, because there a reflection replaced observations. The younger one
/// does not win: forks prepare snapshots independently, and the larger one may come last (INV-WORTH).
/// Of two with the same log, the one with memory of other conversations wins; that text does not count
/// as log.
pub(super) fn rank(snapshot: &SnapshotMeta) -> impl Ord + use<> {
    let SnapshotMeta {
        to_count,
        tokens,
        eligible_from,
        id,
        ..
    } = *snapshot;
    let has_peer_memory = snapshot.peer_memory.is_some();
    (
        to_count,
        Reverse(tokens),
        has_peer_memory,
        eligible_from,
        id,
    )
}

/// Whether `tail`, the roles behind the cut, may follow the pinned message. Strict providers do not
/// accept two user messages in a row. If the client went back to the cut and asked something else, the
/// pin is useless and the request gets a snapshot without one.
pub(super) fn alternates(snapshot: &SnapshotMeta, mut tail: impl Iterator<Item = Role>) -> bool {
    snapshot.pin.is_none() || tail.find(|role| *role != Role::System) != Some(Role::User)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    Foreign,
    Breaks,
    Whole,
}

/// Whether `snapshot` may replace a prefix of `history` (INV-PAIR).
fn fit(history: &History, snapshot: &SnapshotMeta) -> Fit {
    let cut = snapshot.to_count;
    if let Some(fit) = fit_peer_memory(history, snapshot) {
        return fit;
    }
    if history.count_through(&snapshot.to, cut) != Some(cut) {
        return Fit::Foreign;
    }
    // Something must stay raw, tool calls stay with their results, and the newest user message is in
    // the tail or pinned.
    let raw_tail = cut < history.len();
    let roles = history.messages()[cut..]
        .iter()
        .map(|chained| chained.message.role);
    let keeps_question = history
        .newest_user()
        .is_none_or(|newest| newest >= cut || snapshot.pin == Some(newest));
    if raw_tail && keeps_question && alternates(snapshot, roles) && history.cuts().is_safe(cut) {
        Fit::Whole
    } else {
        Fit::Breaks
    }
}

/// The part of the decision that depends on other conversations alone. A snapshot with memory for
/// another conversation is foreign to this one; one that covers nothing cuts nothing.
fn fit_peer_memory(history: &History, snapshot: &SnapshotMeta) -> Option<Fit> {
    let allowed = snapshot
        .peer_memory
        .as_ref()
        .map(|peer_memory| peer_memory.allows_history(history));
    match (allowed, snapshot.is_peer_intro()) {
        (Some(false), _) | (None, true) => Some(Fit::Foreign),
        (Some(true), true) => Some(Fit::Whole),
        (_, false) => None,
    }
}

/// The same for an aligned request.
fn fit_aligned(alignment: &Alignment, snapshot: &SnapshotMeta) -> Fit {
    let count = snapshot.to_count;
    if let Some(fit) = fit_peer_memory(&alignment.history, snapshot) {
        return fit;
    }
    if alignment.history.count_through(&snapshot.to, count) != Some(count) {
        return Fit::Foreign;
    }
    if can_omit(alignment, count, snapshot.pin) {
        Fit::Whole
    } else {
        Fit::Breaks
    }
}

/// Whether the first `count` messages of the chain, except the one at `pin`, may be left out of a
/// request that is aligned to it. The request that the client sent must stay valid (INV-PAIR).
pub fn can_omit(alignment: &Alignment, count: usize, pin: Option<usize>) -> bool {
    // Memory of messages that the client may have taken back is not sent.
    if alignment
        .withheld
        .is_some_and(|withheld| count > withheld.from)
    {
        return false;
    }
    let client = &alignment.client;
    let cut = alignment.positions.request_cut(count);
    let pin = pin.and_then(|pin| alignment.positions.request_index(pin));
    let keeps_question = client.newest_user().is_none_or(|newest| {
        newest >= cut || alignment.positions.chain_index(newest).is_none() || pin == Some(newest)
    });
    let mut tail = client.messages().get(cut..).unwrap_or_default().iter();
    let alternates = pin.is_none()
        || tail
            .by_ref()
            .map(|chained| chained.message.role)
            .find(|role| *role != Role::System)
            != Some(Role::User);
    cut < client.len() && keeps_question && alternates && client.cuts().is_safe(cut)
}

#[cfg(test)]
mod tests;
