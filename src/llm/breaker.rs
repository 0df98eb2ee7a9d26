//! A circuit breaker per model endpoint: an endpoint that keeps failing gets no calls for a while,
//! and then a single one.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most endpoints in the table. Clients choose their credentials, so there must be a bound.
const MAX_ENDPOINTS: usize = 4096;
/// How often the pause doubles while the probes keep failing.
const MAX_DOUBLINGS: u32 = 3;

/// Remembers which endpoints fail. Time comes in as a value.
#[derive(Debug)]
pub struct Breaker {
    threshold: u32,
    pause: Duration,
    /// By [`super::Endpoint::breaker_key`]. An endpoint that works has no entry.
    failing: Mutex<HashMap<String, Failing>>,
}

#[derive(Clone, Copy, Debug)]
struct Failing {
    consecutive: u32,
    /// No call before this. Set while the circuit is open.
    open_until: Option<Instant>,
}

impl Breaker {
    /// Opens after `threshold` failures in a row, for `pause`, longer while probes fail.
    #[must_use]
    pub fn new(threshold: u32, pause: Duration) -> Self {
        Self {
            threshold: threshold.max(1),
            pause,
            failing: Mutex::default(),
        }
    }

    /// Asks whether a call may be made.
    ///
    /// After the pause one call is admitted as a probe. The others wait for another pause, or until
    /// the probe has succeeded. So a probe that never reports blocks nobody for ever.
    ///
    /// # Errors
    ///
    /// The time to wait, if the circuit is open.
    pub fn admit(&self, endpoint: &str, now: Instant) -> Result<(), Duration> {
        let mut failing = self.lock();
        let Some(until) = failing
            .get_mut(endpoint)
            .and_then(|entry| entry.open_until.as_mut())
        else {
            return Ok(());
        };
        if *until > now {
            return Err(*until - now);
        }
        *until = now + self.pause;
        Ok(())
    }

    /// Reports a successful call: the endpoint works.
    pub fn succeeded(&self, endpoint: &str) {
        self.lock().remove(endpoint);
    }

    /// Reports a failed call for which [the endpoint is to
    /// blame](super::CallError::blames_endpoint). Returns for how long the endpoint gets no calls, if the circuit is open.
    pub fn failed(&self, endpoint: &str, now: Instant) -> Option<Duration> {
        let mut failing = self.lock();
        if failing.len() >= MAX_ENDPOINTS && !failing.contains_key(endpoint) {
            failing.retain(|_, entry| entry.open_until.is_some_and(|until| until > now));
        }
        let entry = failing.entry(endpoint.to_owned()).or_insert(Failing {
            consecutive: 0,
            open_until: None,
        });
        entry.consecutive = entry.consecutive.saturating_add(1);
        let excess = entry.consecutive.checked_sub(self.threshold)?;
        let pause = self
            .pause
            .saturating_mul(2u32.pow(excess.min(MAX_DOUBLINGS)));
        entry.open_until = Some(now + pause);
        Some(pause)
    }

    /// Forgets all failures.
    pub fn reset(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Failing>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(30);
    const MOMENT: Duration = Duration::from_millis(1);

    #[test]
    fn the_breaker_opens_after_repeated_failures_and_closes_after_a_probe() {
        let breaker = Breaker::new(3, PAUSE);
        let start = Instant::now();
        breaker.failed("a", start);
        breaker.failed("a", start);
        breaker.succeeded("a");
        assert_eq!(breaker.failed("a", start), None);
        assert_eq!(breaker.failed("a", start), None);
        assert_eq!(breaker.admit("a", start), Ok(()), "two in a row");
        assert_eq!(breaker.failed("a", start), Some(PAUSE));
        assert_eq!(breaker.admit("a", start), Err(PAUSE), "three in a row");
        assert_eq!(breaker.admit("b", start), Ok(()), "another endpoint");
        assert_eq!(
            breaker.admit("a", start + MOMENT),
            Err(PAUSE.saturating_sub(MOMENT))
        );

        let later = start + PAUSE;
        assert_eq!(breaker.admit("a", later), Ok(()), "the probe");
        assert_eq!(breaker.admit("a", later), Err(PAUSE), "only one");
        breaker.succeeded("a");
        assert_eq!(breaker.admit("a", later), Ok(()));
        assert_eq!(breaker.admit("a", later), Ok(()));
    }

    #[test]
    fn each_failed_probe_makes_the_pause_longer_up_to_a_limit() {
        let breaker = Breaker::new(1, PAUSE);
        let mut now = Instant::now();
        for factor in [1, 2, 4, 8, 8, 8] {
            assert_eq!(breaker.failed("a", now), Some(PAUSE * factor));
            assert_eq!(breaker.admit("a", now), Err(PAUSE * factor));
            now += PAUSE * factor;
            assert_eq!(breaker.admit("a", now), Ok(()));
        }
    }

    #[test]
    fn a_probe_that_never_reports_is_followed_by_another() {
        let breaker = Breaker::new(1, PAUSE);
        let now = Instant::now();
        breaker.failed("a", now);
        assert_eq!(breaker.admit("a", now + PAUSE), Ok(()));
        assert_eq!(breaker.admit("a", now + PAUSE * 2), Ok(()));
    }
}
