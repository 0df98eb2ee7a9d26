//! Workers: claim a job and call a model for it. [`super::job_end`] stores the part.
//!
//! A worker decides nothing about memory. It holds a lease during its calls. If it dies, the lease
//! ends, and another worker starts the job again (INV-DUR).

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::FusedFuture as _;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::base::Base;
use super::bundle::Bundles;
use super::clock::millis;
use super::events::{Cycle, OverflowEvents};
use super::failure::Failure;
use super::job_end::{CODE_VERDICT, EndedJob, JobEnd, JobFinisher};
use super::model_call::{MODEL_CALLS, ModelCaller};
use super::observer::Observer;
use super::outcome::{JobOutcome, PendingWork};
use super::part_report::{self, CODE_AUTHOR, PartReport};
use super::reflector::Reflector;
use super::routes::{BorrowedCredential, Routes};
use super::settings::{Phase, Settings};
use crate::history::Scope;
use crate::llm::Endpoint;
use crate::memory::{NewPart, PartKind, PartMeta, Span};
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

/// A clock that goes back by less than this is only corrected: jobs wait that much longer.
const CLOCK_STEP: Duration = Duration::from_secs(10);

/// How often in a row a job is claimed without being given back or finished. After that it is abandoned:
/// whatever ends its process or its work would do so for ever.
const MAX_UNSETTLED: u32 = 5;

