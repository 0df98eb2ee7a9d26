//! Jobs: one per span, one worker at a time, and no effect after the lease was lost.

use std::collections::HashSet;
use std::sync::Arc;

use diarist::history::Link;
use diarist::memory::advance::{ChainJob, JobState};
use diarist::memory::{NewPart, PartKind};
use diarist::store::testing::SingleRequest as _;
use diarist::store::{
    Admin as _, Chains as _, ClaimFilter, DailyLimits, EnqueueOutcome, Job, NewJob, Queue as _,
    Release, Snapshots as _, SqliteStore, Urgency,
};

use crate::store::world::{ANYBODY, Disk, LEASE, TestChain, scope};

async fn recorded(length: usize) -> (SqliteStore, TestChain) {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let chain = TestChain::new(&scope("alice"), "jobs", length);
    chain.recorded(&store).await;
    (store, chain)
}

#[tokio::test]
async fn a_span_has_one_job_and_then_one_part() {
    let (store, chain) = recorded(6).await;
    let job = chain.job(PartKind::Chunk, 0, 4);
    let offer = async || store.enqueue(&chain.scope, &job, 0).await.expect("offered");
    assert_eq!(offer().await, EnqueueOutcome::Queued);
    assert_eq!(
        offer().await,
        EnqueueOutcome::AlreadyExists,
        "one is waiting"
    );
    let held = store
        .claim(&ANYBODY, 1, LEASE)
        .await
        .expect("claimed")
        .expect("a job");
    assert_eq!(held.spec.payload, job.payload);
    assert_eq!((held.attempts, held.empty_answers), (1, 0));
    assert_eq!(
        offer().await,
        EnqueueOutcome::AlreadyExists,
        "one is running"
    );
    assert!(
        store
            .claim(&ANYBODY, 1, LEASE)
            .await
            .expect("claimed")
            .is_none()
    );
    let part = chain.chunk(0, 4);
    assert!(
        store
            .commit_part(&held, &part, 2)
            .await
            .expect("committed")
            .is_some()
    );
    assert_eq!(offer().await, EnqueueOutcome::AlreadyExists, "it is done");
    assert_eq!(
        store.commit_part(&held, &part, 2).await.expect("refused"),
        None
    );
    let other_kind = chain.job(PartKind::Reflection, 0, 4);
    let offered = store.enqueue(&chain.scope, &other_kind, 0).await;
    assert_eq!(offered.expect("offered"), EnqueueOutcome::Queued);
}

#[tokio::test]
async fn only_recorded_history_is_observed() {
    let (store, chain) = recorded(3).await;
    let longer = chain.grown("never sent", 2);
    let job = longer.job(PartKind::Chunk, 0, 5);
    let offered = store.enqueue(&chain.scope, &job, 0).await;
    assert_eq!(offered.expect("refused"), EnqueueOutcome::Forgotten);
    assert_eq!(store.open_jobs(i64::MAX).await.expect("counted"), 0);
}

#[tokio::test]
async fn a_worker_whose_lease_ran_out_stores_nothing() {
    let (store, chain) = recorded(6).await;
    store
        .enqueue(&chain.scope, &chain.job(PartKind::Chunk, 0, 4), 0)
        .await
        .expect("offered");
    let slow = store
        .claim(&ANYBODY, 0, LEASE)
        .await
        .expect("claimed")
        .expect("a job");
    assert!(
        store
            .claim(&ANYBODY, LEASE - 1, LEASE)
            .await
            .expect("claimed")
            .is_none()
    );
    let quick = store
        .claim(&ANYBODY, LEASE, LEASE)
        .await
        .expect("claimed")
        .expect("a job");
    assert_eq!((quick.id, quick.attempts), (slow.id, 2));
    assert_ne!(quick.fence, slow.fence);
    let mut stale = chain.chunk(0, 4);
    stale.text = "from the slow one".to_owned();
    assert_eq!(
        store.commit_part(&slow, &stale, 1).await.expect("refused"),
        None
    );
    store
        .release(&slow, Release::Abandon)
        .await
        .expect("refused");
    store
        .release(&slow, Release::RetryAt(0))
        .await
        .expect("refused");
    assert!(
        store
            .claim(&ANYBODY, LEASE, LEASE)
            .await
            .expect("claimed")
            .is_none()
    );
    let id = store
        .commit_part(&quick, &chain.chunk(0, 4), 1)
        .await
        .expect("committed");
    let parts = store
        .parts(&chain.scope, &[id.expect("a part")])
        .await
        .expect("read");
    assert_eq!(parts[0].body.text, "observed 0 to 4");
}

