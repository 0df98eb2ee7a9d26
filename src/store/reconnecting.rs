//! A store that may not be there: it opens when it can, and the proxy goes on without it.
//!
//! Where the database cannot be opened at start, or is deleted, replaced or damaged later, every
//! verb answers [`StoreError::Unavailable`] at once and an attempt to open it runs beside, at most
//! one per interval. No caller ever waits for an attempt, except whoever calls
//! [`Reopening::ready`]. `app` makes one; everybody else sees a [`Store`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::sqlite::REQUEST_TIMEOUT;
use super::{
    AddAliasOutcome, Alarms, Alias, Candidates, ClaimFilter, Cost, EnqueueOutcome, Event, Job,
    LongestChain, LookupKeys, NewJob, NewOverflowObservation, NewSnapshot, OpenError,
    OperatorRequest, RecordedChain, Release, RequestRecord, RequestedJobOutcome, RequeuedJobs,
    SharedContent, SqliteStore, Store, StoreError, StoredOverflowObservation, TenantBacklog,
    TenantRow, ThreadDetail, ThreadRow, Timer, Urgency,
};
use crate::history::{Link, Scope};
use crate::memory::advance::ChainJob;
use crate::memory::peer_memory::Digest;
use crate::memory::{NewPart, Part, PartId, PartKind, Rendering, Snapshot, SnapshotId, Span};
use crate::tasks::Tasks;

type StoreResult<T> = Result<T, StoreError>;

/// An attempt is cheap where the file is missing and slow where it is locked; this keeps either
/// from being felt.
const INTERVAL: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Clone, Debug)]
pub struct ReconnectingStore {
    url: Arc<str>,
    interval: Duration,
    request_timeout: Duration,
    state: Arc<Mutex<ConnectionState>>,
    tasks: Tasks,
}

#[derive(Debug, Default)]
struct ConnectionState {
    store: Option<Arc<SqliteStore>>,
    /// Why there is no store, or why the one there is could not be opened anew.
    last_error: String,
    last_attempt: Option<Instant>,
    opening: bool,
    closed: bool,
}

impl ReconnectingStore {
    /// A store for the database `url` names. Nothing is opened yet.
    pub fn new(url: &str) -> Self {
        Self::with_interval(url, INTERVAL)
    }

    /// The same, with another interval between attempts.
    pub fn with_interval(url: &str, interval: Duration) -> Self {
        let state = ConnectionState {
            last_error: "not opened yet".to_owned(),
            ..ConnectionState::default()
        };
        Self {
            url: url.into(),
            interval,
            request_timeout: REQUEST_TIMEOUT,
            state: Arc::new(Mutex::new(state)),
            tasks: Tasks::new(),
        }
    }

