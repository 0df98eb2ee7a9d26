//! What the recorder knows of the chains it is following, so that one more turn costs only what is
//! new in it. A cache of the store and of nothing else: dropping a track loses nothing.

use std::collections::HashMap;

use jiff::tz::TimeZone;

use crate::history::{History, Link, Scope};
use crate::memory::advance::{ChainJob, ChainState, JobState};
use crate::memory::peer_memory::MAX_CHANCE_PREFIX;
use crate::memory::{Node, PartId, PartKind, PartMeta, SnapshotId, SnapshotMeta, Span};
use crate::store::{RecordedChain, Store, StoreError};

/// Messages held over all tracks; about 100 bytes each.
const MAX_NODES: usize = 400_000;

/// One chain up to the tip of its last recorded request.
#[derive(Debug)]
pub(super) struct Track {
    pub(super) scope: Scope,
    pub(super) lineage: Option<i64>,
    /// The lineages of the chain and their thread keys, the one above first.
    lineages: Vec<(i64, Option<String>)>,
    /// Nothing is known to follow the chain: what comes now continues it.
    is_leaf: bool,
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
    pub(super) route: Option<[u8; 32]>,
    /// What the store was last told of its open jobs: their way and their urgency, in tenths.
    pub(super) last_priorities: Option<(Option<[u8; 32]>, [u32; 2])>,
    pub(super) nodes: Vec<Node>,
    pub(super) parts: Vec<PartMeta>,
    pub(super) snapshots: Vec<SnapshotMeta>,
    pub(super) work: Vec<ChainJob>,
    /// Whether the user's conversations may be told of each other: the operator vouches for who it is.
    pub(super) allows_peer_memory: bool,
    /// The log that the others were last told of.
    pub(super) published_log: Vec<PartId>,
}

impl Track {
    pub(super) fn new(scope: &Scope, stored: RecordedChain) -> Self {
        Self {
            scope: scope.clone(),
            lineage: stored.lineage,
            lineages: stored.lineages,
            is_leaf: !stored.has_successor,
            paused: false,
            stale: false,
            model: String::new(),
            answered_ms: None,
            zone: stored
                .zone
                .as_deref()
                .and_then(|zone| TimeZone::get(zone).ok()),
            route: None,
            last_priorities: None,
            // Whom it was told of others it may be told of them again, before its next request says so.
            allows_peer_memory: stored.snapshots.iter().any(|s| s.peer_memory.is_some()),
            nodes: stored.nodes,
            parts: stored.parts,
            snapshots: stored.snapshots,
            work: stored.jobs,
            published_log: Vec::new(),
        }
    }

    /// Reads what the store has of the chain that `history` continues.
    pub(super) async fn load(
        store: &dyn Store,
        scope: &Scope,
        history: &History,
    ) -> Result<Self, StoreError> {
        let chain: Vec<Link> = history.turns().iter().map(|turn| turn.link).collect();
        Self::load_chain(store, scope, &chain).await
    }

    /// Reads what the store has of the longest recorded prefix of `chain`.
    pub(super) async fn load_chain(
        store: &dyn Store,
        scope: &Scope,
        chain: &[Link],
    ) -> Result<Self, StoreError> {
        let stored = store.load_chain(scope, chain).await?;
        let is_coincidence = stored.has_successor && stored.nodes.len() <= MAX_CHANCE_PREFIX;
        // The successors are not loaded. The track must not be kept, or a longer request would count
        // as new.
        let has_successors = stored.has_successor && stored.nodes.len() == chain.len();
        let mut track = Self::new(scope, stored);
        track.stale = has_successors;
        if is_coincidence {
            track.detach_lineage();
        }
        Ok(track)
    }

    /// The snapshot that a request was sent with, as decisions see it: without peer memory, which
    /// covers no message.
    pub(super) fn sent_snapshots(&self, sent: Option<SnapshotId>) -> Vec<SnapshotMeta> {
        let mut found = self.snapshots.iter().filter(|meta| Some(meta.id) == sent);
        let without_peers = |meta: &SnapshotMeta| SnapshotMeta {
            peer_memory: None,
            ..meta.clone()
        };
        found.next().map(without_peers).into_iter().collect()
    }

