//! The command line: parse, run, exit code.
//!
//! One file per command below; each takes its own arguments and answers with an exit code. The only
//! room that prints, and the only one that reads the process's environment. Called by `main`.

mod check;
mod config;
mod database;
#[cfg(feature = "demo")]
mod demo;
#[cfg(feature = "demo")]
mod harness;
mod health;
mod output;
mod prices;
#[cfg(feature = "demo")]
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

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use output::report_error;

/// `EX_USAGE` of sysexits.h: the command line or the configuration is wrong. Supervisors that tell
/// exit codes apart know not to restart on it.
pub const EX_USAGE: u8 = 64;

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
    /// Judge the configuration: list everything wrong with it, each with its remedy
    Check(check::Args),
    /// Print the commented reference configuration, or the one in force
    Config(config::Args),
    /// See it work: a long made-up conversation, with and without Diarist; needs no key, no network
    #[cfg(feature = "demo")]
    Demo(demo::Args),
    /// Play recorded conversations through Diarist and directly, and compare what they cost
    #[cfg(feature = "demo")]
    Replay(replay::Args),
    /// List the conversations that are remembered, or show one
    Threads(threads::Args),
    /// List who has memory, and let a rotated key keep its memory
    Tenants(tenants::Args),
    /// Make a model call of memory again that came to nothing, and say how its answer is read
    Reproduce(reproduce::Args),
    /// Ask a running Diarist whether it is well; for container health checks
    Health(health::Args),
}

impl Cli {
    /// Parses the arguments, the program's name first. Help, version and mistakes are printed here,
    /// and the exit code to end with comes back.
    ///
    /// # Errors
    ///
    /// The exit code, when there is nothing to run.
    pub fn parse_from_args(args: impl IntoIterator<Item = OsString>) -> Result<Self, ExitCode> {
        Self::try_parse_from(args).map_err(|error| {
            // Nothing sensible can be done if even this cannot be printed.
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
    /// Whatever ended the command early; [`report`] turns it into words and an exit code.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Serve(args) => serve::run(&args),
            Command::Check(args) => check::run(&args),
            Command::Config(args) => config::run(&args),
            #[cfg(feature = "demo")]
            Command::Demo(args) => demo::run(&args),
            #[cfg(feature = "demo")]
            Command::Replay(args) => replay::run(&args),
            Command::Threads(args) => threads::run(&args),
            Command::Tenants(args) => tenants::run(&args),
            Command::Reproduce(args) => reproduce::run(&args),
            Command::Health(args) => health::run(&args),
        }
    }
}