    /// The same, where reads of the request path may take `timeout`.
    #[must_use]
    pub fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Opens the database now, unless it is open. For start-up and the command line.
    ///
    /// # Errors
    /// Why it cannot be opened; later verbs try again all the same.
    pub async fn open_now(&self) -> Result<(), OpenError> {
        {
            let mut state = self.lock();
            if state.store.is_some() {
                return Ok(());
            }
            state.opening = true;
            state.last_attempt = Some(Instant::now());
        }
        let opened = SqliteStore::open_with(&self.url, self.request_timeout).await;
        let problem = self.finish_opening(opened).await;
        problem.map_or(Ok(()), Err)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ConnectionState> {
        // Nothing is done under the lock that could leave it half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store, if there is one now.
    fn current(&self) -> StoreResult<Arc<SqliteStore>> {
        let state = self.lock();
        if let Some(store) = &state.store {
            return Ok(Arc::clone(store));
        }
        let last_error = state.last_error.clone();
        drop(state);
        self.start_reopening();
        Err(StoreError::Unavailable(last_error))
    }

    /// Looks at an answer: a store that failed may do better opened anew (the file came back, its
    /// rights were mended, a backup was put in its place).
    fn check_result<T>(&self, store: &SqliteStore, result: StoreResult<T>) -> StoreResult<T> {
        // Memory would come back empty.
        if matches!(result, Err(StoreError::Unavailable(_))) && !store.in_memory() {
            self.start_reopening();
        }
        result
    }

    /// Starts an attempt unless one runs or has just failed.
    fn start_reopening(&self) {
        let mut state = self.lock();
        let due = state
            .last_attempt
            .is_none_or(|last| last.elapsed() >= self.interval);
        if state.opening || state.closed || !due {
            return;
        }
        state.opening = true;
        state.last_attempt = Some(Instant::now());
        drop(state);
        let this = self.clone();
        self.tasks.spawn("store reopening", async move {
            let opened = SqliteStore::open_with(&this.url, this.request_timeout).await;
            this.finish_opening(opened).await;
        });
    }

    /// Takes the outcome of an attempt. A store that could not be opened anew stays in use: it may
    /// still read.
    async fn finish_opening(&self, opened: Result<SqliteStore, OpenError>) -> Option<OpenError> {
        let (retired, problem) = {
            let mut state = self.lock();
            state.opening = false;
            match opened {
                Ok(store) if state.closed => (Some(Arc::new(store)), None),
                Ok(store) => {
                    if state.last_attempt.is_some() {
                        tracing::info!("the database is open");
                    }
                    state.last_error.clear();
                    (state.store.replace(Arc::new(store)), None)
                }
                Err(error) => {
                    let trouble = error.to_string();
                    if state.last_error != trouble {
                        tracing::warn!("memory is unavailable: {trouble}");
                        state.last_error = trouble;
                    }
                    (None, Some(error))
                }
            }
        };
        if let Some(store) = retired {
            store.close().await;
        }
        problem
    }
}

/// Calls a verb on the store there is.
macro_rules! forward {
    ($this:ident, $verb:ident($($argument:expr),*)) => {{
        let store = $this.current()?;
        let answer = store.$verb($($argument),*).await;
        $this.check_result(&store, answer)
    }};
}

#[async_trait]
impl Store for ReconnectingStore {
    async fn find_candidates(
        &self,
        scope: &Scope,
        chain: &[Link],
        keys: &LookupKeys,
    ) -> StoreResult<Candidates> {
        forward!(self, find_candidates(scope, chain, keys))
    }

    async fn snapshot(&self, scope: &Scope, id: SnapshotId) -> StoreResult<Option<Snapshot>> {
        forward!(self, snapshot(scope, id))
    }

    async fn load_chain(&self, scope: &Scope, chain: &[Link]) -> StoreResult<RecordedChain> {
        forward!(self, load_chain(scope, chain))
    }

    async fn record(&self, scope: &Scope, record: &RequestRecord) -> StoreResult<i64> {
        forward!(self, record(scope, record))
    }

    fn has_other_writers(&self) -> bool {
        self.current().is_ok_and(|store| store.has_other_writers())
    }

    async fn find_shared_content(
        &self,
        scope: &Scope,
        links: &[Link],
        thread_key: Option<&str>,
    ) -> StoreResult<SharedContent> {
        forward!(self, find_shared_content(scope, links, thread_key))
    }

    async fn record_overflow_observation(
        &self,
        scope: &Scope,
        record: &RequestRecord,
        observation: &NewOverflowObservation,
    ) -> StoreResult<StoredOverflowObservation> {
        forward!(
            self,
            record_overflow_observation(scope, record, observation)
        )
    }

    async fn parts(&self, scope: &Scope, parts: &[PartId]) -> StoreResult<Vec<Part>> {
        forward!(self, parts(scope, parts))
    }

    async fn part_ending(
        &self,
        scope: &Scope,
        kind: PartKind,
        to: Link,
    ) -> StoreResult<Option<Part>> {
        forward!(self, part_ending(scope, kind, to))
    }

    async fn jobs_ending_at(&self, scope: &Scope, ends: &[Link]) -> StoreResult<Vec<ChainJob>> {
        forward!(self, jobs_ending_at(scope, ends))
    }

    async fn enqueue(
        &self,
        scope: &Scope,
        job: &NewJob,
        at_ms: i64,
    ) -> StoreResult<EnqueueOutcome> {
        forward!(self, enqueue(scope, job, at_ms))
    }

    async fn claim(
        &self,
        filter: &ClaimFilter,
        now_ms: i64,
        lease_ms: i64,
    ) -> StoreResult<Option<Job>> {
        forward!(self, claim(filter, now_ms, lease_ms))
    }

    async fn reprioritize(
        &self,
        scope: &Scope,
        ends: &[Link],
        route_hash: Option<[u8; 32]>,
        urgency: Urgency,
    ) -> StoreResult<()> {
        forward!(self, reprioritize(scope, ends, route_hash, urgency))
    }

    async fn record_cost(
        &self,
        scope: &Scope,
        tip: Link,
        cost: Cost,
        at_ms: i64,
    ) -> StoreResult<u64> {
        forward!(self, record_cost(scope, tip, cost, at_ms))
    }

    async fn spent_tokens(&self, scope: &Scope, at_ms: i64) -> StoreResult<u64> {
        forward!(self, spent_tokens(scope, at_ms))
    }

    async fn append_events(
        &self,
        scope: &Scope,
        tip: Link,
        events: &[Event],
    ) -> StoreResult<Vec<Event>> {
        forward!(self, append_events(scope, tip, events))
    }

    async fn tenant_backlogs(&self, at_ms: i64) -> StoreResult<Vec<TenantBacklog>> {
        forward!(self, tenant_backlogs(at_ms))
    }

    async fn commit_code_reflection(
        &self,
        scope: &Scope,
        part: &NewPart,
        at_ms: i64,
    ) -> StoreResult<Option<PartId>> {
        forward!(self, commit_code_reflection(scope, part, at_ms))
    }

    async fn commit_part(
        &self,
        job: &Job,
        part: &NewPart,
        at_ms: i64,
    ) -> StoreResult<Option<PartId>> {
        forward!(self, commit_part(job, part, at_ms))
    }

    async fn renew_lease(&self, job: &Job, until_ms: i64) -> StoreResult<bool> {
        forward!(self, renew_lease(job, until_ms))
    }

    async fn charge_reobservation(&self, job: &Job, tokens: u32) -> StoreResult<()> {
        forward!(self, charge_reobservation(job, tokens))
    }

    async fn release(&self, job: &Job, outcome: Release) -> StoreResult<()> {
        forward!(self, release(job, outcome))
    }

    async fn title(&self, scope: &Scope, link: Link) -> StoreResult<Option<String>> {
        forward!(self, title(scope, link))
    }

    async fn set_title(&self, scope: &Scope, link: Link, title: &str) -> StoreResult<()> {
        forward!(self, set_title(scope, link, title))
    }

    async fn fix_rendering(
        &self,
        scope: &Scope,
        parts: &[PartId],
        rendering: Rendering,
    ) -> StoreResult<Vec<Part>> {
        forward!(self, fix_rendering(scope, parts, rendering))
    }

    async fn claim_timer(&self, now_ms: i64, until_ms: i64) -> StoreResult<Option<Timer>> {
        forward!(self, claim_timer(now_ms, until_ms))
    }

    async fn end_timer(&self, timer: &Timer, remaining: Option<(Alarms, i64)>) -> StoreResult<()> {
        forward!(self, end_timer(timer, remaining))
    }

    async fn next_timer(&self) -> StoreResult<Option<i64>> {
        forward!(self, next_timer())
    }

    async fn chain_links(&self, scope: &Scope, tip: Link) -> StoreResult<Vec<Link>> {
        forward!(self, chain_links(scope, tip))
    }

    async fn commit_snapshot(
        &self,
        scope: &Scope,
        snapshot: &NewSnapshot,
    ) -> StoreResult<Snapshot> {
        forward!(self, commit_snapshot(scope, snapshot))
    }

    async fn commit_snapshot_pair(
        &self,
        scope: &Scope,
        snapshot: &NewSnapshot,
        peer_snapshot: &NewSnapshot,
    ) -> StoreResult<(Snapshot, Option<Snapshot>)> {
        forward!(self, commit_snapshot_pair(scope, snapshot, peer_snapshot))
    }

    async fn publish_digest(&self, scope: &Scope, lineage: i64, text: &str) -> StoreResult<()> {
        forward!(self, publish_digest(scope, lineage, text))
    }

    async fn peer_digests(
        &self,
        scope: &Scope,
        except: &[i64],
        key: Option<&str>,
    ) -> StoreResult<Vec<Digest>> {
        forward!(self, peer_digests(scope, except, key))
    }

    async fn count_live_conversations(
        &self,
        scope: &Scope,
        key: &str,
        since_ms: i64,
    ) -> StoreResult<u32> {
        forward!(self, count_live_conversations(scope, key, since_ms))
    }

    async fn shared_thread_keys(&self, since_ms: i64) -> StoreResult<Vec<(Scope, String)>> {
        forward!(self, shared_thread_keys(since_ms))
    }

    async fn open_jobs(&self) -> StoreResult<u64> {
        forward!(self, open_jobs())
    }

    async fn threads(&self, limit: u32) -> StoreResult<Vec<ThreadRow>> {
        forward!(self, threads(limit))
    }

    async fn thread(&self, lineage: i64) -> StoreResult<Option<ThreadDetail>> {
        forward!(self, thread(lineage))
    }

    async fn longest_chain(&self, lineage: i64) -> StoreResult<Option<LongestChain>> {
        forward!(self, longest_chain(lineage))
    }

    async fn put_operator_request(
        &self,
        scope: &Scope,
        lineage: i64,
        request: &OperatorRequest,
    ) -> StoreResult<bool> {
        forward!(self, put_operator_request(scope, lineage, request))
    }

    async fn operator_request(
        &self,
        scope: &Scope,
        lineage: i64,
    ) -> StoreResult<Option<OperatorRequest>> {
        forward!(self, operator_request(scope, lineage))
    }

    async fn complete_operator_request(&self, scope: &Scope, lineage: i64) -> StoreResult<()> {
        forward!(self, complete_operator_request(scope, lineage))
    }

    async fn requeue_failed(
        &self,
        scope: &Scope,
        lineage: i64,
        at_ms: i64,
    ) -> StoreResult<RequeuedJobs> {
        forward!(self, requeue_failed(scope, lineage, at_ms))
    }

    async fn enqueue_requested(
        &self,
        scope: &Scope,
        job: &NewJob,
        at_ms: i64,
    ) -> StoreResult<RequestedJobOutcome> {
        forward!(self, enqueue_requested(scope, job, at_ms))
    }

    async fn pending_texts(&self, lineage: i64) -> StoreResult<Vec<(Span, String)>> {
        forward!(self, pending_texts(lineage))
    }

    async fn kept_messages(
        &self,
        scope: &Scope,
        links: &[Link],
    ) -> StoreResult<Vec<(Link, String)>> {
        forward!(self, kept_messages(scope, links))
    }

    async fn expire_messages(&self, before_ms: i64) -> StoreResult<Vec<([u8; 32], Link)>> {
        forward!(self, expire_messages(before_ms))
    }

    async fn forget(&self, scope: &Scope, lineage: i64) -> StoreResult<u64> {
        forward!(self, forget(scope, lineage))
    }

    async fn aliases(&self) -> StoreResult<Vec<Alias>> {
        forward!(self, aliases())
    }

    async fn add_alias(
        &self,
        name: [u8; 32],
        tenant: [u8; 32],
        at_ms: i64,
    ) -> StoreResult<AddAliasOutcome> {
        forward!(self, add_alias(name, tenant, at_ms))
    }

    async fn remove_alias(&self, name: [u8; 32]) -> StoreResult<bool> {
        forward!(self, remove_alias(name))
    }

    async fn tenants(&self) -> StoreResult<Vec<TenantRow>> {
        forward!(self, tenants())
    }

    async fn ping(&self) -> StoreResult<()> {
        forward!(self, ping())
    }

    async fn close(&self) {
        let store = {
            let mut state = self.lock();
            state.closed = true;
            "closed".clone_into(&mut state.last_error);
            state.store.take()
        };
        self.tasks.stop(INTERVAL * 3).await;
        if let Some(store) = store {
            store.close().await;
        }
    }
}
