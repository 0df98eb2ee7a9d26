//! The clock of this module: the system's, or one that tests set.
//!
//! Leases, retries, breakers and dates read it, so that a simulation decides when a minute has
//! passed. The request path decides nothing by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// A source of time. The default is the system's clock.
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<Arc<ManualTime>>);

#[derive(Debug)]
struct ManualTime {
    ms: AtomicI64,
    start_ms: i64,
    start: Instant,
}

impl Clock {
    /// A clock that stands at `start_ms` (milliseconds since 1970) until [`Clock::advance`] moves
    /// it.
    pub fn manual(start_ms: i64) -> Self {
        Self(Some(Arc::new(ManualTime {
            ms: AtomicI64::new(start_ms),
            start_ms,
            start: Instant::now(),
        })))
    }

    /// Moves a manual clock forward. The system's clock cannot be moved.
    pub fn advance(&self, time: Duration) {
        if let Some(manual) = &self.0 {
            manual.ms.fetch_add(millis(time), Ordering::SeqCst);
        }
    }

    /// Puts a manual clock back, as one that was ahead.
    #[cfg(test)]
    pub(super) fn put_back(&self, time: Duration) {
        if let Some(manual) = &self.0 {
            manual.ms.fetch_sub(millis(time), Ordering::SeqCst);
        }
    }

    /// Milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        match &self.0 {
            Some(manual) => manual.ms.load(Ordering::SeqCst),
            None => jiff::Timestamp::now().as_millisecond(),
        }
    }

    /// The same moment as an [`Instant`], for measuring pauses.
    pub(super) fn instant(&self) -> Instant {
        match &self.0 {
            Some(manual) => {
                let elapsed_ms = manual.ms.load(Ordering::SeqCst) - manual.start_ms;
                manual.start + Duration::from_millis(elapsed_ms.unsigned_abs())
            }
            None => Instant::now(),
        }
    }
}

/// A duration in the unit of [`Clock::now_ms`]. The longest ones are shortened, so that a sum with a time does not
/// overflow.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4)
}
