//! `diarist serve`: the proxy itself, until it is told to stop.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;

use super::sources::{ConfigSources, environment};
use crate::app::{App, Reloader};
use crate::config::{Config, ConfigError};
use crate::server::{Sighup, shutdown_signal};
use crate::telemetry::{LogFormat, init_logging};

/// Threads that block (a file, a name being resolved) may hold the process no longer than this.
const RUNTIME_SHUTDOWN: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    sources: ConfigSources,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.sources.load()?;
    init_logging(LogFormat::Auto, log_filter(&environment()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime cannot start")?;
    let served = runtime.block_on(serve(&config, &args.sources));
    runtime.shutdown_timeout(RUNTIME_SHUTDOWN);
    served.map(|()| ExitCode::SUCCESS)
}

/// `DIARIST_LOG`, else `RUST_LOG`, as `tracing` directives: `info`, `diarist=debug,hyper=warn`.
fn log_filter(env: &BTreeMap<String, String>) -> Option<&str> {
    ["DIARIST_LOG", "RUST_LOG"]
        .into_iter()
        .find_map(|name| env.get(name))
        .map(String::as_str)
}

async fn serve(config: &Config, sources: &ConfigSources) -> anyhow::Result<()> {
    let app = App::build(config).await?;
    let hangups = Sighup::listen().context("signals cannot be listened for")?;
    let (reload, stop) = (app.reload(), app.tasks().token());
    // On the heap: it holds a whole configuration across its waits.
    let reloading = Box::pin(reload_on_hangup(hangups, reload, sources.clone()));
    app.tasks().spawn("reload", async move {
        stop.run_until_cancelled(reloading).await;
    });
    let shutdown = shutdown_signal(app.tasks()).context("signals cannot be listened for")?;
    tracing::info!(
        listen = %app.data_addr()?,
        admin = %app.admin_addr()?,
        upstream = %config.upstream.base_url,
        "diarist {} is listening",
        env!("CARGO_PKG_VERSION"),
    );
    for hint in config.hints() {
        tracing::warn!("{hint}");
    }
    let drained = app.run(shutdown).await;
    tracing::info!(
        cut = drained.aborted_requests,
        left = drained.unfinished_tasks,
        "stopped"
    );
    Ok(())
}

/// Reads the configuration anew at every SIGHUP, from the same places. One that is invalid is refused
/// as a whole, and what was in force stays in force.
async fn reload_on_hangup(mut hangups: Sighup, mut reload: Reloader, sources: ConfigSources) {
    loop {
        hangups.next().await;
        let again = sources.clone();
        match tokio::task::spawn_blocking(move || again.load()).await {
            Ok(Ok(config)) => reload.apply(config).await,
            Ok(Err(error)) => log_rejected(&error),
            Err(error) => tracing::error!("the configuration could not be read: {error}"),
        }
    }
}

fn log_rejected(error: &ConfigError) {
    for problem in error.problems() {
        tracing::error!(key = problem.key, "{problem}");
    }
    tracing::error!("the configuration was not read anew; the old one stays in force");
}
