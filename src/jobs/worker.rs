//! Workers: claim a job, call a model, commit the part.
//!
//! A worker decides nothing about memory. It holds a lease during its calls. If it dies, the lease
//! ends, and another worker starts the job again (INV-DUR).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{Notify, Semaphore, mpsc};

use super::base::Base;
use super::bundle::Bundles;
use super::events::{Cycle, OverflowEvents};
use super::evidence::{self, CODE_AUTHOR, PartReport};
use super::failure::Failure;
use super::model_call::ModelCaller;
use super::observer::Observer;
use super::outcome::{JobOutcome, PendingWork};
use super::reflector::Reflector;
use super::retry_delay::{SLOW_RETRY_DELAY, retry_delay};
use super::routes::{RouteInUse, Routes};
use super::settings::{Phase, Settings};
use super::track::JobResult;
use crate::history::Scope;
use crate::llm::{CallError, Endpoint, backoff};
use crate::memory::advance::JobState;
use crate::memory::{NewPart, PartId, PartKind, PartMeta, Span};
use crate::store::{ClaimFilter, Job, Release, StoreError};
use crate::tasks::Losses;
use crate::telemetry;

/// How often idle workers look at the queue: for retries that are due, and for jobs of workers that
/// died.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The length of a lease. It is short, because the jobs of a process that died are free only after
/// it. A living worker renews it.
const LEASE: Duration = Duration::from_mins(1);

/// How often a lease is renewed. Two renewals may fail before it is lost.
const RENEWAL: Duration = Duration::from_secs(20);

/// The longest pause of a range that no model observes usefully, which grows with each try.
const MAX_USELESS_DELAY: Duration = Duration::from_hours(2);

/// How often in a row a job is claimed without being given back or finished. After that it is abandoned:
/// whatever ends its process or its work would do so for ever.
const MAX_UNSETTLED: u32 = 5;

/// Pauses between attempts to store a part.
const COMMIT_RETRY_DELAYS: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];

/// Performs the jobs of the queue.
pub(super) struct Worker {
    base: Base,
    routes: Arc<Routes>,
    caller: Arc<ModelCaller>,
    observer: Observer,
    reflector: Reflector,
    pending_work: PendingWork,
    /// Claims that the store has not answered.
    claims: Losses,
    /// Whether the jobs that wait are still to be made due, because the configuration is new or a model works again.
    retry_waiting: AtomicBool,
}

impl Worker {
    pub(super) fn new(
        base: &Base,
        routes: &Arc<Routes>,
        caller: &Arc<ModelCaller>,
        pending_work: &PendingWork,
    ) -> Self {
        Self {
            base: base.clone(),
            routes: Arc::clone(routes),
            caller: Arc::clone(caller),
            observer: Observer::new(base, caller),
            reflector: Reflector::new(base, caller),
            pending_work: pending_work.clone(),
            claims: Losses::new("jobs", base.tasks.readiness()),
            retry_waiting: AtomicBool::new(true),
        }
    }

    /// Another configuration is in force: nothing waits for what the last one failed at.
    pub(super) fn configuration_changed(&self) {
        self.caller.reset();
        self.retry_waiting.store(true, Ordering::SeqCst);
    }

    /// Makes the jobs due that wait, once for each configuration, and when a model works again.
    async fn retry_waiting_jobs(&self) {
        let recovered = self.base.health.take_recovered();
        if !self.retry_waiting.swap(false, Ordering::SeqCst) && !recovered {
            return;
        }
        match self.base.store.make_due(self.base.now_ms()).await {
            Ok(0) => {}
            Ok(jobs) => tracing::info!(
                jobs,
                "jobs that waited are due now: the configuration is new, or a model works again"
            ),
            // The database may not be open yet.
            Err(_) => self.retry_waiting.store(true, Ordering::SeqCst),
        }
    }

    /// Forgets the names of conversations.
    pub(super) fn clear_threads(&self) {
        self.caller.audit.clear_threads();
    }

    /// Notes the name of the conversation of `job`.
    pub(super) fn set_thread(&self, job: &Job, thread: Option<String>) {
        self.caller
            .audit
            .set_thread(&job.scope, job.spec.tip, thread);
    }

    fn bundles(&self) -> &Bundles {
        &self.caller.bundles
    }

