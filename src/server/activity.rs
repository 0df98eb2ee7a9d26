//! What one connection is doing: its requests in hand, since when there is none, and whether a byte of an
//! answer to one may still have to be written. Decides nothing; told by `connection` and by the client's stream.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Counts the requests of one connection.
#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    requests: usize,
    /// The last change of that.
    since: Instant,
    /// Whether what is written may belong to the answer of a request.
    owes: bool,
    /// Whether the connection speaks another protocol by now.
    handed_over: bool,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                requests: 0,
                since: Instant::now(),
                owes: false,
                handed_over: false,
            }),
            changed: Notify::new(),
        }
    }
}

/// A request of a connection, until its answer has ended.
#[derive(Debug)]
pub(super) struct Busy(Arc<Activity>);

impl Activity {
    pub(super) fn begin(this: &Arc<Self>) -> Busy {
        this.update(|requests| requests + 1);
        this.state().owes = true;
        Busy(Arc::clone(this))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl Fn(usize) -> usize) {
        let mut state = self.state();
        state.requests = change(state.requests);
        state.since = Instant::now();
        drop(state);
        self.changed.notify_one();
    }

    /// Everything that was to be written so far is written.
    pub(super) fn flushed(&self) {
        let mut state = self.state();
        state.owes = state.requests > 0;
    }

    /// Whether what is written now may be part of an answer of ours, or of a tunnel.
    pub(super) fn owes(&self) -> bool {
        let state = self.state();
        state.owes || state.handed_over
    }

    /// Ready once there has been no request for `limit`.
    pub(super) async fn idle_for(&self, limit: Duration) {
        loop {
            let (requests, since) = {
                let state = self.state();
                (state.requests, state.since)
            };
            if requests > 0 {
                self.changed.notified().await;
            } else if since.elapsed() < limit {
                sleep_until(since + limit).await;
            } else {
                return;
            }
        }
    }
}

impl Busy {
    /// From its answer on the connection is a tunnel.
    pub(super) fn hands_over(&self) {
        self.0.state().handed_over = true;
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.update(|requests| requests.saturating_sub(1));
    }
}