#[tokio::test]
async fn a_worker_with_an_expired_but_unclaimed_lease_still_commits() {
    let (store, chain) = recorded(6).await;
    store
        .enqueue(&chain.scope, &chain.job(PartKind::Chunk, 0, 4), 0)
        .await
        .expect("offered");
    let job = store
        .claim(&ANYBODY, 0, 1)
        .await
        .expect("claimed")
        .expect("a job");
    let id = store
        .commit_part(&job, &chain.chunk(0, 4), LEASE)
        .await
        .expect("committed");
    assert!(
        id.is_some(),
        "the model was paid for, and no other worker has stored a part"
    );
}

#[tokio::test]
async fn released_jobs_are_claimed_when_due_and_abandoned_jobs_never() {
    let (store, chain) = recorded(6).await;
    store
        .enqueue(&chain.scope, &chain.job(PartKind::Chunk, 0, 4), 0)
        .await
        .expect("offered");
    let claim = async |now| store.claim(&ANYBODY, now, LEASE).await.expect("claimed");
    let job = claim(0).await.expect("a job");
    store
        .release(&job, Release::RetryAt(500))
        .await
        .expect("released");
    assert!(claim(499).await.is_none());
    let job = claim(500).await.expect("a job");
    assert_eq!((job.attempts, job.empty_answers), (2, 0));
    store
        .release(&job, Release::EmptyRetryAt(600))
        .await
        .expect("released");
    let job = claim(600).await.expect("a job");
    assert_eq!((job.attempts, job.empty_answers), (3, 1));
    store
        .release(&job, Release::Abandon)
        .await
        .expect("released");
    assert!(claim(i64::MAX).await.is_none());
    assert_eq!(store.open_jobs(i64::MAX).await.expect("counted"), 0);
    let known = store
        .load_chain(&chain.scope, &chain.links)
        .await
        .expect("known");
    assert_eq!(
        known.jobs,
        [ChainJob {
            kind: PartKind::Chunk,
            span: chain.span(0, 4),
            state: JobState::Abandoned
        }]
    );
    let again = chain.job(PartKind::Chunk, 0, 4);
    let offered = store.enqueue(&chain.scope, &again, 0).await;
    assert_eq!(offered.expect("refused"), EnqueueOutcome::AlreadyExists);
}

const ONE_ROUTE: [u8; 32] = [1; 32];
const OTHER_ROUTE: [u8; 32] = [2; 32];

fn filter(observe_any: bool, reflect_any: bool, held: &[([u8; 32], [u8; 32])]) -> ClaimFilter {
    ClaimFilter {
        observe_any,
        reflect_any,
        held_routes: held.to_vec(),
        daily: DailyLimits::default(),
    }
}

/// Claims a job and gives it back at once.
async fn claimed(store: &SqliteStore, filter: &ClaimFilter) -> Option<Job> {
    let job = store.claim(filter, 10, LEASE).await.expect("claimed")?;
    store
        .release(&job, Release::RetryAt(0))
        .await
        .expect("released");
    Some(job)
}

#[tokio::test]
async fn a_worker_claims_only_jobs_whose_route_or_endpoint_it_has() {
    let (store, chain) = recorded(6).await;
    let owner = chain.scope.clone();
    for (kind, at) in [(PartKind::Chunk, 0), (PartKind::Reflection, 1)] {
        let job = NewJob {
            route_hash: Some(ONE_ROUTE),
            ..chain.job(kind, 0, 4)
        };
        store.enqueue(&owner, &job, at).await.expect("offered");
    }
    let claim = async |filter: ClaimFilter| {
        let job = claimed(&store, &filter).await?;
        assert_eq!(job.spec.route_hash, Some(ONE_ROUTE));
        Some(job.spec.kind)
    };
    let stranger = scope("bob").tenant;
    assert_eq!(claim(filter(false, false, &[])).await, None);
    for other in [(stranger, ONE_ROUTE), (owner.tenant, OTHER_ROUTE)] {
        assert_eq!(claim(filter(false, false, &[other])).await, None);
    }
    assert_eq!(claim(filter(true, false, &[])).await, Some(PartKind::Chunk));
    assert_eq!(
        claim(filter(false, true, &[(stranger, ONE_ROUTE)])).await,
        Some(PartKind::Reflection)
    );
    let held = [(stranger, OTHER_ROUTE), (owner.tenant, ONE_ROUTE)];
    assert!(claim(filter(false, false, &held)).await.is_some());
}

