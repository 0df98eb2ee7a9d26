//! `diarist threads observe` and `reflect`: asks the server, through the database, to do something for one
//! conversation. Calls no model itself: the running server does it, or the next one.

use anyhow::{Context as _, bail};

use super::show::find_conversation;
use crate::cli::sources::ConfigSources;
use crate::config::{Config, PhaseSettings};
use crate::history::Link;
use crate::jobs::ReflectionPayload;
use crate::memory::advance::{Action, ChainState, reflect_on_request};
use crate::memory::{PartKind, Span};
use crate::report::grouped;
use crate::store::{
    Admin as _, LongestChain, NewJob, OperatorRequest, Queue as _, RequestedJobOutcome, SqliteStore,
};

#[derive(Debug, clap::Args)]
pub(super) struct ObserveArgs {
    /// Its id from the list, the key its client gave, or the label that x-diarist-thread showed
    id: String,
    /// What the Observer should look at above all, in your own words
    #[arg(long, value_name = "TEXT")]
    focus: Option<String>,
    #[command(flatten)]
    pub(super) sources: ConfigSources,
}

#[derive(Debug, clap::Args)]
pub(super) struct ReflectArgs {
    /// Its id from the list, the key its client gave, or the label that x-diarist-thread showed
    id: String,
    /// What the Reflector should look at above all, in your own words
    #[arg(long, value_name = "TEXT")]
    focus: Option<String>,
    #[command(flatten)]
    pub(super) sources: ConfigSources,
}

/// Makes what waits due, and leaves a mark for the next request.
pub(super) async fn observe(
    store: &SqliteStore,
    config: &Config,
    args: &ObserveArgs,
) -> anyhow::Result<String> {
    let (lineage, chain) = find_chain(store, &args.id).await?;
    let requeued = store.requeue_failed(&chain.scope, lineage, now()).await?;
    let focus = args.focus.clone();
    let request = OperatorRequest::Observe { focus };
    store
        .put_operator_request(&chain.scope, lineage, &request)
        .await?;
    let confirmed = chain
        .chain
        .nodes
        .iter()
        .filter(|node| node.confirmed)
        .count();
    let parts = chain.chain.parts.iter();
    let observed = parts
        .filter(|part| part.kind == PartKind::Chunk)
        .map(|part| part.span.to_count)
        .max()
        .unwrap_or(0);
    let mut text = format!(
        "Conversation {lineage}: {observed} of {} messages are observed, {confirmed} are confirmed.\n",
        chain.chain.nodes.len()
    );
    if requeued.made_due > 0 {
        text.push_str(&format!(
            "{} of its observations that waited are due now. {}\n",
            grouped(requeued.made_due),
            schedule_note(&config.memory.observation.phase)
        ));
    }
    if requeued.abandoned > 0 {
        text.push_str(&format!(
            "{} ranges that were given up will be offered again.\n",
            grouped(requeued.abandoned)
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
    let (lineage, chain) = find_chain(store, &args.id).await?;
    let path = ChainState {
        root: Link::root(&chain.scope),
        nodes: &chain.chain.nodes,
        parts: &chain.chain.parts,
        snapshots: &chain.chain.snapshots,
        jobs: &chain.chain.jobs,
    };
    let Some(Action::Reflect {
        sources,
        span,
        tokens,
        message_tokens,
    }) = reflect_on_request(&path)
    else {
        bail!(nothing_to_reflect(lineage, &chain, args.focus.is_some()));
    };
    let count = sources.len();
    let request = ReflectionPayload {
        asked: true,
        focus: args.focus.clone(),
        // As the conversation's own requests have it; that of the server where its client names none.
        zone: chain.chain.zone.clone(),
    };
    let job = reflection_job(&chain, sources, span, message_tokens, &request);
    let text = match store.enqueue_requested(&chain.scope, &job, now()).await? {
        RequestedJobOutcome::Queued | RequestedJobOutcome::Requeued => format!(
            "A reflection of the {count} parts that are its log now is queued ({} tokens, messages 1-{}). {}\n\
             It starts with level 0 and is used with the first request after it is written, where it is \
             smaller than the log.\n",
            grouped(tokens.into()),
            span.to_count,
            schedule_note(&config.memory.reflection.phase)
        ),
        RequestedJobOutcome::Running => bail!(
            "the Reflector is at work on this log already; look at `diarist threads show {lineage}` in a while"
        ),
        RequestedJobOutcome::Done => bail!(
            "nothing new since the last reflection of conversation {lineage} (messages 1-{}): it is in \
             use from the next request on{}",
            span.to_count,
            other_focus_hint(args.focus.is_some())
        ),
        RequestedJobOutcome::Forgotten => bail!("conversation {lineage} was forgotten just now"),
    };
    // A server that follows the conversation reads its jobs again.
    store
        .put_operator_request(&chain.scope, lineage, &OperatorRequest::Refresh)
        .await?;
    Ok(format!("Conversation {lineage}: {text}"))
}

/// Why there is nothing to condense.
fn nothing_to_reflect(lineage: i64, chain: &LongestChain, focused: bool) -> String {
    let parts = chain.chain.parts.iter();
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
        other_focus_hint(focused)
    )
}

/// What holds for whoever has another wish.
fn other_focus_hint(focused: bool) -> &'static str {
    if focused {
        ". A log is condensed once, so another focus can be given when there is something new"
    } else {
        ""
    }
}

fn reflection_job(
    chain: &LongestChain,
    parts: Vec<crate::memory::PartId>,
    span: Span,
    message_tokens: u32,
    request: &ReflectionPayload,
) -> NewJob {
    NewJob {
        kind: PartKind::Reflection,
        span,
        message_tokens,
        payload: request.to_json(),
        parts,
        model: chain.model.clone(),
        tip: chain.chain.nodes.last().map_or(span.to, |node| node.link),
        tip_count: chain.chain.nodes.len(),
        route_hash: None,
        // Somebody waits for it.
        urgency: u32::MAX,
    }
}

/// Who does it, and when.
fn schedule_note(phase: &PhaseSettings) -> &'static str {
    match phase.endpoint {
        Some(_) => "A running server does it within seconds, else the next one that starts.",
        None => {
            "It is done with the conversation's own credential, so with its next request, by the server that \
             takes it."
        }
    }
}

async fn find_chain(store: &SqliteStore, id: &str) -> anyhow::Result<(i64, LongestChain)> {
    let lineage = find_conversation(store, id).await?;
    let chain = store.longest_chain(lineage).await?;
    let chain = chain.with_context(|| format!("conversation {lineage} was forgotten just now"))?;
    Ok((lineage, chain))
}

fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}
