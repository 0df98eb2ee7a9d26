//! `diarist threads observe` and `reflect`: writes a request for one conversation into the database.
//!
//! Calls no model. The running server, or the next one that starts, carries the request out.

use anyhow::{Context as _, bail};

use super::show::find_conversation;
use crate::config::Config;
use crate::history::Link;
use crate::jobs::{Phase, ReflectionPayload};
use crate::memory::advance::{Action, ChainState, reflect_on_request};
use crate::memory::{PartKind, Span};
use crate::report::grouped;
use crate::store::{
    Admin as _, LongestChain, NewJob, OperatorRequest, Queue as _, RequestedJobOutcome, SqliteStore,
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The id from the list, the name that the client gave, or the label in the header x-diarist-thread
    id: String,
    /// What the model should look at most, in your own words
    #[arg(long, value_name = "TEXT")]
    focus: Option<String>,
}

/// Makes waiting observation jobs due now, and asks for an observation at the next request.
pub(super) async fn observe(
    store: &SqliteStore,
    config: &Config,
    args: &Args,
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
        "Conversation {lineage} has {} messages. {observed} are observed; {confirmed} were carried by two \
         answered requests and can be.\n",
        chain.chain.nodes.len()
    );
    if requeued.made_due > 0 {
        text.push_str(&format!(
            "{} waiting observations are due now. {}\n",
            grouped(requeued.made_due),
            schedule_note(&config.memory.observation)
        ));
    }
    if requeued.abandoned > 0 {
        text.push_str(&format!(
            "{} ranges that had failed for good will be tried again.\n",
            grouped(requeued.abandoned)
        ));
    }
    text.push_str(
        "The next request queues every message that can be observed by then, however few tokens that are. \
         (Only a request carries the text of messages.)\n",
    );
    if args.focus.is_some() {
        text.push_str(
            "Your focus applies to the messages that the next request queues, not to those that waited before.\n",
        );
    }
    Ok(text)
}

/// Queues a reflection of the observations that are sent now.
pub(super) async fn reflect(
    store: &SqliteStore,
    config: &Config,
    args: &Args,
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
        requested: true,
        focus: args.focus.clone(),
        // The zone of the conversation's requests; without one, the server uses its own.
        zone: chain.chain.zone.clone(),
    };
    let job = reflection_job(&chain, sources, span, message_tokens, &request);
    let text = match store.enqueue_requested(&chain.scope, &job, now()).await? {
        RequestedJobOutcome::Queued | RequestedJobOutcome::Requeued => format!(
            "A reflection of its {count} parts is queued ({} tokens, messages 1-{}). {}\n\
             It is used from the first request after it is written, if it is smaller than the observations.\n",
            grouped(tokens.into()),
            span.to_count,
            schedule_note(&config.memory.reflection)
        ),
        RequestedJobOutcome::Running => bail!(
            "the Reflector is already working on these observations; see `diarist threads show {lineage}` later"
        ),
        RequestedJobOutcome::Done => bail!(
            "nothing new since the last reflection of conversation {lineage} (messages 1-{}). The next request \
             uses that reflection{}",
            span.to_count,
            other_focus_hint(args.focus.is_some())
        ),
        RequestedJobOutcome::Forgotten => bail!("conversation {lineage} was deleted just now"),
    };
    // A server that has the conversation in memory reads its jobs again.
    store
        .put_operator_request(&chain.scope, lineage, &OperatorRequest::Refresh)
        .await?;
    Ok(format!("Conversation {lineage}: {text}"))
}

/// Why no reflection can be queued.
fn nothing_to_reflect(lineage: i64, chain: &LongestChain, focused: bool) -> String {
    let parts = chain.chain.parts.iter();
    let reflections = parts.filter(|part| part.kind == PartKind::Reflection);
    let Some(newest) = reflections.max_by_key(|part| part.span.to_count) else {
        return format!(
            "conversation {lineage} has no observations to condense; `diarist threads observe {lineage}` asks for \
             some"
        );
    };
    format!(
        "nothing new since the last reflection of conversation {lineage} (messages 1-{}). Try again after new \
         observations{}",
        newest.span.to_count,
        other_focus_hint(focused)
    )
}

/// Explains why another focus does not help.
fn other_focus_hint(focused: bool) -> &'static str {
    if focused {
        ". Observations are condensed once, so a new focus needs new observations"
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
        // The first of all jobs: an operator waits for it.
        urgency: u32::MAX,
    }
}

/// When the job runs.
fn schedule_note(phase: &Phase) -> &'static str {
    match phase.endpoint {
        Some(_) => "A running server does this within seconds, otherwise the next one that starts.",
        None => {
            "This needs the conversation's own credential, so the server does it at the next request."
        }
    }
}

async fn find_chain(store: &SqliteStore, id: &str) -> anyhow::Result<(i64, LongestChain)> {
    let lineage = find_conversation(store, id).await?;
    let chain = store.longest_chain(lineage).await?;
    let chain = chain.with_context(|| format!("conversation {lineage} was deleted just now"))?;
    Ok((lineage, chain))
}

fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}
