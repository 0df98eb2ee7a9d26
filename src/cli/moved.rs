//! Commands and options that users look for where there are none: each prints where to look instead.
//!
//! They are hidden from help. Without them, clap would suggest the most similar name, and `threads delete` would
//! lead to `reflect`, which calls a model.

use std::ffi::OsString;
use std::process::ExitCode;

use super::output::{EX_USAGE, print_error};

// No comment of documentation: it would be the help of these commands. What follows is taken whatever it is, so that the
// explanation is printed and not a complaint about arguments.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(super) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _rest: Vec<OsString>,
}

pub(super) const DELETE: &str = "there is no such command. `diarist threads forget ID` deletes one conversation, \
    `diarist threads forget --resource NAME` those of one user, and `diarist tenants forget NAME` those of one tenant. \
    To delete everything, stop Diarist and delete the database; docs/operating.md, \"Retention and deletion\", lists \
    the files";

pub(super) const STATS: &str = "there is no such command. `diarist audit` sums the requests of audit files, \
    `diarist threads` lists conversations with their tokens, `diarist tenants` lists tenants, and \
    /metrics on the admin port has counters for Prometheus";

pub(super) const LOGS: &str = "there is no such command. `diarist serve` writes its log to standard error; the \
    variable DIARIST_LOG sets its level. `diarist threads show ID --timeline` shows the events of one conversation";

pub(super) const LIST_OPTION: &str = "--json and --limit in front of a subcommand are options of the list, which is not \
    printed then: write options of the subcommand behind it";

/// Prints `text` and ends with the code of a usage error.
pub(super) fn explain(text: &str) -> ExitCode {
    print_error(text);
    ExitCode::from(EX_USAGE)
}
