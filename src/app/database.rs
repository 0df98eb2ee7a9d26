//! The database at the start and afterwards: opens it in time or in the background, and reports whether it answers.
//!
//! The store itself opens the file and tries again; here is only what the process does about it. Called by
//! [`super::App`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::pepper::PepperWatch;
use crate::admin::{Condition, Readiness};
use crate::config::Config;
use crate::proxy::Proxy;
use crate::store::{OpenError, Queue as _, SqliteStore, StoreError};
use crate::tasks::Tasks;
use crate::telemetry;

/// How long the start waits for the database. Opening takes milliseconds; a locked or missing database must
/// not keep requests from passing.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(1);

/// How often the state of the database is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Opens the database for at most `timeout`. One that is not open by then is opened in the background: requests pass
/// without memory until it is.
///
/// # Errors
/// The pepper is not the one of the database.
pub(super) async fn open(
    store: &Arc<SqliteStore>,
    config: &Config,
    timeout: Duration,
    readiness: &Readiness,
    tasks: &Tasks,
) -> Result<(), OpenError> {
    let (result_sender, opened) = tokio::sync::oneshot::channel();
    let opening_store = Arc::clone(store);
    // A task of its own, which the timeout below does not cancel: a cancelled attempt would never be repeated.
    tasks.spawn_background("store opening", async move {
        // After the timeout nobody receives this, and [`watch`] finds out the result. The store does not log a wrong
        // pepper: in time, it ends the start.
        if let Err(Err(error)) = result_sender.send(opening_store.open_now().await)
            && error.is_wrong_pepper()
        {
            tracing::error!("requests pass without memory: {error}");
        }
    });
    let problem = match tokio::time::timeout(timeout, opened).await {
        Ok(Ok(Ok(()))) => return Ok(()),
        // Memory would not be found, and would be mixed with what this process records.
        Ok(Ok(Err(error))) if error.is_wrong_pepper() => {
            return Err(error);
        }
        // The store has logged it.
        Ok(Ok(Err(error))) => error.to_string(),
        unanswered => {
            let problem = match unanswered {
                Err(_) => format!("it did not open within {timeout:?}"),
                Ok(_) => "opening it failed".to_owned(),
            };
            tracing::error!(
                database = %config.database,
                "the database cannot be used yet: {problem}. Requests pass without memory until it is open"
            );
            problem
        }
    };
    readiness.set("store", Condition::Degraded(problem));
    Ok(())
}

/// Periodic work that must not be on the request path: reports whether the store answers and how many jobs are
/// open, and lets refused placements and blocks be tried again.
pub(super) async fn watch(
    store: Arc<SqliteStore>,
    proxy: Arc<Proxy>,
    readiness: Readiness,
    stop: CancellationToken,
) {
    let mut was_up = true;
    let mut pepper = store.pepper_file().map(PepperWatch::new);
    while stop
        .run_until_cancelled(tokio::time::sleep(CHECK_INTERVAL))
        .await
        .is_some()
    {
        if let Some(memory) = proxy.memory() {
            memory.capabilities.expire(Instant::now());
            memory.jobs.expire();
        }
        if let Some(pepper) = &mut pepper {
            pepper.check(&readiness).await;
        }
        let open_jobs = store.open_jobs(i64::MAX).await;
        match &open_jobs {
            Ok(jobs) => {
                metrics::gauge!(telemetry::OPEN_JOBS).set(*jobs as f64);
                readiness.set("store", Condition::Up);
            }
            Err(error) => {
                readiness.set("store", Condition::Degraded(error.to_string()));
                if let Some(memory) = proxy.memory() {
                    memory.cache.set_degraded(true);
                }
            }
        }
        match (&open_jobs, was_up) {
            // The store logs why it is not open, and when it is.
            (Err(StoreError::NotOpen(_)), _) => {}
            (Err(error), true) => {
                tracing::error!(error = %error, "the database does not answer; requests use the memory that this process holds");
                was_up = false;
            }
            (Ok(_), false) => {
                tracing::info!("the database answers again");
                was_up = true;
            }
            _ => {}
        }
    }
}
