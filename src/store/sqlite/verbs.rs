//! The verbs of the store, each as the transaction or the query that it is. What they say stands in the
//! files beside; how they are run, in `sqlite.rs`.

use std::sync::Arc;

use async_trait::async_trait;

use super::SqliteStore;
use super::{
    admin, aliases, costs, find, forget, message_archive, operator_requests, overflow_observe,
    peer_memory, queue, read, record, snapshots, timers,
};
use crate::history::{Link, Scope};
use crate::memory::advance::ChainJob;
use crate::memory::peer_memory::Digest;
use crate::memory::{NewPart, Part, PartId, PartKind, Rendering, Snapshot, SnapshotId, Span};
use crate::store::StoreResult;
use crate::store::{
    AddAliasOutcome, Alarms, Alias, Candidates, ClaimFilter, Cost, EnqueueOutcome, Event, Job,
    LongestChain, LookupKeys, NewJob, NewOverflowObservation, NewSnapshot, OperatorRequest,
    RecordedChain, Release, RequestRecord, RequestedJobOutcome, RequeuedJobs, SharedContent, Store,
    StoredOverflowObservation, TenantBacklog, TenantRow, ThreadDetail, ThreadRow, Timer, Urgency,
};

#[async_trait]
impl Store for SqliteStore {
    async fn find_candidates(
        &self,
        scope: &Scope,
        chain: &[Link],
        keys: &LookupKeys,
    ) -> StoreResult<Candidates> {
        let Some(query) = find::FindQuery::new(scope, chain, keys) else {
            return self.connection.database().map(|_| Candidates::default());
        };
        let scope = scope.clone();
        self.request_read("store find", move |conn| {
            Box::pin(find::find_candidates(conn, scope, query))
        })
        .await
    }

    async fn snapshot(&self, scope: &Scope, id: SnapshotId) -> StoreResult<Option<Snapshot>> {
        let scope = scope.clone();
        self.request_read("store snapshot", move |conn| {
            Box::pin(read::snapshot(conn, scope, id))
        })
        .await
    }

    async fn load_chain(&self, scope: &Scope, chain: &[Link]) -> StoreResult<RecordedChain> {
        if chain.is_empty() {
            return self.connection.database().map(|_| RecordedChain::default());
        }
        let (scope, links) = (scope.clone(), crate::store::rows::link_list(chain));
        self.read("store known", move |conn| {
            Box::pin(read::load_chain(conn, scope, links))
        })
        .await
    }

    async fn record(&self, scope: &Scope, record: &RequestRecord) -> StoreResult<i64> {
        let (scope, record) = (scope.clone(), record.clone());
        let database = self.connection.database()?;
        let other_writers = Arc::clone(database.other_writers());
        let recorded = database.write("store record", move |conn| {
            Box::pin(async move {
                other_writers.check(conn).await?;
                record::record(conn, scope, record).await
            })
        });
        self.connection.check_result(&database, recorded.await)
    }

    fn has_other_writers(&self) -> bool {
        let database = self.connection.database();
        database.is_ok_and(|database| database.has_other_writers())
    }

    async fn find_shared_content(
        &self,
        scope: &Scope,
        links: &[Link],
        thread_key: Option<&str>,
    ) -> StoreResult<SharedContent> {
        let (scope, links) = (scope.clone(), crate::store::rows::link_list(links));
        let thread_key = thread_key.map(str::to_owned);
        self.read("store elsewhere", move |conn| {
            Box::pin(read::find_shared_content(conn, scope, links, thread_key))
        })
        .await
    }

    async fn record_overflow_observation(
        &self,
        scope: &Scope,
        record: &RequestRecord,
        observation: &NewOverflowObservation,
    ) -> StoreResult<StoredOverflowObservation> {
        let (scope, record, observation) = (scope.clone(), record.clone(), observation.clone());
        self.write("store adopt", move |conn| {
            Box::pin(overflow_observe::record_overflow_observation(
                conn,
                scope,
                record,
                observation,
            ))
        })
        .await
    }

    async fn parts(&self, scope: &Scope, parts: &[PartId]) -> StoreResult<Vec<Part>> {
        let (scope, parts) = (scope.clone(), parts.to_vec());
        self.read("store parts", move |conn| {
            Box::pin(read::parts(conn, scope, parts))
        })
        .await
    }

    async fn part_ending(
        &self,
        scope: &Scope,
        kind: PartKind,
        to: Link,
    ) -> StoreResult<Option<Part>> {
        let scope = scope.clone();
        self.read("store part", move |conn| {
            Box::pin(read::part_ending(conn, scope, kind, to))
        })
        .await
    }

