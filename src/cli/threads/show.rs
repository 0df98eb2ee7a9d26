//! `diarist threads show`: facts, observations and snapshots of one conversation.

use anyhow::{Context as _, bail};
use jiff::tz::TimeZone;

use super::log_lines::log;
use super::{lost, observer_state, snapshot_settings, time, timeline, why};
use crate::cli::terminal::harmless;
use crate::config::Config;
use crate::history::Link;
use crate::jobs::status_event;
use crate::memory::{PeerMemory, Snapshot};
use crate::report::{ColumnAlign, Price, Tokens, align_columns, grouped};
use crate::store::{Admin as _, Chains as _, LineageCosts, SqliteStore, ThreadDetail, ThreadRow};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The id from the list, the name that the client gave, or the label in the header x-diarist-thread
    pub(super) id: String,
    /// Show what happened to its memory and when, instead of its content
    #[arg(long)]
    timeline: bool,
    /// With --timeline: print the events, one JSON object a line
    #[arg(long, requires = "timeline")]
    json: bool,
    /// Show from which messages one line of the observations comes; give its number, or some of its words
    #[arg(long, value_name = "LINE", conflicts_with_all = ["timeline", "json"])]
    why: Option<String>,
    /// Show the names, numbers, dates and paths that are in no request any more
    #[arg(long, conflicts_with_all = ["timeline", "why", "json"])]
    lost: bool,
    /// Prices of the model that writes memory, in dollars per million tokens, to show the cost
    #[arg(long, value_name = "IN,CACHED,OUT")]
    memory_prices: Option<Price>,
}

pub(super) async fn text(
    store: &SqliteStore,
    config: &Config,
    args: &Args,
) -> anyhow::Result<String> {
    let lineage = find_conversation(store, &args.id).await?;
    let detail = store.thread(lineage).await?;
    let mut detail =
        detail.with_context(|| format!("conversation {lineage} was forgotten just now"))?;
    if let Some(line) = &args.why {
        return why::text(&detail, &message_texts(store, &detail).await?, line);
    }
    if args.lost {
        return Ok(lost::text(&detail, &message_texts(store, &detail).await?));
    }
    if args.timeline
        && let Some(longest) = store.longest_chain(lineage).await?
    {
        // The state is computed and not stored. It stands last, and is that of the last request.
        let (scope, model) = (&longest.scope, &longest.model);
        let state = status_event(
            &config.memory,
            scope,
            model,
            &longest.chain,
            detail.row.last_ms,
        );
        detail.events.extend(state);
    }
    if args.json {
        return Ok(timeline::json_lines(&detail.events));
    }
    let head = facts(&detail.row) + &costs(&detail.row.costs, args.memory_prices);
    if args.timeline {
        return Ok(head + &timeline::table(&detail.events));
    }
    let head = head + &observer_state::text(&detail);
    Ok(head + &snapshots(&detail) + &snapshot_settings::text(&detail) + &log(&detail))
}

/// The texts of the conversation's messages, as far as they are stored.
async fn message_texts(
    store: &SqliteStore,
    detail: &ThreadDetail,
) -> anyhow::Result<why::MessageTexts> {
    let lineage = detail.row.lineage;
    let links: Vec<Link> = detail.nodes.iter().map(|node| node.link).collect();
    let archived = match store.longest_chain(lineage).await? {
        Some(chain) => store.kept_messages(&chain.scope, &links).await?,
        None => Vec::new(),
    };
    Ok(why::MessageTexts {
        pending: store.pending_texts(lineage).await?,
        archived,
    })
}

/// What the model calls of memory cost for this conversation; empty if there were none.
fn costs(costs: &LineageCosts, price: Option<Price>) -> String {
    let phases = [("Observer", costs.observer), ("Reflector", costs.reflector)];
    let head = [
        "calls",
        "prompt tokens",
        "cached",
        "answer tokens",
        "estimated",
    ];
    let mut rows = vec![vec!["Cost of memory".to_owned()]];
    rows[0].extend(head.map(str::to_owned));
    for (name, cost) in phases.into_iter().filter(|(_, cost)| cost.calls > 0) {
        let numbers = [
            cost.calls,
            cost.prompt_tokens,
            cost.cached_tokens,
            cost.completion_tokens,
            cost.estimated_tokens,
        ];
        let mut row = vec![name.to_owned()];
        row.extend(numbers.map(grouped));
        if let Some(price) = price {
            let tokens = Tokens {
                prompt: Some(cost.prompt_tokens),
                cached: Some(cost.cached_tokens),
                completion: Some(cost.completion_tokens),
            };
            row.push(format!("${:.4}", price.cost(&tokens).unwrap_or_default()));
        }
        rows.push(row);
    }
    if rows.len() == 1 {
        return String::new();
    }
    if price.is_some() {
        rows[0].push("cost".to_owned());
    }
    let mut sides = vec![ColumnAlign::Right; rows[0].len()];
    sides[0] = ColumnAlign::Left;
    format!("\n{}", align_columns(&rows, &sides))
}

