//! What the recorder knows of the chains it is following, so that one more turn costs only what is
//! new in it. A cache of the store and of nothing else: dropping a track loses nothing.

use std::collections::HashMap;

use jiff::tz::TimeZone;

use crate::history::{History, Link, Scope};
use crate::memory::advance::{Path, Work, WorkState};
use crate::memory::{Node, PartId, PartKind, PartMeta, SnapshotId, SnapshotMeta, Span};
use crate::store::Known;

/// Messages held over all tracks; about 100 bytes each.
const NODES: usize = 400_000;

/// One chain up to the tip of its last recorded request.
#[derive(Debug)]
pub(super) struct Track {
    pub(super) scope: Scope,
    pub(super) lineage: Option<i64>,
    /// The lineages of the chain and their thread keys, the one above first.
    lineages: Vec<(i64, Option<String>)>,
    /// Nothing is known to follow the chain: what comes now continues it.
    open: bool,
    /// The Observer may be shown no more until more is confirmed.
    pub(super) paused: bool,
    /// The store knows more of the chain than is known here: whoever needs it next reads it again.
    pub(super) stale: bool,
    /// What its last request asked for.
    pub(super) model: String,
    /// When its last request was answered; `None` where that was not seen by this process.
    pub(super) answered_ms: Option<i64>,
    /// The zone its client last named.
    pub(super) zone: Option<TimeZone>,
    /// The way its last request took, by its hash.
    pub(super) way: Option<[u8; 32]>,
    /// What the store was last told of its open jobs: their way and their urgency, in tenths.
    pub(super) steered: Option<(Option<[u8; 32]>, [u32; 2])>,
    pub(super) nodes: Vec<Node>,
    pub(super) parts: Vec<PartMeta>,
    pub(super) snapshots: Vec<SnapshotMeta>,
    pub(super) work: Vec<Work>,
    /// Whether the user's conversations may be told of each other: the operator vouches for who it is.
    pub(super) shared: bool,
    /// The log that the others were last told of.
    pub(super) told: Vec<PartId>,
}

impl Track {
    pub(super) fn of(scope: &Scope, known: Known) -> Self {
        Self {
            scope: scope.clone(),
            lineage: known.lineage,
            lineages: known.lineages,
            open: !known.branches,
            paused: false,
            stale: false,
            model: String::new(),
            answered_ms: None,
            zone: known
                .zone
                .as_deref()
                .and_then(|zone| TimeZone::get(zone).ok()),
            way: None,
            steered: None,
            // Whom it was told of others it may be told of them again, before its next request says so.
            shared: known.snapshots.iter().any(|s| s.others.is_some()),
            nodes: known.nodes,
            parts: known.parts,
            snapshots: known.snapshots,
            work: known.jobs,
            told: Vec::new(),
        }
    }

    /// The lineages of the chain.
    pub(super) fn lineages(&self) -> Vec<i64> {
        self.lineages.iter().map(|(lineage, _)| *lineage).collect()
    }

    /// The name its client gave it.
    pub(super) fn key(&self) -> Option<&str> {
        self.lineages.first()?.1.as_deref()
    }

    /// The last message it has for good. Not the newest: clients take back what they put into that, and edit
    /// it, and it is the same conversation all the same.
    pub(super) fn settled(&self) -> Option<Node> {
        let mut nodes = self.nodes.iter().rev();
        nodes.find(|node| node.confirmed).copied()
    }

    /// The same once a request of `length` messages that goes on from it is accepted.
    pub(super) fn settled_by(&self, length: usize) -> Option<Node> {
        let carried = self.nodes.last().filter(|_| length > self.nodes.len());
        carried.copied().or_else(|| self.settled())
    }

    /// As the audit calls it: by that name, else by its first message.
    pub(super) fn name(&self) -> Option<String> {
        let first = || self.nodes.first().map(|node| node.link.label());
        self.key().map(str::to_owned).or_else(first)
    }

    /// Tokens of these parts together; `None` where one is not of this chain.
    pub(super) fn tokens_of(&self, parts: &[PartId]) -> Option<u32> {
        let tokens = |id: &PartId| self.parts.iter().find(|part| part.id == *id);
        parts.iter().try_fold(0_u32, |sum, id| {
            Some(sum.saturating_add(tokens(id)?.tokens))
        })
    }