    /// Runs until the tasks are stopped. Running calls are then abandoned, and their jobs are tried
    /// again.
    pub(super) async fn run(
        self: Arc<Self>,
        outcomes: mpsc::UnboundedSender<JobOutcome>,
        wake: Arc<Notify>,
    ) {
        let (tasks, stop) = (&self.base.tasks, self.base.tasks.token());
        let (slots, mut capacity) = (Arc::new(Semaphore::new(0)), 0);
        loop {
            let wait = self.routes.next_end_of_wait();
            let wait = wait.map_or(POLL_INTERVAL, |wait| wait.min(POLL_INTERVAL));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = wake.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
            // A reload may have closed or opened the queue.
            let concurrency = self.base.settings().concurrency;
            if concurrency == 0 {
                continue;
            }
            tasks.fault_point("workers");
            self.retry_waiting_jobs().await;
            slots.add_permits(concurrency.saturating_sub(capacity));
            capacity = capacity.max(concurrency);
            // A job that is given back at the stop is due at once, for the next process.
            while !stop.is_cancelled()
                && let Ok(slot) = Arc::clone(&slots).try_acquire_owned()
            {
                let Some(job) = self.claim().await else { break };
                let borrowed = self.borrow_for(&job);
                let (worker, events, wake) =
                    (Arc::clone(&self), outcomes.clone(), Arc::clone(&wake));
                let stop = stop.clone();
                let cycle = Arc::new(Cycle::new(&self.base.events));
                // From here on exactly one outcome is sent, however the job ends.
                self.pending_work.begin();
                tasks.spawn_background("job", async move {
                    let call_result = |outcome| CallResult {
                        cycle: Arc::clone(&cycle),
                        outcome,
                    };
                    // The lease is kept until the part is stored. A failing store may need a while,
                    // and an ended lease would lose a part that is paid for.
                    let outcome = tokio::select! {
                        // Checked first: a job that is committed has no lease any more.
                        biased;
                        outcome = worker.process_or_fail(&job, &cycle) => outcome,
                        () = worker.keep_lease(&job) => worker.finish_job(&job, call_result(CallOutcome::LeaseLost)).await,
                        () = stop.cancelled() => worker.finish_job(&job, call_result(CallOutcome::Stopped)).await,
                    };
                    // The recorder ends only with the process.
                    let _ = events.send(outcome);
                    drop((slot, borrowed));
                    // There is room for another job, and jobs that waited for this part may be due.
                    wake.notify_one();
                });
            }
        }
    }

    pub(super) async fn claim(&self) -> Option<Job> {
        let settings = self.base.settings();
        let filter = ClaimFilter {
            observe_any: settings.observation.endpoint.is_some(),
            reflect_any: settings.reflection.endpoint.is_some(),
            held_routes: self.routes.usable(),
            daily: settings.daily,
        };
        match self
            .base
            .store
            .claim(&filter, self.base.now_ms(), millis(LEASE))
            .await
        {
            Ok(job) => {
                self.claims.recovered();
                job
            }
            Err(error) => {
                metrics::counter!(telemetry::STORE_FAILURES).increment(1);
                let reason = format!("no job can be claimed, so nothing is observed: {error}");
                self.claims.lost(&reason);
                None
            }
        }
    }

    /// Renews the lease of `job` while it is held. Returns when it is lost: another worker has the
    /// job then, and the store would refuse this worker's part.
    async fn keep_lease(&self, job: &Job) {
        loop {
            tokio::time::sleep(RENEWAL).await;
            if !self.renew(job).await {
                return;
            }
        }
    }

    /// Renews the lease; `false` if it was lost.
    pub(super) async fn renew(&self, job: &Job) -> bool {
        let until_ms = self.base.now_ms() + millis(LEASE);
        // After an error of the store the lease may still be held, and the next renewal may
        // succeed.
        !matches!(self.base.store.renew_lease(job, until_ms).await, Ok(false))
    }

    /// Marks the borrowed credential of `job` as used until the result is dropped.
    fn borrow_for(&self, job: &Job) -> Option<RouteInUse> {
        let borrows = self.is_borrowed(job);
        borrows.then(|| self.routes.in_use(job.scope.tenant))
    }

    fn is_borrowed(&self, job: &Job) -> bool {
        let settings = self.base.settings().for_model(&job.spec.model);
        settings.phase(job.spec.kind).endpoint.is_none()
    }