    async fn jobs_ending_at(&self, scope: &Scope, ends: &[Link]) -> StoreResult<Vec<ChainJob>> {
        let (scope, ends) = (scope.clone(), crate::store::rows::link_list(ends));
        self.read("store work", move |conn| {
            Box::pin(read::jobs_ending_at(conn, scope, ends))
        })
        .await
    }

    async fn enqueue(
        &self,
        scope: &Scope,
        job: &NewJob,
        at_ms: i64,
    ) -> StoreResult<EnqueueOutcome> {
        let (scope, job) = (scope.clone(), job.clone());
        self.write("store offer", move |conn| {
            Box::pin(queue::enqueue(conn, scope, job, at_ms))
        })
        .await
    }

    async fn claim(
        &self,
        filter: &ClaimFilter,
        now_ms: i64,
        lease_ms: i64,
    ) -> StoreResult<Option<Job>> {
        let filter = filter.clone();
        self.write("store claim", move |conn| {
            Box::pin(queue::claim(conn, filter, now_ms, lease_ms))
        })
        .await
    }

    async fn reprioritize(
        &self,
        scope: &Scope,
        ends: &[Link],
        route_hash: Option<[u8; 32]>,
        urgency: Urgency,
    ) -> StoreResult<()> {
        let (scope, ends) = (scope.clone(), crate::store::rows::link_list(ends));
        self.write("store steer", move |conn| {
            Box::pin(queue::reprioritize(conn, scope, ends, route_hash, urgency))
        })
        .await
    }

    async fn record_cost(
        &self,
        scope: &Scope,
        tip: Link,
        cost: Cost,
        at_ms: i64,
    ) -> StoreResult<u64> {
        let scope = scope.clone();
        self.write("store pay", move |conn| {
            Box::pin(costs::record_cost(conn, scope, tip, cost, at_ms))
        })
        .await
    }

    async fn spent_tokens(&self, scope: &Scope, at_ms: i64) -> StoreResult<u64> {
        let scope = scope.clone();
        self.read("store spent", move |conn| {
            Box::pin(costs::spent_tokens(conn, scope, at_ms))
        })
        .await
    }

    async fn append_events(
        &self,
        scope: &Scope,
        tip: Link,
        events: &[Event],
    ) -> StoreResult<Vec<Event>> {
        let (scope, events) = (scope.clone(), events.to_vec());
        self.write("store note", move |conn| {
            Box::pin(costs::append_events(conn, scope, tip, events))
        })
        .await
    }

    async fn tenant_backlogs(&self, at_ms: i64) -> StoreResult<Vec<TenantBacklog>> {
        self.read("store waiting", move |conn| {
            Box::pin(costs::tenant_backlogs(conn, at_ms))
        })
        .await
    }

    async fn commit_code_reflection(
        &self,
        scope: &Scope,
        part: &NewPart,
        at_ms: i64,
    ) -> StoreResult<Option<PartId>> {
        let (scope, part) = (scope.clone(), part.clone());
        self.write("store commit by code", move |conn| {
            Box::pin(queue::commit_code_reflection(conn, scope, part, at_ms))
        })
        .await
    }

    async fn commit_part(
        &self,
        job: &Job,
        part: &NewPart,
        at_ms: i64,
    ) -> StoreResult<Option<PartId>> {
        let (claimed, part) = (queue::ClaimedJob::from_job(job), part.clone());
        self.write("store commit part", move |conn| {
            Box::pin(queue::commit_part(conn, claimed, part, at_ms))
        })
        .await
    }

    async fn renew_lease(&self, job: &Job, until_ms: i64) -> StoreResult<bool> {
        let claimed = queue::ClaimedJob::from_job(job);
        self.write("store renew", move |conn| {
            Box::pin(queue::renew_lease(conn, claimed, until_ms))
        })
        .await
    }

    async fn charge_reobservation(&self, job: &Job, tokens: u32) -> StoreResult<()> {
        let claimed = queue::ClaimedJob::from_job(job);
        self.write("store shown again", move |conn| {
            Box::pin(queue::charge_reobservation(conn, claimed, tokens))
        })
        .await
    }

    async fn release(&self, job: &Job, outcome: Release) -> StoreResult<()> {
        let claimed = queue::ClaimedJob::from_job(job);
        self.write("store release", move |conn| {
            Box::pin(queue::release(conn, claimed, outcome))
        })
        .await
    }

