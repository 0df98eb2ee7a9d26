//! The command line: parses it, runs the command, returns the exit code.
//!
//! Each command has a file of its own, which takes its arguments and returns an exit code. The only module that
//! prints, and the only one that reads the environment of the process. Called by `main`.

mod audit;
mod check;
mod config;
mod database;
#[cfg(feature = "demo")]
mod demo;
#[cfg(feature = "demo")]
mod harness;
mod health;
mod moved;
mod output;
mod prices;
mod progress;
#[cfg(feature = "demo")]
mod replay;
#[cfg(feature = "demo")]
mod replay_client;
mod reproduce;
mod serve;
mod sources;
mod tenants;
mod terminal;
mod threads;
mod wrong_command;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::telemetry::install_panic_hook;

pub use output::EX_USAGE;
pub use output::report_error;

/// An OpenAI-compatible reverse proxy with observational memory.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the proxy
    Serve(serve::Args),
    /// Check the configuration: list every error with its remedy, and what is probably a mistake
    Check(check::Args),
    /// Print the reference configuration with comments, or the one in force
    Config(config::Args),
    /// Show memory at work in a long invented conversation, with and without Diarist; needs no key and no network
    #[cfg(feature = "demo")]
    Demo(demo::Args),
    /// Replay recorded conversations through Diarist and directly, and compare the costs
    #[cfg(feature = "demo")]
    Replay(replay::Args),
    /// Read audit files: cache hits, errors and cost by model, conversation, tenant or day
    Audit(Box<audit::Args>),
    /// List the conversations in memory; show, observe, reflect, export or forget one
    Threads(threads::Args),
    /// List the tenants with memory, let a rotated key keep its memory, or forget a tenant
    Tenants(tenants::Args),
    /// Repeat a failed model call of memory, and show how its answer is read
    Reproduce(reproduce::Args),
    /// Ask a running Diarist whether it is healthy, for container health checks
    Health(health::Args),
    #[command(hide = true, alias = "usage", alias = "status")]
    Stats(moved::Args),
    #[command(hide = true, alias = "log")]
    Logs(moved::Args),
    #[command(hide = true, alias = "forget")]
    Delete(moved::Args),
}

impl Cli {
    /// Parses the arguments, of which the first is the name of the program. Prints help, version and usage errors.
    ///
    /// # Errors
    ///
    /// The exit code, if there is no command to run.
    pub fn parse_from_args(args: impl IntoIterator<Item = OsString>) -> Result<Self, ExitCode> {
        let args: Vec<OsString> = args.into_iter().collect();
        Self::try_parse_from(&args).map_err(|mut error| {
            wrong_command::suggest_commands(&mut error, &Self::command(), &args);
            // If this cannot be printed, the exit code still reports the error.
            drop(error.print());
            if error.use_stderr() {
                ExitCode::from(EX_USAGE)
            } else {
                ExitCode::SUCCESS
            }
        })
    }

    /// Runs the command.
    ///
    /// # Errors
    ///
    /// The error that ended the command; [`report_error`] prints it and returns the exit code.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        install_panic_hook();
        match self.command {
            Command::Serve(args) => serve::run(&args),
            Command::Check(args) => check::run(&args),
            Command::Config(args) => config::run(&args),
            #[cfg(feature = "demo")]
            Command::Demo(args) => demo::run(&args),
            #[cfg(feature = "demo")]
            Command::Replay(args) => replay::run(&args),
            Command::Audit(args) => audit::run(&args),
            Command::Threads(args) => threads::run(&args),
            Command::Tenants(args) => tenants::run(&args),
            Command::Reproduce(args) => reproduce::run(&args),
            Command::Health(args) => health::run(&args),
            Command::Stats(_) => Ok(moved::explain(moved::STATS)),
            Command::Logs(_) => Ok(moved::explain(moved::LOGS)),
            Command::Delete(_) => Ok(moved::explain(moved::DELETE)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::telemetry::{LogFormat, init_logging};

    /// What a request may have said.
    const CANARY: &str = "canary-in-a-prompt";

    fn run_a_command() {
        let cli = Cli::parse_from_args(["diarist", "config"].map(OsString::from));
        assert!(cli.is_ok_and(|cli| cli.run().is_ok()));
    }

    /// Set for the processes of `a_panic_writes_its_place_and_not_its_message`. Elsewhere the two tests below have
    /// nothing to do.
    const PANICS: &str = "TEST_PANICS";

    #[expect(
        clippy::disallowed_methods,
        reason = "a test has no other way to be told"
    )]
    fn panics_here() -> bool {
        std::env::var_os(PANICS).is_some()
    }

    #[test]
    fn panics_without_a_log() {
        if !panics_here() {
            return;
        }
        run_a_command();
        panic!("{CANARY}");
    }

    #[test]
    fn panics_with_a_log() {
        if !panics_here() {
            return;
        }
        run_a_command();
        let _log = init_logging(LogFormat::Auto, None).expect("a log");
        let text = format!("é{CANARY}");
        let inside = text.len() - CANARY.len() - 1;
        // The message of this panic quotes the text.
        let _ = &text[inside..];
    }

    #[test]
    fn a_panic_writes_its_place_and_not_its_message() {
        let program = std::env::current_exe().expect("this program");
        for test in ["panics_without_a_log", "panics_with_a_log"] {
            let output = Command::new(&program)
                .args(["--exact", "--nocapture"])
                .arg(format!("cli::tests::{test}"))
                .env(PANICS, "1")
                .output()
                .expect("a run of one test");
            let written = [output.stdout, output.stderr].concat();
            let written = String::from_utf8_lossy(&written);
            assert!(!output.status.success(), "{written}");
            assert!(written.contains("src/cli.rs:"), "{written}");
            assert!(written.contains(test), "the thread: {written}");
            assert!(!written.contains(CANARY), "{written}");
        }
    }
}