    pub(super) fn path(&self) -> Path<'_> {
        Path {
            root: Link::root(&self.scope),
            nodes: &self.nodes,
            parts: &self.parts,
            snapshots: &self.snapshots,
            work: &self.work,
        }
    }

    /// Takes over what the store knows of the chain.
    pub(super) fn learn(&mut self, known: Self) {
        self.parts = known.parts;
        self.snapshots = known.snapshots;
        self.work = known.work;
    }

    /// The lineage that new messages of a request under `key` belong to; `None` for a new one. A key
    /// groups requests into a thread: two threads that share a beginning are two lineages, while
    /// what is remembered of the beginning serves both.
    pub(super) fn lineage_for(&self, key: &str) -> Option<i64> {
        let own = |(_, other): &&(i64, Option<String>)| other.as_deref() == Some(key);
        let deepest = self.lineages.first();
        self.lineages
            .iter()
            .find(own)
            .or(deepest.filter(|(_, other)| other.is_none()))
            .map(|(lineage, _)| *lineage)
    }

    /// Whether one of the chain's lineages goes under `key`.
    pub(super) fn is_named(&self, key: &str) -> bool {
        let mut keys = self.lineages.iter().map(|(_, key)| key.as_deref());
        keys.any(|known| known == Some(key))
    }

    /// The lineage that new messages of a sub-agent belong to. Its parent's only where they continue the
    /// parent's history and go under no name of their own (a summary that is asked for).
    pub(super) fn lineage_of_child(&self, key: Option<&str>) -> Option<i64> {
        let own = |(_, other): &&(i64, Option<String>)| other.as_deref() == key;
        let deepest = self.lineages.first();
        match key {
            Some(_) => self.lineages.iter().find(own),
            None => deepest.filter(|(_, other)| self.open || other.is_none()),
        }
        .map(|(lineage, _)| *lineage)
    }

    /// What is said now begins a lineage.
    pub(super) fn orphan(&mut self) {
        self.lineage = None;
        self.lineages.clear();
    }

    /// The chain now ends in `lineage`, where a request under `key` was recorded. The first key of a
    /// lineage stays its key.
    pub(super) fn joined(&mut self, lineage: i64, key: Option<String>) {
        let known = self
            .lineages
            .iter()
            .position(|(known, _)| *known == lineage);
        let (_, first) = known.map_or((lineage, None), |at| self.lineages.remove(at));
        self.lineages.insert(0, (lineage, first.or(key)));
        self.lineage = Some(lineage);
        self.open = true;
    }

    /// Whether `snapshot` is one of this chain's, as far as it is known here.
    pub(super) fn knows(&self, snapshot: Option<SnapshotId>) -> bool {
        snapshot.is_none_or(|id| self.snapshots.iter().any(|known| known.id == id))
    }

    /// Where the ranges end of what is waited for. Another process may have done it, and its worker has
    /// nobody here to tell.
    pub(super) fn awaited(&self) -> Vec<Link> {
        self.open().map(|work| work.span.to).collect()
    }

    /// Takes over how that stands: `open` are the jobs that end there. `false` where one of them is
    /// gone, since its range may have a part now.
    pub(super) fn hear(&mut self, open: &[Work]) -> bool {
        let same = |known: &Work, now: &Work| (known.kind, known.span) == (now.kind, now.span);
        let gone = |known: &Work| open.iter().all(|now| !same(known, now));
        if self.open().any(gone) {
            return false;
        }
        for known in &mut self.work {
            if let Some(now) = open.iter().find(|now| same(known, now)) {
                known.state = now.state;
            }
        }
        true
    }

    /// The jobs that may still write a part.
    fn open(&self) -> impl Iterator<Item = &Work> {
        let work = self.work.iter();
        work.filter(|work| work.state != WorkState::Abandoned)
    }

    /// Whether `span` lies on this chain.
    pub(super) fn holds(&self, scope: &Scope, span: &Span) -> bool {
        let ends = |count: usize, link: &Link| {
            count
                .checked_sub(1)
                .and_then(|at| self.nodes.get(at))
                .is_some_and(|n| n.link == *link)
        };
        self.scope == *scope
            && ends(span.to_count, &span.to)
            && (span.from_count == 0 || ends(span.from_count, &span.from))
    }

    /// Code wrote a reflection. Whoever is at work on one goes on.
    pub(super) fn stopgap(&mut self, part: PartMeta) {
        self.parts.push(part);
    }

    /// A part was written, or its job changed.
    pub(super) fn settle(&mut self, kind: PartKind, span: &Span, how: &Settled) {
        self.work
            .retain(|work| work.kind != kind || work.span != *span);
        match how {
            Settled::Written(part) if self.parts.iter().all(|known| known.id != part.id) => {
                self.parts.push(part.clone());
            }
            Settled::Waiting(state) => {
                self.work.push(Work {
                    kind,
                    span: *span,
                    state: *state,
                });
            }
            Settled::Written(_) => {}
            Settled::Gone => self.stale = true,
        }
    }
}

/// How a job ended.
#[derive(Debug)]
pub(super) enum Settled {
    /// With a part.
    Written(PartMeta),
    /// Not yet, or never for this range.
    Waiting(WorkState),
    /// Somebody else did it, or it was deleted.
    Gone,
}

/// The tracks at hand, by the tip of their last request.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    held: HashMap<([u8; 32], Link), (u64, Track)>,
    nodes: usize,
    clock: u64,
}

