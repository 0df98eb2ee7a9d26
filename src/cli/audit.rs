//! `diarist audit`: what the audit says about cache, errors and cost.

mod args;
mod input;
mod lines;
mod stored;
mod watch;
mod why;

use std::process::ExitCode;

use anyhow::{bail, ensure};

pub(super) use self::args::Args;
use self::args::Format;
use super::output::{print, print_error};
use super::progress;
use crate::ledger::{Check, Ledger, csv_report, html_report, json_report, text_report};

/// The exit code of a check that could not be made: 1 says that a condition does not hold.
const CHECK_NOT_MADE: u8 = 2;

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(
        args.format != Format::Html || !args.has_groups(),
        "the page shows days, causes, models and conversations: leave out --by"
    );
    if let Some(model) = args.priced_twice() {
        bail!("--price names {model} twice: write one price for each model");
    }
    if let Some(id) = &args.why {
        let prices = args.price_table()?;
        let text = if args.store {
            stored::why(id, &args.sources, &prices)?
        } else {
            let files = input::files(&args.files, &args.sources)?;
            why::text(id, &files, &prices)?
        };
        print(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.watch {
        follow(args)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(conditions) = &args.check else {
        report(args)?;
        return Ok(ExitCode::SUCCESS);
    };
    let check = match conditions.parse::<Check>() {
        Ok(check) => check,
        Err(error) => {
            print_error(&format!("--check: {error}"));
            return Ok(ExitCode::from(CHECK_NOT_MADE));
        }
    };
    let ledger = match report(args) {
        Ok(ledger) => ledger,
        Err(error) => {
            print_error(&format!("{error:#}"));
            return Ok(ExitCode::from(CHECK_NOT_MADE));
        }
    };
    if ledger.period.is_none() {
        print_error(
            "--check: no line counts here, so nothing was checked: look at where the lines come from, and at the filters",
        );
        return Ok(ExitCode::from(CHECK_NOT_MADE));
    }
    let failures = check.failures(&ledger.totals);
    for failure in &failures {
        print_error(&failure.to_string());
    }
    Ok(if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Prints the report whenever there are new lines.
fn follow(args: &Args) -> anyhow::Result<()> {
    ensure!(
        matches!(args.format, Format::Table | Format::Json),
        "--watch prints the report again and again: choose --format table or json"
    );
    let report = |ledger: &Ledger| match args.format {
        // On a terminal the next report would clear what stands on standard error.
        Format::Table => text(args, ledger) + &skipped(ledger).join("\n"),
        _ => text(args, ledger),
    };
    if args.store {
        return stored::watch(&args.sources, new_ledger(args)?, report);
    }
    ensure!(
        args.files.len() < 2,
        "--watch follows one file: name only one"
    );
    let files = input::files(&args.files, &args.sources)?;
    // Of the configured file and what a rotation left, the newest.
    let Some(file) = files.last() else {
        bail!("there is no audit file to follow");
    };
    ensure!(
        !input::is_standard_input(file),
        "--watch follows a file, and standard input is none: name the file"
    );
    watch::run(file, new_ledger(args)?, report)
}

fn new_ledger(args: &Args) -> anyhow::Result<Ledger> {
    let mut ledger = Ledger::new(&args.groups(), args.filter(), args.price_table()?);
    ledger.set_sort(args.sort());
    ledger.set_repeat_forgetting(args.repeat_forgetting);
    Ok(ledger)
}

/// Reads all lines and prints the report.
fn report(args: &Args) -> anyhow::Result<Ledger> {
    let mut ledger = new_ledger(args)?;
    if args.store {
        stored::each_line(&args.sources, |line| ledger.add(line))?;
    } else {
        let files = input::files(&args.files, &args.sources)?;
        input::each_line(&files, |line| ledger.add(line))?;
    }
    print(&text(args, &ledger))?;
    warn_of_skipped(&ledger);
    Ok(ledger)
}

fn text(args: &Args, ledger: &Ledger) -> String {
    match args.format {
        Format::Table => text_report(ledger, progress::terminal_width()),
        Format::Json => json_report(ledger).to_string() + "\n",
        Format::Csv => csv_report(ledger),
        Format::Html => html_report(ledger),
    }
}

/// Says on standard error which lines count nowhere.
fn warn_of_skipped(ledger: &Ledger) {
    for text in skipped(ledger) {
        print_error(&text);
    }
}

fn skipped(ledger: &Ledger) -> Vec<String> {
    let kinds = [
        (
            ledger.torn,
            "not JSON, probably torn by a full disk or a crash",
        ),
        (ledger.foreign, "JSON, but not of the audit"),
    ];
    let found = kinds.into_iter().filter(|(number, _)| *number > 0);
    found
        .map(|(number, what)| match number {
            1 => format!("1 line left out: it is {what}"),
            _ => format!("{number} lines left out: they are {what}"),
        })
        .collect()
}
