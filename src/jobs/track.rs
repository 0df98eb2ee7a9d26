//! What the recorder holds of the chains it follows, so that one more turn costs only its new
//! messages. A cache of the store: dropping a track loses nothing.

use jiff::tz::TimeZone;

use crate::history::{History, Link, Scope};
use crate::memory::advance::{ChainJob, ChainState, JobState};
use crate::memory::peer_memory::MAX_CHANCE_PREFIX;
use crate::memory::{Node, PartId, PartKind, PartMeta, SnapshotId, SnapshotMeta, Span};
use crate::store::{RecordedChain, Store, StoreError};

/// One chain, up to the tip of its last recorded request.
#[derive(Debug)]
pub(super) struct Track {
    pub(super) scope: Scope,
    pub(super) lineage: Option<i64>,
    /// The lineages of the chain and their thread keys, the current one first.
    lineages: Vec<(i64, Option<String>)>,
    /// No chain is known that is longer than this one: the next messages continue it.
    is_leaf: bool,
    /// The Observer reads no more until more messages are confirmed, that is, carried by two
    /// answered requests.
    pub(super) paused: bool,
    /// The store knows more than this track does. It must be loaded again before its next use.
    pub(super) stale: bool,
    /// The model that its last request named.
    pub(super) model: String,
    /// When its last request was answered; `None` if this process did not see that.
    pub(super) answered_ms: Option<i64>,
    /// The time zone that its client named last.
    pub(super) zone: Option<TimeZone>,
    /// The hash of the route of its last request.
    pub(super) route: Option<[u8; 32]>,
    /// Route and urgencies (in tenths) that its open jobs have in the store.
    pub(super) last_priorities: Option<(Option<[u8; 32]>, [u32; 2])>,
    pub(super) nodes: Vec<Node>,
    pub(super) parts: Vec<PartMeta>,
    pub(super) snapshots: Vec<SnapshotMeta>,
    pub(super) jobs: Vec<ChainJob>,
    /// Whether the user's conversations may share memory: the operator guarantees who the user is.
    pub(super) allows_peer_memory: bool,
    /// The log from which its digest was last published.
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
            // A conversation that already received peer memory may receive it again before its next
            // request arrives.
            allows_peer_memory: stored.snapshots.iter().any(|s| s.peer_memory.is_some()),
            nodes: stored.nodes,
            parts: stored.parts,
            snapshots: stored.snapshots,
            jobs: stored.jobs,
            published_log: Vec::new(),
        }
    }

    /// Reads what the store has of the chain that `history` continues.
    pub(super) async fn load(
        store: &dyn Store,
        scope: &Scope,
        history: &History,
    ) -> Result<Self, StoreError> {
        let chain: Vec<Link> = history
            .messages()
            .iter()
            .map(|chained| chained.link)
            .collect();
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

    /// Its last confirmed message. The newest message is not confirmed yet: clients often edit or
    /// drop it within one conversation.
    pub(super) fn last_confirmed(&self) -> Option<Node> {
        let mut nodes = self.nodes.iter().rev();
        nodes.find(|node| node.confirmed).copied()
    }

    /// The last confirmed message once a request of `length` messages that continues the chain is
    /// accepted.
    pub(super) fn last_confirmed_after(&self, length: usize) -> Option<Node> {
        let current_last = self.nodes.last().filter(|_| length > self.nodes.len());
        current_last.copied().or_else(|| self.last_confirmed())
    }

    /// Its label in the audit: the thread key, or else the label of its first message.
    pub(super) fn label(&self) -> Option<String> {
        let first = || self.nodes.first().map(|node| node.link.label());
        self.thread_key().map(str::to_owned).or_else(first)
    }

    /// Tokens of these parts together; `None` if one is not on this chain.
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
            jobs: &self.jobs,
        }
    }

    /// Takes over the parts, snapshots and jobs that the store has of the chain.
    pub(super) fn refresh_from(&mut self, loaded: Self) {
        self.parts = loaded.parts;
        self.snapshots = loaded.snapshots;
        self.jobs = loaded.jobs;
    }

    /// The lineage for new messages of a request under `key`; `None` starts a new one. A key groups
    /// requests into a thread. Two threads that share a prefix are two lineages, and both use the
    /// memory of that prefix.
    pub(super) fn lineage_for(&self, key: &str) -> Option<i64> {
        let has_key = |(_, other): &&(i64, Option<String>)| other.as_deref() == Some(key);
        let deepest = self.lineages.first();
        self.lineages
            .iter()
            .find(has_key)
            .or(deepest.filter(|(_, other)| other.is_none()))
            .map(|(lineage, _)| *lineage)
    }

    /// Whether a lineage of the chain has this `key`.
    pub(super) fn has_thread_key(&self, key: &str) -> bool {
        let mut keys = self.lineages.iter().map(|(_, key)| key.as_deref());
        keys.any(|existing| existing == Some(key))
    }

    /// The lineage for new messages of a sub-agent. It is its parent's only if the messages
    /// continue the parent's history without a key of their own, for example to ask for a summary.
    pub(super) fn lineage_for_sub_agent(&self, key: Option<&str>) -> Option<i64> {
        let has_key = |(_, other): &&(i64, Option<String>)| other.as_deref() == key;
        let deepest = self.lineages.first();
        match key {
            Some(_) => self.lineages.iter().find(has_key),
            None => deepest.filter(|(_, other)| self.is_leaf || other.is_none()),
        }
        .map(|(lineage, _)| *lineage)
    }

    /// Lets the next messages start a new lineage.
    pub(super) fn detach_lineage(&mut self) {
        self.lineage = None;
        self.lineages.clear();
    }

    /// Records that the chain now ends in `lineage`, by a request under `key`. A lineage keeps its
    /// first key.
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

    /// Whether `snapshot` is known here as one of this chain's.
    pub(super) fn has_snapshot(&self, snapshot: Option<SnapshotId>) -> bool {
        snapshot.is_none_or(|id| self.snapshots.iter().any(|existing| existing.id == id))
    }

    /// The ends of the ranges that have open jobs. A worker of another process may have done them,
    /// and it cannot report to this recorder.
    pub(super) fn open_job_ends(&self) -> Vec<Link> {
        self.open_jobs().map(|job| job.span.to).collect()
    }

    /// Takes over the states of the `open` jobs. Returns `false` if a tracked job is gone, because
    /// its range may have a part now.
    pub(super) fn update_jobs(&mut self, open: &[ChainJob]) -> bool {
        let is_same_job = |tracked: &ChainJob, stored: &ChainJob| {
            (tracked.kind, tracked.span) == (stored.kind, stored.span)
        };
        let is_gone = |tracked: &ChainJob| open.iter().all(|stored| !is_same_job(tracked, stored));
        if self.open_jobs().any(is_gone) {
            return false;
        }
        for job in &mut self.jobs {
            if let Some(now) = open.iter().find(|now| is_same_job(job, now)) {
                job.state = now.state;
            }
        }
        true
    }

    /// Jobs that may still write a part.
    pub(super) fn open_jobs(&self) -> impl Iterator<Item = &ChainJob> {
        let jobs = self.jobs.iter();
        jobs.filter(|job| job.state != JobState::Abandoned)
    }

    /// The memory that it holds, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let lists = size_of_val(self.nodes.as_slice())
            + size_of_val(self.parts.as_slice())
            + size_of_val(self.snapshots.as_slice())
            + size_of_val(self.jobs.as_slice())
            + size_of_val(self.published_log.as_slice());
        let in_snapshots = self.snapshots.iter().map(|meta| {
            size_of_val(meta.parts.as_slice()) + meta.placement.len() + size_of::<SnapshotMeta>()
        });
        let keys = self.lineages.iter().filter_map(|(_, key)| key.as_deref());
        let texts = self.model.len() + keys.map(str::len).sum::<usize>();
        size_of::<Self>() + lists + in_snapshots.sum::<usize>() + texts
    }

    /// The first link of its chain.
    pub(super) fn first_link(&self) -> Option<Link> {
        self.nodes.first().map(|node| node.link)
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

    /// Adds a reflection that code wrote. A Reflector job for the same range goes on.
    pub(super) fn add_code_reflection(&mut self, part: PartMeta) {
        self.parts.push(part);
    }

    /// Applies the end of a job.
    pub(super) fn apply_result(&mut self, kind: PartKind, span: &Span, result: &JobResult) {
        self.jobs
            .retain(|job| job.kind != kind || job.span != *span);
        match result {
            JobResult::Written(part)
                if self.parts.iter().all(|existing| existing.id != part.id) =>
            {
                self.parts.push(part.clone());
            }
            JobResult::Pending(state) => {
                self.jobs.push(ChainJob {
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
    /// It wrote a part.
    Written(PartMeta),
    /// No part of it was stored. The store keeps the job in this state: to be tried again, or abandoned.
    Pending(JobState),
    /// Another worker did it, or it was deleted.
    Gone,
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

    /// A worker of another process cannot report to this one. INV-BOUND allows three requests, and
    /// the request that offered the range may be the first of them, so the next request has to query
    /// the store.
    #[test]
    fn the_next_request_queries_the_store_for_a_new_job() {
        let mut track = waiting_for(&[]);
        assert!(track.open_job_ends().is_empty(), "no job is open");
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

    /// Two workers, of which only one belongs to this process.
    #[test]
    fn the_end_of_one_job_leaves_another_job_open() {
        let mut track = waiting_for(&[(PartKind::Reflection, span(4)), (PartKind::Chunk, span(6))]);
        track.apply_result(PartKind::Chunk, &span(6), &JobResult::Gone);
        assert!(
            !track.open_job_ends().is_empty(),
            "the reflection is still open"
        );
        track.apply_result(PartKind::Reflection, &span(4), &JobResult::Gone);
        assert!(track.open_job_ends().is_empty());
    }

    #[test]
    fn a_track_takes_over_job_states_and_reports_a_missing_job() {
        let (reflection, chunk) = ((PartKind::Reflection, span(4)), (PartKind::Chunk, span(6)));
        let mut track = waiting_for(&[reflection, chunk]);
        let job = |(kind, span), state| ChainJob { kind, span, state };
        let open = [
            job(chunk, JobState::Retrying),
            job(reflection, JobState::Fresh),
        ];
        assert!(track.update_jobs(&open));
        let failing = |kind| {
            let job = track.jobs.iter().find(|known| known.kind == kind);
            job.is_some_and(|job| job.state == JobState::Retrying)
        };
        assert!(failing(PartKind::Chunk) && !failing(PartKind::Reflection));
        assert!(
            !track.update_jobs(&open[..1]),
            "the reflection is done or gone"
        );
    }
}
