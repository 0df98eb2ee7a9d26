//! `diarist serve`: runs the proxy until a signal stops it.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;

use super::sources::{ConfigSources, environment};
use crate::app::{App, Reloader, pepper_hint};
use crate::config::{ConfigError, Loaded};
use crate::lookup::READ_TIMEOUT;
use crate::server::{Sighup, shutdown_signal};
use crate::tasks::{Background, Tasks};
use crate::telemetry::{LogFormat, init_logging};

/// How long the exit waits for blocking threads (reading a file, resolving a name).
const RUNTIME_SHUTDOWN: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    sources: ConfigSources,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let loaded = args.sources.read()?;
    let _log = init_logging(LogFormat::Auto, log_filter(&environment()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime cannot start")?;
    let background = Background::start().context("the background runtime cannot start")?;
    let tasks = Tasks::new().with_background(background.handle());
    #[cfg(feature = "testing")]
    plant_faults(&tasks, &environment());
    let timeout = read_timeout(&environment());
    let served = runtime.block_on(serve(loaded, tasks, timeout, &args.sources));
    runtime.shutdown_timeout(RUNTIME_SHUTDOWN);
    background.shut_down(RUNTIME_SHUTDOWN);
    served.map(|()| ExitCode::SUCCESS)
}

/// Plants the faults that a test names, with commas between them: a test cannot reach into a process of its own.
#[cfg(feature = "testing")]
fn plant_faults(tasks: &Tasks, env: &BTreeMap<String, String>) {
    let names = env.get("DIARIST_PLANTED_FAULTS");
    for name in names.into_iter().flat_map(|names| names.split(',')) {
        tasks.plant_fault(name);
    }
}

/// How long a request waits for a read of the store.
#[cfg(not(feature = "testing"))]
fn read_timeout(_: &BTreeMap<String, String>) -> Duration {
    READ_TIMEOUT
}

/// How long a request waits for a read of the store. A test may give it more seconds: on a busy machine some reads are
/// slow, and what the test sees must not depend on that.
#[cfg(feature = "testing")]
fn read_timeout(env: &BTreeMap<String, String>) -> Duration {
    let seconds = env.get("TEST_STORE_READ_SECONDS");
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    seconds.map_or(READ_TIMEOUT, Duration::from_secs)
}

/// `DIARIST_LOG`, else `RUST_LOG`, as `tracing` directives: `info`, `diarist=debug,hyper=warn`.
fn log_filter(env: &BTreeMap<String, String>) -> Option<&str> {
    ["DIARIST_LOG", "RUST_LOG"]
        .into_iter()
        .find_map(|name| env.get(name))
        .map(String::as_str)
}

async fn serve(
    loaded: Loaded,
    tasks: Tasks,
    read_timeout: Duration,
    sources: &ConfigSources,
) -> anyhow::Result<()> {
    let Loaded {
        config,
        values,
        warnings,
    } = loaded;
    // First of all: the start may take seconds, and until then this signal ends the process.
    let hangups = Sighup::listen().context("signals cannot be received")?;
    // It reads the database file. Whoever closes a file drops all locks of its process on it, those of SQLite too. Another
    // program that reads the database would then take itself for the last one, and remove the journal.
    let pepper_hint = pepper_hint(&config);
    let app = App::build_in(tasks, &config, read_timeout).await?;
    let (reload, stop) = (app.reload(values), app.tasks().token());
    // Boxed, since the future holds a whole configuration while it waits.
    let reloading = Box::pin(reload_on_hangup(hangups, reload, sources.clone()));
    app.tasks().spawn("reload", async move {
        stop.run_until_cancelled(reloading).await;
    });
    let shutdown = shutdown_signal().context("signals cannot be received")?;
    tracing::info!(
        listen = %app.data_addr()?,
        admin = %app.admin_addr()?,
        upstream = %config.upstream.base_url,
        database = %config.database,
        "diarist {} is listening",
        env!("CARGO_PKG_VERSION"),
    );
    for text in warnings.into_iter().chain(config.hints()) {
        tracing::warn!("{text}");
    }
    if let Some(text) = pepper_hint {
        tracing::info!("{text}");
    }
    let drained = app.run(shutdown).await;
    tracing::info!(
        cut = drained.aborted_requests,
        left = drained.unfinished_tasks,
        "stopped"
    );
    Ok(())
}

/// Reloads the configuration at every SIGHUP, from the same sources. If it has an error, it changes nothing.
async fn reload_on_hangup(mut hangups: Sighup, mut reload: Reloader, sources: ConfigSources) {
    loop {
        hangups.next().await;
        // Whatever the configuration says now, a rotation of the audit goes on.
        reload.reopen_audit();
        let again = sources.clone();
        match tokio::task::spawn_blocking(move || again.read()).await {
            Ok(Ok(loaded)) => reload.apply(loaded),
            Ok(Err(error)) => log_rejected(&error),
            Err(error) => tracing::error!("reading the configuration failed: {error}"),
        }
    }
}

fn log_rejected(error: &ConfigError) {
    for problem in error.problems() {
        tracing::error!(key = problem.key, "{problem}");
    }
    tracing::error!("the new configuration has errors; the old one stays in force");
}
