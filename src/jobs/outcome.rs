//! How a job ended: the message from a worker to the recorder, and the count of messages that the
//! recorder has not handled yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::part_report::PartReport;
use super::track::JobResult;
use crate::history::Scope;
use crate::memory::{PartKind, Span};

/// What a worker sends to the recorder when a job has ended.
#[derive(Debug)]
pub(super) struct JobOutcome {
    pub(super) scope: Scope,
    pub(super) kind: PartKind,
    pub(super) span: Span,
    pub(super) result: JobResult,
    /// What the audit reports of the part, if the job wrote one.
    pub(super) report: Option<PartReport>,
}

/// Work of this process whose consequences the recorder has not drawn yet: jobs that run, outcomes on
/// their way, timers and model switches that are being handled. The jobs are idle only at zero.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingWork(Arc<AtomicUsize>);

impl PendingWork {
    pub(super) fn begin(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends one piece of work that was begun when the guard is dropped, also by a panic.
    pub(super) fn ending(&self) -> EndsWork {
        EndsWork(self.clone())
    }

    pub(super) fn is_none(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }
}

/// See [`PendingWork::ending`].
#[must_use = "the work ends as soon as this is dropped"]
pub(super) struct EndsWork(PendingWork);

impl Drop for EndsWork {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}
