//! `diarist threads`: which conversations are remembered, what is remembered of one, and asking for more.
//!
//! Listing and showing read the database and change nothing in it. Observing and reflecting write down what
//! the server is to do. A server may be at work on the same database meanwhile.

mod log_lines;
mod operator_request;
mod show;
mod snapshot_settings;
mod why;

use std::process::ExitCode;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::database::{read, write};
use super::output::print;
use super::sources::ConfigSources;
use super::terminal::harmless;
use crate::history::Scope;
use crate::report::{ColumnAlign, align_columns, grouped};
use crate::store::{
    Admin as _, CallTotals, LIVE_MS, SHARED_KEY_THRESHOLD, SqliteStore, Tenants as _, ThreadRow,
};

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    /// How many to list, the latest first
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: u32,
    #[command(flatten)]
    sources: ConfigSources,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// What is remembered of one conversation: its observations and its snapshots
    Show(show::Args),
    /// Have everything observed that is confirmed, without waiting for the threshold
    Observe(operator_request::ObserveArgs),
    /// Have the observations condensed now
    Reflect(operator_request::ReflectArgs),
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let text = match &args.command {
        None => read(&args.sources, async |store, config| {
            let daily = config.memory.daily_tokens;
            let text = list(store, args.limit).await? + &shared_thread_keys(store).await?;
            Ok(text + &over_budget(store, daily).await?)
        }),
        Some(Command::Show(show)) => read(&show.sources, async |store, _| {
            show::text(store, show).await
        }),
        Some(Command::Observe(args)) => write(&args.sources, async |store, config| {
            operator_request::observe(store, config, args).await
        }),
        Some(Command::Reflect(args)) => write(&args.sources, async |store, config| {
            operator_request::reflect(store, config, args).await
        }),
    }?;
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

async fn list(store: &SqliteStore, limit: u32) -> anyhow::Result<String> {
    let threads = store.threads(limit).await?;
    if threads.is_empty() {
        return Ok("No conversation is remembered yet.\n".to_owned());
    }
    let zone = TimeZone::system();
    let head = [
        "id",
        "key",
        "label",
        "title",
        "model",
        "requests",
        "messages",
        "tokens",
        "parts",
        "snapshots",
        "memory",
        "last",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(threads.iter().map(|thread| cells(thread, &zone)));
    let mut sides = [ColumnAlign::Left; 12];
    sides[5..11].fill(ColumnAlign::Right);
    let mut text = align_columns(&rows, &sides);
    if threads.len() == usize::try_from(limit).unwrap_or(usize::MAX) {
        text.push_str(&format!("The latest {limit}; --limit shows more.\n"));
    }
    Ok(text)
}

fn cells(thread: &ThreadRow, zone: &TimeZone) -> Vec<String> {
    vec![
        thread.lineage.to_string(),
        thread
            .key
            .as_deref()
            .map_or_else(|| "-".to_owned(), harmless),
        thread.label.clone(),
        thread
            .title
            .as_deref()
            .map_or_else(|| "-".to_owned(), harmless),
        harmless(&thread.model),
        grouped(thread.requests),
        thread.messages.to_string(),
        grouped(thread.message_tokens),
        thread.parts.to_string(),
        thread.snapshots.to_string(),
        // What its memory cost, in tokens.
        grouped(total(&thread.costs.observer) + total(&thread.costs.reflector)),
        time(thread.last_ms, zone),
    ]
}

/// Tokens of prompts and answers.
fn total(cost: &CallTotals) -> u64 {
    cost.prompt_tokens.saturating_add(cost.completion_tokens)
}

/// Names that are taken for none.
async fn shared_thread_keys(store: &SqliteStore) -> anyhow::Result<String> {
    let since = Timestamp::now().as_millisecond() - LIVE_MS;
    let shared = store.shared_thread_keys(since).await?;
    let describe = |(scope, key): &(Scope, String)| {
        format!(
            "{SHARED_KEY_THRESHOLD} conversations of tenant {} and more go under {}: it names none any more, and later \
             ones go by their content.\n",
            scope.tenant_label(),
            harmless(key)
        )
    };
    Ok(shared.iter().map(describe).collect())
}

/// Who waits for another day, since what memory may cost on this one is spent.
async fn over_budget(store: &SqliteStore, daily: Option<u64>) -> anyhow::Result<String> {
    let Some(daily) = daily else {
        return Ok(String::new());
    };
    let waiting = store
        .tenant_backlogs(Timestamp::now().as_millisecond())
        .await?;
    let exhausted = waiting.iter().filter(|tenant| tenant.spent_tokens >= daily);
    Ok(exhausted
        .map(|tenant| {
            format!(
                "Tenant {} has spent {} of {} tokens a day (memory.daily_tokens): {} jobs wait until \
                 tomorrow (UTC).\n",
                tenant.tenant,
                grouped(tenant.spent_tokens),
                grouped(daily),
                tenant.open_jobs
            )
        })
        .collect())
}

/// To the minute, as the clock on the wall shows it.
fn time(ms: i64, zone: &TimeZone) -> String {
    Timestamp::from_millisecond(ms).map_or_else(
        |_| "?".to_owned(),
        |time| {
            time.to_zoned(zone.clone())
                .strftime("%Y-%m-%d %H:%M")
                .to_string()
        },
    )
}
