//! The store as one process of a run sees it: the real one, with a gate before every verb, a ledger
//! of what it did, its reads out of date or failing where the run says so, and a switch for each planted bug.

mod state;

use async_trait::async_trait;
use diarist::history::{Link, Scope, ScopedHash};
use diarist::memory::advance::ChainJob;
use diarist::memory::peer_memory::Digest;
use diarist::memory::{NewPart, Part, PartId, PartKind, Rendering, Snapshot, SnapshotId, Span};
use diarist::store::{
    Admin, Alarms, Candidates, Chains, ClaimFilter, EarlierLog, EnqueueOutcome, Event, Job,
    LogBounds, LongestChain, LookupKeys, NewJob, NewOverflowObservation, NewSnapshot,
    OperatorRequest, Queue, RecordedChain, RecordedRequest, Release, RequestRecord,
    RequestedJobOutcome, RequeuedJobs, SharedContent, Snapshots, StoreError,
    StoredOverflowObservation, ThreadDetail, ThreadRow, Timer, Urgency,
};
use diarist::tokens::TokenCounter as _;

pub use state::Watched;

use super::planted::Bug;
use crate::properties::exchange::Quarters;

/// What a retry waits; the jitter of the real pause would make every run another one.
const RETRY_MS: i64 = 20_000;

type Answer<T> = Result<T, StoreError>;

/// A verb that needs no more than the gate.
macro_rules! through {
    ($self:ident, $verb:ident($($argument:expr),*)) => {{
        $self.gate.enter().await;
        let answer = $self.store.$verb($($argument),*).await?;
        $self.gate.leave().await;
        Ok(answer)
    }};
}

mod tenants;

#[async_trait]
impl Chains for Watched {
    async fn find_candidates(
        &self,
        scope: &Scope,
        chain: &[Link],
        probes: &LookupKeys,
    ) -> Answer<Candidates> {
        self.gate.enter().await;
        self.fails()?;
        if self.has(Bug::StoredKeyExcluded) && chain.len().is_multiple_of(5) {
            return Ok(Candidates::default());
        }
        let mut found = self.reader().find_candidates(scope, chain, probes).await?;
        if self.has(Bug::RetryDecidedAnew) {
            found.sent_with = None;
        }
        if self.has(Bug::NewestUnread) {
            found.snapshots.pop();
        }
        if self.has(Bug::TrimForgotten) {
            found.prefix_trims.clear();
            if let Some(used) = &mut found.sent_with {
                used.trim = None;
            }
        }
        if self.has(Bug::EligibleTooEarly) {
            for snapshot in &mut found.snapshots {
                snapshot.eligible_from -= 1;
            }
        }
        self.gate.leave().await;
        Ok(found)
    }

    async fn load_chain(&self, scope: &Scope, chain: &[Link]) -> Answer<RecordedChain> {
        self.gate.enter().await;
        let mut known = self.reader().load_chain(scope, chain).await?;
        if self.has(Bug::SourceStranded) {
            known.parts.sort_by_key(|part| std::cmp::Reverse(part.id));
            known.parts.truncate(1);
        }
        self.gate.leave().await;
        Ok(known)
    }

    async fn record_batch(
        &self,
        batch: Vec<(Scope, RequestRecord)>,
    ) -> Answer<Vec<Answer<RecordedRequest>>> {
        self.gate.enter().await;
        let mut changed = batch;
        for (_, record) in &mut changed {
            for node in &mut record.new_nodes {
                node.confirmed |= self.has(Bug::ConfirmedAtOnce);
            }
        }
        let originals = changed.clone();
        for (_, record) in &mut changed {
            self.set_timer(record);
        }
        let results = self.store.record_batch(changed).await?;
        for ((scope, record), result) in originals.iter().zip(&results) {
            if let Ok(recorded) = result {
                self.ledger().recorded(self.process, scope, record);
                self.ledger().set_timer(scope, recorded.lineage, record);
            }
        }
        self.gate.leave().await;
        Ok(results)
    }

    fn has_other_writers(&self) -> bool {
        self.store.has_other_writers()
    }

    fn may_know_ending(&self, ending: &ScopedHash) -> bool {
        self.store.may_know_ending(ending)
    }

    fn reopenings(&self) -> u64 {
        self.store.reopenings()
    }

    fn may_know(&self, scope: &Scope, chain: &[Link], keys: &LookupKeys) -> bool {
        self.store.may_know(scope, chain, keys)
    }

    async fn find_shared_content(
        &self,
        s: &Scope,
        all: &[Link],
        name: Option<&str>,
    ) -> Answer<SharedContent> {
        self.reader().find_shared_content(s, all, name).await // A death before it loses nothing.
    }

