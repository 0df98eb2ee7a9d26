//! The verbs of the store: which function each one runs, and on which runner. The functions and their
//! SQL are in the files beside this one, the runners in `sqlite.rs`.

use std::sync::Arc;

use async_trait::async_trait;

use super::SqliteStore;
use super::queue::ClaimedJob;
use super::{
    admin, aliases, costs, find, load_chain, message_archive, operator_requests, overflow_observe,
    peer_memory, queue, read, record_batch, snapshots, tenant_accounts, timers,
};
use crate::history::{Link, Scope, ScopedHash};
use crate::memory::advance::ChainJob;
use crate::memory::peer_memory::Digest;
use crate::memory::{NewPart, Part, PartId, Rendering, Snapshot, SnapshotId, Span};
use crate::store::{
    AddAliasOutcome, Admin, Alarms, Alias, Candidates, Chains, ClaimFilter, Cost, EarlierLog,
    EnqueueOutcome, Event, Job, LARGE_REQUEST, LogBounds, LongestChain, LookupKeys, NewJob,
    NewOverflowObservation, NewSnapshot, OperatorRequest, Queue, RecordedChain, RecordedRequest,
    Release, RequestRecord, RequestedJobOutcome, RequeuedJobs, SharedContent, Snapshots, Spent,
    StoreError, StoreResult, StoredOverflowObservation, TenantAccount, TenantBacklog, TenantRow,
    Tenants, ThreadDetail, ThreadRow, Timer, Urgency,
};

/// Runs a function on a runner of the store. It gets copies of the arguments, because the query may
/// outlive its caller.
macro_rules! run {
    ($store:ident.$runner:ident $(($keys:expr))? =>
     $file:ident::$function:ident($($argument:ident),*)) => {{
        $(let $argument = $argument.to_owned();)*
        $store
            .$runner(
                $($keys,)?
                concat!("store ", stringify!($file), "::", stringify!($function)),
                move |conn| Box::pin($file::$function(conn $(, $argument)*)),
            )
            .await
    }};
}

#[async_trait]
impl Chains for SqliteStore {
    async fn find_candidates(
        &self,
        scope: &Scope,
        chain: &[Link],
        keys: &LookupKeys,
    ) -> StoreResult<Candidates> {
        if chain.is_empty() {
            return self.connection.database().map(|_| Candidates::default());
        }
        let database = self.connection.database()?;
        if !database.may_know(scope, chain, keys) {
            return Ok(Candidates::default());
        }
        let account = keys.account.unwrap_or(scope.tenant);
        let large_read_of = (chain.len() >= LARGE_REQUEST).then_some(account);
        run!(self.request_read(large_read_of) => find::find_candidates(scope, chain, keys))
    }

    async fn load_chain(&self, scope: &Scope, chain: &[Link]) -> StoreResult<RecordedChain> {
        let database = self.connection.database()?;
        if chain.is_empty() || !database.may_know(scope, chain, &LookupKeys::default()) {
            return Ok(RecordedChain::default());
        }
        run!(self.read_once => load_chain::load_chain(scope, chain))
    }

    async fn chain_links(&self, scope: &Scope, tip: Link) -> StoreResult<Vec<Link>> {
        run!(self.read_once => read::chain_links(scope, tip))
    }

    async fn record_batch(
        &self,
        batch: Vec<(Scope, RequestRecord)>,
    ) -> StoreResult<Vec<StoreResult<RecordedRequest>>> {
        let database = self.connection.database()?;
        for (scope, record) in &batch {
            database.known_keys().add_record(scope, record);
        }
        let other_writers = Arc::clone(database.other_writers());
        let tombstones = Arc::clone(&self.held_tombstones);
        let recorded = database.write("store record_batch::record_batch", move |conn| {
            Box::pin(async move {
                if other_writers.check(conn).await? {
                    tombstones.refresh(conn).await?;
                }
                let covered = tombstones.covered(&batch);
                record_batch::record_uncovered(conn, batch, &covered).await
            })
        });
        self.connection.check_result(&database, recorded.await)
    }