impl Tracks {
    /// Takes the track whose chain `history` continues or repeats.
    pub(super) fn take(&mut self, scope: &Scope, history: &History) -> Option<Track> {
        let tip = history
            .turns()
            .iter()
            .rev()
            .map(|turn| (scope.tenant, turn.link))
            .find(|key| self.held.contains_key(key))?;
        let (_, track) = self.held.remove(&tip)?;
        self.nodes -= track.nodes.len();
        Some(track)
    }

    /// Takes the track whose last request ends in `tip`.
    pub(super) fn take_at(&mut self, scope: &Scope, tip: Link) -> Option<Track> {
        let (_, track) = self.held.remove(&(scope.tenant, tip))?;
        self.nodes -= track.nodes.len();
        Some(track)
    }

    /// Puts a track back under its tip, unless it is stale.
    pub(super) fn put(&mut self, track: Track) {
        if track.stale {
            return;
        }
        let Some(tip) = track.nodes.last().map(|node| node.link) else {
            return;
        };
        self.clock += 1;
        self.nodes += track.nodes.len();
        if let Some((_, old)) = self
            .held
            .insert((track.scope.tenant, tip), (self.clock, track))
        {
            self.nodes -= old.nodes.len();
        }
        while self.nodes > NODES && self.held.len() > 1 {
            let oldest = self
                .held
                .iter()
                .min_by_key(|(_, (used, _))| *used)
                .map(|(key, _)| *key);
            let Some((_, gone)) = oldest.and_then(|key| self.held.remove(&key)) else {
                break;
            };
            self.nodes -= gone.nodes.len();
        }
    }

    /// Takes every track on which `span` lies.
    pub(super) fn take_holding(&mut self, scope: &Scope, span: &Span) -> Vec<Track> {
        let mut keys: Vec<_> = self
            .held
            .iter()
            .filter(|(_, (_, track))| track.holds(scope, span))
            .map(|(key, (used, _))| (*used, *key))
            .collect();
        // In the order of their last requests: what follows from one is there for the next.
        keys.sort_unstable_by_key(|(used, _)| *used);
        keys.iter()
            .filter_map(|(_, key)| self.held.remove(key))
            .map(|(_, track)| {
                self.nodes -= track.nodes.len();
                track
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Scope;

    fn span(to_count: usize) -> Span {
        let root = Link::root(&Scope::of(b"key", None));
        Span {
            from: root,
            from_count: 0,
            to: root,
            to_count,
        }
    }

    fn waiting_for(jobs: &[(PartKind, Span)]) -> Track {
        let mut track = Track::of(&Scope::of(b"key", None), Known::default());
        for (kind, span) in jobs {
            track.settle(*kind, span, &Settled::Waiting(WorkState::Fresh));
        }
        track
    }

    /// Where the worker of another process does the job, nobody here is told. INV-BOUND leaves three
    /// requests, and the one that offers the range may have been the first of them: the next one has
    /// to ask.
    #[test]
    fn what_was_just_offered_is_asked_for_with_the_next_request() {
        let mut track = waiting_for(&[]);
        assert!(track.awaited().is_empty(), "nothing is under way");
        track.settle(
            PartKind::Chunk,
            &span(2),
            &Settled::Waiting(WorkState::Fresh),
        );
        assert_eq!(track.awaited(), [span(2).to]);
        track.settle(
            PartKind::Chunk,
            &span(2),
            &Settled::Waiting(WorkState::Abandoned),
        );
        assert!(track.awaited().is_empty(), "nobody does it any more");
    }

    /// Two workers, and only one of them is of this process.
    #[test]
    fn what_is_told_of_one_job_says_nothing_of_another() {
        let mut track = waiting_for(&[(PartKind::Reflection, span(4)), (PartKind::Chunk, span(6))]);
        track.settle(PartKind::Chunk, &span(6), &Settled::Gone);
        assert!(!track.awaited().is_empty(), "nobody told of the reflection");
        track.settle(PartKind::Reflection, &span(4), &Settled::Gone);
        assert!(track.awaited().is_empty());
    }

    #[test]
    fn how_a_job_stands_is_taken_over_and_one_that_is_gone_is_told() {
        let (reflection, chunk) = ((PartKind::Reflection, span(4)), (PartKind::Chunk, span(6)));
        let mut track = waiting_for(&[reflection, chunk]);
        let work = |(kind, span), state| Work { kind, span, state };
        let open = [
            work(chunk, WorkState::Retrying),
            work(reflection, WorkState::Fresh),
        ];
        assert!(track.hear(&open));
        let failing = |kind| {
            let known = track.work.iter().find(|known| known.kind == kind);
            known.is_some_and(|known| known.state == WorkState::Retrying)
        };
        assert!(failing(PartKind::Chunk) && !failing(PartKind::Reflection));
        assert!(!track.hear(&open[..1]), "the reflection is done or gone");
    }
}