#[tokio::test]
async fn a_job_without_a_route_gets_the_last_route_of_its_conversation() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let chain = TestChain::new(&scope("alice"), "jobs", 6);
    let mut record = chain.record(None, 0);
    record.contents = chain.contents(1_000);
    record.route_hash = Some(ONE_ROUTE);
    let lineage = store.record(&chain.scope, &record).await.expect("recorded");
    // A request without a route keeps the recorded one.
    let again = chain.record(Some(lineage), 6);
    store.record(&chain.scope, &again).await.expect("recorded");
    let job = chain.job(PartKind::Chunk, 0, 4);
    store.enqueue(&chain.scope, &job, 0).await.expect("offered");
    let held = |route_hash| filter(false, false, &[(chain.scope.tenant, route_hash)]);
    assert!(claimed(&store, &held(OTHER_ROUTE)).await.is_none());
    let job = claimed(&store, &held(ONE_ROUTE)).await.expect("a job");
    assert_eq!(job.spec.route_hash, Some(ONE_ROUTE));
}

#[tokio::test]
async fn waiting_jobs_get_the_new_route_and_urgency_of_their_conversation() {
    let (store, chain) = recorded(6).await;
    for (kind, from, to) in [
        (PartKind::Chunk, 0, 2),
        (PartKind::Chunk, 2, 4),
        (PartKind::Reflection, 0, 2),
    ] {
        let job = NewJob {
            route_hash: Some(ONE_ROUTE),
            urgency: 5,
            ..chain.job(kind, from, to)
        };
        store.enqueue(&chain.scope, &job, 0).await.expect("offered");
    }
    // A job that an operator waits for has the highest urgency.
    let urgent_job = NewJob {
        urgency: u32::MAX,
        ..chain.job(PartKind::Reflection, 0, 4)
    };
    store
        .enqueue(&chain.scope, &urgent_job, 0)
        .await
        .expect("offered");
    let near = Urgency {
        observation: 900,
        reflection: 1_100,
    };
    let first = [chain.span(0, 2).to, chain.span(0, 4).to];
    store
        .reprioritize(&chain.scope, &first, Some(OTHER_ROUTE), near)
        .await
        .expect("steered");
    let stranger = scope("bob");
    let second = [chain.span(2, 4).to];
    store
        .reprioritize(&stranger, &second, Some(OTHER_ROUTE), near)
        .await
        .expect("nothing of theirs");
    let other = filter(false, false, &[(chain.scope.tenant, OTHER_ROUTE)]);
    let mut claimed_jobs = Vec::new();
    while let Some(job) = store.claim(&other, 10, LEASE).await.expect("claimed") {
        claimed_jobs.push((job.spec.kind, job.spec.span.to_count, job.spec.urgency));
    }
    assert_eq!(
        claimed_jobs,
        [
            (PartKind::Reflection, 4, u32::MAX),
            (PartKind::Reflection, 2, 1_100),
            (PartKind::Chunk, 2, 900),
        ]
    );
}

#[tokio::test]
async fn the_conversation_closest_to_its_limit_comes_first() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let owner = scope("alice");
    for (name, urgency, at_ms) in [("calm", 200, 0), ("late", 1_100, 3), ("near", 900, 2)] {
        let chain = TestChain::new(&owner, name, 4);
        chain.recorded(&store).await;
        let job = NewJob {
            urgency,
            ..chain.job(PartKind::Chunk, 0, 2)
        };
        store.enqueue(&owner, &job, at_ms).await.expect("offered");
    }
    // A tenant without running jobs comes before a more urgent job of another tenant.
    let quiet = TestChain::new(&scope("bob"), "quiet", 4);
    quiet.recorded(&store).await;
    let job = quiet.job(PartKind::Chunk, 0, 2);
    store.enqueue(&quiet.scope, &job, 9).await.expect("offered");
    let mut order = Vec::new();
    while let Some(job) = store.claim(&ANYBODY, 10, LEASE).await.expect("claimed") {
        order.push(job.spec.urgency);
    }
    assert_eq!(order, [1_100, 0, 900, 200]);
}

