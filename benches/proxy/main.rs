//! Diarist beside nginx and a plain pass-through, as processes, with memory on: the table of what it must reach.
//!
//! `cargo bench --bench proxy`; `docs/performance.md` says how to read it. The program under test has one core, the load
//! and the scripted upstream another one. Each round runs all programs one after the other. This program also plays the
//! upstream and the pass-through, in processes of their own ([`role`]).

mod arguments;
mod client;
mod conversation;
mod curves;
mod load;
mod nginx;
mod observer;
mod passthrough;
mod process;
mod report;
mod role;
mod rounds;
mod rows;
mod stand;
mod statistics;
mod upstream;
mod words;

use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};

use arguments::Arguments;
use rounds::Bench;
use stand::Stand;

fn main() -> anyhow::Result<()> {
    let given: Vec<String> = std::env::args().collect();
    if let Some(played) = role::play(&given) {
        return played;
    }
    let arguments = Arguments::parse();
    if !arguments.bench {
        note("nothing was measured: run it with `cargo bench --bench proxy`");
        return Ok(());
    }
    process::pin_this(process::CORE_FOR_LOAD);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        tokio::select! {
            result = Box::pin(run(arguments)) => result,
            stopped = stop() => stopped,
        }
    })
}

/// Ends with an error when the run is to stop, so that destructors end the child processes.
async fn stop() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => {}
        result = tokio::signal::ctrl_c() => result?,
    }
    anyhow::bail!("stopped before the end")
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let stand = Stand::start().await?;
    if !process::can_pin() {
        note(
            "NOT PINNED: taskset (util-linux) or a second core is missing; programs disturb each other",
        );
    }
    if !stand.has_nginx() {
        note(
            "WITHOUT NGINX: ratios are to the pass-through. `apt-get install nginx-light` brings it",
        );
    }
    let bench = Bench { arguments, stand };
    if bench.arguments.curves {
        return Box::pin(curves::measure(&bench)).await;
    }
    let wanted = &bench.arguments.rows;
    let all: Vec<String> = rows::NAMES.map(str::to_owned).to_vec();
    let names = if wanted.is_empty() { &all } else { wanted };
    let mut findings = Vec::new();
    for name in names {
        note(&format!("{name}:"));
        match Box::pin(rows::measure(name, &bench)).await {
            Ok(found) => findings.extend(found),
            // The other rows are worth having.
            Err(error) => note(&format!("  FAILED, not in the table: {error:#}")),
        }
    }
    report::print(&findings);
    Ok(())
}

/// A line of the result.
#[expect(clippy::print_stdout, reason = "the result of a benchmark")]
fn output(line: &str) {
    println!("{line}");
}

/// A line about how the run goes.
#[expect(clippy::print_stderr, reason = "who waits wants to know")]
fn note(line: &str) {
    eprintln!("{line}");
}
