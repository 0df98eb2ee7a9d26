//! Stops the process in four numbered steps, each with a time limit. Called by [`super::Server::run`].

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, interval_at, timeout};

use crate::admin::Readiness;
use crate::tasks::Tasks;

/// How long tasks may take to end when everything is stopped, at least: the recorder still records what waits for it.
/// They may take what is left of the drain, too.
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
    close: impl Future<Output = ()>,
) -> DrainReport {
    let started = Instant::now();
    tracing::info!("stopping, 1/4: accepting no more connections");
    readiness.drain();
    tasks.begin_drain();

    tracing::info!(
        in_hand = tasks.held_count(),
        "stopping, 2/4: waiting at most {deadline:?} for answers to end"
    );
    tokio::select! {
        _ = timeout(deadline, wait_until_drained(tasks)) => {}
        () = tasks.token().cancelled_owned() => tracing::info!("stopping: a second signal ended the wait"),
    }

    let cut = tasks.held_count();
    tracing::info!(
        cut,
        "stopping, 3/4: stopping the remaining tasks, and writing the audit"
    );
    // After a second signal the token is cancelled already.
    let grace = if tasks.token().is_cancelled() {
        LAST_GRACE
    } else {
        deadline.saturating_sub(started.elapsed()).max(LAST_GRACE)
    };
    let left = tasks.stop(grace).await;

    tracing::info!("stopping, 4/4: closing the store");
    close.await;
    DrainReport {
        aborted_requests: cut,
        unfinished_tasks: left,
    }
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

/// Resolves at the first SIGTERM or SIGINT (Ctrl-C). A second one ends the wait for answers.
///
/// # Errors
/// If the signals cannot be listened for.
pub fn shutdown_signal(tasks: &Tasks) -> std::io::Result<impl Future<Output = ()> + use<>> {
    let mut signals = Signals::new()?;
    let tasks = tasks.clone();
    Ok(async move {
        let name = signals.next().await;
        tracing::info!("{name} received, stopping; a second signal ends the wait for answers");
        tasks.clone().spawn("second signal", async move {
            let stopped = tasks.token();
            stopped.run_until_cancelled(signals.next()).await;
            stopped.cancel();
        });
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