    /// The lineages of the chain.
    pub(super) fn lineages(&self) -> Vec<i64> {
        self.lineages.iter().map(|(lineage, _)| *lineage).collect()
    }

    /// The name its client gave it.
    pub(super) fn thread_key(&self) -> Option<&str> {
        self.lineages.first()?.1.as_deref()
    }

    /// The last message it has for good. Not the newest: clients take back what they put into that, and edit
    /// it, and it is the same conversation all the same.
    pub(super) fn last_confirmed(&self) -> Option<Node> {
        let mut nodes = self.nodes.iter().rev();
        nodes.find(|node| node.confirmed).copied()
    }

    /// The same once a request of `length` messages that goes on from it is accepted.
    pub(super) fn last_confirmed_after(&self, length: usize) -> Option<Node> {
        let current_last = self.nodes.last().filter(|_| length > self.nodes.len());
        current_last.copied().or_else(|| self.last_confirmed())
    }

    /// As the audit calls it: by that name, else by its first message.
    pub(super) fn label(&self) -> Option<String> {
        let first = || self.nodes.first().map(|node| node.link.label());
        self.thread_key().map(str::to_owned).or_else(first)
    }

    /// Tokens of these parts together; `None` where one is not of this chain.
    pub(super) fn tokens_of(&self, parts: &[PartId]) -> Option<u32> {
        let tokens = |id: &PartId| self.parts.iter().find(|part| part.id == *id);
        parts.iter().try_fold(0_u32, |sum, id| {
            Some(sum.saturating_add(tokens(id)?.tokens))
        })
    }