    /// As [`Worker::process_job`]; a panic gives the job back.
    async fn process_or_fail(&self, job: &Job, cycle: &Arc<Cycle>) -> JobOutcome {
        if job.unsettled > MAX_UNSETTLED {
            tracing::error!(
                kind = job.spec.kind.name(),
                thread = job.conversation,
                "a job was claimed {MAX_UNSETTLED} times in a row without an end, and is not tried again; \
                 `diarist threads observe` tries it once more"
            );
            let outcome = CallOutcome::Failed(Failure::GivenUp);
            let cycle = Arc::clone(cycle);
            return self.finish_job(job, CallResult { cycle, outcome }).await;
        }
        let processed = AssertUnwindSafe(self.process_job(job, cycle)).catch_unwind();
        if let Ok(outcome) = processed.await {
            return outcome;
        }
        // As with every task, the payload of the panic is not logged.
        tracing::error!(
            kind = job.spec.kind.name(),
            thread = job.conversation,
            "a fault in the program ended a job; it is tried again"
        );
        let outcome = CallOutcome::Failed(Failure::Fault);
        let cycle = Arc::clone(cycle);
        self.finish_job(job, CallResult { cycle, outcome }).await
    }

    async fn process_job(&self, job: &Job, cycle: &Arc<Cycle>) -> JobOutcome {
        let payload = job.spec.payload.as_bytes();
        self.base.tasks.fault_point_quoting("job", payload);
        let result = self.call_for_job(job, cycle).await;
        self.finish_job(job, result).await
    }

    /// Observes `job`, which is in no queue. `None` if there is neither an endpoint nor a route.
    pub(super) async fn observe_unqueued(
        &self,
        job: &Job,
        overflow_events: &OverflowEvents,
    ) -> Option<Result<NewPart, Failure>> {
        let settings = self.base.settings().for_model(&job.spec.model);
        let endpoint = self.endpoint(&settings.observation, job)?;
        overflow_events.started(&settings, job);
        let _forget_call = self.bundles().forget_on_drop(job);
        let observed = self.observe(&settings, &endpoint, job).await;
        let verdict = match &observed {
            Ok(part) => (part.model == CODE_AUTHOR).then_some(CODE_VERDICT),
            Err(failure) => Some(failure.message()),
        };
        self.bundles().job_ended(job, verdict).await;
        Some(observed.inspect_err(|failure| overflow_events.failed(job, failure.message())))
    }

    async fn observe(
        &self,
        settings: &Settings,
        endpoint: &Endpoint,
        job: &Job,
    ) -> Result<NewPart, Failure> {
        let part = self.observer.observe(settings, endpoint, job).await?;
        Ok(NewPart {
            analysis: evidence::for_chunk(&self.base.compute_pool, job, &part).await,
            ..part
        })
    }

    /// Calls the model for `job`.
    pub(super) async fn call_for_job(&self, job: &Job, cycle: &Arc<Cycle>) -> CallResult {
        let cycle = Arc::clone(cycle);
        let settings = self.base.settings().for_model(&job.spec.model);
        let Some(endpoint) = self.endpoint(settings.phase(job.spec.kind), job) else {
            let outcome = CallOutcome::NoRoute;
            return CallResult { cycle, outcome };
        };
        cycle.started(&settings, job);
        let result = match job.spec.kind {
            PartKind::Chunk => self.observe(&settings, &endpoint, job).await,
            PartKind::Reflection => {
                self.reflector
                    .reflect(&settings, &endpoint, job, &cycle)
                    .await
            }
        };
        let label = match &result {
            Ok(_) => "written",
            Err(Failure::Empty | Failure::Useless) => "empty",
            Err(Failure::GivenUp | Failure::Unreadable) => "given_up",
            Err(Failure::Call(_) | Failure::Fault) => "failed",
        };
        metrics::counter!(telemetry::JOBS, "kind" => job.spec.kind.name(), "outcome" => label)
            .increment(1);
        let outcome = match result {
            Ok(part) => CallOutcome::Written(Box::new(part)),
            Err(failure) => CallOutcome::Failed(failure),
        };
        CallResult { cycle, outcome }
    }

