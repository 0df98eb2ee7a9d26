//! Tracks one connection: its open requests, since when it has none, and whether bytes of an answer may still have
//! to be written. Decides nothing; `connection` and the client's stream report to it.

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
    /// When the number of requests changed last.
    last_change: Instant,
    /// Whether the bytes that are written may belong to an answer.
    answer_pending: bool,
    /// Whether the connection has switched to another protocol.
    upgraded: bool,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                requests: 0,
                last_change: Instant::now(),
                answer_pending: false,
                upgraded: false,
            }),
            changed: Notify::new(),
        }
    }
}

/// A request of a connection, until its answer has ended.
#[derive(Debug)]
pub(super) struct ActiveRequest(Arc<Activity>);

impl Activity {
    pub(super) fn start(this: &Arc<Self>) -> ActiveRequest {
        this.update(|requests| requests + 1);
        this.state().answer_pending = true;
        ActiveRequest(Arc::clone(this))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl Fn(usize) -> usize) {
        let mut state = self.state();
        state.requests = change(state.requests);
        state.last_change = Instant::now();
        drop(state);
        self.changed.notify_one();
    }

    /// hyper has written everything so far.
    pub(super) fn flushed(&self) {
        let mut state = self.state();
        state.answer_pending = state.requests > 0;
    }

    /// Whether the bytes that are written now may belong to an answer of ours, or to a tunnel.
    pub(super) fn may_be_answer(&self) -> bool {
        let state = self.state();
        state.answer_pending || state.upgraded
    }

    /// Ready once the connection has had no request for `limit`.
    pub(super) async fn idle_for(&self, limit: Duration) {
        loop {
            let (requests, last_change) = {
                let state = self.state();
                (state.requests, state.last_change)
            };
            if requests > 0 {
                self.changed.notified().await;
            } else if last_change.elapsed() < limit {
                sleep_until(last_change + limit).await;
            } else {
                return;
            }
        }
    }
}

impl ActiveRequest {
    /// The connection becomes a tunnel with this answer.
    pub(super) fn mark_upgraded(&self) {
        self.0.state().upgraded = true;
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.update(|requests| requests.saturating_sub(1));
    }
}
