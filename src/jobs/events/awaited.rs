//! What is told of models that are asked while a client waits (`overflow = "observe"`): one cycle for
//! each range, like that of any job. The log has it at once; the timeline has it when the upstream has
//! accepted what came of it, and not at all where it has not. Called by `rescue` and its worker.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Cycle;
use crate::jobs::evidence::Kept;
use crate::jobs::{Settings, Shop};
use crate::memory::NewPart;
use crate::store::{Event, Job};

/// The tries for one request, in the order in which they began. Dropped, those fail that have no end
/// yet: the time is over, or nobody waits any more.
pub(in crate::jobs) struct Awaited {
    shop: Shop,
    tries: Mutex<Vec<Try>>,
}

struct Try {
    job: Job,
    cycle: Cycle,
    failed: bool,
}

impl Awaited {
    /// None has begun.
    pub(in crate::jobs) fn new(shop: &Shop) -> Self {
        Self {
            shop: shop.clone(),
            tries: Mutex::default(),
        }
    }

    fn tries(&self) -> MutexGuard<'_, Vec<Try>> {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A model is about to be asked for `job`.
    pub(in crate::jobs) fn started(&self, settings: &Settings, job: &Job) {
        let cycle = Cycle::beside(self.shop.clock.now_ms());
        cycle.started(&self.shop, settings, job);
        self.tries().push(Try {
            job: job.clone(),
            cycle,
            failed: false,
        });
    }

    /// It did not write a part.
    pub(in crate::jobs) fn failed(&self, job: &Job, error: &str) {
        let mut tries = self.tries();
        let mut tries = tries.iter_mut();
        if let Some(of_job) = tries.find(|known| known.job.work.span == job.work.span) {
            of_job.failed = true;
            of_job.cycle.failed(&self.shop, job, error);
        }
    }

    /// The wait is over, and `used` is what came of it; whatever else began comes to nothing. What is
    /// to be kept with it.
    pub(in crate::jobs) fn ended(&self, used: &[NewPart]) -> Vec<Event> {
        let mut events = Vec::new();
        for Try { job, cycle, failed } in std::mem::take(&mut *self.tries()) {
            let part = used.iter().find(|part| part.span == job.work.span);
            match part {
                Some(part) => {
                    cycle.ended(&self.shop, &job, part.tokens, Some(&Kept::of(part)));
                }
                None if !failed => cycle.failed(&self.shop, &job, "nobody waits for it any more"),
                None => {}
            }
            events.extend(cycle.told());
        }
        events
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.ended(&[]);
    }
}
