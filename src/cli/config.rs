//! `diarist config`: prints the reference configuration, or the one in force.

use std::process::ExitCode;

use super::output::print;
use super::sources::ConfigSources;
use crate::config::reference;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print the values in force, each with its source; secrets are redacted
    #[arg(long)]
    effective: bool,
    #[command(flatten)]
    sources: ConfigSources,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let text = if args.effective {
        args.sources.effective()?
    } else {
        reference()
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
