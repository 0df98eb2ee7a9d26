//! A store that may not be there: it opens when it can, and the proxy goes on without it.
//!
//! Where the database cannot be opened at start, or is deleted, replaced or damaged later, every
//! verb answers [`StoreError::Unavailable`] at once and an attempt to open it runs beside, at most
//! one per interval. No caller ever waits for an attempt, except whoever calls
//! [`Reopening::ready`]. `app` makes one; everybody else sees a [`Store`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::{
    Adopted, Adoption, Alarms, Alias, Aliased, Chain, ClaimFilter, Cost, Demanded, Elsewhere,
    Event, Found, Job, Known, NewJob, NewSnapshot, Offered, OpenError, Probes, Record, Release,
    Revived, SqliteStore, Store, StoreError, TenantRow, ThreadDetail, ThreadRow, Timer, Urgency,
    Waiting, Wanted,
};
use crate::history::{Link, Scope};
use crate::memory::advance::Work;
use crate::memory::others::Digest;
use crate::memory::{NewPart, Part, PartId, PartKind, Rendering, Snapshot, SnapshotId, Span};
use crate::tasks::Tasks;

type Answer<T> = Result<T, StoreError>;

/// An attempt is cheap where the file is missing and slow where it is locked; this keeps either
/// from being felt.
const INTERVAL: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Clone, Debug)]
pub struct Reopening {
    url: Arc<str>,
    interval: Duration,
    state: Arc<Mutex<State>>,
    tasks: Tasks,
}

#[derive(Debug, Default)]
struct State {
    store: Option<Arc<SqliteStore>>,
    /// Why there is no store, or why the one there is could not be opened anew.
    trouble: String,
    last_attempt: Option<Instant>,
    opening: bool,
    closed: bool,
}

impl Reopening {
    /// A store for the database `url` names. Nothing is opened yet.
    pub fn new(url: &str) -> Self {
        Self::every(url, INTERVAL)
    }

    /// The same, with another interval between attempts.
    pub fn every(url: &str, interval: Duration) -> Self {
        let state = State {
            trouble: "not opened yet".to_owned(),
            ..State::default()
        };
        Self {
            url: url.into(),
            interval,
            state: Arc::new(Mutex::new(state)),
            tasks: Tasks::new(),
        }
    }

