//! The verbs of the store, each as the transaction or the query that it is. What they say stands in the
//! files beside; how they are run, in `sqlite.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;

use super::{Answer, CLOSE_GRACE, SqliteStore};
use super::{
    adopt, aliases, books, messages, others, people, queue, read, record, snapshots, timers, wishes,
};
use crate::history::{Link, Scope};
use crate::memory::advance::Work;
use crate::memory::others::Digest;
use crate::memory::{NewPart, Part, PartId, PartKind, Rendering, Snapshot, SnapshotId, Span};
use crate::store::{
    Adopted, Adoption, Alarms, Alias, Aliased, Chain, ClaimFilter, Cost, Demanded, Elsewhere,
    Event, Found, Job, Known, NewJob, NewSnapshot, Offered, Probes, Record, Release, Revived,
    Store, TenantRow, ThreadDetail, ThreadRow, Timer, Urgency, Waiting, Wanted,
};

#[async_trait]
impl Store for SqliteStore {
    async fn trace(&self, scope: &Scope, chain: &[Link], probes: &Probes) -> Answer<Found> {
        let Some(request) = read::Request::of(scope, chain, probes) else {
            return Ok(Found::default());
        };
        let scope = scope.clone();
        self.hurried("store find", move |conn| {
            Box::pin(read::find(conn, scope, request))
        })
        .await
    }

    async fn snapshot(&self, scope: &Scope, id: SnapshotId) -> Answer<Option<Snapshot>> {
        let scope = scope.clone();
        self.hurried("store snapshot", move |conn| {
            Box::pin(read::snapshot(conn, scope, id))
        })
        .await
    }

    async fn known(&self, scope: &Scope, chain: &[Link]) -> Answer<Known> {
        if chain.is_empty() {
            return Ok(Known::default());
        }
        let (scope, probes) = (scope.clone(), crate::store::rows::probes(chain));
        self.read("store known", move |conn| {
            Box::pin(read::known(conn, scope, probes))
        })
        .await
    }

    async fn record(&self, scope: &Scope, record: &Record) -> Answer<i64> {
        let (scope, record) = (scope.clone(), record.clone());
        let neighbours = Arc::clone(&self.neighbours);
        self.write("store record", move |conn| {
            Box::pin(async move {
                neighbours.look(conn).await?;
                record::record(conn, scope, record).await
            })
        })
        .await
    }

    fn has_neighbours(&self) -> bool {
        self.neighbours.write.load(Ordering::Relaxed)
    }

    async fn elsewhere(
        &self,
        scope: &Scope,
        links: &[Link],
        name: Option<&str>,
    ) -> Answer<Elsewhere> {
        let (scope, links) = (scope.clone(), crate::store::rows::probes(links));
        let name = name.map(str::to_owned);
        self.read("store elsewhere", move |conn| {
            Box::pin(read::elsewhere(conn, scope, links, name))
        })
        .await
    }

    async fn adopt(&self, scope: &Scope, record: &Record, adoption: &Adoption) -> Answer<Adopted> {
        let (scope, record, adoption) = (scope.clone(), record.clone(), adoption.clone());
        self.write("store adopt", move |conn| {
            Box::pin(adopt::adopt(conn, scope, record, adoption))
        })
        .await
    }

    async fn parts(&self, scope: &Scope, parts: &[PartId]) -> Answer<Vec<Part>> {
        let (scope, parts) = (scope.clone(), parts.to_vec());
        self.read("store parts", move |conn| {
            Box::pin(read::parts(conn, scope, parts))
        })
        .await
    }

    async fn part_ending(&self, scope: &Scope, kind: PartKind, to: Link) -> Answer<Option<Part>> {
        let scope = scope.clone();
        self.read("store part", move |conn| {
            Box::pin(read::part_ending(conn, scope, kind, to))
        })
        .await
    }

    async fn work(&self, scope: &Scope, ends: &[Link]) -> Answer<Vec<Work>> {
        let (scope, ends) = (scope.clone(), crate::store::rows::probes(ends));
        self.read("store work", move |conn| {
            Box::pin(read::work(conn, scope, ends))
        })
        .await
    }

