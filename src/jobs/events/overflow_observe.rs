//! The events of calls that a client waits for (`overflow = "observe"`): one cycle for each range,
//! as for any job. The log has them at once. The timeline gets them when the upstream has accepted
//! the result, and otherwise never. Called by the overflow observer and its worker.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Cycle, Events};
use crate::jobs::part_report::PartReport;
use crate::jobs::settings::Settings;
use crate::memory::NewPart;
use crate::store::{Event, Job};

/// The tries for one request, in the order of their starts. When this is dropped, tries without an
/// end fail: the time is over, or the client has left.
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
    /// No try has started yet.
    pub(in crate::jobs) fn new(log: &Events) -> Self {
        Self {
            log: log.clone(),
            attempts: Mutex::default(),
        }
    }

    fn lock_attempts(&self) -> MutexGuard<'_, Vec<ObserveAttempt>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model will be called for `job` now.
    pub(in crate::jobs) fn started(&self, settings: &Settings, job: &Job) {
        let cycle = Cycle::unqueued(&self.log);
        cycle.started(settings, job);
        self.lock_attempts().push(ObserveAttempt {
            job: job.clone(),
            cycle,
            failed: false,
        });
    }

    /// The try for `job` failed.
    pub(in crate::jobs) fn failed(&self, job: &Job, error: &str) {
        let mut attempts = self.lock_attempts();
        let mut attempts = attempts.iter_mut();
        if let Some(attempt) = attempts.find(|other| other.job.spec.span == job.spec.span) {
            attempt.failed = true;
            attempt.cycle.failed(job, error);
        }
    }

    /// Ends the wait: the tries behind `used_parts` succeed, all others fail. Returns the events
    /// for the timeline.
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
