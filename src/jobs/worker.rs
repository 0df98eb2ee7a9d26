//! Workers: claim a job, call a model, commit what it wrote.
//!
//! A worker decides nothing about memory. It holds a lease for the time of its calls; should it die,
//! the lease runs out and another worker starts the same job again (INV-DUR).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, mpsc};

use super::events::{Awaited, Cycle};
use super::evidence::Kept;
use super::failure::Failure;
use super::recorder::Outcome;
use super::track::Settled;
use super::{Phase, Settings, Shop, bundle, evidence, observer, reflector};
use crate::llm::{CallError, Endpoint, backoff};
use crate::memory::advance::WorkState;
use crate::memory::{NewPart, PartId, PartKind};
use crate::store::{ClaimFilter, Job, Release, StoreError};
use crate::tasks::Tasks;
use crate::telemetry;

/// How often the queue is looked at when nobody woke the workers: for retries that became due and
/// for leases of workers that died.
const LOOK: Duration = Duration::from_secs(2);

/// What a lease lasts. Short, since the jobs of a process that died are free again only when it runs
/// out; a worker that is alive renews it.
const LEASE: Duration = Duration::from_mins(1);

/// How often a lease is renewed: two renewals may fail before it is lost.
const RENEWAL: Duration = Duration::from_secs(20);

/// Retries on the published schedule (see [`backoff`]), some six minutes in all.
const RETRIES: u32 = 8;

/// How long a job rests that no retry is likely to help.
const RARELY: Duration = Duration::from_mins(10);

/// What stands in the place of a model's name where code wrote.
const CODE: &str = "code";

/// Pauses between tries to store what a model wrote.
const COMMIT_AGAIN: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];

/// Runs until the tasks are told to stop. Calls under way are then abandoned: their jobs come again.
pub(super) async fn run(
    shop: Shop,
    events: mpsc::UnboundedSender<Outcome>,
    wake: Arc<Notify>,
    tasks: Tasks,
) {
    let stop = tasks.token();
    let (room, mut places) = (Arc::new(Semaphore::new(0)), 0);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = wake.notified() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
        // A reload may have closed the queue, or opened it.
        let concurrency = shop.settings.now().concurrency;
        if concurrency == 0 {
            continue;
        }
        room.add_permits(concurrency.saturating_sub(places));
        places = places.max(concurrency);
        while let Ok(place) = Arc::clone(&room).try_acquire_owned() {
            let Some(job) = claim(&shop).await else { break };
            let (shop, events, wake) = (shop.clone(), events.clone(), Arc::clone(&wake));
            let stop = stop.clone();
            let cycle = Arc::new(Cycle::new(shop.clock.now_ms()));
            // From here on exactly one outcome will be told, however the job ends.
            shop.untold.fetch_add(1, Ordering::SeqCst);
            tasks.spawn("job", async move {
                let ended = |how| Answered {
                    cycle: Arc::clone(&cycle),
                    how,
                };
                // The lease is kept until what was written is stored: a store in trouble may take a
                // while, and what was paid for must not be lost to a lease that ran out.
                let outcome = tokio::select! {
                    // First, since what is committed is no longer held.
                    biased;
                    outcome = work(&shop, &job, &cycle) => outcome,
                    () = keep(&shop, &job) => settle(&shop, &job, ended(How::Lost)).await,
                    () = stop.cancelled() => settle(&shop, &job, ended(How::Stopped)).await,
                };
                // The recorder only goes away when the process does.
                let _ = events.send(outcome);
                drop(place);
                // There is room again, and what waited for this part may be due.
                wake.notify_one();
            });
        }
    }
}

