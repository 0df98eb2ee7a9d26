//! The event of an activation: one for each chunk that comes into use, as published, and one for a
//! reflection that replaces what it condenses. Called when a snapshot is committed.

use serde_json::{Value, json};

use super::{Events, config, event, operation, time};
use crate::history::{Link, Scope};
use crate::jobs::track::Track;
use crate::memory::{PartKind, PartMeta, Policy, SnapshotCause, SnapshotMeta};

/// A conversation before a snapshot comes into use.
#[derive(Clone, Debug)]
pub(in crate::jobs) struct ConversationState {
    pub(in crate::jobs) scope: Scope,
    /// The model that its last request named.
    pub(in crate::jobs) model: String,
    /// When its last answer ended, or else when its last request arrived, in milliseconds since
    /// 1970.
    pub(super) active_ms: Option<i64>,
    pub(super) parts: Vec<PartMeta>,
    /// The snapshot that its requests were sent with.
    pub(super) sent_snapshot: Option<SnapshotMeta>,
}

impl ConversationState {
    /// `track`, with the snapshot that covers most.
    pub(in crate::jobs) fn from_track(track: &Track) -> Self {
        let widest = track
            .snapshots
            .iter()
            .max_by_key(|snapshot| snapshot.to_count);
        Self::with_snapshot(track, widest)
    }

    /// `track`, whose request was sent with `sent`.
    pub(in crate::jobs) fn with_snapshot(track: &Track, sent: Option<&SnapshotMeta>) -> Self {
        let last_seen_ms = track.nodes.last().map(|tip| tip.received_ms);
        Self {
            scope: track.scope.clone(),
            model: track.model.clone(),
            active_ms: track.answered_ms.or(last_seen_ms),
            parts: track.parts.clone(),
            sent_snapshot: sent.cloned(),
        }
    }
}

impl Events {
    /// Emits that `snapshot`, prepared for a request that names `model`, comes into use: one event for
    /// each part that was not sent before.
    pub(in crate::jobs) fn emit_activated(
        &self,
        conversation: &ConversationState,
        model: &str,
        tip: Link,
        snapshot: &SnapshotMeta,
    ) {
        let now = self.clock.now_ms();
        let settings = self.settings.current();
        let policy = &settings.policy_for(model);
        for body in bodies(
            policy,
            &settings.upstream,
            conversation,
            model,
            snapshot,
            now,
        ) {
            let activation = event("data-om-activation", now, &body);
            self.emit(&conversation.scope, tip, activation);
        }
    }
}

/// The events of `snapshot`, in the order of the log.
pub(super) fn bodies(
    policy: &Policy,
    upstream: &str,
    conversation: &ConversationState,
    model: &str,
    snapshot: &SnapshotMeta,
    now: i64,
) -> Vec<Value> {
    let (parts, previous) = (&conversation.parts, conversation.sent_snapshot.as_ref());
    let covered = previous.map_or(0, |snapshot| snapshot.to_count);
    let was_sent = |part: &PartMeta| previous.is_some_and(|before| before.parts.contains(&part.id));
    let generations = parts
        .iter()
        .filter(|part| part.kind == PartKind::Reflection)
        .filter(|part| part.span.to_count <= snapshot.to_count)
        .count();
    let body = |part: &PartMeta, tokens: u32, messages: usize| {
        let mut body = json!({
            "cycleId": format!("part-{}", part.id.0),
            "operationType": operation(part.kind),
            "activatedAt": time(now),
            "chunksActivated": 1,
            "tokensActivated": tokens,
            "observationTokens": part.tokens,
            "messagesActivated": messages,
            "generationCount": generations,
            "triggeredBy": trigger(snapshot.cause),
            // Our own field: the published one knows fewer causes.
            "cause": snapshot.cause.name(),
            "config": config(policy, upstream, &conversation.scope, model, part.kind),
        });
        if let Some(active_ms) = conversation.active_ms {
            body["lastActivityAt"] = json!(active_ms);
            if snapshot.cause == SnapshotCause::Idle {
                body["ttlExpiredMs"] = json!(now - active_ms);
            }
        }
        if snapshot.cause == SnapshotCause::ModelChange {
            body["previousModel"] = json!(conversation.model);
            body["currentModel"] = json!(model);
        }
        body
    };
    let reflections = parts
        .iter()
        .filter(|part| part.kind == PartKind::Reflection)
        .filter(|part| snapshot.parts.contains(&part.id) && !was_sent(part))
        // A reflection replaces observations, so it covers no new message.
        .map(|part| body(part, previous.map_or(0, |before| before.tokens), 0));
    let chunks = parts
        .iter()
        .filter(|part| part.kind == PartKind::Chunk)
        .filter(|part| part.span.to_count > covered && part.span.to_count <= snapshot.to_count)
        .map(|part| {
            let messages = part.span.to_count - part.span.from_count;
            body(part, part.message_tokens, messages)
        });
    reflections.chain(chunks).collect()
}

/// The published word for a cause. Idleness and a model change have one each; every other cause is
/// a limit that was reached.
fn trigger(cause: SnapshotCause) -> &'static str {
    match cause {
        SnapshotCause::Idle => "ttl",
        SnapshotCause::ModelChange => "provider_change",
        SnapshotCause::Threshold
        | SnapshotCause::Reflection
        | SnapshotCause::Overflow
        | SnapshotCause::Dropped
        | SnapshotCause::PeerMemory => "threshold",
    }
}