    async fn offer(&self, scope: &Scope, job: &NewJob, at_ms: i64) -> Answer<Offered> {
        let (scope, job) = (scope.clone(), job.clone());
        self.write("store offer", move |conn| {
            Box::pin(queue::offer(conn, scope, job, at_ms))
        })
        .await
    }

    async fn claim(&self, filter: &ClaimFilter, now_ms: i64, lease_ms: i64) -> Answer<Option<Job>> {
        let filter = filter.clone();
        self.write("store claim", move |conn| {
            Box::pin(queue::claim(conn, filter, now_ms, lease_ms))
        })
        .await
    }

    async fn steer(
        &self,
        scope: &Scope,
        ends: &[Link],
        way: Option<[u8; 32]>,
        urgency: Urgency,
    ) -> Answer<()> {
        let (scope, ends) = (scope.clone(), crate::store::rows::probes(ends));
        self.write("store steer", move |conn| {
            Box::pin(queue::steer(conn, scope, ends, way, urgency))
        })
        .await
    }

    async fn pay(&self, scope: &Scope, tip: Link, cost: Cost, at_ms: i64) -> Answer<u64> {
        let scope = scope.clone();
        self.write("store pay", move |conn| {
            Box::pin(books::pay(conn, scope, tip, cost, at_ms))
        })
        .await
    }

    async fn spent(&self, scope: &Scope, at_ms: i64) -> Answer<u64> {
        let scope = scope.clone();
        self.read("store spent", move |conn| {
            Box::pin(books::spent(conn, scope, at_ms))
        })
        .await
    }

    async fn note(&self, scope: &Scope, tip: Link, events: &[Event]) -> Answer<Vec<Event>> {
        let (scope, events) = (scope.clone(), events.to_vec());
        self.write("store note", move |conn| {
            Box::pin(books::note(conn, scope, tip, events))
        })
        .await
    }

    async fn waiting(&self, at_ms: i64) -> Answer<Vec<Waiting>> {
        self.read("store waiting", move |conn| {
            Box::pin(books::waiting(conn, at_ms))
        })
        .await
    }

    async fn commit_by_code(
        &self,
        scope: &Scope,
        part: &NewPart,
        at_ms: i64,
    ) -> Answer<Option<PartId>> {
        let (scope, part) = (scope.clone(), part.clone());
        self.write("store commit by code", move |conn| {
            Box::pin(queue::commit_by_code(conn, scope, part, at_ms))
        })
        .await
    }

    async fn commit_part(&self, job: &Job, part: &NewPart, at_ms: i64) -> Answer<Option<PartId>> {
        let (held, part) = (queue::Held::of(job), part.clone());
        self.write("store commit part", move |conn| {
            Box::pin(queue::commit_part(conn, held, part, at_ms))
        })
        .await
    }

    async fn renew(&self, job: &Job, until_ms: i64) -> Answer<bool> {
        let held = queue::Held::of(job);
        self.write("store renew", move |conn| {
            Box::pin(queue::renew(conn, held, until_ms))
        })
        .await
    }

    async fn shown_again(&self, job: &Job, tokens: u32) -> Answer<()> {
        let held = queue::Held::of(job);
        self.write("store shown again", move |conn| {
            Box::pin(queue::shown_again(conn, held, tokens))
        })
        .await
    }

    async fn release(&self, job: &Job, how: Release) -> Answer<()> {
        let held = queue::Held::of(job);
        self.write("store release", move |conn| {
            Box::pin(queue::release(conn, held, how))
        })
        .await
    }

    async fn title(&self, scope: &Scope, link: Link) -> Answer<Option<String>> {
        let scope = scope.clone();
        self.read("store title", move |conn| {
            Box::pin(people::title(conn, scope, link))
        })
        .await
    }

    async fn entitle(&self, scope: &Scope, link: Link, title: &str) -> Answer<()> {
        let (scope, title) = (scope.clone(), title.to_owned());
        self.write("store entitle", move |conn| {
            Box::pin(people::entitle(conn, scope, link, title))
        })
        .await
    }

