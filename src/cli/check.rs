//! `diarist check`: judges the configuration without starting anything.

use std::process::ExitCode;

use super::output::print;
use super::sources::Sources;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    sources: Sources,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.sources.load()?;
    let hints = config.hints();
    let hints = hints.iter().map(|hint| format!("hint: {hint}\n"));
    let lines: String = std::iter::once("The configuration is valid.\n".to_owned())
        .chain(hints)
        .collect();
    print(&lines)?;
    Ok(ExitCode::SUCCESS)
}
