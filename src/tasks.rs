//! Tracked tasks: no part of the process spawns a bare one. And how the process's parts are: a part that fails
//! says so here.
//!
//! [`Tasks`] counts every task started through it, and carries the signals of a shutdown: *draining* (take no new
//! work) and *stopped* (give up the rest). It never decides when either is due; `server` does. A task that panics is
//! logged by its name and ends alone; one that must not end is [supervised](Tasks::supervise). A [`Hold`] marks work
//! that the drain waits for: a connection, a tunnel, an answer that is not handed to the recorder yet. The drain is
//! over when the last one is dropped. [`Outlasting`] tasks end after all others, by a signal of their own.

mod background;
mod compute_pool;
mod contain;
mod losses;
mod outlasting;
mod readiness;
mod yielding;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

pub use self::background::Background;
pub use self::compute_pool::ComputePool;
use self::contain::contain;
pub use self::losses::Losses;
pub use self::outlasting::Outlasting;
pub use self::readiness::{Condition, Readiness};
pub use self::yielding::yield_to_requests;

/// The pause before a supervised task is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// A supervised task that has run for this long since its last restart is well again.
const STEADY: Duration = Duration::from_mins(10);

/// How long outlasting tasks may take to end. A disk that hangs must not hold up a stop.
const LAST_GRACE: Duration = Duration::from_secs(2);

/// A cheap handle to all tasks of the process and to its shutdown signals.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    holds: TaskTracker,
    draining: CancellationToken,
    stopped: CancellationToken,
    outlasting: Outlasting,
    readiness: Readiness,
    /// Where background tasks run; `None`: where all others do.
    background: Option<Handle>,
    #[cfg(feature = "testing")]
    faults: std::sync::Arc<std::sync::Mutex<Vec<String>>>,
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
        self.tracker.spawn(contain(name, future))
    }

    /// The same tasks, with a runtime of their own for those that no client waits for.
    #[must_use]
    pub fn with_background(mut self, runtime: Handle) -> Self {
        self.background = Some(runtime);
        self
    }

    /// The runtime for tasks that no client waits for, if they have one of their own.
    #[must_use]
    pub fn background(&self) -> Option<Handle> {
        self.background.clone()
    }

    /// Starts a task that no client waits for. If it panics, `name` is logged.
    pub fn spawn_background<F>(&self, name: &'static str, future: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        match &self.background {
            Some(runtime) => self.tracker.spawn_on(contain(name, future), runtime),
            None => self.spawn(name, future),
        }
    }

    /// Starts tasks that end after all others.
    #[must_use]
    pub fn outlasting(&self) -> &Outlasting {
        &self.outlasting
    }

    /// Starts a background task that must not end before the process stops: if it panics, it is started again, and `/readyz`
    /// says so under `name` for a while. `start` makes its future.
    pub fn supervise<S, F>(&self, name: &'static str, mut start: S)
    where
        S: FnMut() -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let (readiness, stopped) = (self.readiness.clone(), self.stopped.clone());
        readiness.set(name, Condition::Up);
        self.spawn_background(name, async move {
            let mut restarts = 0_u32;
            loop {
                let mut run = std::pin::pin!(AssertUnwindSafe(start()).catch_unwind());
                let ended = tokio::select! {
                    ended = run.as_mut() => ended,
                    () = tokio::time::sleep(STEADY), if restarts > 0 => {
                        readiness.set(name, Condition::Up);
                        run.await
                    }
                };
                if ended.is_ok() || stopped.is_cancelled() {
                    return;
                }
                restarts = restarts.saturating_add(1);
                // As in [`Tasks::spawn`], the payload is not logged.
                tracing::error!(task = name, restarts, "the task `{name}` panicked and is started again");
                readiness.set(
                    name,
                    Condition::Degraded(format!(
                        "a fault in the program ended this task, and it was started again; restarts so far: {restarts}"
                    )),
                );
                stopped
                    .run_until_cancelled(tokio::time::sleep(RESTART_PAUSE))
                    .await;
            }
        });
    }

    /// How the parts of the process are.
    #[must_use]
    pub fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// Panics here once if a test has asked for that ([`Tasks::plant_fault`]); does nothing in a release.
    #[inline]
    pub fn fault_point(&self, name: &'static str) {
        self.fault_point_quoting(name, b"");
    }

    /// As [`Tasks::fault_point`], where what panics would quote a `text`.
    #[inline]
    #[cfg_attr(
        not(feature = "testing"),
        expect(unused_variables, reason = "a release has no faults")
    )]
    pub fn fault_point_quoting(&self, name: &'static str, text: &[u8]) {
        #[cfg(feature = "testing")]
        {
            let mut faults = self
                .faults
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some(at) = faults.iter().position(|planted| *planted == name) {
                faults.swap_remove(at);
                drop(faults);
                panic!("a planted fault: {name}: {}", String::from_utf8_lossy(text));
            }
        }
    }

    /// Lets the next [`Tasks::fault_point`] of this name panic.
    #[cfg(feature = "testing")]
    pub fn plant_fault(&self, name: &str) {
        let mut faults = self
            .faults
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        faults.push(name.to_owned());
    }

    /// Whether this planted fault has not happened yet.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn is_fault_planted(&self, name: &str) -> bool {
        let faults = self
            .faults
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        faults.iter().any(|planted| planted == name)
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

    /// Tasks that have not ended, without the outlasting ones.
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

    /// As [`Tasks::stop_before`], where tasks have as long as `grace`.
    pub async fn stop(&self, grace: Duration) -> usize {
        self.stop_before(tokio::time::sleep(grace)).await
    }

    /// Gives both signals and waits for every task until `limit` resolves. Then the outlasting tasks end, in a time of
    /// their own. Returns the number of tasks that did not end.
    pub async fn stop_before(&self, limit: impl Future<Output = ()>) -> usize {
        self.draining.cancel();
        self.stopped.cancel();
        self.tracker.close();
        let left = tokio::select! {
            biased;
            () = self.tracker.wait() => 0,
            () = limit => self.running(),
        };
        left + self.outlasting.end(LAST_GRACE).await
    }
}