    /// Stores the part, or gives the job back.
    pub(super) async fn finish_job(&self, job: &Job, call: CallResult) -> JobOutcome {
        let now_ms = self.base.now_ms();
        let failure_message = call.outcome.failure_message();
        let verdict = call.outcome.verdict();
        let report = match &call.outcome {
            CallOutcome::Written(part) => Some(PartReport::from_part(part)),
            _ => None,
        };
        let result = match call.outcome {
            CallOutcome::Written(part) => self.commit_part(job, *part).await,
            CallOutcome::NoRoute => self.release(job, Release::RetryAt(now_ms + 1_000)).await,
            // Only the store knows what became of the job.
            CallOutcome::LeaseLost => JobResult::Gone,
            // So that the next process can start at once. If the release fails, the job is free
            // when the lease ends.
            CallOutcome::Stopped => self.release(job, Release::RetryAt(now_ms)).await,
            CallOutcome::Failed(Failure::Empty) => {
                self.release(job, Release::EmptyRetryAt(now_ms)).await
            }
            CallOutcome::Failed(Failure::Useless) => {
                // Not charged again: nobody gains from a range that is read in vain, and the account
                // must have room when the model is corrected.
                let wait = SLOW_RETRY_DELAY.saturating_mul(job.empty_answers.max(1));
                let retry_at_ms = now_ms + millis(wait.min(MAX_USELESS_DELAY));
                self.release(job, Release::RejectedRetryAt(retry_at_ms))
                    .await
            }
            CallOutcome::Failed(Failure::Fault) => {
                let wait = backoff(job.unsettled.saturating_sub(1), None);
                self.release(job, Release::FaultRetryAt(now_ms + millis(wait)))
                    .await
            }
            CallOutcome::Failed(Failure::GivenUp) => self.release(job, Release::Abandon).await,
            CallOutcome::Failed(Failure::Unreadable) => {
                tracing::warn!("a job could not be read; the next request offers its range again");
                self.release(job, Release::Drop).await
            }
            CallOutcome::Failed(Failure::Call(error)) => {
                let borrowed = self.is_borrowed(job);
                if let CallError::RateLimited { retry_after, .. } = &error
                    && borrowed
                {
                    self.routes.limited(&job.scope.tenant, *retry_after);
                }
                let withdrawn = matches!(error, CallError::Unauthorised { .. }) && borrowed;
                if withdrawn {
                    self.routes.withdraw(&job.scope.tenant, job.spec.route_hash);
                }
                // A job without a route cannot be claimed. The next request registers the route
                // again.
                let wait = if withdrawn {
                    Duration::ZERO
                } else {
                    retry_delay(job.attempts, &error)
                };
                // [`super::model_health`] warns of it, once a minute.
                tracing::debug!(
                    kind = job.spec.kind.name(),
                    attempts = job.attempts,
                    retry_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
                    error = %error,
                    "a model call of memory failed; requests are not affected"
                );
                let retry_at_ms = now_ms + millis(wait);
                let action = match error {
                    // The prompt may be the reason: see [`super::failure::is_rejected_for_good`].
                    CallError::Rejected { .. } => Release::RejectedRetryAt(retry_at_ms),
                    _ => Release::RetryAt(retry_at_ms),
                };
                self.release(job, action).await
            }
        };
        self.bundles().job_ended(job, verdict.as_deref()).await;
        match (&result, failure_message) {
            (JobResult::Written(part), _) => call.cycle.ended(job, part.tokens, report.as_ref()),
            (_, Some(message)) => call.cycle.failed(job, &message),
            (_, None) => {}
        }
        JobOutcome {
            scope: job.scope.clone(),
            kind: job.spec.kind,
            span: job.spec.span,
            result,
            report,
        }
    }

    /// Lets code cover the range that ends at `span`, which waits for an Observer. `None` if a worker has it,
    /// or if it is done.
    pub(super) async fn cover_by_code(
        &self,
        scope: &Scope,
        span: &Span,
    ) -> Result<Option<(PartMeta, PartReport)>, StoreError> {
        let (store, now_ms) = (&self.base.store, self.base.now_ms());
        let claimed = store
            .claim_observation(scope, span, now_ms, millis(LEASE))
            .await?;
        let Some(job) = claimed else { return Ok(None) };
        let Some(part) = self.observer.write_by_code(&job).await else {
            store.release(&job, Release::Drop).await?;
            return Ok(None);
        };
        let part = NewPart {
            analysis: evidence::for_chunk(&self.base.compute_pool, &job, &part).await,
            ..part
        };
        let id = store.commit_part(&job, &part, now_ms).await?;
        Ok(id.map(|id| (part.meta(id), PartReport::from_part(&part))))
    }