#[tokio::test]
async fn a_busy_tenant_does_not_keep_others_waiting() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let busy = TestChain::new(&scope("busy"), "jobs", 8);
    let quiet = TestChain::new(&scope("quiet"), "jobs", 8);
    busy.recorded(&store).await;
    quiet.recorded(&store).await;
    // The ranges do not follow one another, so that no job waits for another.
    for (from, to) in [(0, 2), (3, 4), (5, 6)] {
        store
            .enqueue(&busy.scope, &busy.job(PartKind::Chunk, from, to), 0)
            .await
            .expect("ok");
    }
    store
        .enqueue(&quiet.scope, &quiet.job(PartKind::Chunk, 0, 2), 5)
        .await
        .expect("offered");
    let mut order = Vec::new();
    while let Some(job) = store.claim(&ANYBODY, 10, LEASE).await.expect("claimed") {
        order.push((job.scope == quiet.scope, job.spec.span.to_count));
    }
    assert_eq!(order, [(false, 2), (true, 2), (false, 4), (false, 6)]);
}

#[tokio::test]
async fn a_range_waits_for_the_range_before_it() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let chain = TestChain::new(&scope("one"), "jobs", 8);
    chain.recorded(&store).await;
    for to in [4, 2] {
        let job = chain.job(PartKind::Chunk, to - 2, to);
        store.enqueue(&chain.scope, &job, 0).await.expect("offered");
    }
    let first = store
        .claim(&ANYBODY, 10, LEASE)
        .await
        .expect("asked")
        .expect("a job");
    assert_eq!(first.spec.span.to_count, 2);
    assert!(
        store
            .claim(&ANYBODY, 10, LEASE)
            .await
            .expect("asked")
            .is_none()
    );
    store
        .release(&first, Release::Abandon)
        .await
        .expect("given up");
    let second = store
        .claim(&ANYBODY, 10, LEASE)
        .await
        .expect("asked")
        .expect("a job");
    assert_eq!(second.spec.span.to_count, 4);
}

/// Two processes (two stores on one file), many workers: each job is leased once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_job_goes_to_one_worker() {
    const JOBS: usize = 40;
    let disk = Disk::new();
    let stores = [Arc::new(disk.open().await), Arc::new(disk.open().await)];
    let chain = TestChain::new(&scope("alice"), "jobs", JOBS);
    chain.recorded(&*stores[0]).await;
    for to in 1..=JOBS {
        let job = chain.job(PartKind::Chunk, to - 1, to);
        let offered = stores[to % 2].enqueue(&chain.scope, &job, 0).await;
        assert_eq!(offered.expect("offered"), EnqueueOutcome::Queued);
    }
    let mut workers = tokio::task::JoinSet::new();
    for number in 0..8 {
        let store = Arc::clone(&stores[number % 2]);
        let chain = chain.clone();
        workers.spawn(async move {
            let mut done = Vec::new();
            while let Some(job) = store.claim(&ANYBODY, 1, LEASE).await.expect("claimed") {
                let to = job.spec.span.to_count;
                let part = chain.chunk(to - 1, to);
                let id = store.commit_part(&job, &part, 2).await.expect("committed");
                done.push((job.id, job.fence, id.expect("the only one")));
            }
            done
        });
    }
    let done: Vec<_> = workers.join_all().await.into_iter().flatten().collect();
    let jobs: HashSet<_> = done.iter().map(|(id, ..)| id).collect();
    let parts: HashSet<_> = done.iter().map(|(.., id)| id).collect();
    assert_eq!((done.len(), jobs.len(), parts.len()), (JOBS, JOBS, JOBS));
    assert!(done.iter().all(|(_, fence, _)| *fence == 1));
    for store in stores {
        store.close().await;
    }
}

#[tokio::test]
async fn a_lease_can_be_renewed_only_while_its_worker_holds_it() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let chain = TestChain::new(&scope("one"), "jobs", 8);
    chain.recorded(&store).await;
    let job = chain.job(PartKind::Chunk, 0, 2);
    store.enqueue(&chain.scope, &job, 0).await.expect("offered");
    let held = store
        .claim(&ANYBODY, 10, 100)
        .await
        .expect("asked")
        .expect("a job");
    assert!(store.renew_lease(&held, 500).await.expect("asked"));
    assert!(
        store
            .claim(&ANYBODY, 400, 100)
            .await
            .expect("asked")
            .is_none()
    );
    let taken = store
        .claim(&ANYBODY, 501, 100)
        .await
        .expect("asked")
        .expect("it ran out");
    assert!(
        !store.renew_lease(&held, 9_000).await.expect("asked"),
        "another worker has it"
    );
    assert!(store.renew_lease(&taken, 9_000).await.expect("asked"));
}

