//! The time as this room is told it: the system's, or one that is set by hand.
//!
//! Leases, retries, breakers and dates all ask here, so that a simulation decides when a minute has
//! passed. Never asked on the request path.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// Where the time comes from.
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<Arc<Hand>>);

#[derive(Debug)]
struct Hand {
    ms: AtomicI64,
    start_ms: i64,
    start: Instant,
}

impl Clock {
    /// A clock that stands at `start_ms` (milliseconds since 1970) until it is told that time passed.
    pub fn by_hand(start_ms: i64) -> Self {
        Self(Some(Arc::new(Hand {
            ms: AtomicI64::new(start_ms),
            start_ms,
            start: Instant::now(),
        })))
    }

    /// Time passes, on a clock set by hand; the system's cannot be moved.
    pub fn pass(&self, time: Duration) {
        if let Some(hand) = &self.0 {
            let ms = i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 4);
            hand.ms.fetch_add(ms, Ordering::SeqCst);
        }
    }

    /// Milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        match &self.0 {
            Some(hand) => hand.ms.load(Ordering::SeqCst),
            None => jiff::Timestamp::now().as_millisecond(),
        }
    }

    /// The same moment for whoever measures pauses.
    pub(super) fn instant(&self) -> Instant {
        match &self.0 {
            Some(hand) => {
                let passed = hand.ms.load(Ordering::SeqCst) - hand.start_ms;
                hand.start + Duration::from_millis(passed.unsigned_abs())
            }
            None => Instant::now(),
        }
    }
}
