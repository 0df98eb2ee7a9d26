//! The recorder and a worker, one step at a time: what the tasks of this room do, done when somebody
//! says so.
//!
//! Decides nothing. Between two steps anything may happen: another process may write, time may pass,
//! or the value is dropped, which is what a crash leaves of it. Called by the simulation; production
//! runs the same functions as tasks ([`super::Jobs::start`]).

use std::sync::Arc;

use super::events::Cycle;
use super::recorder::{Outcome, Recorder};
use super::worker::{self, Answered};
use super::{Exchange, Jobs, Shop};
use crate::store::Job;

/// A claimed job whose model has answered, or has not.
#[derive(Debug)]
pub struct Written(Answered);

/// What a worker tells the recorder.
#[derive(Debug)]
pub struct Told(Outcome);

/// Recorder and worker of one process.
pub struct ByHand {
    shop: Shop,
    recorder: Recorder,
}

impl std::fmt::Debug for ByHand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByHand").finish_non_exhaustive()
    }
}

impl ByHand {
    pub(super) fn new(shop: Shop) -> Self {
        let recorder = Recorder::new(shop.clone(), Arc::default());
        Self { shop, recorder }
    }

    /// What the request path is given. What is put into its intake stays there: hand it to
    /// [`ByHand::record`].
    pub fn jobs(&self) -> Jobs {
        let (intake, _exchanges) = super::intake::queue();
        Jobs {
            intake,
            shop: self.shop.clone(),
            tasks: crate::tasks::Tasks::new(),
        }
    }

    /// The recorder takes an exchange.
    pub async fn record(&mut self, exchange: Exchange) {
        self.recorder.exchange(exchange).await;
    }

    /// The recorder acts on the next timer that has run out; `false` where none has.
    pub async fn ring(&mut self) -> bool {
        self.recorder.ring().await
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
    pub async fn ask(&self, job: &Job) -> Written {
        let cycle = Arc::new(Cycle::new(self.shop.clock.now_ms()));
        Written(worker::ask(&self.shop, job, &cycle).await)
    }

    /// It stores what the model wrote, or gives the job back.
    pub async fn settle(&self, job: &Job, written: Written) -> Told {
        Told(worker::settle(&self.shop, job, written.0).await)
    }

    /// The recorder hears how a job ended.
    pub async fn hear(&mut self, told: Told) {
        self.recorder.outcome(told.0).await;
    }
}