    async fn record_overflow_observation(
        &self,
        scope: &Scope,
        record: &RequestRecord,
        observation: &NewOverflowObservation,
    ) -> StoreResult<StoredOverflowObservation> {
        let (scope, record, observation) = (scope.clone(), record.clone(), observation.clone());
        let (owner, keys) = (scope.clone(), record.clone());
        let tombstones = Arc::clone(&self.held_tombstones);
        // Boxed: it holds the record and the observation.
        Box::pin(self.write_new_keys(
            move |known| known.add_record(&owner, &keys),
            "store overflow_observe::record_overflow_observation",
            move |conn| {
                Box::pin(async move {
                    tombstones.refresh(conn).await?;
                    if tombstones.tombstones.cover_record(&scope, &record) {
                        return Err(StoreError::Forgotten);
                    }
                    overflow_observe::record_overflow_observation(conn, scope, record, observation)
                        .await
                })
            },
        ))
        .await
    }

    fn has_other_writers(&self) -> bool {
        let database = self.connection.database();
        database.is_ok_and(|database| database.has_other_writers())
    }

    fn reopenings(&self) -> u64 {
        self.connection.reopenings()
    }

    fn may_know(&self, scope: &Scope, chain: &[Link], keys: &LookupKeys) -> bool {
        match self.connection.database() {
            Ok(database) => database.may_know(scope, chain, keys),
            Err(_) => true,
        }
    }

    fn may_know_ending(&self, ending: &ScopedHash) -> bool {
        match self.connection.database() {
            Ok(database) => database.may_know_ending(ending),
            Err(_) => true,
        }
    }

    async fn find_shared_content(
        &self,
        scope: &Scope,
        links: &[Link],
        thread_key: Option<&str>,
    ) -> StoreResult<SharedContent> {
        let thread_key = thread_key.map(str::to_owned);
        run!(self.read => read::find_shared_content(scope, links, thread_key))
    }

    async fn title(&self, scope: &Scope, link: Link) -> StoreResult<Option<String>> {
        run!(self.read_once => admin::title(scope, link))
    }

    async fn set_title(&self, scope: &Scope, link: Link, title: &str) -> StoreResult<()> {
        run!(self.write => admin::set_title(scope, link, title))
    }

    async fn count_live_conversations(
        &self,
        scope: &Scope,
        key: &str,
        since_ms: i64,
    ) -> StoreResult<u32> {
        run!(self.read_once => read::count_live_conversations(scope, key, since_ms))
    }

    async fn kept_messages(
        &self,
        scope: &Scope,
        links: &[Link],
    ) -> StoreResult<Vec<(Link, String)>> {
        run!(self.read_once => message_archive::kept_messages(scope, links))
    }

    async fn expire_messages(
        &self,
        before_ms: i64,
        limit: u32,
    ) -> StoreResult<Vec<([u8; 32], Link)>> {
        run!(self.write => message_archive::expire_messages(before_ms, limit))
    }
}

#[async_trait]
impl Queue for SqliteStore {
    async fn jobs_ending_at(&self, scope: &Scope, ends: &[Link]) -> StoreResult<Vec<ChainJob>> {
        run!(self.read_once => read::jobs_ending_at(scope, ends))
    }

    async fn enqueue(
        &self,
        scope: &Scope,
        job: &NewJob,
        at_ms: i64,
    ) -> StoreResult<EnqueueOutcome> {
        run!(self.write => queue::enqueue(scope, job, at_ms))
    }

    async fn enqueue_requested(
        &self,
        scope: &Scope,
        job: &NewJob,
        at_ms: i64,
    ) -> StoreResult<RequestedJobOutcome> {
        run!(self.write => operator_requests::enqueue_requested(scope, job, at_ms))
    }

    async fn requeue_failed(
        &self,
        scope: &Scope,
        lineage: i64,
        at_ms: i64,
    ) -> StoreResult<RequeuedJobs> {
        run!(self.write => operator_requests::requeue_failed(scope, lineage, at_ms))
    }

    async fn claim(
        &self,
        filter: &ClaimFilter,
        now_ms: i64,
        lease_ms: i64,
    ) -> StoreResult<Option<Job>> {
        run!(self.write_once => queue::claim(filter, now_ms, lease_ms))
    }