    async fn record_overflow_observation(
        &self,
        scope: &Scope,
        record: &RequestRecord,
        adoption: &NewOverflowObservation,
    ) -> Answer<StoredOverflowObservation> {
        self.gate.enter().await;
        let mut changed = adoption.clone();
        if self.has(Bug::RescueWrittenAnew) {
            let last = changed.snapshot.segments.len() - 1;
            changed.snapshot.segments[last].push_str("Written again.\n");
        }
        let adopted = self
            .store
            .record_overflow_observation(scope, record, &changed)
            .await?;
        self.ledger()
            .adopted(self.process, scope, record, (adoption, &adopted));
        self.ledger().set_timer(scope, adopted.lineage, record);
        self.gate.leave().await;
        Ok(adopted)
    }

    async fn title(&self, scope: &Scope, tip: Link) -> Answer<Option<String>> {
        through!(self, title(scope, tip))
    }

    async fn set_title(&self, scope: &Scope, tip: Link, title: &str) -> Answer<()> {
        through!(self, set_title(scope, tip, title))
    }

    async fn chain_links(&self, scope: &Scope, tip: Link) -> Answer<Vec<Link>> {
        through!(self, chain_links(scope, tip))
    }

    async fn count_live_conversations(
        &self,
        scope: &Scope,
        key: &str,
        since_ms: i64,
    ) -> Answer<u32> {
        self.store
            .count_live_conversations(scope, key, since_ms)
            .await
    }

    async fn kept_messages(&self, scope: &Scope, links: &[Link]) -> Answer<Vec<(Link, String)>> {
        self.store.kept_messages(scope, links).await
    }

    async fn expire_messages(&self, before_ms: i64, limit: u32) -> Answer<Vec<([u8; 32], Link)>> {
        self.store.expire_messages(before_ms, limit).await
    }
}

#[async_trait]
impl Queue for Watched {
    async fn enqueue(&self, scope: &Scope, job: &NewJob, at_ms: i64) -> Answer<EnqueueOutcome> {
        self.gate.enter().await;
        let offered = self.store.enqueue(scope, job, at_ms).await?;
        if offered == EnqueueOutcome::Queued {
            self.ledger().offered(scope, job);
        }
        self.gate.leave().await;
        Ok(offered)
    }

    async fn claim(&self, filter: &ClaimFilter, now_ms: i64, lease_ms: i64) -> Answer<Option<Job>> {
        self.gate.enter().await;
        let lease_ms = match self.bug {
            Some(Bug::LeaseWithoutEnd) => lease_ms * 1_000_000,
            Some(Bug::LeaseOfNothing) => 0,
            _ => lease_ms,
        };
        let mut filter = filter.clone();
        filter.observe_any |= self.has(Bug::RouteNotHeld);
        if self.has(Bug::RouteForEver)
            && let Some(routes) = &self.ledger().routes
        {
            filter.held_routes = routes.all_registered(self.process);
        }
        let mut job = self.store.claim(&filter, now_ms, lease_ms).await?;
        if self.has(Bug::WordsUnshown)
            && let Some(job) = job.as_mut().filter(|job| job.spec.kind == PartKind::Chunk)
        {
            super::planted::spoil_words(&mut job.spec.payload);
        }
        if let Some(job) = &job {
            let until_ms = now_ms + lease_ms.max(1);
            self.ledger().check_claim(self.process, job, now_ms);
            self.ledger().claimed(self.process, job, now_ms, until_ms);
        }
        self.gate.leave().await;
        Ok(job)
    }

    async fn commit_part(&self, job: &Job, part: &NewPart, at_ms: i64) -> Answer<Option<PartId>> {
        self.gate.enter().await;
        let mut job = job.clone();
        let mut part = self.ledger().marked(&job.scope, part);
        let held = job.clone();
        if self.has(Bug::FenceIgnored) {
            job.fence = self.ledger().fence(&job).unwrap_or(job.fence);
        }
        if self.has(Bug::EmptyCommitted) && self.strikes() % 5 == 4 {
            part.text.clear();
            part.tokens = 0;
        }
        if self.has(Bug::RelationsUncounted) {
            part.tokens = Quarters.count(&part.text);
        }
        let id = self.store.commit_part(&job, &part, at_ms).await?;
        if let Some(id) = id {
            self.ledger().committed(&held, &part, id);
        }
        if id.is_some() && self.has(Bug::JobKept) {
            self.keep(&held, &part).await;
        }
        self.gate.leave().await;
        Ok(id)
    }