    async fn freeze(
        &self,
        scope: &Scope,
        parts: &[PartId],
        rendering: Rendering,
    ) -> Answer<Vec<Part>> {
        let (scope, parts) = (scope.clone(), parts.to_vec());
        self.write("store freeze", move |conn| {
            Box::pin(snapshots::freeze(conn, scope, parts, rendering))
        })
        .await
    }

    async fn claim_timer(&self, now_ms: i64, until_ms: i64) -> Answer<Option<Timer>> {
        self.write("store claim timer", move |conn| {
            Box::pin(timers::claim(conn, now_ms, until_ms))
        })
        .await
    }

    async fn end_timer(&self, timer: &Timer, left: Option<(Alarms, i64)>) -> Answer<()> {
        let timer = timer.clone();
        self.write("store end timer", move |conn| {
            Box::pin(timers::end(conn, timer, left))
        })
        .await
    }

    async fn next_timer(&self) -> Answer<Option<i64>> {
        self.read("store next timer", |conn| Box::pin(timers::next(conn)))
            .await
    }

    async fn chain(&self, scope: &Scope, tip: Link) -> Answer<Vec<Link>> {
        let scope = scope.clone();
        self.read("store chain", move |conn| {
            Box::pin(read::chain(conn, scope, tip))
        })
        .await
    }

    async fn commit_snapshot(&self, scope: &Scope, snapshot: &NewSnapshot) -> Answer<Snapshot> {
        let (scope, snapshot) = (scope.clone(), snapshot.clone());
        self.write("store commit snapshot", move |conn| {
            Box::pin(snapshots::commit(conn, scope, snapshot))
        })
        .await
    }

    async fn commit_both(
        &self,
        scope: &Scope,
        snapshot: &NewSnapshot,
        bound: &NewSnapshot,
    ) -> Answer<(Snapshot, Option<Snapshot>)> {
        let (scope, snapshot, bound) = (scope.clone(), snapshot.clone(), bound.clone());
        self.write("store commit snapshots", move |conn| {
            Box::pin(snapshots::commit_both(conn, scope, snapshot, bound))
        })
        .await
    }

    async fn tell(&self, scope: &Scope, lineage: i64, text: &str) -> Answer<()> {
        let (scope, text) = (scope.clone(), text.to_owned());
        self.write("store tell", move |conn| {
            Box::pin(others::tell(conn, scope, lineage, text))
        })
        .await
    }

    async fn told(&self, scope: &Scope, but: &[i64], key: Option<&str>) -> Answer<Vec<Digest>> {
        let (scope, but, key) = (scope.clone(), but.to_vec(), key.map(str::to_owned));
        self.read("store told", move |conn| {
            Box::pin(others::told(conn, scope, but, key))
        })
        .await
    }

    async fn namesakes(&self, scope: &Scope, key: &str, since_ms: i64) -> Answer<u32> {
        let (scope, key) = (scope.clone(), key.to_owned());
        self.read("store namesakes", move |conn| {
            Box::pin(read::namesakes(conn, scope, key, since_ms))
        })
        .await
    }

    async fn crowds(&self, since_ms: i64) -> Answer<Vec<(Scope, String)>> {
        self.read("store crowds", move |conn| {
            Box::pin(aliases::crowds(conn, since_ms))
        })
        .await
    }

    async fn open_jobs(&self) -> Answer<u64> {
        self.read("store open jobs", |conn| Box::pin(queue::open_jobs(conn)))
            .await
    }

    async fn threads(&self, limit: u32) -> Answer<Vec<ThreadRow>> {
        self.read("store threads", move |conn| {
            Box::pin(people::threads(conn, limit))
        })
        .await
    }

    async fn thread(&self, lineage: i64) -> Answer<Option<ThreadDetail>> {
        self.read("store thread", move |conn| {
            Box::pin(people::thread(conn, lineage))
        })
        .await
    }

    async fn known_of(&self, lineage: i64) -> Answer<Option<Chain>> {
        self.read("store known of", move |conn| {
            Box::pin(wishes::known_of(conn, lineage))
        })
        .await
    }