    async fn claim_observation(
        &self,
        scope: &Scope,
        span: &Span,
        now_ms: i64,
        lease_ms: i64,
    ) -> StoreResult<Option<Job>> {
        let span = *span;
        run!(self.write_once => queue::claim_observation(scope, span, now_ms, lease_ms))
    }

    async fn make_due(&self, at_ms: i64, lease_ms: i64) -> StoreResult<u64> {
        run!(self.write_once => queue::make_due(at_ms, lease_ms))
    }

    async fn reprioritize(
        &self,
        scope: &Scope,
        ends: &[Link],
        route_hash: Option<[u8; 32]>,
        urgency: Urgency,
    ) -> StoreResult<()> {
        run!(self.write_once => queue::reprioritize(scope, ends, route_hash, urgency))
    }

    async fn renew_lease(&self, job: &Job, until_ms: i64) -> StoreResult<bool> {
        let claimed = ClaimedJob::from_job(job);
        run!(self.write_once => queue::renew_lease(claimed, until_ms))
    }

    async fn commit_part(
        &self,
        job: &Job,
        part: &NewPart,
        at_ms: i64,
    ) -> StoreResult<Option<PartId>> {
        let claimed = ClaimedJob::from_job(job);
        run!(self.write => queue::commit_part(claimed, part, at_ms))
    }

    async fn commit_code_reflection(
        &self,
        scope: &Scope,
        part: &NewPart,
        at_ms: i64,
    ) -> StoreResult<Option<PartId>> {
        run!(self.write => queue::commit_code_reflection(scope, part, at_ms))
    }

    async fn charge_reobservation(&self, job: &Job, tokens: u32) -> StoreResult<()> {
        let claimed = ClaimedJob::from_job(job);
        run!(self.write => queue::charge_reobservation(claimed, tokens))
    }

    async fn release(&self, job: &Job, outcome: Release) -> StoreResult<()> {
        let claimed = ClaimedJob::from_job(job);
        run!(self.write => queue::release(claimed, outcome))
    }

    async fn open_jobs(&self, until_ms: i64) -> StoreResult<u64> {
        run!(self.read_once => queue::open_jobs(until_ms))
    }

    async fn claim_timer(&self, now_ms: i64, until_ms: i64) -> StoreResult<Option<Timer>> {
        run!(self.write_once => timers::claim(now_ms, until_ms))
    }

    async fn end_timer(&self, timer: &Timer, remaining: Option<(Alarms, i64)>) -> StoreResult<()> {
        run!(self.write => timers::end(timer, remaining))
    }

    async fn next_timer(&self) -> StoreResult<Option<i64>> {
        run!(self.read_once => timers::next())
    }
}

#[async_trait]
impl Snapshots for SqliteStore {
    async fn snapshot(&self, scope: &Scope, id: SnapshotId) -> StoreResult<Option<Snapshot>> {
        run!(self.request_read(None) => read::snapshot(scope, id))
    }

    async fn parts(&self, scope: &Scope, parts: &[PartId]) -> StoreResult<Vec<Part>> {
        run!(self.read_once => read::parts(scope, parts))
    }

    async fn log_before(
        &self,
        scope: &Scope,
        to: Link,
        bounds: LogBounds,
    ) -> StoreResult<EarlierLog> {
        run!(self.read => read::log_before(scope, to, bounds))
    }

    async fn fix_rendering(
        &self,
        scope: &Scope,
        parts: &[PartId],
        rendering: Rendering,
    ) -> StoreResult<Vec<Part>> {
        run!(self.write => snapshots::fix_rendering(scope, parts, rendering))
    }

    async fn commit_snapshot(
        &self,
        scope: &Scope,
        snapshot: &NewSnapshot,
    ) -> StoreResult<Snapshot> {
        let end = snapshot.to;
        run!(self.write_new_keys(|known| known.add_snapshot_end(&end)) =>
            snapshots::commit(scope, snapshot))
    }

    async fn commit_snapshot_pair(
        &self,
        scope: &Scope,
        snapshot: &NewSnapshot,
        peer_snapshot: &NewSnapshot,
    ) -> StoreResult<(Snapshot, Option<Snapshot>)> {
        let end = snapshot.to;
        run!(self.write_new_keys(|known| known.add_snapshot_end(&end)) =>
            snapshots::commit_pair(scope, snapshot, peer_snapshot))
    }

