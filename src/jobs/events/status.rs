//! How a conversation stands: the published event `data-om-status`.
//!
//! It is computed from the recorded chain, so it is not stored. The recorder logs it after each
//! request, at debug; `diarist threads show --timeline` computes it when it is needed.

use serde_json::{Value, json};

use crate::history::{Link, Role, Scope};
use crate::jobs::settings::Settings;
use crate::jobs::track::Track;
use crate::memory::advance::{ChainState, ThresholdStatus, threshold_status};
use crate::memory::{Node, Policy};
use crate::store::{Event, RecordedChain};

/// Its published name.
const STATUS: &str = "data-om-status";

/// Logs how the conversation of `track` stands, if the log wants to have it.
pub(in crate::jobs) fn log(policy: &Policy, track: &Track) {
    if !tracing::enabled!(target: "diarist::events::status", tracing::Level::DEBUG) {
        return;
    }
    let body = status_body(policy, &track.nodes, &threshold_status(&track.path()));
    let body = with_ids(body, track.lineage, track.thread_key()).to_string();
    let (tenant, event) = (track.scope.tenant_label(), STATUS);
    tracing::debug!(target: "diarist::events::status", tenant, event, body);
}

/// How a recorded conversation of `scope` stands under `settings`, as an event at `at_ms`. `None` if
/// no message of it is recorded.
#[must_use]
pub fn status_event(
    settings: &Settings,
    scope: &Scope,
    model: &str,
    chain: &RecordedChain,
    at_ms: i64,
) -> Option<Event> {
    if chain.nodes.is_empty() {
        return None;
    }
    let state = ChainState {
        root: Link::root(scope),
        nodes: &chain.nodes,
        parts: &chain.parts,
        snapshots: &chain.snapshots,
        jobs: &chain.jobs,
    };
    let policy = &settings.policy_for(model);
    let body = status_body(policy, &chain.nodes, &threshold_status(&state));
    let key = chain.lineages.first().and_then(|(_, key)| key.as_deref());
    Some(super::event(
        STATUS,
        at_ms,
        &with_ids(body, chain.lineage, key),
    ))
}

/// Adds the ids of the conversation, under their published names.
fn with_ids(mut body: Value, lineage: Option<i64>, key: Option<&str>) -> Value {
    if let Some(record) = lineage.map(|lineage| lineage.to_string()) {
        body["threadId"] = Value::from(key.unwrap_or(&record));
        body["recordId"] = Value::from(record);
    }
    body
}

pub(super) fn status_body(policy: &Policy, nodes: &[Node], thresholds: &ThresholdStatus) -> Value {
    let progress = |running: bool, done: bool| match (running, done) {
        (true, _) => "running",
        (false, true) => "complete",
        (false, false) => "idle",
    };
    let (condensed, reflection) = thresholds.reflection.unwrap_or_default();
    // Steps of the turn: how many messages of the assistant follow the last one of the user.
    let step = nodes
        .iter()
        .rev()
        .take_while(|node| node.role != Role::User)
        .filter(|node| node.role == Role::Assistant)
        .count();
    json!({
        "windows": {
            "active": {
                "messages": {
                    "tokens": thresholds.message_tokens,
                    "threshold": policy.message_tokens,
                },
                "observations": {
                    "tokens": thresholds.observation_tokens,
                    "threshold": policy.observation_tokens,
                },
            },
            "buffered": {
                "observations": {
                    "chunks": thresholds.chunks,
                    "messageTokens": thresholds.chunk_message_tokens,
                    "projectedMessageRemoval":
                        thresholds.chunk_message_tokens.min(thresholds.message_tokens),
                    "observationTokens": thresholds.chunk_tokens,
                    "status": progress(thresholds.observing, thresholds.chunks > 0),
                },
                "reflection": {
                    "inputObservationTokens": condensed,
                    "observationTokens": reflection,
                    "status": progress(thresholds.reflecting, thresholds.reflection.is_some()),
                },
            },
        },
        "stepNumber": step,
        "generationCount": thresholds.generations,
    })
}