pub(super) async fn claim(shop: &Shop) -> Option<Job> {
    let settings = shop.settings.now();
    let filter = ClaimFilter {
        observe_any: settings.observation.endpoint.is_some(),
        reflect_any: settings.reflection.endpoint.is_some(),
        held: shop.routes.usable(),
        daily_tokens: settings.daily_tokens,
    };
    match shop
        .store
        .claim(&filter, shop.clock.now_ms(), millis(LEASE))
        .await
    {
        Ok(job) => job,
        Err(error) => {
            metrics::counter!(telemetry::STORE_FAILURES).increment(1);
            tracing::debug!(error = %error, "no job could be claimed");
            None
        }
    }
}

/// Renews the lease of `job` for as long as it is held. Ends where it was lost: another worker has
/// the job then, and what this one writes would be refused.
async fn keep(shop: &Shop, job: &Job) {
    loop {
        tokio::time::sleep(RENEWAL).await;
        if !renew(shop, job).await {
            return;
        }
    }
}

/// `false` where the lease was lost.
pub(super) async fn renew(shop: &Shop, job: &Job) -> bool {
    let until_ms = shop.clock.now_ms() + millis(LEASE);
    // A store in trouble may be out of it by the next renewal.
    !matches!(shop.store.renew(job, until_ms).await, Ok(false))
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4)
}

async fn work(shop: &Shop, job: &Job, cycle: &Arc<Cycle>) -> Outcome {
    let answered = ask(shop, job, cycle).await;
    settle(shop, job, answered).await
}

/// What came of asking the model.
#[derive(Debug)]
pub(super) struct Answered {
    /// What was told of it.
    cycle: Arc<Cycle>,
    how: How,
}

#[derive(Debug)]
enum How {
    /// With a part.
    Wrote(Box<NewPart>),
    /// Without one.
    Failed(Failure),
    /// The credential went away between claim and call.
    NoWay,
    /// The lease was lost meanwhile: another worker has the job, or it was forgotten.
    Lost,
    /// The process is told to stop.
    Stopped,
}

/// The verdict on a call that a part of code was written for.
const BY_CODE: &str = "no answer could be used, and code wrote in its place";

impl How {
    /// Why a call is worth keeping: nobody could use what was said, or nothing was.
    fn verdict(&self) -> Option<String> {
        match self {
            Self::Wrote(part) if part.model == CODE => Some(BY_CODE.to_owned()),
            Self::Failed(_) => self.trouble(),
            _ => None,
        }
    }

    /// What is told of a try that comes to nothing: the provider's message or ours, no more. `None`
    /// where no model was asked.
    fn trouble(&self) -> Option<String> {
        Some(match self {
            Self::NoWay => return None,
            Self::Wrote(_) => "what was written could not be stored".to_owned(),
            Self::Failed(failure) => failure.told().to_owned(),
            Self::Lost => "the lease was lost".to_owned(),
            Self::Stopped => "the process was told to stop".to_owned(),
        })
    }
}

/// The chunk of `job`, which is in no queue; `None` where nobody can be asked for it.
pub(super) async fn observe_beside(
    shop: &Shop,
    job: &Job,
    awaited: &Awaited,
) -> Option<Result<NewPart, Failure>> {
    let settings = shop.settings.now().for_model(&job.work.model);
    let endpoint = endpoint(shop, &settings.observation, job)?;
    awaited.started(&settings, job);
    let _waiting = bundle::Waiting(shop, job);
    let observed = observe(shop, &settings, &endpoint, job).await;
    let verdict = match &observed {
        Ok(part) => (part.model == CODE).then_some(BY_CODE),
        Err(failure) => Some(failure.told()),
    };
    bundle::ended(shop, job, verdict).await;
    Some(observed.inspect_err(|failure| awaited.failed(job, failure.told())))
}

async fn observe(
    shop: &Shop,
    settings: &Settings,
    endpoint: &Endpoint,
    job: &Job,
) -> Result<NewPart, Failure> {
    let part = observer::observe(shop, settings, endpoint, job).await?;
    Ok(NewPart {
        evidence: evidence::of_chunk(job, &part).await,
        ..part
    })
}