    async fn commit_code_reflection(
        &self,
        scope: &Scope,
        part: &NewPart,
        at_ms: i64,
    ) -> Answer<Option<PartId>> {
        self.gate.enter().await;
        let part = self.ledger().marked(scope, part);
        let id = self
            .store
            .commit_code_reflection(scope, &part, at_ms)
            .await?;
        if let Some(id) = id {
            self.ledger().part_written(scope, &part, id);
        }
        self.gate.leave().await;
        Ok(id)
    }

    async fn renew_lease(&self, job: &Job, until_ms: i64) -> Answer<bool> {
        self.gate.enter().await;
        let renewed = self.store.renew_lease(job, until_ms).await?;
        self.ledger().renewed(job, until_ms, renewed);
        self.gate.leave().await;
        Ok(renewed)
    }

    async fn charge_reobservation(&self, job: &Job, tokens: u32) -> Answer<()> {
        self.gate.enter().await;
        self.store.charge_reobservation(job, tokens).await?;
        self.gate.leave().await;
        Ok(())
    }

    async fn release(&self, job: &Job, how: Release) -> Answer<()> {
        self.gate.enter().await;
        let how = match how {
            Release::RetryAt(_) if self.has(Bug::RetryGivenUp) => Release::Abandon,
            Release::RetryAt(_) => {
                let pause = RETRY_MS * i64::from(job.attempts);
                Release::RetryAt(self.clock.now_ms() + pause)
            }
            how => how,
        };
        self.store.release(job, how).await?;
        self.ledger().released(job, how);
        self.gate.leave().await;
        Ok(())
    }

    async fn jobs_ending_at(&self, scope: &Scope, ends: &[Link]) -> Answer<Vec<ChainJob>> {
        self.gate.enter().await;
        let work = self.reader().jobs_ending_at(scope, ends).await?;
        self.gate.leave().await;
        Ok(work)
    }

    async fn reprioritize(
        &self,
        scope: &Scope,
        ends: &[Link],
        route_hash: Option<[u8; 32]>,
        urgency: Urgency,
    ) -> Answer<()> {
        through!(self, reprioritize(scope, ends, route_hash, urgency))
    }

    async fn claim_observation(
        &self,
        scope: &Scope,
        span: &Span,
        now_ms: i64,
        lease_ms: i64,
    ) -> Answer<Option<Job>> {
        self.gate.enter().await;
        let job = self
            .store
            .claim_observation(scope, span, now_ms, lease_ms)
            .await?;
        if let Some(job) = &job {
            // Code writes what this job asks for, so no route is needed.
            self.ledger()
                .claimed(self.process, job, now_ms, now_ms + lease_ms);
        }
        self.gate.leave().await;
        Ok(job)
    }

    async fn make_due(&self, at_ms: i64, lease_ms: i64) -> Answer<u64> {
        through!(self, make_due(at_ms, lease_ms))
    }

    async fn claim_timer(&self, now_ms: i64, until_ms: i64) -> Answer<Option<Timer>> {
        self.gate.enter().await;
        let until = if self.has(Bug::TimerOfNobody) {
            now_ms
        } else {
            until_ms
        };
        let timer = self.store.claim_timer(now_ms, until).await?;
        if let Some(timer) = &timer {
            self.ledger().rings(self.process, timer, now_ms, until_ms);
        }
        self.gate.leave().await;
        Ok(timer)
    }

    async fn end_timer(&self, timer: &Timer, left: Option<(Alarms, i64)>) -> Answer<()> {
        self.gate.enter().await;
        if !self.has(Bug::TimerKept) {
            self.store.end_timer(timer, left).await?;
        }
        self.ledger().rang(timer, left);
        self.gate.leave().await;
        Ok(())
    }

    async fn next_timer(&self) -> Answer<Option<i64>> {
        through!(self, next_timer())
    }

    async fn open_jobs(&self, until_ms: i64) -> Answer<u64> {
        self.store.open_jobs(until_ms).await
    }

    async fn requeue_failed(
        &self,
        scope: &Scope,
        lineage: i64,
        at_ms: i64,
    ) -> Answer<RequeuedJobs> {
        self.store.requeue_failed(scope, lineage, at_ms).await
    }

    async fn enqueue_requested(
        &self,
        scope: &Scope,
        job: &NewJob,
        at_ms: i64,
    ) -> Answer<RequestedJobOutcome> {
        self.store.enqueue_requested(scope, job, at_ms).await
    }
}