/// Lets hyper start its own tasks (the HTTP/2 streams of clients) under the same count. They end with the process and
/// have no names of their own.
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
    async fn a_panicking_task_ends_alone_and_does_not_block_the_stop() {
        let tasks = Tasks::new();
        let panicking = tasks.spawn("panics", async { panic!("on purpose") });
        assert!(panicking.await.is_ok(), "the panic was contained");
        let token = tasks.token();
        tasks.spawn("waits", async move { token.cancelled().await });
        assert_eq!(tasks.running(), 1);
        assert_eq!(tasks.stop(Duration::from_secs(30)).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panicked_supervised_task_is_restarted_and_reported_as_degraded() {
        let tasks = Tasks::new();
        let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
        let mut count = 0;
        tasks.supervise("recorder", move || {
            count += 1;
            started.send(count).unwrap();
            let is_first = count == 1;
            async move {
                assert!(!is_first, "on purpose");
                std::future::pending::<()>().await;
            }
        });
        assert_eq!(starts.recv().await, Some(1));
        assert_eq!(starts.recv().await, Some(2));
        let condition = tasks.readiness().condition("recorder");
        assert!(
            matches!(condition, Some(Condition::Degraded(_))),
            "{condition:?}"
        );
        tokio::time::sleep(STEADY * 2).await;
        assert_eq!(tasks.readiness().condition("recorder"), Some(Condition::Up));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_reports_the_tasks_that_do_not_end() {
        let tasks = Tasks::new();
        tasks.spawn("deaf", std::future::pending());
        assert_eq!(tasks.stop(Duration::from_secs(1)).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn outlasting_tasks_end_after_all_others() {
        let tasks = Tasks::new();
        let (sender, mut ends) = tokio::sync::mpsc::unbounded_channel();
        let (ended, last) = (tasks.outlasting().token(), sender.clone());
        tasks.outlasting().spawn("last", async move {
            ended.cancelled().await;
            last.send("last").unwrap();
        });
        let stopped = tasks.token();
        tasks.spawn("first", async move {
            stopped.cancelled().await;
            tokio::time::sleep(Duration::from_millis(900)).await;
            sender.send("first").unwrap();
        });
        assert_eq!(tasks.stop(Duration::from_secs(1)).await, 0);
        assert_eq!(ends.recv().await, Some("first"));
        assert_eq!(ends.recv().await, Some("last"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_outlasting_task_that_does_not_end_does_not_block_the_stop() {
        let tasks = Tasks::new();
        tasks.outlasting().spawn("deaf", std::future::pending());
        assert_eq!(tasks.stop(Duration::from_secs(1)).await, 1);
    }

    #[tokio::test]
    async fn draining_ends_with_the_last_hold() {
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
    async fn a_draining_process_is_not_stopped_yet() {
        let tasks = Tasks::new();
        tasks.begin_drain();
        assert!(tasks.draining().is_cancelled());
        assert!(!tasks.token().is_cancelled());
    }
}