    fn endpoint(&self, phase: &Phase, job: &Job) -> Option<Endpoint> {
        phase.endpoint.clone().or_else(|| {
            let route = self.routes.get(&job.scope.tenant, job.spec.route_hash);
            route.map(Endpoint::Borrowed)
        })
    }

    /// Stores `part`, in several attempts. It is paid for, so a failing store gets time to recover.
    async fn store_part(&self, job: &Job, part: &NewPart) -> Result<Option<PartId>, StoreError> {
        for wait in COMMIT_RETRY_DELAYS {
            match self
                .base
                .store
                .commit_part(job, part, self.base.now_ms())
                .await
            {
                Err(error) => tracing::debug!(error = %error, "a part could not be stored yet"),
                result => return result,
            }
            tokio::time::sleep(wait).await;
        }
        self.base
            .store
            .commit_part(job, part, self.base.now_ms())
            .await
    }

    async fn commit_part(&self, job: &Job, part: NewPart) -> JobResult {
        match self.store_part(job, &part).await {
            Ok(Some(id)) => {
                tracing::info!(
                    tenant = %job.scope.tenant_label(),
                    kind = part.kind.name(),
                    messages = part.span.to_count - part.span.from_count,
                    message_tokens = part.message_tokens,
                    tokens = part.tokens,
                    model = %part.model,
                    retention = %part.analysis.retention.to_json(),
                    "wrote a part of the log"
                );
                JobResult::Written(part.meta(id))
            }
            Ok(None) => JobResult::Gone,
            Err(error) => {
                metrics::counter!(telemetry::STORE_FAILURES).increment(1);
                tracing::warn!(error = %error, "a part could not be stored; its job will be done again");
                JobResult::Pending(JobState::Retrying)
            }
        }
    }

    async fn release(&self, job: &Job, action: Release) -> JobResult {
        if let Err(error) = self.base.store.release(job, action).await {
            metrics::counter!(telemetry::STORE_FAILURES).increment(1);
            tracing::warn!(error = %error, "a job could not be given back; it is free when its lease ends");
        }
        match action {
            Release::Abandon => JobResult::Pending(JobState::Abandoned),
            Release::RetryAt(_)
            | Release::EmptyRetryAt(_)
            | Release::RejectedRetryAt(_)
            | Release::FaultRetryAt(_) => JobResult::Pending(JobState::Retrying),
            Release::Drop => JobResult::Gone,
        }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4)
}

/// The result of the model calls for a job.
#[derive(Debug)]
pub(super) struct CallResult {
    /// The events of its tries.
    cycle: Arc<Cycle>,
    outcome: CallOutcome,
}

#[derive(Debug)]
enum CallOutcome {
    /// The calls wrote a part.
    Written(Box<NewPart>),
    /// They wrote none.
    Failed(Failure),
    /// The route was gone between claim and call.
    NoRoute,
    /// The lease was lost: another worker has the job, or it was deleted.
    LeaseLost,
    /// The process is stopping.
    Stopped,
}

/// The verdict on a call whose part was written by code.
const CODE_VERDICT: &str = "no answer could be used, and code wrote in its place";

impl CallOutcome {
    /// Why the last call is worth a bundle: its answer could not be used, or it failed.
    fn verdict(&self) -> Option<String> {
        match self {
            Self::Written(part) if part.model == CODE_AUTHOR => Some(CODE_VERDICT.to_owned()),
            Self::Failed(_) => self.failure_message(),
            _ => None,
        }
    }

    /// The message for logs and events. `None` if no model was called.
    fn failure_message(&self) -> Option<String> {
        Some(match self {
            Self::NoRoute => return None,
            Self::Written(_) => "the part could not be stored".to_owned(),
            Self::Failed(failure) => failure.message().to_owned(),
            Self::LeaseLost => "the lease was lost".to_owned(),
            Self::Stopped => "the process was stopped".to_owned(),
        })
    }
}
