//! The recorder and a worker, one step at a time, for simulations.
//!
//! Decides nothing. Between two steps anything may happen: another process writes, time passes, or
//! the value is dropped, which leaves what a crash leaves. Production runs the same functions as
//! tasks ([`super::Jobs::start`]).

use std::sync::Arc;

use super::base::Base;
use super::calibration::Calibration;
use super::clock::Clock;
use super::events::{Cycle, Events};
use super::exchange::Exchange;
use super::job_end::EndedJob;
use super::model_health::ModelHealth;
use super::outcome::JobOutcome;
use super::recorder::Recorder;
use super::settings::Reloadable;
use super::worker::Worker;
use super::{Jobs, UnstartedJobs, intake};
use crate::llm::ModelClient;
use crate::lookup::SnapshotCache;
use crate::store::{Job, Store, TenantAccounts};
use crate::tasks::{ComputePool, Losses, Tasks};
use crate::tokens::TokenCounter;

/// The result of a job's model calls, not stored yet.
#[derive(Debug)]
pub struct ManualAnswer(EndedJob);

/// The end of a job, not handled by the recorder yet.
#[derive(Debug)]
pub struct ManualOutcome(JobOutcome);

/// The recorder and a worker of one process.
pub struct ManualJobs {
    jobs: Jobs,
    worker: Arc<Worker>,
    recorder: Recorder,
}

impl std::fmt::Debug for ManualJobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManualJobs").finish_non_exhaustive()
    }
}

impl Jobs {
    /// The recorder and a worker without their tasks, on another clock. Nothing happens but the steps
    /// that the caller makes.
    pub fn manual(
        store: Arc<dyn Store>,
        cache: Arc<SnapshotCache>,
        counter: Arc<dyn TokenCounter>,
        llm: Arc<dyn ModelClient>,
        settings: Reloadable,
        clock: Clock,
    ) -> ManualJobs {
        let tasks = Tasks::new();
        let base = Base {
            events: Events::disabled(clock.clone(), settings.clone()),
            store,
            cache,
            counter,
            settings,
            clock: clock.clone(),
            accounts: TenantAccounts::default(),
            recording: Losses::new("recording", tasks.readiness()),
            health: ModelHealth::new(clock, tasks.readiness()),
            calibration: Calibration::default(),
            compute_pool: ComputePool::default(),
            tasks,
        };
        let unstarted = UnstartedJobs::new(&base, llm, None, &base.tasks);
        ManualJobs {
            jobs: unstarted.jobs,
            worker: unstarted.worker,
            recorder: Recorder::new(&base, unstarted.recorder_shares),
        }
    }
}

impl ManualJobs {
    /// The interface for the request path. Its intake accepts nothing: call [`ManualJobs::record`].
    pub fn jobs(&self) -> Jobs {
        let (intake, _exchanges) = intake::channel(&self.jobs.base);
        Jobs {
            intake,
            tasks: Tasks::new(),
            ..self.jobs.clone()
        }
    }

    /// The recorder records an exchange.
    pub async fn record(&mut self, exchange: Exchange) {
        for due in self.jobs.intake.admit(exchange) {
            self.recorder.record_alone(due).await;
        }
    }

    /// The recorder records exchanges that waited together.
    pub async fn record_all(&mut self, exchanges: Vec<Exchange>) {
        let (intake, queue) = intake::channel(&self.jobs.base);
        let mut waiting = Vec::new();
        for exchange in exchanges {
            intake.offer(exchange);
            waiting.extend(queue.recv(1, 1).await);
        }
        self.recorder.handle_exchanges(waiting).await;
    }

    /// The recorder handles the next timer that is due; `false` if none is.
    pub async fn fire_timer(&mut self) -> bool {
        self.recorder.fire_timer().await
    }

    /// A worker claims the next job that is due.
    pub async fn claim(&self) -> Option<Job> {
        self.worker.claim().await
    }

    /// The worker renews its lease; `false` if it was lost.
    pub async fn renew(&self, job: &Job) -> bool {
        self.worker.renew(job).await
    }

    /// The worker calls the model.
    pub async fn call_model(&self, job: &Job) -> ManualAnswer {
        let cycle = Arc::new(Cycle::new(&self.jobs.base.events));
        ManualAnswer(self.worker.call_for_job(job, &cycle).await)
    }

    /// The worker stores the part, or gives the job back.
    pub async fn finish(&self, job: &Job, answer: ManualAnswer) -> ManualOutcome {
        ManualOutcome(self.worker.finisher.finish(job, answer.0).await)
    }

    /// The recorder handles the end of a job.
    pub async fn on_outcome(&mut self, outcome: ManualOutcome) {
        self.recorder.handle_outcome(outcome.0).await;
    }
}