/// Asks the model of `job`.
pub(super) async fn ask(shop: &Shop, job: &Job, cycle: &Arc<Cycle>) -> Answered {
    let cycle = Arc::clone(cycle);
    let settings = shop.settings.now().for_model(&job.work.model);
    let Some(endpoint) = endpoint(shop, settings.phase(job.work.kind), job) else {
        let how = How::NoWay;
        return Answered { cycle, how };
    };
    cycle.started(shop, &settings, job);
    let result = match job.work.kind {
        PartKind::Chunk => observe(shop, &settings, &endpoint, job).await,
        PartKind::Reflection => reflector::reflect(shop, &settings, &endpoint, job, &cycle).await,
    };
    let outcome = match &result {
        Ok(_) => "written",
        Err(Failure::Empty) => "empty",
        Err(Failure::Hopeless | Failure::Unreadable) => "given_up",
        Err(Failure::Call(_)) => "failed",
    };
    metrics::counter!(telemetry::JOBS, "kind" => job.work.kind.name(), "outcome" => outcome)
        .increment(1);
    let how = match result {
        Ok(part) => How::Wrote(Box::new(part)),
        Err(failure) => How::Failed(failure),
    };
    Answered { cycle, how }
}

/// Stores what the model wrote, or gives the job back.
pub(super) async fn settle(shop: &Shop, job: &Job, answered: Answered) -> Outcome {
    let now_ms = shop.clock.now_ms();
    let trouble = answered.how.trouble();
    let verdict = answered.how.verdict();
    let kept = match &answered.how {
        How::Wrote(part) => Some(Kept::of(part)),
        _ => None,
    };
    let settled = match answered.how {
        How::Wrote(part) => commit(shop, job, *part).await,
        How::NoWay => release(shop, job, Release::RetryAt(now_ms + 1_000)).await,
        // Only the store knows what became of it.
        How::Lost => Settled::Gone,
        // So that whoever runs next need not wait for the lease to run out. Where that fails, it does.
        How::Stopped => release(shop, job, Release::RetryAt(now_ms)).await,
        How::Failed(Failure::Empty) => release(shop, job, Release::EmptyRetryAt(now_ms)).await,
        How::Failed(Failure::Hopeless) => release(shop, job, Release::Abandon).await,
        How::Failed(Failure::Unreadable) => {
            tracing::warn!("a job could not be read; the next request offers its words again");
            release(shop, job, Release::Drop).await
        }
        How::Failed(Failure::Call(error)) => {
            let borrowed = shop.settings.now().phase(job.work.kind).endpoint.is_none();
            let withdrawn = matches!(error, CallError::Unauthorised { .. }) && borrowed;
            if withdrawn {
                shop.routes.withdraw(&job.scope.tenant, job.work.way);
            }
            // What was withdrawn can not be claimed; the next request lends it anew.
            let wait = if withdrawn {
                Duration::ZERO
            } else {
                pause(job.attempts, &error)
            };
            tracing::warn!(
                kind = job.work.kind.name(),
                attempts = job.attempts,
                retry_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
                error = %error,
                "a model call of memory failed; requests are not affected"
            );
            let again_ms = now_ms + millis(wait);
            let how = match error {
                // The prompt may be at fault: see `failure::REJECTIONS`.
                CallError::Rejected { .. } => Release::RejectedRetryAt(again_ms),
                _ => Release::RetryAt(again_ms),
            };
            release(shop, job, how).await
        }
    };
    bundle::ended(shop, job, verdict.as_deref()).await;
    match (&settled, trouble) {
        (Settled::Written(part), _) => answered.cycle.ended(shop, job, part.tokens, kept.as_ref()),
        (_, Some(trouble)) => answered.cycle.failed(shop, job, &trouble),
        (_, None) => {}
    }
    Outcome {
        scope: job.scope.clone(),
        kind: job.work.kind,
        span: job.work.span,
        settled,
        kept,
    }
}