    async fn publish_digest(&self, scope: &Scope, lineage: i64, text: &str) -> StoreResult<()> {
        run!(self.write => peer_memory::publish_digest(scope, lineage, text))
    }

    async fn peer_digests(
        &self,
        scope: &Scope,
        except: &[i64],
        key: Option<&str>,
    ) -> StoreResult<Vec<Digest>> {
        let key = key.map(str::to_owned);
        run!(self.read => peer_memory::peer_digests(scope, except, key))
    }
}

#[async_trait]
impl Admin for SqliteStore {
    async fn threads(&self, limit: u32) -> StoreResult<Vec<ThreadRow>> {
        run!(self.read => admin::threads(limit))
    }

    async fn thread(&self, lineage: i64) -> StoreResult<Option<ThreadDetail>> {
        run!(self.read => admin::thread(lineage))
    }

    async fn longest_chain(&self, lineage: i64) -> StoreResult<Option<LongestChain>> {
        run!(self.read => operator_requests::longest_chain(lineage))
    }

    async fn pending_texts(&self, lineage: i64) -> StoreResult<Vec<(Span, String)>> {
        run!(self.read => operator_requests::pending_texts(lineage))
    }

    async fn put_operator_request(
        &self,
        scope: &Scope,
        lineage: i64,
        request: &OperatorRequest,
    ) -> StoreResult<bool> {
        run!(self.write => operator_requests::put_operator_request(scope, lineage, request))
    }

    async fn operator_request(
        &self,
        scope: &Scope,
        lineage: i64,
    ) -> StoreResult<Option<OperatorRequest>> {
        run!(self.read => operator_requests::operator_request(scope, lineage))
    }

    async fn complete_operator_request(&self, scope: &Scope, lineage: i64) -> StoreResult<()> {
        run!(self.write => operator_requests::complete_operator_request(scope, lineage))
    }

    async fn append_events(
        &self,
        scope: &Scope,
        tip: Link,
        events: &[Event],
    ) -> StoreResult<Vec<Event>> {
        run!(self.write => costs::append_events(scope, tip, events))
    }

    async fn close(&self) {
        self.connection.close().await;
    }
}

#[async_trait]
impl Tenants for SqliteStore {
    async fn record_cost(
        &self,
        scope: &Scope,
        tip: Link,
        cost: Cost,
        at_ms: i64,
    ) -> StoreResult<Spent> {
        run!(self.write => costs::record_cost(scope, tip, cost, at_ms))
    }

    async fn spent_tokens(&self, scope: &Scope, at_ms: i64) -> StoreResult<Spent> {
        run!(self.read => costs::spent_tokens(scope, at_ms))
    }

    async fn set_account(&self, member: TenantAccount) -> StoreResult<()> {
        run!(self.write => tenant_accounts::set_account(member))
    }

    async fn tenant_accounts(&self) -> StoreResult<Vec<TenantAccount>> {
        run!(self.read => tenant_accounts::tenant_accounts())
    }

    async fn tenant_backlogs(&self, at_ms: i64) -> StoreResult<Vec<TenantBacklog>> {
        run!(self.read => costs::tenant_backlogs(at_ms))
    }

    async fn aliases(&self) -> StoreResult<Vec<Alias>> {
        run!(self.read => aliases::aliases())
    }

    async fn add_alias(
        &self,
        name: [u8; 32],
        tenant: [u8; 32],
        at_ms: i64,
    ) -> StoreResult<AddAliasOutcome> {
        run!(self.write => aliases::add_alias(name, tenant, at_ms))
    }

    async fn remove_alias(&self, name: [u8; 32]) -> StoreResult<bool> {
        run!(self.write => aliases::remove_alias(name))
    }

    async fn tenants(&self) -> StoreResult<Vec<TenantRow>> {
        run!(self.read => aliases::tenants())
    }

    async fn shared_thread_keys(&self, since_ms: i64) -> StoreResult<Vec<(Scope, String)>> {
        run!(self.read => aliases::shared_thread_keys(since_ms))
    }
}
