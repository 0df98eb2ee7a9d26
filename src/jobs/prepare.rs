//! Snapshots: rendered, committed, and told to the request path; by the recorder when one is due, and
//! beside it for a request that was refused as too long.

use std::sync::Arc;

use super::Shop;
use super::track::Track;
use crate::history::{History, Link, Scope};
use crate::memory::advance::{Path, Plan, overflow as plan_overflow};
use crate::memory::{Node, Snapshot, SnapshotId, render};
use crate::store::{NewSnapshot, StoreError};
use crate::telemetry;

/// A shared beginning this short may be chance ("hi", "hello"): a fork that shares no more starts a
/// lineage of its own.
const CHANCE: usize = 2;

/// Applies everything observed to a history that was refused as too long with the snapshot `sent`.
pub(super) async fn overflow(
    shop: &Shop,
    scope: &Scope,
    history: &History,
    sent: Option<SnapshotId>,
) -> Result<Option<Arc<Snapshot>>, StoreError> {
    let Some(tip) = history.tip() else {
        return Ok(None);
    };
    let track = load(shop, scope, history).await?;
    // The newest messages were never accepted, so they are not recorded; what is observed lies
    // before them, and only their roles matter here.
    let nodes: Vec<Node> = history
        .turns()
        .iter()
        .enumerate()
        .map(|(index, turn)| {
            track.nodes.get(index).copied().unwrap_or(Node {
                link: turn.link,
                count: index + 1,
                role: turn.message.role,
                tokens: 0,
                closed: history.cuts().closed(index + 1),
                turn_end: false,
                born: history.len(),
                confirmed: false,
                seen_ms: 0,
                live: true,
            })
        })
        .collect();
    // Others may cover more: prepared for longer requests, or since this one, which is repeated as it
    // was, went out first. They count as not applied.
    let applied: Vec<_> = track
        .snapshots
        .iter()
        .filter(|snapshot| Some(snapshot.id) == sent)
        .cloned()
        .collect();
    let path = Path {
        nodes: &nodes,
        snapshots: &applied,
        ..track.path()
    };
    match plan_overflow(&path, &shop.settings.now().policy) {
        Some(plan) => prepare(shop, scope, plan, (tip, history.len()), true).await,
        None => Ok(None),
    }
}

pub(super) async fn load(
    shop: &Shop,
    scope: &Scope,
    history: &History,
) -> Result<Track, StoreError> {
    let chain: Vec<Link> = history.turns().iter().map(|turn| turn.link).collect();
    let known = shop.store.known(scope, &chain).await?;
    let by_chance = known.branches && known.nodes.len() <= CHANCE;
    let mut track = Track::of(scope, known);
    if by_chance {
        track.orphan();
    }
    Ok(track)
}

/// Renders and commits a snapshot, and tells the request path of it.
pub(super) async fn prepare(
    shop: &Shop,
    scope: &Scope,
    plan: Plan,
    (tip, tip_count): (Link, usize),
    at_once: bool,
) -> Result<Option<Arc<Snapshot>>, StoreError> {
    let parts = shop.store.parts(scope, &plan.parts).await?;
    if parts.len() != plan.parts.len() {
        // One was deleted meanwhile: what it covered would be lost (INV-COVER).
        return Ok(None);
    }
    let wanted = shop.settings.now().hints;
    let hints = parts
        .last()
        .filter(|last| last.body.span.to == plan.to)
        .map(|last| render::Hints {
            current_task: last
                .body
                .current_task
                .as_deref()
                .filter(|_| wanted.current_task),
            suggested_response: last
                .body
                .suggested_response
                .as_deref()
                .filter(|_| wanted.suggested_response),
        })
        .filter(|hints| hints.current_task.is_some() || hints.suggested_response.is_some());
    let texts: Vec<&str> = parts.iter().map(|part| part.body.text.as_str()).collect();
    let snapshot = NewSnapshot {
        to: plan.to,
        to_count: plan.to_count,
        pin: plan.pin,
        parts: plan.parts,
        tokens: plan.tokens,
        cause: plan.cause,
        segments: render::segments(render::PREAMBLE_VERSION, &texts, hints),
        tip,
        tip_count,
        at_once,
        at_ms: shop.clock.now_ms(),
    };
    let committed = shop.store.commit_snapshot(scope, &snapshot).await?;
    metrics::counter!(telemetry::SNAPSHOTS, "cause" => snapshot.cause.name()).increment(1);
    tracing::info!(
        tenant = %scope.tenant_label(),
        snapshot = committed.meta.id.0,
        covers = committed.meta.to_count,
        eligible_from = committed.meta.eligible_from,
        observation_tokens = committed.meta.tokens,
        cause = snapshot.cause.name(),
        "prepared a snapshot"
    );
    Ok(Some(shop.recall.insert(scope, committed)))
}