    /// Opens the database now, unless it is open. For start-up and the command line.
    ///
    /// # Errors
    /// Why it cannot be opened; later verbs try again all the same.
    pub async fn ready(&self) -> Result<(), OpenError> {
        {
            let mut state = self.lock();
            if state.store.is_some() {
                return Ok(());
            }
            state.opening = true;
            state.last_attempt = Some(Instant::now());
        }
        let opened = SqliteStore::open(&self.url).await;
        let problem = self.opened(opened).await;
        problem.map_or(Ok(()), Err)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // Nothing is done under the lock that could leave it half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store, if there is one now.
    fn current(&self) -> Answer<Arc<SqliteStore>> {
        let state = self.lock();
        if let Some(store) = &state.store {
            return Ok(Arc::clone(store));
        }
        let trouble = state.trouble.clone();
        drop(state);
        self.attempt();
        Err(StoreError::Unavailable(trouble))
    }

    /// Looks at an answer: a store that failed may do better opened anew (the file came back, its
    /// rights were mended, a backup was put in its place).
    fn heed<T>(&self, store: &SqliteStore, answer: Answer<T>) -> Answer<T> {
        // Memory would come back empty.
        if matches!(answer, Err(StoreError::Unavailable(_))) && !store.in_memory() {
            self.attempt();
        }
        answer
    }

    /// Starts an attempt unless one runs or has just failed.
    fn attempt(&self) {
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
            let opened = SqliteStore::open(&this.url).await;
            this.opened(opened).await;
        });
    }

    /// Takes the outcome of an attempt. A store that could not be opened anew stays in use: it may
    /// still read.
    async fn opened(&self, opened: Result<SqliteStore, OpenError>) -> Option<OpenError> {
        let (retired, problem) = {
            let mut state = self.lock();
            state.opening = false;
            match opened {
                Ok(store) if state.closed => (Some(Arc::new(store)), None),
                Ok(store) => {
                    if state.last_attempt.is_some() {
                        tracing::info!("the database is open");
                    }
                    state.trouble.clear();
                    (state.store.replace(Arc::new(store)), None)
                }
                Err(error) => {
                    let trouble = error.to_string();
                    if state.trouble != trouble {
                        tracing::warn!("memory is unavailable: {trouble}");
                        state.trouble = trouble;
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
        $this.heed(&store, answer)
    }};
}

#[async_trait]
impl Store for Reopening {
    async fn trace(&self, scope: &Scope, chain: &[Link], probes: &Probes) -> Answer<Found> {
        forward!(self, trace(scope, chain, probes))
    }

    async fn snapshot(&self, scope: &Scope, id: SnapshotId) -> Answer<Option<Snapshot>> {
        forward!(self, snapshot(scope, id))
    }

    async fn known(&self, scope: &Scope, chain: &[Link]) -> Answer<Known> {
        forward!(self, known(scope, chain))
    }

    async fn record(&self, scope: &Scope, record: &Record) -> Answer<i64> {
        forward!(self, record(scope, record))
    }

    fn has_neighbours(&self) -> bool {
        self.current().is_ok_and(|store| store.has_neighbours())
    }

    async fn elsewhere(
        &self,
        scope: &Scope,
        links: &[Link],
        name: Option<&str>,
    ) -> Answer<Elsewhere> {
        forward!(self, elsewhere(scope, links, name))
    }

    async fn adopt(&self, scope: &Scope, record: &Record, adoption: &Adoption) -> Answer<Adopted> {
        forward!(self, adopt(scope, record, adoption))
    }

    async fn parts(&self, scope: &Scope, parts: &[PartId]) -> Answer<Vec<Part>> {
        forward!(self, parts(scope, parts))
    }

    async fn part_ending(&self, scope: &Scope, kind: PartKind, to: Link) -> Answer<Option<Part>> {
        forward!(self, part_ending(scope, kind, to))
    }

    async fn work(&self, scope: &Scope, ends: &[Link]) -> Answer<Vec<Work>> {
        forward!(self, work(scope, ends))
    }

    async fn offer(&self, scope: &Scope, job: &NewJob, at_ms: i64) -> Answer<Offered> {
        forward!(self, offer(scope, job, at_ms))
    }

    async fn claim(&self, filter: &ClaimFilter, now_ms: i64, lease_ms: i64) -> Answer<Option<Job>> {
        forward!(self, claim(filter, now_ms, lease_ms))
    }

    async fn steer(
        &self,
        scope: &Scope,
        ends: &[Link],
        way: Option<[u8; 32]>,
        urgency: Urgency,
    ) -> Answer<()> {
        forward!(self, steer(scope, ends, way, urgency))
    }

    async fn pay(&self, scope: &Scope, tip: Link, cost: Cost, at_ms: i64) -> Answer<u64> {
        forward!(self, pay(scope, tip, cost, at_ms))
    }

    async fn spent(&self, scope: &Scope, at_ms: i64) -> Answer<u64> {
        forward!(self, spent(scope, at_ms))
    }

    async fn note(&self, scope: &Scope, tip: Link, events: &[Event]) -> Answer<Vec<Event>> {
        forward!(self, note(scope, tip, events))
    }

    async fn waiting(&self, at_ms: i64) -> Answer<Vec<Waiting>> {
        forward!(self, waiting(at_ms))
    }

    async fn commit_by_code(
        &self,
        scope: &Scope,
        part: &NewPart,
        at_ms: i64,
    ) -> Answer<Option<PartId>> {
        forward!(self, commit_by_code(scope, part, at_ms))
    }

    async fn commit_part(&self, job: &Job, part: &NewPart, at_ms: i64) -> Answer<Option<PartId>> {
        forward!(self, commit_part(job, part, at_ms))
    }

    async fn renew(&self, job: &Job, until_ms: i64) -> Answer<bool> {
        forward!(self, renew(job, until_ms))
    }

    async fn shown_again(&self, job: &Job, tokens: u32) -> Answer<()> {
        forward!(self, shown_again(job, tokens))
    }

    async fn release(&self, job: &Job, how: Release) -> Answer<()> {
        forward!(self, release(job, how))
    }

    async fn title(&self, scope: &Scope, link: Link) -> Answer<Option<String>> {
        forward!(self, title(scope, link))
    }

    async fn entitle(&self, scope: &Scope, link: Link, title: &str) -> Answer<()> {
        forward!(self, entitle(scope, link, title))
    }

    async fn freeze(
        &self,
        scope: &Scope,
        parts: &[PartId],
        rendering: Rendering,
    ) -> Answer<Vec<Part>> {
        forward!(self, freeze(scope, parts, rendering))
    }

    async fn claim_timer(&self, now_ms: i64, until_ms: i64) -> Answer<Option<Timer>> {
        forward!(self, claim_timer(now_ms, until_ms))
    }

    async fn end_timer(&self, timer: &Timer, left: Option<(Alarms, i64)>) -> Answer<()> {
        forward!(self, end_timer(timer, left))
    }

    async fn next_timer(&self) -> Answer<Option<i64>> {
        forward!(self, next_timer())
    }

    async fn chain(&self, scope: &Scope, tip: Link) -> Answer<Vec<Link>> {
        forward!(self, chain(scope, tip))
    }

    async fn commit_snapshot(&self, scope: &Scope, snapshot: &NewSnapshot) -> Answer<Snapshot> {
        forward!(self, commit_snapshot(scope, snapshot))
    }

    async fn commit_both(
        &self,
        scope: &Scope,
        snapshot: &NewSnapshot,
        bound: &NewSnapshot,
    ) -> Answer<(Snapshot, Option<Snapshot>)> {
        forward!(self, commit_both(scope, snapshot, bound))
    }

    async fn tell(&self, scope: &Scope, lineage: i64, text: &str) -> Answer<()> {
        forward!(self, tell(scope, lineage, text))
    }

    async fn told(&self, scope: &Scope, but: &[i64], key: Option<&str>) -> Answer<Vec<Digest>> {
        forward!(self, told(scope, but, key))
    }

    async fn namesakes(&self, scope: &Scope, key: &str, since_ms: i64) -> Answer<u32> {
        forward!(self, namesakes(scope, key, since_ms))
    }

    async fn crowds(&self, since_ms: i64) -> Answer<Vec<(Scope, String)>> {
        forward!(self, crowds(since_ms))
    }

    async fn open_jobs(&self) -> Answer<u64> {
        forward!(self, open_jobs())
    }

    async fn threads(&self, limit: u32) -> Answer<Vec<ThreadRow>> {
        forward!(self, threads(limit))
    }

    async fn thread(&self, lineage: i64) -> Answer<Option<ThreadDetail>> {
        forward!(self, thread(lineage))
    }

    async fn known_of(&self, lineage: i64) -> Answer<Option<Chain>> {
        forward!(self, known_of(lineage))
    }

    async fn want(&self, scope: &Scope, lineage: i64, wanted: &Wanted) -> Answer<bool> {
        forward!(self, want(scope, lineage, wanted))
    }

    async fn wanted(&self, scope: &Scope, lineage: i64) -> Answer<Option<Wanted>> {
        forward!(self, wanted(scope, lineage))
    }

    async fn given(&self, scope: &Scope, lineage: i64) -> Answer<()> {
        forward!(self, given(scope, lineage))
    }

    async fn revive(&self, scope: &Scope, lineage: i64, at_ms: i64) -> Answer<Revived> {
        forward!(self, revive(scope, lineage, at_ms))
    }

    async fn demand(&self, scope: &Scope, job: &NewJob, at_ms: i64) -> Answer<Demanded> {
        forward!(self, demand(scope, job, at_ms))
    }

    async fn words(&self, lineage: i64) -> Answer<Vec<(Span, String)>> {
        forward!(self, words(lineage))
    }

    async fn kept(&self, scope: &Scope, links: &[Link]) -> Answer<Vec<(Link, String)>> {
        forward!(self, kept(scope, links))
    }

    async fn expire(&self, before_ms: i64) -> Answer<Vec<([u8; 32], Link)>> {
        forward!(self, expire(before_ms))
    }

    async fn forget(&self, scope: &Scope, lineage: i64) -> Answer<u64> {
        forward!(self, forget(scope, lineage))
    }

    async fn aliases(&self) -> Answer<Vec<Alias>> {
        forward!(self, aliases())
    }

    async fn alias(&self, name: [u8; 32], tenant: [u8; 32], at_ms: i64) -> Answer<Aliased> {
        forward!(self, alias(name, tenant, at_ms))
    }

    async fn unalias(&self, name: [u8; 32]) -> Answer<bool> {
        forward!(self, unalias(name))
    }

    async fn tenants(&self) -> Answer<Vec<TenantRow>> {
        forward!(self, tenants())
    }

    async fn ping(&self) -> Answer<()> {
        forward!(self, ping())
    }

    async fn close(&self) {
        let store = {
            let mut state = self.lock();
            state.closed = true;
            "closed".clone_into(&mut state.trouble);
            state.store.take()
        };
        self.tasks.stop(INTERVAL * 3).await;
        if let Some(store) = store {
            store.close().await;
        }
    }
}
