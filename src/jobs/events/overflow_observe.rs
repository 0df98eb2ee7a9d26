//! What is told of models that are asked while a client waits (`overflow = "observe"`): one cycle for
//! each range, like that of any job. The log has it at once; the timeline has it when the upstream has
//! accepted what came of it, and not at all where it has not. Called by `rescue` and its worker.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Cycle, Events};
use crate::jobs::evidence::PartReport;
use crate::jobs::settings::Settings;
use crate::memory::NewPart;
use crate::store::{Event, Job};

/// The tries for one request, in the order in which they began. Dropped, those fail that have no end
/// yet: the time is over, or nobody waits any more.
pub(in crate::jobs) struct OverflowEvents {
    log: Events,
    attempts: Mutex<Vec<ObserveAttempt>>,
}

struct ObserveAttempt {
    job: Job,
    cycle: Cycle,
    failed: bool,
}

impl OverflowEvents {
    /// None has begun.
    pub(in crate::jobs) fn new(log: &Events) -> Self {
        Self {
            log: log.clone(),
            attempts: Mutex::default(),
        }
    }

    fn lock_attempts(&self) -> MutexGuard<'_, Vec<ObserveAttempt>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A model is about to be asked for `job`.
    pub(in crate::jobs) fn started(&self, settings: &Settings, job: &Job) {
        let cycle = Cycle::unqueued(&self.log);
        cycle.started(settings, job);
        self.lock_attempts().push(ObserveAttempt {
            job: job.clone(),
            cycle,
            failed: false,
        });
    }

    /// It did not write a part.
    pub(in crate::jobs) fn failed(&self, job: &Job, error: &str) {
        let mut attempts = self.lock_attempts();
        let mut attempts = attempts.iter_mut();
        if let Some(attempt) = attempts.find(|other| other.job.spec.span == job.spec.span) {
            attempt.failed = true;
            attempt.cycle.failed(job, error);
        }
    }

    /// The wait is over, and `used` is what came of it; whatever else began comes to nothing. What is
    /// to be kept with it.
    pub(in crate::jobs) fn finish(&self, used_parts: &[NewPart]) -> Vec<Event> {
        let mut events = Vec::new();
        for ObserveAttempt { job, cycle, failed } in std::mem::take(&mut *self.lock_attempts()) {
            let part = used_parts.iter().find(|part| part.span == job.spec.span);
            match part {
                Some(part) => {
                    cycle.ended(&job, part.tokens, Some(&PartReport::from_part(part)));
                }
                None if !failed => cycle.failed(&job, "nobody waits for it any more"),
                None => {}
            }
            events.extend(cycle.buffered_events());
        }
        events
    }
}

impl Drop for OverflowEvents {
    fn drop(&mut self) {
        self.finish(&[]);
    }
}