/// How long a job waits after its call failed, which was claimed `attempts` times. What will fail
/// again until somebody mends it, and what failed through the whole published schedule, is tried now
/// and then: nothing is lost by waiting, and every try may cost.
fn pause(attempts: u32, error: &CallError) -> Duration {
    let wait = backoff(attempts.saturating_sub(1), error.retry_after());
    if error.is_retryable() && attempts <= RETRIES {
        return wait;
    }
    wait.max(RARELY)
}

fn endpoint(shop: &Shop, phase: &Phase, job: &Job) -> Option<Endpoint> {
    phase.endpoint.clone().or_else(|| {
        let route = shop.routes.of(&job.scope.tenant, job.work.way);
        route.map(Endpoint::Borrowed)
    })
}

/// Stores `part`. It has been paid for: a store in trouble is given time to get out of it.
async fn store(shop: &Shop, job: &Job, part: &NewPart) -> Result<Option<PartId>, StoreError> {
    for wait in COMMIT_AGAIN {
        match shop.store.commit_part(job, part, shop.clock.now_ms()).await {
            Err(error) => tracing::debug!(error = %error, "a part could not be stored yet"),
            settled => return settled,
        }
        tokio::time::sleep(wait).await;
    }
    shop.store.commit_part(job, part, shop.clock.now_ms()).await
}

async fn commit(shop: &Shop, job: &Job, part: NewPart) -> Settled {
    match store(shop, job, &part).await {
        Ok(Some(id)) => {
            tracing::info!(
                tenant = %job.scope.tenant_label(),
                kind = part.kind.name(),
                messages = part.span.to_count - part.span.from_count,
                message_tokens = part.message_tokens,
                tokens = part.tokens,
                model = %part.model,
                retention = %part.evidence.retention.to_json(),
                "wrote a part of the log"
            );
            Settled::Written(part.meta(id))
        }
        Ok(None) => Settled::Gone,
        Err(error) => {
            metrics::counter!(telemetry::STORE_FAILURES).increment(1);
            tracing::warn!(error = %error, "a part could not be stored; its job comes again");
            Settled::Waiting(WorkState::Retrying)
        }
    }
}

async fn release(shop: &Shop, job: &Job, how: Release) -> Settled {
    if let Err(error) = shop.store.release(job, how).await {
        metrics::counter!(telemetry::STORE_FAILURES).increment(1);
        tracing::warn!(error = %error, "a job could not be given back; its lease will run out");
    }
    match how {
        Release::Abandon => Settled::Waiting(WorkState::Abandoned),
        Release::RetryAt(_) | Release::EmptyRetryAt(_) | Release::RejectedRetryAt(_) => {
            Settled::Waiting(WorkState::Retrying)
        }
        Release::Drop => Settled::Gone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_follow_the_published_schedule_and_then_become_rare() {
        let failed = CallError::Transient {
            retry_after: None,
            message: String::new(),
        };
        let within = |attempts, error: &CallError, seconds: f64| {
            let wait = pause(attempts, error).as_secs_f64();
            assert!(
                (seconds * 0.8..=seconds * 1.2).contains(&wait),
                "{attempts}: {wait}"
            );
        };
        for (attempts, seconds) in [(1, 1.0), (2, 2.0), (3, 4.0), (7, 64.0), (8, 120.0)] {
            within(attempts, &failed, seconds);
        }
        assert_eq!(pause(9, &failed), RARELY);
        let wrong = CallError::Fatal {
            message: String::new(),
        };
        assert_eq!(pause(1, &wrong), RARELY, "the same call will fail again");
        let asked = CallError::RateLimited {
            retry_after: Some(Duration::from_mins(20)),
            message: String::new(),
        };
        assert!(
            pause(1, &asked) >= Duration::from_mins(20),
            "what was asked for is heeded"
        );
    }
}