/// Code shortens a log while the Reflector's job waits: both reflections are stored, each once.
#[tokio::test]
async fn a_code_reflection_does_not_replace_the_job_of_the_reflector() {
    let (store, chain) = recorded(6).await;
    let first = chain.observed(&store, 0, 4).await;
    let reflection = |code_reflection: bool| NewPart {
        kind: PartKind::Reflection,
        text: format!("condensed, in haste: {code_reflection}"),
        sources: vec![first],
        code_reflection,
        ..chain.chunk(0, 4)
    };
    let in_haste = async |at_ms| {
        let part = reflection(true);
        let stored = store
            .commit_code_reflection(&chain.scope, &part, at_ms)
            .await;
        stored.expect("stored")
    };
    let job = NewJob {
        parts: vec![first],
        ..chain.job(PartKind::Reflection, 0, 4)
    };
    // If the code-written one is stored first, the Reflector's job still runs, and its result is preferred.
    let stopgap = in_haste(3).await.expect("a part");
    assert_eq!(in_haste(4).await, None, "one is enough");
    let offered = store.enqueue(&chain.scope, &job, 5).await.expect("offered");
    assert_eq!(offered, EnqueueOutcome::Queued);
    assert_eq!(in_haste(6).await, None);
    assert_eq!(
        store.open_jobs(i64::MAX).await.expect("counted"),
        1,
        "it stays"
    );
    let job = store.claim(&ANYBODY, 7, LEASE).await.expect("claimed");
    let job = job.expect("a job");
    assert_eq!(job.spec.parts, [first]);
    let written = store.commit_part(&job, &reflection(false), 8).await;
    let written = written.expect("stored").expect("a part");
    assert!(written > stopgap);
    let offered = store
        .enqueue(&chain.scope, &job.spec, 9)
        .await
        .expect("offered");
    assert_eq!(offered, EnqueueOutcome::AlreadyExists);

    let links: Vec<Link> = (1..=6).map(|count| chain.first(count).tip()).collect();
    let known = store.load_chain(&chain.scope, &links).await.expect("read");
    let mut stands: Vec<_> = known
        .parts
        .iter()
        .map(|part| (part.id, part.code_reflection))
        .collect();
    stands.sort();
    assert_eq!(stands, [(first, false), (stopgap, true), (written, false)]);
    let parts = store.parts(&chain.scope, &[stopgap, written]).await;
    let texts = parts.expect("read").into_iter().map(|part| part.body.text);
    let texts: Vec<String> = texts.collect();
    assert_eq!(
        texts,
        ["condensed, in haste: true", "condensed, in haste: false"]
    );
}

/// The clock was a day ahead when the lease began. Its worker was killed, and the clock was set right.
#[tokio::test]
async fn a_lease_from_a_clock_that_was_ahead_lasts_no_longer_than_a_new_one() {
    let (store, chain) = recorded(6).await;
    let job = chain.job(PartKind::Chunk, 0, 4);
    let queued = store.enqueue(&chain.scope, &job, 0).await.expect("offered");
    assert_eq!(queued, EnqueueOutcome::Queued);
    let claim = async |at_ms| store.claim(&ANYBODY, at_ms, LEASE).await.expect("asked");
    let ahead = 24 * 60 * 60 * 1_000;
    let lost = claim(ahead).await.expect("a job");
    assert!(claim(LEASE).await.is_none());
    assert_eq!(store.make_due(LEASE, LEASE).await.expect("asked"), 1);
    // Its worker may live, and renew it.
    assert!(claim(2 * LEASE - 1).await.is_none());
    let held = claim(2 * LEASE).await.expect("it is free");
    let part = store.commit_part(&lost, &chain.chunk(0, 4), LEASE).await;
    assert_eq!(part.expect("refused"), None, "its worker lives after all");
    // A lease of now stays.
    assert_eq!(store.make_due(2 * LEASE, LEASE).await.expect("asked"), 0);
    assert!(claim(2 * LEASE).await.is_none());
    assert!(store.renew_lease(&held, 4 * LEASE).await.expect("asked"));
}