#[async_trait]
impl Snapshots for Watched {
    async fn snapshot(&self, scope: &Scope, id: SnapshotId) -> Answer<Option<Snapshot>> {
        self.gate.enter().await;
        self.fails()?;
        let mut found = self.reader().snapshot(scope, id).await?;
        if let Some(found) = found.as_mut().filter(|_| self.has(Bug::EligibleTooEarly)) {
            found.meta.eligible_from -= 1;
        }
        self.gate.leave().await;
        Ok(found)
    }

    async fn parts(&self, scope: &Scope, parts: &[PartId]) -> Answer<Vec<Part>> {
        self.gate.enter().await;
        let parts = self.reader().parts(scope, parts).await?;
        self.gate.leave().await;
        Ok(parts)
    }

    async fn log_before(&self, scope: &Scope, to: Link, bounds: LogBounds) -> Answer<EarlierLog> {
        self.gate.enter().await;
        let log = self.reader().log_before(scope, to, bounds).await?;
        self.gate.leave().await;
        Ok(log)
    }

    async fn commit_snapshot(&self, scope: &Scope, new: &NewSnapshot) -> Answer<Snapshot> {
        self.gate.enter().await;
        let mut spoiled = new.clone();
        super::planted::spoil(self.bug, &mut spoiled, &self.ledger());
        let mut snapshot = self.store.commit_snapshot(scope, &spoiled).await?;
        if self.has(Bug::EligibleTooEarly) {
            snapshot.meta.eligible_from -= 1;
        }
        self.ledger().check_limit(scope, new);
        if !self.doubtful_ever() {
            self.ledger()
                .hinted(self.process, scope, new.tip, &snapshot);
        }
        self.ledger().snapshot_prepared(scope, new, &snapshot);
        self.gate.leave().await;
        Ok(snapshot)
    }

    async fn commit_snapshot_pair(
        &self,
        scope: &Scope,
        new: &NewSnapshot,
        bound: &NewSnapshot,
    ) -> Answer<(Snapshot, Option<Snapshot>)> {
        self.gate.enter().await;
        let both = self.store.commit_snapshot_pair(scope, new, bound).await?;
        self.ledger().check_limit(scope, new);
        if !self.doubtful_ever() {
            self.ledger().hinted(self.process, scope, new.tip, &both.0);
        }
        self.ledger().snapshot_prepared(scope, new, &both.0);
        if let Some(bound_snapshot) = &both.1 {
            self.ledger()
                .snapshot_prepared(scope, bound, bound_snapshot);
        }
        self.gate.leave().await;
        Ok(both)
    }

    async fn fix_rendering(
        &self,
        scope: &Scope,
        parts: &[PartId],
        rendering: Rendering,
    ) -> Answer<Vec<Part>> {
        through!(self, fix_rendering(scope, parts, rendering))
    }

    async fn publish_digest(&self, scope: &Scope, lineage: i64, text: &str) -> Answer<()> {
        self.store.publish_digest(scope, lineage, text).await
    }

    async fn peer_digests(
        &self,
        scope: &Scope,
        but: &[i64],
        key: Option<&str>,
    ) -> Answer<Vec<Digest>> {
        self.store.peer_digests(scope, but, key).await
    }
}

#[async_trait]
impl Admin for Watched {
    async fn append_events(
        &self,
        scope: &Scope,
        tip: Link,
        events: &[Event],
    ) -> Answer<Vec<Event>> {
        through!(self, append_events(scope, tip, events))
    }

    async fn threads(&self, limit: u32) -> Answer<Vec<ThreadRow>> {
        self.store.threads(limit).await
    }

    async fn thread(&self, lineage: i64) -> Answer<Option<ThreadDetail>> {
        self.store.thread(lineage).await
    }

    async fn longest_chain(&self, lineage: i64) -> Answer<Option<LongestChain>> {
        self.store.longest_chain(lineage).await
    }

    async fn put_operator_request(
        &self,
        scope: &Scope,
        lineage: i64,
        wanted: &OperatorRequest,
    ) -> Answer<bool> {
        self.store
            .put_operator_request(scope, lineage, wanted)
            .await
    }

    async fn operator_request(
        &self,
        scope: &Scope,
        lineage: i64,
    ) -> Answer<Option<OperatorRequest>> {
        through!(self, operator_request(scope, lineage))
    }

    async fn complete_operator_request(&self, scope: &Scope, lineage: i64) -> Answer<()> {
        through!(self, complete_operator_request(scope, lineage))
    }

    async fn pending_texts(&self, lineage: i64) -> Answer<Vec<(Span, String)>> {
        self.store.pending_texts(lineage).await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}