    async fn title(&self, scope: &Scope, link: Link) -> StoreResult<Option<String>> {
        let scope = scope.clone();
        self.read("store title", move |conn| {
            Box::pin(admin::title(conn, scope, link))
        })
        .await
    }

    async fn set_title(&self, scope: &Scope, link: Link, title: &str) -> StoreResult<()> {
        let (scope, title) = (scope.clone(), title.to_owned());
        self.write("store entitle", move |conn| {
            Box::pin(admin::set_title(conn, scope, link, title))
        })
        .await
    }

    async fn fix_rendering(
        &self,
        scope: &Scope,
        parts: &[PartId],
        rendering: Rendering,
    ) -> StoreResult<Vec<Part>> {
        let (scope, parts) = (scope.clone(), parts.to_vec());
        self.write("store freeze", move |conn| {
            Box::pin(snapshots::fix_rendering(conn, scope, parts, rendering))
        })
        .await
    }

    async fn claim_timer(&self, now_ms: i64, until_ms: i64) -> StoreResult<Option<Timer>> {
        self.write("store claim timer", move |conn| {
            Box::pin(timers::claim(conn, now_ms, until_ms))
        })
        .await
    }

    async fn end_timer(&self, timer: &Timer, remaining: Option<(Alarms, i64)>) -> StoreResult<()> {
        let timer = timer.clone();
        self.write("store end timer", move |conn| {
            Box::pin(timers::end(conn, timer, remaining))
        })
        .await
    }

    async fn next_timer(&self) -> StoreResult<Option<i64>> {
        self.read("store next timer", |conn| Box::pin(timers::next(conn)))
            .await
    }

    async fn chain_links(&self, scope: &Scope, tip: Link) -> StoreResult<Vec<Link>> {
        let scope = scope.clone();
        self.read("store chain", move |conn| {
            Box::pin(read::chain_links(conn, scope, tip))
        })
        .await
    }

    async fn commit_snapshot(
        &self,
        scope: &Scope,
        snapshot: &NewSnapshot,
    ) -> StoreResult<Snapshot> {
        let (scope, snapshot) = (scope.clone(), snapshot.clone());
        self.write("store commit snapshot", move |conn| {
            Box::pin(snapshots::commit(conn, scope, snapshot))
        })
        .await
    }

    async fn commit_snapshot_pair(
        &self,
        scope: &Scope,
        snapshot: &NewSnapshot,
        peer_snapshot: &NewSnapshot,
    ) -> StoreResult<(Snapshot, Option<Snapshot>)> {
        let (scope, snapshot, peer_snapshot) =
            (scope.clone(), snapshot.clone(), peer_snapshot.clone());
        self.write("store commit snapshots", move |conn| {
            Box::pin(snapshots::commit_pair(conn, scope, snapshot, peer_snapshot))
        })
        .await
    }

    async fn publish_digest(&self, scope: &Scope, lineage: i64, text: &str) -> StoreResult<()> {
        let (scope, text) = (scope.clone(), text.to_owned());
        self.write("store tell", move |conn| {
            Box::pin(peer_memory::publish_digest(conn, scope, lineage, text))
        })
        .await
    }

    async fn peer_digests(
        &self,
        scope: &Scope,
        except: &[i64],
        key: Option<&str>,
    ) -> StoreResult<Vec<Digest>> {
        let (scope, except, key) = (scope.clone(), except.to_vec(), key.map(str::to_owned));
        self.read("store told", move |conn| {
            Box::pin(peer_memory::peer_digests(conn, scope, except, key))
        })
        .await
    }

    async fn count_live_conversations(
        &self,
        scope: &Scope,
        key: &str,
        since_ms: i64,
    ) -> StoreResult<u32> {
        let (scope, key) = (scope.clone(), key.to_owned());
        self.read("store namesakes", move |conn| {
            Box::pin(read::count_live_conversations(conn, scope, key, since_ms))
        })
        .await
    }

    async fn shared_thread_keys(&self, since_ms: i64) -> StoreResult<Vec<(Scope, String)>> {
        self.read("store crowds", move |conn| {
            Box::pin(aliases::shared_thread_keys(conn, since_ms))
        })
        .await
    }

    async fn open_jobs(&self) -> StoreResult<u64> {
        self.read("store open jobs", |conn| Box::pin(queue::open_jobs(conn)))
            .await
    }

    async fn threads(&self, limit: u32) -> StoreResult<Vec<ThreadRow>> {
        self.read("store threads", move |conn| {
            Box::pin(admin::threads(conn, limit))
        })
        .await
    }

    async fn thread(&self, lineage: i64) -> StoreResult<Option<ThreadDetail>> {
        self.read("store thread", move |conn| {
            Box::pin(admin::thread(conn, lineage))
        })
        .await
    }

