//! What is told of a snapshot: that chunks came into use, one event for each of them as published, and
//! that a reflection took the place of what it condenses.

use serde_json::{Value, json};

use super::{config, operation, time};
use crate::history::{Link, Scope};
use crate::jobs::Shop;
use crate::jobs::track::Track;
use crate::memory::{Cause, PartKind, PartMeta, Policy, Snapshot, SnapshotMeta};

/// A snapshot was prepared: what it holds beyond `before` comes into use with it.
pub(in crate::jobs) fn activated(
    shop: &Shop,
    track: &Track,
    before: Option<&SnapshotMeta>,
    tip: Link,
    snapshot: &Snapshot,
) {
    let now = shop.clock.now_ms();
    let policy = *shop.settings.now().policy_for(&track.model);
    let meta = &snapshot.meta;
    for body in bodies(&track.scope, &policy, &track.parts, before, meta, now) {
        shop.events
            .tell(&track.scope, tip, "data-om-activation", now, &body);
    }
}

/// The events of `snapshot`, in the order of the log.
pub(super) fn bodies(
    scope: &Scope,
    policy: &Policy,
    parts: &[PartMeta],
    before: Option<&SnapshotMeta>,
    snapshot: &SnapshotMeta,
    now: i64,
) -> Vec<Value> {
    let covered = before.map_or(0, |snapshot| snapshot.to_count);
    let sent = |part: &PartMeta| before.is_some_and(|before| before.parts.contains(&part.id));
    let generations = parts
        .iter()
        .filter(|part| part.kind == PartKind::Reflection)
        .filter(|part| part.span.to_count <= snapshot.to_count)
        .count();
    let body = |part: &PartMeta, tokens: u32, messages: usize| {
        json!({
            "cycleId": format!("part-{}", part.id.0),
            "operationType": operation(part.kind),
            "activatedAt": time(now),
            "chunksActivated": 1,
            "tokensActivated": tokens,
            "observationTokens": part.tokens,
            "messagesActivated": messages,
            "generationCount": generations,
            "triggeredBy": trigger(snapshot.cause),
            "config": config(scope, policy),
        })
    };
    let reflections = parts
        .iter()
        .filter(|part| part.kind == PartKind::Reflection)
        .filter(|part| snapshot.parts.contains(&part.id) && !sent(part))
        // It takes the place of observations, not of messages.
        .map(|part| body(part, before.map_or(0, |before| before.tokens), 0));
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

/// The published word for a cause, where there is one.
fn trigger(cause: Cause) -> &'static str {
    match cause.name() {
        "idle" => "ttl",
        "model_change" => "provider_change",
        name => name,
    }
}
