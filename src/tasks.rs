//! Tracked tasks: no part of the process spawns a bare one.
//!
//! [`Tasks`] counts every task started through it, and carries the two signals of a shutdown: *draining* (take no new
//! work) and *stopped* (give up the rest). It never decides when either is due; `server` does. A task that panics is
//! logged by its name and ends alone. A [`Hold`] marks work that a client waits for: a connection, a tunnel. The
//! drain is over when the last one is dropped.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// A cheap handle to all tasks of the process and to its two shutdown signals.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    holds: TaskTracker,
    draining: CancellationToken,
    stopped: CancellationToken,
}

/// Work in progress. The drain waits until it is dropped.
#[derive(Clone, Debug)]
#[must_use = "the work counts as done as soon as this is dropped"]
pub struct Hold {
    _token: TaskTrackerToken,
}

impl Tasks {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a task on the current runtime. If it panics, `name` is logged.
    pub fn spawn<F>(&self, name: &'static str, future: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tracker.spawn(async move {
            // The payload of a panic may quote a request, so only the name is logged. The panic hook has already
            // written the place.
            if AssertUnwindSafe(future).catch_unwind().await.is_err() {
                tracing::error!(task = name, "the task `{name}` panicked and was ended");
            }
        })
    }

    /// Cancelled when the drain begins: finish the work in progress, take nothing new.
    #[must_use]
    pub fn draining(&self) -> CancellationToken {
        self.draining.clone()
    }

    /// Cancelled when the drain is over: everything that still runs must end at once.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.stopped.clone()
    }

    /// Marks a piece of work the drain has to wait for.
    pub fn hold(&self) -> Hold {
        Hold {
            _token: self.holds.token(),
        }
    }

    /// The number of holds.
    #[must_use]
    pub fn held_count(&self) -> usize {
        self.holds.len()
    }

    /// Tasks that have not ended.
    #[must_use]
    pub fn running(&self) -> usize {
        self.tracker.len()
    }

    /// Gives the first signal. Tasks may still be started: a request that drains needs them.
    pub fn begin_drain(&self) {
        self.draining.cancel();
    }

    /// Waits until there is no hold. Ends only after [`Tasks::begin_drain`] and the last [`Hold`].
    pub async fn drained(&self) {
        self.draining.cancelled().await;
        self.holds.close();
        self.holds.wait().await;
    }

    /// Gives both signals and waits for every task, at most `grace`. Returns the number of tasks that did not end.
    pub async fn stop(&self, grace: Duration) -> usize {
        self.draining.cancel();
        self.stopped.cancel();
        self.tracker.close();
        let waited = tokio::time::timeout(grace, self.tracker.wait()).await;
        if waited.is_ok() { 0 } else { self.running() }
    }
}

/// Lets hyper start its own tasks (HTTP/2 streams, pooled connections) under the same count. They end with the process
/// and have no names of their own.
impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        let stopped = self.token();
        self.spawn("http", async move {
            stopped.run_until_cancelled_owned(future).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panicking_task_ends_alone_and_is_not_waited_for() {
        let tasks = Tasks::new();
        let panicking = tasks.spawn("panics", async { panic!("on purpose") });
        assert!(panicking.await.is_ok(), "the panic was contained");
        let token = tasks.token();
        tasks.spawn("waits", async move { token.cancelled().await });
        assert_eq!(tasks.running(), 1);
        assert_eq!(tasks.stop(Duration::from_secs(30)).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn stop_reports_the_tasks_that_do_not_listen() {
        let tasks = Tasks::new();
        tasks.spawn("deaf", std::future::pending());
        assert_eq!(tasks.stop(Duration::from_secs(1)).await, 1);
    }

    #[tokio::test]
    async fn drained_waits_for_the_last_hold() {
        let tasks = Tasks::new();
        let (first, second) = (tasks.hold(), tasks.hold());
        tasks.begin_drain();
        let mut drained = std::pin::pin!(tasks.drained());
        assert!(futures_util::poll!(drained.as_mut()).is_pending());
        drop(first);
        assert!(futures_util::poll!(drained.as_mut()).is_pending());
        drop(second);
        drained.await;
        assert_eq!(tasks.held_count(), 0);
    }

    #[tokio::test]
    async fn draining_comes_before_stopped() {
        let tasks = Tasks::new();
        tasks.begin_drain();
        assert!(tasks.draining().is_cancelled());
        assert!(!tasks.token().is_cancelled());
    }
}