/// Performs the jobs of the queue.
pub(super) struct Worker {
    base: Base,
    routes: Arc<Routes>,
    caller: Arc<ModelCaller>,
    observer: Observer,
    reflector: Reflector,
    pub(super) finisher: JobFinisher,
    pending_work: PendingWork,
    /// Claims that the store has not answered.
    claims: Losses,
    /// Whether the jobs that wait are still to be made due, because the configuration is new, a model works again, or the
    /// clock went back.
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
            finisher: JobFinisher::new(base, routes, caller),
            pending_work: pending_work.clone(),
            claims: Losses::new("jobs", base.tasks.readiness()),
            retry_waiting: AtomicBool::new(true),
        }
    }

    /// The configuration was replaced: jobs that wait because of failures under the old one are due again.
    pub(super) fn configuration_changed(&self) {
        self.caller.reset();
        self.retry_waiting.store(true, Ordering::SeqCst);
    }

    /// Times at which jobs are due are those of the clock. If it goes back, jobs would wait for as long as it went back.
    fn notice_clock(&self, last_ms: &mut i64) {
        let now_ms = self.base.now_ms();
        if let Some(back_ms) = step_back(std::mem::replace(last_ms, now_ms), now_ms) {
            tracing::warn!(
                seconds = back_ms / 1_000,
                "the clock of this machine went back; jobs that wait for a later time are due now"
            );
            self.retry_waiting.store(true, Ordering::SeqCst);
        }
    }

    /// Makes the jobs due that wait, once for each configuration, when a model works again, and when the clock went back.
    async fn retry_waiting_jobs(&self) {
        let recovered = self.base.health.take_recovered();
        if !self.retry_waiting.swap(false, Ordering::SeqCst) && !recovered {
            return;
        }
        let made_due = self.base.store.make_due(self.base.now_ms(), millis(LEASE));
        match made_due.await {
            Ok(0) => {}
            Ok(jobs) => tracing::info!(
                jobs,
                "jobs that waited are due now: the configuration is new, a model works again, or the clock went back"
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
        let slots = Arc::new(Semaphore::new(MODEL_CALLS));
        let mut last_ms = self.base.now_ms();
        loop {
            let wait = self.routes.next_end_of_wait();
            let wait = wait.map_or(POLL_INTERVAL, |wait| wait.min(POLL_INTERVAL));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = wake.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
            // A reload can change it.
            if self.base.settings().read_only {
                continue;
            }
            tasks.fault_point("workers");
            self.notice_clock(&mut last_ms);
            self.retry_waiting_jobs().await;
            // A job that is given back at the stop is due at once, for the next process.
            while !stop.is_cancelled()
                && let Ok(slot) = Arc::clone(&slots).try_acquire_owned()
            {
                let Some(job) = self.claim().await else { break };
                let borrowed = self.borrow_for(&job);
                let (worker, outcomes, wake) =
                    (Arc::clone(&self), outcomes.clone(), Arc::clone(&wake));
                let stop = stop.clone();
                // From here on exactly one outcome is sent, however the job ends.
                self.pending_work.begin();
                tasks.spawn_background("job", async move {
                    let outcome = worker.perform(&job, &stop).await;
                    // The recorder ends only with the process.
                    let _ = outcomes.send(outcome);
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
                if error.is_logged() {
                    self.claims.blocked(&reason);
                } else {
                    self.claims.lost(&reason);
                }
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
    fn borrow_for(&self, job: &Job) -> Option<BorrowedCredential> {
        let borrows = self.base.borrows_credential(job);
        borrows.then(|| self.routes.borrow(job.scope.tenant))
    }

    /// Calls the model for `job` and ends the job.
    async fn perform(&self, job: &Job, stop: &CancellationToken) -> JobOutcome {
        let cycle = Arc::new(Cycle::new(&self.base.events));
        let ended = |end| EndedJob {
            cycle: Arc::clone(&cycle),
            end,
        };
        // One for the call and the end, so that no renewal is late.
        let mut keep_lease = pin!(self.keep_lease(job).fuse());
        let called = tokio::select! {
            // Checked first: an answer that has come is paid for.
            biased;
            called = self.call_or_fail(job, &cycle) => called,
            () = &mut keep_lease => ended(JobEnd::LeaseLost),
            () = stop.cancelled() => ended(JobEnd::Stopped),
        };
        // The end is not interrupted: behind the COMMIT of a part, a job that was stopped or has lost its lease would
        // count as failed. The lease is kept meanwhile: a failing store may need a while, and an ended lease would lose a
        // part that is paid for.
        let mut finish = pin!(AssertUnwindSafe(self.finisher.finish(job, called)).catch_unwind());
        let finished = loop {
            tokio::select! {
                biased;
                finished = &mut finish => break finished,
                () = &mut keep_lease, if !keep_lease.is_terminated() => {}
            }
        };
        if let Ok(outcome) = finished {
            return outcome;
        }
        log_fault(job);
        let fault = ended(JobEnd::Failed(Failure::Fault));
        self.finisher.finish(job, fault).await
    }

    /// As [`Worker::call_for_job`], unless the job was claimed too often. A panic is a failure of the job.
    async fn call_or_fail(&self, job: &Job, cycle: &Arc<Cycle>) -> EndedJob {
        let failed = |failure| EndedJob {
            cycle: Arc::clone(cycle),
            end: JobEnd::Failed(failure),
        };
        if job.unsettled > MAX_UNSETTLED {
            tracing::error!(
                kind = job.spec.kind.name(),
                thread = job.conversation,
                "a job was claimed {MAX_UNSETTLED} times in a row without an end, and is not tried again; \
                 `diarist threads observe` tries it once more"
            );
            return failed(Failure::GivenUp);
        }
        let call = async {
            let payload = job.spec.payload.as_bytes();
            self.base.tasks.fault_point_quoting("job", payload);
            self.call_for_job(job, cycle).await
        };
        let called = AssertUnwindSafe(call).catch_unwind().await;
        called.unwrap_or_else(|_| {
            log_fault(job);
            failed(Failure::Fault)
        })
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
            analysis: part_report::for_chunk(&self.base.compute_pool, job, &part).await,
            ..part
        })
    }

    /// Calls the model for `job`.
    pub(super) async fn call_for_job(&self, job: &Job, cycle: &Arc<Cycle>) -> EndedJob {
        let cycle = Arc::clone(cycle);
        let settings = self.base.settings().for_model(&job.spec.model);
        let Some(endpoint) = self.endpoint(settings.phase(job.spec.kind), job) else {
            let end = JobEnd::NoRoute;
            return EndedJob { cycle, end };
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
        let end = match result {
            Ok(part) => JobEnd::Written(Box::new(part)),
            Err(failure) => JobEnd::Failed(failure),
        };
        EndedJob { cycle, end }
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
            analysis: part_report::for_chunk(&self.base.compute_pool, &job, &part).await,
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
}

/// As with every task, the payload of the panic is not logged.
fn log_fault(job: &Job) {
    tracing::error!(
        kind = job.spec.kind.name(),
        thread = job.conversation,
        "a fault in the program ended a job; it is tried again"
    );
}

/// By how many milliseconds the clock went back between two looks at it, if that was a step.
fn step_back(last_ms: i64, now_ms: i64) -> Option<i64> {
    let back_ms = last_ms.saturating_sub(now_ms);
    (back_ms >= millis(CLOCK_STEP)).then_some(back_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clock_that_goes_back_by_much_makes_waiting_jobs_due() {
        assert_eq!(step_back(100_000, 40_000), Some(60_000));
        for now_ms in [99_000, 100_000, 86_500_000] {
            assert_eq!(step_back(100_000, now_ms), None);
        }
    }
}
