//! `diarist threads`: lists the conversations in memory, shows one, and asks for observations and reflections.
//!
//! Listing and showing only read the database. `observe` and `reflect` write a request into it, which the server
//! carries out. `forget` deletes in the database itself. A server may use the database at the same time.

mod export;
pub(super) mod forget;
mod log_lines;
mod lost;
mod observer_state;
mod operator_request;
mod show;
mod snapshot_settings;
mod time;
mod timeline;
mod why;

use self::time::time;
use std::process::ExitCode;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::json;

use super::database::{read, write, write_alone};
use super::moved;
use super::output::print;
use super::sources::ConfigSources;
use super::terminal::harmless;
use crate::history::Scope;
use crate::report::{ColumnAlign, align_columns, grouped};
use crate::store::{
    Admin as _, CallTotals, LIVE_MS, SHARED_KEY_THRESHOLD, SqliteStore, Tenants as _, ThreadRow,
};

/// Conversations in the list, if the user asks for no other number.
const LISTED: u32 = 20;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    sources: ConfigSources,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// How many conversations to list, the latest first [default: 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Print one JSON object for each conversation
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the conversations in memory, as without a subcommand
    #[command(hide = true, alias = "ls")]
    List(ListArgs),
    /// Show the memory of one conversation: its observations and its snapshots
    Show(show::Args),
    /// Observe now every message that two answered requests have carried, without waiting for a threshold
    Observe(operator_request::Args),
    /// Condense the observations of one conversation now
    Reflect(operator_request::Args),
    /// Print one conversation as JSON: hashes of its messages, observations, snapshots, costs
    Export(export::ExportArgs),
    /// Store an exported conversation; the server must not run meanwhile
    Import(export::ImportArgs),
    /// Delete everything of one conversation, or of one user, and remember nothing of it again
    Forget(forget::ForgetArgs),
    /// List what was forgotten: the receipts
    Forgotten(forget::ForgottenArgs),
    /// Allow memory again for what was forgotten: its next request begins anew
    Unforget(forget::UnforgetArgs),
    #[command(hide = true, alias = "remove", alias = "rm")]
    Delete(moved::Args),
    #[command(hide = true, alias = "usage")]
    Stats(moved::Args),
    #[command(hide = true, alias = "log")]
    Logs(moved::Args),
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let sources = &args.sources;
    if args.command.is_some() && (args.list.json || args.list.limit.is_some()) {
        return Ok(moved::explain(moved::LIST_OPTION));
    }
    let text = match &args.command {
        Some(Command::Delete(_)) => return Ok(moved::explain(moved::DELETE)),
        Some(Command::Stats(_)) => return Ok(moved::explain(moved::STATS)),
        Some(Command::Logs(_)) => return Ok(moved::explain(moved::LOGS)),
        None => list_text(sources, &args.list),
        Some(Command::List(args)) => list_text(sources, args),
        Some(Command::Show(show)) => read(sources, async |store, config| {
            show::text(store, config, show).await
        }),
        Some(Command::Export(args)) => {
            read(sources, async |store, _| export::export(store, args).await)
        }
        Some(Command::Import(args)) => {
            write_alone(sources, async |store, _| export::import(store, args).await)
        }
        Some(Command::Forget(args)) => write(sources, async |store, config| {
            forget::forget(store, config, args).await
        }),
        Some(Command::Forgotten(args)) => read(sources, async |store, _| {
            forget::forgotten(store, args.json).await
        }),
        Some(Command::Unforget(args)) => write(sources, async |store, _| {
            forget::unforget(store, args.receipt).await
        }),
        Some(Command::Observe(args)) => write(sources, async |store, config| {
            operator_request::observe(store, config, args).await
        }),
        Some(Command::Reflect(args)) => write(sources, async |store, config| {
            operator_request::reflect(store, config, args).await
        }),
    }?;
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn list_text(sources: &ConfigSources, args: &ListArgs) -> anyhow::Result<String> {
    let limit = args.limit.unwrap_or(LISTED);
    read(sources, async |store, config| {
        if args.json {
            let threads = store.threads(limit).await?;
            return Ok(threads.iter().map(json_line).collect());
        }
        let daily = config.memory.daily.account;
        let text = list(store, limit).await? + &shared_thread_keys(store).await?;
        Ok(text + &over_budget(store, daily).await?)
    })
}

async fn list(store: &SqliteStore, limit: u32) -> anyhow::Result<String> {
    let threads = store.threads(limit).await?;
    if threads.is_empty() {
        return Ok(
            "No conversation is remembered yet; one is listed from its second request on.\n"
                .to_owned(),
        );
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
        text.push_str(&format!(
            "These are the latest {limit}; --limit N shows more.\n"
        ));
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
        // Tokens of memory's own model calls.
        grouped(total(&thread.costs.observer) + total(&thread.costs.reflector)),
        time(thread.last_ms, zone),
    ]
}

/// The row as a JSON object. Texts are not changed for a terminal: JSON escapes control characters.
fn json_line(thread: &ThreadRow) -> String {
    let time = |ms| {
        Timestamp::from_millisecond(ms)
            .map(|time| time.to_string())
            .ok()
    };
    let calls = |cost: &CallTotals| {
        json!({
            "calls": cost.calls,
            "prompt_tokens": cost.prompt_tokens,
            "cached_tokens": cost.cached_tokens,
            "completion_tokens": cost.completion_tokens,
            "estimated_tokens": cost.estimated_tokens,
        })
    };
    let line = json!({
        "id": thread.lineage,
        "tenant": thread.tenant,
        "has_resource": thread.resource,
        "key": thread.key,
        "label": thread.label,
        "title": thread.title,
        "model": thread.model,
        "requests": thread.requests,
        "messages": thread.messages,
        "message_tokens": thread.message_tokens,
        "parts": thread.parts,
        "snapshots": thread.snapshots,
        "observer": calls(&thread.costs.observer),
        "reflector": calls(&thread.costs.reflector),
        "first": time(thread.first_ms),
        "last": time(thread.last_ms),
    });
    format!("{line}\n")
}

/// Tokens of prompts and answers.
fn total(cost: &CallTotals) -> u64 {
    cost.prompt_tokens.saturating_add(cost.completion_tokens)
}

/// Names that too many conversations share to tell them apart.
async fn shared_thread_keys(store: &SqliteStore) -> anyhow::Result<String> {
    let since = Timestamp::now().as_millisecond() - LIVE_MS;
    let shared = store.shared_thread_keys(since).await?;
    let describe = |(scope, key): &(Scope, String)| {
        format!(
            "{SHARED_KEY_THRESHOLD} or more conversations of tenant {} use the name {}: it no longer names one, and \
             later conversations are recognised by their content only.\n",
            scope.tenant_label(),
            harmless(key)
        )
    };
    Ok(shared.iter().map(describe).collect())
}

/// Tenants whose jobs wait for the next day, because the tokens of their account are spent for this day.
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
                "The account of tenant {} has spent {} of its {} tokens a day (memory.daily_tokens): {} jobs wait \
                 until tomorrow (UTC).\n",
                tenant.tenant,
                grouped(tenant.spent_tokens),
                grouped(daily),
                tenant.open_jobs
            )
        })
        .collect())
}