    pub(super) fn path(&self) -> ChainState<'_> {
        ChainState {
            root: Link::root(&self.scope),
            nodes: &self.nodes,
            parts: &self.parts,
            snapshots: &self.snapshots,
            jobs: &self.work,
        }
    }

    /// Takes over what the store knows of the chain.
    pub(super) fn refresh_from(&mut self, loaded: Self) {
        self.parts = loaded.parts;
        self.snapshots = loaded.snapshots;
        self.work = loaded.work;
    }

    /// The lineage that new messages of a request under `key` belong to; `None` for a new one. A key
    /// groups requests into a thread: two threads that share a beginning are two lineages, while
    /// what is remembered of the beginning serves both.
    pub(super) fn lineage_for(&self, key: &str) -> Option<i64> {
        let has_key = |(_, other): &&(i64, Option<String>)| other.as_deref() == Some(key);
        let deepest = self.lineages.first();
        self.lineages
            .iter()
            .find(has_key)
            .or(deepest.filter(|(_, other)| other.is_none()))
            .map(|(lineage, _)| *lineage)
    }

    /// Whether one of the chain's lineages goes under `key`.
    pub(super) fn has_thread_key(&self, key: &str) -> bool {
        let mut keys = self.lineages.iter().map(|(_, key)| key.as_deref());
        keys.any(|existing| existing == Some(key))
    }

    /// The lineage that new messages of a sub-agent belong to. Its parent's only where they continue the
    /// parent's history and go under no name of their own (a summary that is asked for).
    pub(super) fn lineage_for_sub_agent(&self, key: Option<&str>) -> Option<i64> {
        let has_key = |(_, other): &&(i64, Option<String>)| other.as_deref() == key;
        let deepest = self.lineages.first();
        match key {
            Some(_) => self.lineages.iter().find(has_key),
            None => deepest.filter(|(_, other)| self.is_leaf || other.is_none()),
        }
        .map(|(lineage, _)| *lineage)
    }

    /// What is said now begins a lineage.
    pub(super) fn detach_lineage(&mut self) {
        self.lineage = None;
        self.lineages.clear();
    }

    /// The chain now ends in `lineage`, where a request under `key` was recorded. The first key of a
    /// lineage stays its key.
    pub(super) fn join_lineage(&mut self, lineage: i64, key: Option<String>) {
        let index = self
            .lineages
            .iter()
            .position(|(existing, _)| *existing == lineage);
        let (_, first) = index.map_or((lineage, None), |at| self.lineages.remove(at));
        self.lineages.insert(0, (lineage, first.or(key)));
        self.lineage = Some(lineage);
        self.is_leaf = true;
    }

    /// Whether `snapshot` is one of this chain's, as far as it is known here.
    pub(super) fn has_snapshot(&self, snapshot: Option<SnapshotId>) -> bool {
        snapshot.is_none_or(|id| self.snapshots.iter().any(|existing| existing.id == id))
    }

    /// Where the ranges end of what is waited for. Another process may have done it, and its worker has
    /// nobody here to tell.
    pub(super) fn open_job_ends(&self) -> Vec<Link> {
        self.open_jobs().map(|work| work.span.to).collect()
    }

    /// Takes over how that stands: `open` are the jobs that end there. `false` where one of them is
    /// gone, since its range may have a part now.
    pub(super) fn update_jobs(&mut self, open: &[ChainJob]) -> bool {
        let is_same_job = |tracked: &ChainJob, stored: &ChainJob| {
            (tracked.kind, tracked.span) == (stored.kind, stored.span)
        };
        let is_gone = |tracked: &ChainJob| open.iter().all(|stored| !is_same_job(tracked, stored));
        if self.open_jobs().any(is_gone) {
            return false;
        }
        for job in &mut self.work {
            if let Some(now) = open.iter().find(|now| is_same_job(job, now)) {
                job.state = now.state;
            }
        }
        true
    }

    /// The jobs that may still write a part.
    fn open_jobs(&self) -> impl Iterator<Item = &ChainJob> {
        let work = self.work.iter();
        work.filter(|work| work.state != JobState::Abandoned)
    }

    /// Whether `span` lies on this chain.
    pub(super) fn contains(&self, scope: &Scope, span: &Span) -> bool {
        let ends_at = |count: usize, link: &Link| {
            count
                .checked_sub(1)
                .and_then(|at| self.nodes.get(at))
                .is_some_and(|n| n.link == *link)
        };
        self.scope == *scope
            && ends_at(span.to_count, &span.to)
            && (span.from_count == 0 || ends_at(span.from_count, &span.from))
    }

    /// Code wrote a reflection. Whoever is at work on one goes on.
    pub(super) fn add_code_reflection(&mut self, part: PartMeta) {
        self.parts.push(part);
    }

    /// A part was written, or its job changed.
    pub(super) fn apply_result(&mut self, kind: PartKind, span: &Span, result: &JobResult) {
        self.work
            .retain(|work| work.kind != kind || work.span != *span);
        match result {
            JobResult::Written(part)
                if self.parts.iter().all(|existing| existing.id != part.id) =>
            {
                self.parts.push(part.clone());
            }
            JobResult::Pending(state) => {
                self.work.push(ChainJob {
                    kind,
                    span: *span,
                    state: *state,
                });
            }
            JobResult::Written(_) => {}
            JobResult::Gone => self.stale = true,
        }
    }
}

/// How a job ended.
#[derive(Debug)]
pub(super) enum JobResult {
    /// With a part.
    Written(PartMeta),
    /// Not yet, or never for this range.
    Pending(JobState),
    /// Somebody else did it, or it was deleted.
    Gone,
}

/// The tracks at hand, by the tip of their last request.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    by_tip: HashMap<([u8; 32], Link), (u64, Track)>,
    nodes: usize,
    use_counter: u64,
}

impl Tracks {
    /// Takes the track whose chain `history` continues or repeats.
    pub(super) fn take(&mut self, scope: &Scope, history: &History) -> Option<Track> {
        let tip = history
            .turns()
            .iter()
            .rev()
            .map(|turn| (scope.tenant, turn.link))
            .find(|key| self.by_tip.contains_key(key))?;
        let (_, track) = self.by_tip.remove(&tip)?;
        self.nodes -= track.nodes.len();
        Some(track)
    }