    async fn longest_chain(&self, lineage: i64) -> StoreResult<Option<LongestChain>> {
        self.read("store known of", move |conn| {
            Box::pin(operator_requests::longest_chain(conn, lineage))
        })
        .await
    }

    async fn put_operator_request(
        &self,
        scope: &Scope,
        lineage: i64,
        request: &OperatorRequest,
    ) -> StoreResult<bool> {
        let (scope, request) = (scope.clone(), request.clone());
        self.write("store want", move |conn| {
            Box::pin(operator_requests::put_operator_request(
                conn, scope, lineage, request,
            ))
        })
        .await
    }

    async fn operator_request(
        &self,
        scope: &Scope,
        lineage: i64,
    ) -> StoreResult<Option<OperatorRequest>> {
        let scope = scope.clone();
        self.read("store wanted", move |conn| {
            Box::pin(operator_requests::operator_request(conn, scope, lineage))
        })
        .await
    }

    async fn complete_operator_request(&self, scope: &Scope, lineage: i64) -> StoreResult<()> {
        let scope = scope.clone();
        self.write("store given", move |conn| {
            Box::pin(operator_requests::complete_operator_request(
                conn, scope, lineage,
            ))
        })
        .await
    }

    async fn requeue_failed(
        &self,
        scope: &Scope,
        lineage: i64,
        at_ms: i64,
    ) -> StoreResult<RequeuedJobs> {
        let scope = scope.clone();
        self.write("store revive", move |conn| {
            Box::pin(operator_requests::requeue_failed(
                conn, scope, lineage, at_ms,
            ))
        })
        .await
    }

    async fn enqueue_requested(
        &self,
        scope: &Scope,
        job: &NewJob,
        at_ms: i64,
    ) -> StoreResult<RequestedJobOutcome> {
        let scope = scope.clone();
        let job = job.clone();
        self.write("store demand", move |conn| {
            Box::pin(operator_requests::enqueue_requested(
                conn, scope, job, at_ms,
            ))
        })
        .await
    }

    async fn pending_texts(&self, lineage: i64) -> StoreResult<Vec<(Span, String)>> {
        self.read("store words", move |conn| {
            Box::pin(operator_requests::pending_texts(conn, lineage))
        })
        .await
    }

    async fn kept_messages(
        &self,
        scope: &Scope,
        links: &[Link],
    ) -> StoreResult<Vec<(Link, String)>> {
        let (scope, links) = (scope.clone(), crate::store::rows::link_list(links));
        self.read("store kept", move |conn| {
            Box::pin(message_archive::kept_messages(conn, scope, links))
        })
        .await
    }

    async fn expire_messages(&self, before_ms: i64) -> StoreResult<Vec<([u8; 32], Link)>> {
        self.write("store expire", move |conn| {
            Box::pin(message_archive::expire_messages(conn, before_ms))
        })
        .await
    }

    async fn forget(&self, scope: &Scope, lineage: i64) -> StoreResult<u64> {
        let scope = scope.clone();
        self.write("store forget", move |conn| {
            Box::pin(forget::forget(conn, scope, lineage))
        })
        .await
    }

    async fn aliases(&self) -> StoreResult<Vec<Alias>> {
        self.read("store aliases", |conn| Box::pin(aliases::aliases(conn)))
            .await
    }

    async fn add_alias(
        &self,
        name: [u8; 32],
        tenant: [u8; 32],
        at_ms: i64,
    ) -> StoreResult<AddAliasOutcome> {
        self.write("store alias", move |conn| {
            Box::pin(aliases::add_alias(conn, name, tenant, at_ms))
        })
        .await
    }

    async fn remove_alias(&self, name: [u8; 32]) -> StoreResult<bool> {
        self.write("store unalias", move |conn| {
            Box::pin(aliases::remove_alias(conn, name))
        })
        .await
    }

    async fn tenants(&self) -> StoreResult<Vec<TenantRow>> {
        self.read("store tenants", |conn| Box::pin(aliases::tenants(conn)))
            .await
    }

    async fn ping(&self) -> StoreResult<()> {
        let database = self.connection.database()?;
        let file = database.file().cloned();
        let answered = database.request_read("store ping", move |conn| {
            Box::pin(async move {
                if let Some(file) = file {
                    file.check_unchanged().await?;
                }
                read::ping(conn).await
            })
        });
        self.connection.check_result(&database, answered.await)
    }

    async fn close(&self) {
        self.connection.close().await;
    }
}
