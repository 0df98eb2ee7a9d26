//! Counts lines that were lost. Called by the writers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::tasks::{Losses, Tasks};
use crate::telemetry;

/// Records that were not written: counted, logged, and shown by `/readyz`.
#[derive(Clone, Debug)]
pub(super) struct Dropped {
    count: Arc<AtomicU64>,
    pub(super) losses: Losses,
}

impl Dropped {
    /// Those of `part`, which works so far.
    pub(super) fn new(part: &'static str, tasks: &Tasks) -> Self {
        Self {
            count: Arc::default(),
            losses: Losses::new(part, tasks.readiness()),
        }
    }

    pub(super) fn add(&self, reason: &'static str, error: &str) {
        self.count.fetch_add(1, Ordering::Relaxed);
        metrics::counter!(telemetry::AUDIT_DROPPED, "reason" => reason).increment(1);
        self.losses.lost(error);
    }

    /// How many since the start.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}
