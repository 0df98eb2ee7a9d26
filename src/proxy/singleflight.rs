//! Equal requests that have their history observed while their clients wait: one after the other, since what
//! comes of the first serves them all.
//!
//! Decides who waits for whom and for how long, never what is done then. Called by `overflow`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::history::{Link, Scope};

/// Requests by owner, tip and model, each with the turn that its equals take one after the other.
#[derive(Debug, Default)]
pub struct Singleflight(Mutex<HashMap<FlightKey, Weak<Flight>>>);

type FlightKey = ([u8; 32], Link, String);
type Flight = tokio::sync::Mutex<()>;

/// What comes of `work` once those that came before have had their turn. It is told until when the client
/// waits: whoever waits for others has that much less time left. `None` where nothing is left.
pub(super) async fn run_exclusive<T, F: Future<Output = T>>(
    flight: &Flight,
    within: Duration,
    work: impl FnOnce(Instant) -> F,
) -> Option<T> {
    let until = Instant::now() + within;
    let _guard = timeout_at(until, flight.lock()).await.ok()?;
    // The one before may have taken all of it.
    if Instant::now() >= until {
        return None;
    }
    // Whatever it does besides heeding the time is given up with it.
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

    /// An Observer that never answers, for one who waits so many seconds.
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
    async fn nobody_waits_for_longer_than_the_time_however_many_wait() {
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
    async fn what_does_not_heed_the_time_is_given_up() {
        let (turn, started) = (Flight::default(), Instant::now());
        let done = run_exclusive(&turn, 10 * SECOND, |_| tokio::time::sleep(60 * SECOND)).await;
        assert_eq!((done, started.elapsed()), (None, 10 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waited_for_others_has_the_rest() {
        let turn = Flight::default();
        let seconds = [10, 25, 10, 40];
        let waited = join_all(seconds.map(|seconds| wait_for(&turn, seconds))).await;
        let expected = [(Some(10), 10), (Some(25), 25), (None, 10), (Some(40), 40)];
        assert_eq!(waited, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_quick_leaves_the_others_their_time() {
        let turn = Flight::default();
        let quick = run_exclusive(&turn, 10 * SECOND, |_| tokio::time::sleep(3 * SECOND));
        let (quick, slow) = tokio::join!(quick, wait_for(&turn, 10));
        assert_eq!((quick, slow), (Some(()), (Some(10), 10)));
    }
}
