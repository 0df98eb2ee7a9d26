//! The recorder and a worker, one step at a time: what the tasks of this room do, done when somebody
//! says so.
//!
//! Decides nothing. Between two steps anything may happen: another process may write, time may pass,
//! or the value is dropped, which is what a crash leaves of it. Called by the simulation; production
//! runs the same functions as tasks ([`super::Jobs::start`]).

use std::sync::Arc;

use super::events::Cycle;
use super::recorder::{JobOutcome, Recorder};
use super::worker::{self, CallResult};
use super::{Exchange, Jobs, Shop};
use crate::store::Job;

/// A claimed job whose model has answered, or has not.
#[derive(Debug)]
pub struct ManualAnswer(CallResult);

/// What a worker tells the recorder.
#[derive(Debug)]
pub struct ManualOutcome(JobOutcome);

/// Recorder and worker of one process.
pub struct ManualJobs {
    shop: Shop,
    recorder: Recorder,
}

impl std::fmt::Debug for ManualJobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByHand").finish_non_exhaustive()
    }
}

impl ManualJobs {
    pub(super) fn new(shop: Shop) -> Self {
        let recorder = Recorder::new(shop.clone(), Arc::default());
        Self { shop, recorder }
    }

    /// What the request path is given. What is put into its intake stays there: hand it to
    /// [`ByHand::record`].
    pub fn jobs(&self) -> Jobs {
        let (intake, _exchanges) = super::intake::channel();
        Jobs {
            intake,
            shop: self.shop.clone(),
            tasks: crate::tasks::Tasks::new(),
        }
    }

    /// The recorder takes an exchange.
    pub async fn record(&mut self, exchange: Exchange) {
        self.recorder.handle_exchange(exchange).await;
    }

    /// The recorder acts on the next timer that has run out; `false` where none has.
    pub async fn fire_timer(&mut self) -> bool {
        self.recorder.fire_timer().await
    }

    /// A worker leases the next job that is due.
    pub async fn claim(&self) -> Option<Job> {
        worker::claim(&self.shop).await
    }

    /// It renews its lease; `false` where it was lost.
    pub async fn renew(&self, job: &Job) -> bool {
        worker::renew(&self.shop, job).await
    }

    /// It asks the model.
    pub async fn call_model(&self, job: &Job) -> ManualAnswer {
        let cycle = Arc::new(Cycle::new(self.shop.clock.now_ms()));
        ManualAnswer(worker::call_for_job(&self.shop, job, &cycle).await)
    }

    /// It stores what the model wrote, or gives the job back.
    pub async fn finish(&self, job: &Job, answer: ManualAnswer) -> ManualOutcome {
        ManualOutcome(worker::finish_job(&self.shop, job, answer.0).await)
    }

    /// The recorder hears how a job ended.
    pub async fn on_outcome(&mut self, outcome: ManualOutcome) {
        self.recorder.handle_outcome(outcome.0).await;
    }
}