    /// Takes the track whose last request ends in `tip`.
    pub(super) fn take_at(&mut self, scope: &Scope, tip: Link) -> Option<Track> {
        let (_, track) = self.by_tip.remove(&(scope.tenant, tip))?;
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
        self.use_counter += 1;
        self.nodes += track.nodes.len();
        if let Some((_, old)) = self
            .by_tip
            .insert((track.scope.tenant, tip), (self.use_counter, track))
        {
            self.nodes -= old.nodes.len();
        }
        while self.nodes > MAX_NODES && self.by_tip.len() > 1 {
            let oldest = self
                .by_tip
                .iter()
                .min_by_key(|(_, (last_use, _))| *last_use)
                .map(|(key, _)| *key);
            let Some((_, evicted)) = oldest.and_then(|key| self.by_tip.remove(&key)) else {
                break;
            };
            self.nodes -= evicted.nodes.len();
        }
    }

    /// Takes every track on which `span` lies.
    pub(super) fn take_containing(&mut self, scope: &Scope, span: &Span) -> Vec<Track> {
        let mut keys: Vec<_> = self
            .by_tip
            .iter()
            .filter(|(_, (_, track))| track.contains(scope, span))
            .map(|(key, (used, _))| (*used, *key))
            .collect();
        // In the order of their last requests: what follows from one is there for the next.
        keys.sort_unstable_by_key(|(used, _)| *used);
        keys.iter()
            .filter_map(|(_, key)| self.by_tip.remove(key))
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
        let root = Link::root(&Scope::new(b"key", None));
        Span {
            from: root,
            from_count: 0,
            to: root,
            to_count,
        }
    }

    fn waiting_for(jobs: &[(PartKind, Span)]) -> Track {
        let mut track = Track::new(&Scope::new(b"key", None), RecordedChain::default());
        for (kind, span) in jobs {
            track.apply_result(*kind, span, &JobResult::Pending(JobState::Fresh));
        }
        track
    }

    /// Where the worker of another process does the job, nobody here is told. INV-BOUND leaves three
    /// requests, and the one that offers the range may have been the first of them: the next one has
    /// to ask.
    #[test]
    fn what_was_just_offered_is_asked_for_with_the_next_request() {
        let mut track = waiting_for(&[]);
        assert!(track.open_job_ends().is_empty(), "nothing is under way");
        track.apply_result(
            PartKind::Chunk,
            &span(2),
            &JobResult::Pending(JobState::Fresh),
        );
        assert_eq!(track.open_job_ends(), [span(2).to]);
        track.apply_result(
            PartKind::Chunk,
            &span(2),
            &JobResult::Pending(JobState::Abandoned),
        );
        assert!(track.open_job_ends().is_empty(), "nobody does it any more");
    }

    /// Two workers, and only one of them is of this process.
    #[test]
    fn what_is_told_of_one_job_says_nothing_of_another() {
        let mut track = waiting_for(&[(PartKind::Reflection, span(4)), (PartKind::Chunk, span(6))]);
        track.apply_result(PartKind::Chunk, &span(6), &JobResult::Gone);
        assert!(
            !track.open_job_ends().is_empty(),
            "nobody told of the reflection"
        );
        track.apply_result(PartKind::Reflection, &span(4), &JobResult::Gone);
        assert!(track.open_job_ends().is_empty());
    }

    #[test]
    fn how_a_job_stands_is_taken_over_and_one_that_is_gone_is_told() {
        let (reflection, chunk) = ((PartKind::Reflection, span(4)), (PartKind::Chunk, span(6)));
        let mut track = waiting_for(&[reflection, chunk]);
        let work = |(kind, span), state| ChainJob { kind, span, state };
        let open = [
            work(chunk, JobState::Retrying),
            work(reflection, JobState::Fresh),
        ];
        assert!(track.update_jobs(&open));
        let failing = |kind| {
            let job = track.work.iter().find(|known| known.kind == kind);
            job.is_some_and(|job| job.state == JobState::Retrying)
        };
        assert!(failing(PartKind::Chunk) && !failing(PartKind::Reflection));
        assert!(
            !track.update_jobs(&open[..1]),
            "the reflection is done or gone"
        );
    }
}