    async fn want(&self, scope: &Scope, lineage: i64, wanted: &Wanted) -> Answer<bool> {
        let (scope, wanted) = (scope.clone(), wanted.clone());
        self.write("store want", move |conn| {
            Box::pin(wishes::want(conn, scope, lineage, wanted))
        })
        .await
    }

    async fn wanted(&self, scope: &Scope, lineage: i64) -> Answer<Option<Wanted>> {
        let scope = scope.clone();
        self.read("store wanted", move |conn| {
            Box::pin(wishes::wanted(conn, scope, lineage))
        })
        .await
    }

    async fn given(&self, scope: &Scope, lineage: i64) -> Answer<()> {
        let scope = scope.clone();
        self.write("store given", move |conn| {
            Box::pin(wishes::given(conn, scope, lineage))
        })
        .await
    }

    async fn revive(&self, scope: &Scope, lineage: i64, at_ms: i64) -> Answer<Revived> {
        let scope = scope.clone();
        self.write("store revive", move |conn| {
            Box::pin(wishes::revive(conn, scope, lineage, at_ms))
        })
        .await
    }

    async fn demand(&self, scope: &Scope, job: &NewJob, at_ms: i64) -> Answer<Demanded> {
        let scope = scope.clone();
        let job = job.clone();
        self.write("store demand", move |conn| {
            Box::pin(wishes::demand(conn, scope, job, at_ms))
        })
        .await
    }

    async fn words(&self, lineage: i64) -> Answer<Vec<(Span, String)>> {
        self.read("store words", move |conn| {
            Box::pin(wishes::words(conn, lineage))
        })
        .await
    }

    async fn kept(&self, scope: &Scope, links: &[Link]) -> Answer<Vec<(Link, String)>> {
        let (scope, links) = (scope.clone(), crate::store::rows::probes(links));
        self.read("store kept", move |conn| {
            Box::pin(messages::kept(conn, scope, links))
        })
        .await
    }

    async fn expire(&self, before_ms: i64) -> Answer<Vec<([u8; 32], Link)>> {
        self.write("store expire", move |conn| {
            Box::pin(messages::expire(conn, before_ms))
        })
        .await
    }

    async fn forget(&self, scope: &Scope, lineage: i64) -> Answer<u64> {
        let scope = scope.clone();
        self.write("store forget", move |conn| {
            Box::pin(people::forget(conn, scope, lineage))
        })
        .await
    }

    async fn aliases(&self) -> Answer<Vec<Alias>> {
        self.read("store aliases", |conn| Box::pin(aliases::aliases(conn)))
            .await
    }

    async fn alias(&self, name: [u8; 32], tenant: [u8; 32], at_ms: i64) -> Answer<Aliased> {
        self.write("store alias", move |conn| {
            Box::pin(aliases::alias(conn, name, tenant, at_ms))
        })
        .await
    }

    async fn unalias(&self, name: [u8; 32]) -> Answer<bool> {
        self.write("store unalias", move |conn| {
            Box::pin(aliases::unalias(conn, name))
        })
        .await
    }

    async fn tenants(&self) -> Answer<Vec<TenantRow>> {
        self.read("store tenants", |conn| Box::pin(aliases::tenants(conn)))
            .await
    }

    async fn ping(&self) -> Answer<()> {
        let file = self.file.clone();
        self.hurried("store ping", move |conn| {
            Box::pin(async move {
                if let Some(file) = file {
                    file.still_there().await?;
                }
                read::ping(conn).await
            })
        })
        .await
    }

    async fn close(&self) {
        let left = self.tasks.stop(CLOSE_GRACE).await;
        if left > 0 {
            // Its connection would be waited for without an end. The system closes it, and the
            // next start finds the journal.
            tracing::warn!(
                left,
                "{left} queries did not end before the store was closed"
            );
            return;
        }
        self.front.close().await;
        self.back.close().await;
        // The last connection to close writes the journal back into the database.
        self.writer.close().await;
    }
}
