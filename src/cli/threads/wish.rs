//! `diarist threads observe` and `reflect`: asks the server, through the database, to do something for one
//! conversation. Calls no model itself: the running server does it, or the next one.

use anyhow::{Context as _, bail};

use super::show::find;
use crate::cli::sources::Sources;
use crate::config::{Config, Phase};
use crate::history::Link;
use crate::jobs::Wish;
use crate::memory::advance::{Path, Step, reflection};
use crate::memory::{PartKind, Span};
use crate::report::grouped;
use crate::store::{Chain, Demanded, NewJob, SqliteStore, Store as _, Wanted};

#[derive(Debug, clap::Args)]
pub(super) struct ObserveArgs {
    /// Its id from the list, the key its client gave, or the label that x-diarist-thread showed
    id: String,
    /// What the Observer should look at above all, in your own words
    #[arg(long, value_name = "TEXT")]
    focus: Option<String>,
    #[command(flatten)]
    pub(super) sources: Sources,
}

#[derive(Debug, clap::Args)]
pub(super) struct ReflectArgs {
    /// Its id from the list, the key its client gave, or the label that x-diarist-thread showed
    id: String,
    /// What the Reflector should look at above all, in your own words
    #[arg(long, value_name = "TEXT")]
    focus: Option<String>,
    #[command(flatten)]
    pub(super) sources: Sources,
}

/// Makes what waits due, and leaves a mark for the next request.
pub(super) async fn observe(
    store: &SqliteStore,
    config: &Config,
    args: &ObserveArgs,
) -> anyhow::Result<String> {
    let (lineage, chain) = chain(store, &args.id).await?;
    let revived = store.revive(&chain.scope, lineage, now()).await?;
    let focus = args.focus.clone();
    let wanted = Wanted::Observe { focus };
    store.want(&chain.scope, lineage, &wanted).await?;
    let confirmed = chain
        .known
        .nodes
        .iter()
        .filter(|node| node.confirmed)
        .count();
    let parts = chain.known.parts.iter();
    let observed = parts
        .filter(|part| part.kind == PartKind::Chunk)
        .map(|part| part.span.to_count)
        .max()
        .unwrap_or(0);
    let mut text = format!(
        "Conversation {lineage}: {observed} of {} messages are observed, {confirmed} are confirmed.\n",
        chain.known.nodes.len()
    );
    if revived.due > 0 {
        text.push_str(&format!(
            "{} of its observations that waited are due now. {}\n",
            grouped(revived.due),
            who(&config.memory.observation.phase)
        ));
    }
    if revived.given_up > 0 {
        text.push_str(&format!(
            "{} ranges that were given up will be offered again.\n",
            grouped(revived.given_up)
        ));
    }
    text.push_str(
        "With its next request everything that is confirmed by then is offered to the Observer, whatever \
         it weighs: the words of messages are at hand only while a request carries them.\n",
    );
    if args.focus.is_some() {
        text.push_str(
            "What is offered then is observed with your focus; what waited already is not.\n",
        );
    }
    Ok(text)
}

/// Queues a reflection of what is sent now.
pub(super) async fn reflect(
    store: &SqliteStore,
    config: &Config,
    args: &ReflectArgs,
) -> anyhow::Result<String> {
    let (lineage, chain) = chain(store, &args.id).await?;
    let path = Path {
        root: Link::root(&chain.scope),
        nodes: &chain.known.nodes,
        parts: &chain.known.parts,
        snapshots: &chain.known.snapshots,
        work: &chain.known.jobs,
    };
    let Some(Step::Reflect {
        sources,
        span,
        tokens,
        message_tokens,
    }) = reflection(&path)
    else {
        bail!(nothing(lineage, &chain, args.focus.is_some()));
    };
    let count = sources.len();
    let wish = Wish {
        asked: true,
        focus: args.focus.clone(),
        // As the conversation's own requests have it; that of the server where its client names none.
        zone: chain.known.zone.clone(),
    };
    let job = job(&chain, sources, span, message_tokens, &wish);
    let said = match store.demand(&chain.scope, &job, now()).await? {
        Demanded::New | Demanded::Revived => format!(
            "A reflection of the {count} parts that are its log now is queued ({} tokens, messages 1-{}). {}\n\
             It starts with level 0 and is used with the first request after it is written, where it is \
             smaller than the log.\n",
            grouped(tokens.into()),
            span.to_count,
            who(&config.memory.reflection.phase)
        ),
        Demanded::Running => bail!(
            "the Reflector is at work on this log already; look at `diarist threads show {lineage}` in a while"
        ),
        Demanded::Done => bail!(
            "nothing new since the last reflection of conversation {lineage} (messages 1-{}): it is in \
             use from the next request on{}",
            span.to_count,
            another(args.focus.is_some())
        ),
        Demanded::Forgotten => bail!("conversation {lineage} was forgotten just now"),
    };
    // A server that follows the conversation reads its jobs again.
    store.want(&chain.scope, lineage, &Wanted::Look).await?;
    Ok(format!("Conversation {lineage}: {said}"))
}

/// Why there is nothing to condense.
fn nothing(lineage: i64, chain: &Chain, focused: bool) -> String {
    let parts = chain.known.parts.iter();
    let reflections = parts.filter(|part| part.kind == PartKind::Reflection);
    let Some(newest) = reflections.max_by_key(|part| part.span.to_count) else {
        return format!(
            "nothing of conversation {lineage} can be condensed: nothing of it was observed yet; `diarist \
             threads observe {lineage}` asks for that"
        );
    };
    format!(
        "nothing new since the last reflection of conversation {lineage} (messages 1-{}): it is the whole log, \
         in use from the next request on; what is observed since comes to it with the next activation{}",
        newest.span.to_count,
        another(focused)
    )
}

/// What holds for whoever has another wish.
fn another(focused: bool) -> &'static str {
    if focused {
        ". A log is condensed once, so another focus can be given when there is something new"
    } else {
        ""
    }
}

fn job(
    chain: &Chain,
    parts: Vec<crate::memory::PartId>,
    span: Span,
    message_tokens: u32,
    wish: &Wish,
) -> NewJob {
    NewJob {
        kind: PartKind::Reflection,
        span,
        message_tokens,
        payload: wish.to_json(),
        parts,
        model: chain.model.clone(),
        tip: chain.known.nodes.last().map_or(span.to, |node| node.link),
        tip_count: chain.known.nodes.len(),
        way: None,
        // Somebody waits for it.
        urgency: u32::MAX,
    }
}

/// Who does it, and when.
fn who(phase: &Phase) -> &'static str {
    match phase.endpoint {
        Some(_) => "A running server does it within seconds, else the next one that starts.",
        None => {
            "It is done with the conversation's own credential, so with its next request, by the server that \
             takes it."
        }
    }
}

async fn chain(store: &SqliteStore, id: &str) -> anyhow::Result<(i64, Chain)> {
    let lineage = find(store, id).await?;
    let chain = store.known_of(lineage).await?;
    let chain = chain.with_context(|| format!("conversation {lineage} was forgotten just now"))?;
    Ok((lineage, chain))
}

fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}