/// An id wins over a name or a label. If several conversations have the same name, this is an error.
pub(super) async fn find_conversation(store: &SqliteStore, id: &str) -> anyhow::Result<i64> {
    if let Ok(lineage) = id.parse::<i64>()
        && store.thread(lineage).await?.is_some()
    {
        return Ok(lineage);
    }
    let mut threads = store.threads(u32::MAX).await?;
    threads.retain(|thread| thread.key.as_deref() == Some(id) || thread.label == id);
    match threads.as_slice() {
        [] => bail!(
            "no conversation is called {id:?}; `diarist threads` lists them, each from its second request on"
        ),
        [one] => Ok(one.lineage),
        several => {
            let ids: Vec<String> = several
                .iter()
                .map(|thread| thread.lineage.to_string())
                .collect();
            bail!(
                "several conversations are called {id:?}; give one of these ids: {}",
                ids.join(", ")
            )
        }
    }
}

fn facts(row: &ThreadRow) -> String {
    let zone = TimeZone::system();
    let scope = if row.resource {
        ", with a user (resource)"
    } else {
        ""
    };
    let facts = [
        ("conversation", row.lineage.to_string()),
        (
            "key",
            row.key
                .as_deref()
                .map_or_else(|| "none".to_owned(), harmless),
        ),
        ("label", row.label.clone()),
        (
            "title",
            row.title
                .as_deref()
                .map_or_else(|| "none".to_owned(), harmless),
        ),
        ("tenant", row.tenant.clone() + scope),
        ("model", harmless(&row.model)),
        (
            "messages",
            format!(
                "{} ({} tokens) in {} requests",
                row.messages,
                grouped(row.message_tokens),
                grouped(row.requests)
            ),
        ),
        (
            "seen",
            format!(
                "{} to {}",
                time(row.first_ms, &zone),
                time(row.last_ms, &zone)
            ),
        ),
    ];
    let rows: Vec<Vec<String>> = facts
        .map(|(name, value)| vec![name.to_owned(), value])
        .to_vec();
    align_columns(&rows, &[])
}

fn snapshots(detail: &ThreadDetail) -> String {
    if detail.snapshots.is_empty() {
        return "\nNo snapshot yet: requests are forwarded as the client sends them.\n".to_owned();
    }
    let head = [
        "snapshot",
        "covers",
        "from message",
        "cause",
        "tokens",
        "pin",
        "parts",
        "other conversations",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(detail.snapshots.iter().map(|Snapshot { meta, .. }| {
        let parts: Vec<String> = meta.parts.iter().map(|part| part.0.to_string()).collect();
        vec![
            meta.id.0.to_string(),
            match meta.to_count {
                0 => "-".to_owned(),
                last => format!("1-{last}"),
            },
            meta.eligible_from.to_string(),
            meta.cause.name().to_owned(),
            grouped(meta.tokens.into()),
            // Messages are numbered from 1.
            meta.pin
                .map_or_else(|| "-".to_owned(), |pin| (pin + 1).to_string()),
            parts.join(" "),
            meta.peer_memory
                .as_deref()
                .map_or_else(String::new, peer_memory_text),
        ]
    }));
    let (left, right) = (ColumnAlign::Left, ColumnAlign::Right);
    let sides = [right, right, right, left, right, right, left, left];
    format!(
        "\nSnapshots: each is sent with requests that have at least \"from message\" messages\n{}",
        align_columns(&rows, &sides)
    )
}

/// The other conversations in a snapshot.
fn peer_memory_text(peer_memory: &PeerMemory) -> String {
    let lineages: Vec<String> = peer_memory.lineages.iter().map(i64::to_string).collect();
    let tokens = grouped(peer_memory.tokens.into());
    format!("{} ({tokens} tokens)", lineages.join(" "))
}
