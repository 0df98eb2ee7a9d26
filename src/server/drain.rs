//! Stops the process in four numbered steps, each with a time limit. Called by [`super::Server::run`].

use std::future::Future;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::{Instant, interval_at, sleep, timeout};

use crate::admin::Readiness;
use crate::tasks::Tasks;

/// How long the tasks and then the store may take to end when everything is stopped, at least: the recorder still records
/// what waits for it. They may take what is left of the drain, too. After a second signal they have this time only.
const LAST_GRACE: Duration = Duration::from_secs(2);

/// How often the number of open answers is logged during the drain.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// The result of the drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainReport {
    /// Connections, tunnels and answers of chat completions that were still open when the wait ended. A connection and
    /// its answer count as two.
    pub aborted_requests: usize,
    /// Tasks that did not end even then.
    pub unfinished_tasks: usize,
}

pub(super) async fn drain(
    tasks: &Tasks,
    readiness: &Readiness,
    deadline: Duration,
    second_signal: impl Future<Output = ()>,
    close: impl Future<Output = ()>,
) -> DrainReport {
    let started = Instant::now();
    let remaining = || deadline.saturating_sub(started.elapsed()).max(LAST_GRACE);
    let second_signal = second_signal.map(|()| {
        tracing::info!("stopping: a second signal ended the wait");
    });
    let second_signal = second_signal.shared();
    tracing::info!("stopping, 1/4: accepting no more connections");
    readiness.drain();
    tasks.begin_drain();

    tracing::info!(
        in_hand = tasks.held_count(),
        "stopping, 2/4: waiting at most {deadline:?} for answers to end"
    );
    tokio::select! {
        _ = timeout(deadline, wait_until_drained(tasks)) => {}
        () = second_signal.clone() => {}
    }

    let cut = tasks.held_count();
    tracing::info!(
        cut,
        "stopping, 3/4: stopping the remaining tasks, and writing the audit"
    );
    let limit = time_limit(remaining(), second_signal.clone());
    let left = tasks.stop_before(limit).await;

    tracing::info!("stopping, 4/4: closing the store");
    tokio::select! {
        () = close => {}
        () = time_limit(remaining(), second_signal) => tracing::warn!(
            "the store did not close in time: another program may hold its lock, or the disk is slow. What is \
             committed is safe, and the next start goes on with it; what was seen and not stored is lost"
        ),
    }
    DrainReport {
        aborted_requests: cut,
        unfinished_tasks: left,
    }
}

/// Resolves after `grace`, or [`LAST_GRACE`] after a second signal.
async fn time_limit(grace: Duration, second_signal: impl Future<Output = ()>) {
    let hurried = async {
        second_signal.await;
        sleep(LAST_GRACE).await;
    };
    let _late = timeout(grace, hurried).await;
}

/// Waits until no connection, tunnel or answer is left. Logs their number meanwhile.
async fn wait_until_drained(tasks: &Tasks) {
    let mut drained = std::pin::pin!(tasks.drained());
    let mut tick = interval_at(Instant::now() + REPORT_INTERVAL, REPORT_INTERVAL);
    loop {
        tokio::select! {
            () = drained.as_mut() => return,
            _ = tick.tick() => tracing::info!(in_hand = tasks.held_count(), "stopping: still waiting for answers to end"),
        }
    }
}

/// Resolves at the first SIGTERM or SIGINT (Ctrl-C), to what resolves at the second one.
///
/// # Errors
/// If the signals cannot be listened for.
#[expect(
    clippy::async_yields_async,
    reason = "the second signal is waited for during the stop, which begins with the first"
)]
pub fn shutdown_signal() -> std::io::Result<impl Future<Output = impl Future<Output = ()>>> {
    let mut signals = Signals::new()?;
    Ok(async move {
        let name = signals.next().await;
        tracing::info!("{name} received, stopping; a second signal ends the wait");
        async move {
            signals.next().await;
        }
    })
}

#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> &'static str {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        "Ctrl-C"
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::sleep;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(30);

    /// Drains `tasks` with a clock that stands still, and tells how long that took.
    async fn drain_in(
        tasks: &Tasks,
        second_signal: impl Future<Output = ()>,
        close: impl Future<Output = ()>,
    ) -> (DrainReport, Duration) {
        let started = Instant::now();
        let readiness = Readiness::new();
        let draining = drain(tasks, &readiness, DEADLINE, second_signal, close);
        let report = timeout(10 * DEADLINE, draining).await;
        (report.expect("it ends"), started.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_cuts_every_step_short() {
        let tasks = Tasks::new();
        tasks.spawn("never ends", pending());
        let (report, elapsed) = drain_in(&tasks, sleep(Duration::from_secs(1)), pending()).await;
        assert_eq!(report.unfinished_tasks, 1);
        assert!(
            elapsed <= Duration::from_secs(1) + 2 * LAST_GRACE,
            "{elapsed:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_never_closes_ends_with_the_deadline() {
        let (_, elapsed) = drain_in(&Tasks::new(), pending(), pending()).await;
        assert!(elapsed <= DEADLINE, "{elapsed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn all_steps_share_the_deadline_and_the_last_has_two_seconds_at_least() {
        let tasks = Tasks::new();
        tasks.spawn("never ends", pending());
        let (_, elapsed) = drain_in(&tasks, pending(), pending()).await;
        let expected = DEADLINE + LAST_GRACE..DEADLINE + 2 * LAST_GRACE;
        assert!(expected.contains(&elapsed), "{elapsed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_a_second_signal_cuts_are_counted() {
        let tasks = Tasks::new();
        let (hold, stopped) = (tasks.hold(), tasks.token());
        tasks.spawn("answer", async move {
            let _hold = hold;
            stopped.cancelled().await;
        });
        let (report, elapsed) = drain_in(&tasks, sleep(Duration::from_secs(1)), ready(())).await;
        assert!(elapsed < Duration::from_secs(2), "{elapsed:?}");
        assert_eq!((report.aborted_requests, report.unfinished_tasks), (1, 0));
    }
}
