//! Lets one of several equal requests have its history observed, while the others wait for the result.
//!
//! Decides which request waits for which, and how long; never what the work is. Called by `retry::overflow`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::history::{Link, Scope};

/// The flights by owner, tip and model. Equal requests share one, and enter it one after the other.
#[derive(Debug, Default)]
pub struct Singleflight(Mutex<HashMap<FlightKey, Weak<Flight>>>);

type FlightKey = ([u8; 32], Link, String);
type Flight = tokio::sync::Mutex<()>;

/// Does `work` after the requests before it have left the flight. `work` gets the time at which its client
/// stops waiting: the time spent in the queue is part of `within`. `None` if no time is left.
pub(super) async fn run_exclusive<T, F: Future<Output = T>>(
    flight: &Flight,
    within: Duration,
    work: impl FnOnce(Instant) -> F,
) -> Option<T> {
    let until = Instant::now() + within;
    let _guard = timeout_at(until, flight.lock()).await.ok()?;
    // The request before may have used up the time.
    if Instant::now() >= until {
        return None;
    }
    // Work that does not keep to its time is dropped.
    timeout_at(until, work(until)).await.ok()
}

impl Singleflight {
    pub(super) fn flight(&self, scope: &Scope, tip: Link, model: &str) -> Arc<Flight> {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|_, flight| flight.strong_count() > 0);
        let flight = flights
            .entry((scope.tenant, tip, model.to_owned()))
            .or_default();
        flight.upgrade().unwrap_or_else(|| {
            let new = Arc::default();
            *flight = Arc::downgrade(&new);
            new
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// An Observer that never answers, for a client that waits this many seconds.
    async fn wait_for(flight: &Flight, seconds: u32) -> (Option<u64>, u64) {
        let started = Instant::now();
        let until = run_exclusive(flight, SECOND * seconds, |until| async move {
            let silence = std::future::pending::<()>();
            assert!(timeout_at(until, silence).await.is_err());
            started.elapsed().as_secs()
        });
        (until.await, started.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn no_client_waits_longer_than_its_time_limit() {
        let turn = Flight::default();
        let waited = join_all((0..20).map(|_| wait_for(&turn, 10))).await;
        let observing = waited.iter().filter(|(observed, _)| observed.is_some());
        assert_eq!(
            observing.count(),
            1,
            "nothing is asked for what has no time"
        );
        assert!(waited.iter().all(|(_, waited)| *waited == 10), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_exceeds_the_time_limit_is_abandoned() {
        let (turn, started) = (Flight::default(), Instant::now());
        let done = run_exclusive(&turn, 10 * SECOND, |_| tokio::time::sleep(60 * SECOND)).await;
        assert_eq!((done, started.elapsed()), (None, 10 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_client_gets_the_rest_of_its_time() {
        let turn = Flight::default();
        let seconds = [10, 25, 10, 40];
        let waited = join_all(seconds.map(|seconds| wait_for(&turn, seconds))).await;
        let expected = [(Some(10), 10), (Some(25), 25), (None, 10), (Some(40), 40)];
        assert_eq!(waited, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_quick_client_leaves_the_rest_of_the_time_to_others() {
        let turn = Flight::default();
        let quick = run_exclusive(&turn, 10 * SECOND, |_| tokio::time::sleep(3 * SECOND));
        let (quick, slow) = tokio::join!(quick, wait_for(&turn, 10));
        assert_eq!((quick, slow), (Some(()), (Some(10), 10)));
    }
}
