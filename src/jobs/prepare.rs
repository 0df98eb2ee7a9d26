//! Snapshots: rendered, committed, and told to the request path; by the recorder when one is due, and
//! beside it for a request that was refused as too long.

use std::sync::Arc;

use jiff::tz::TimeZone;

use super::track::Track;
use super::{Settings, Shop, events};
use crate::history::{History, Link, Scope};
use crate::memory::advance::{Path, Plan, overflow as plan_overflow};
use crate::memory::{
    Node, Part, Policy, Rendering, Snapshot, SnapshotId, SnapshotMeta, dates, render,
};
use crate::store::{NewSnapshot, StoreError};
use crate::telemetry;
use crate::wire::Placement;

/// A shared beginning this short may be chance ("hi", "hello"): a fork that shares no more starts a
/// lineage of its own.
const CHANCE: usize = 2;

/// The placement of a snapshot that was made while none was configured.
const NOWHERE: &str = "off";

/// The request that a snapshot is prepared for.
pub(super) struct Occasion<'a> {
    /// Its last link.
    pub(super) tip: Link,
    /// Its length.
    pub(super) tip_count: usize,
    /// Whether it is to go out with it itself.
    pub(super) at_once: bool,
    /// Whose day it is.
    pub(super) zone: &'a TimeZone,
    /// The thresholds it was prepared by.
    pub(super) policy: &'a Policy,
}

/// Applies everything observed to a history that was refused as too long with the snapshot `sent`.
pub(super) async fn overflow(
    shop: &Shop,
    scope: &Scope,
    history: &History,
    sent: Option<SnapshotId>,
    zone: Option<&TimeZone>,
    keep: bool,
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
    let settings = shop.settings.now();
    let Some(plan) = plan_overflow(&path, &settings.policy) else {
        return Ok(None);
    };
    let occasion = Occasion {
        tip,
        tip_count: history.len(),
        at_once: true,
        zone: zone.unwrap_or(&settings.zone),
        policy: &settings.policy,
    };
    if !keep {
        let drafted = draft(shop, scope, plan, &occasion, &settings, false).await?;
        return Ok(drafted.map(|new| Arc::new(passing(new))));
    }
    let prepared = prepare(shop, scope, plan, &occasion, &settings).await?;
    if let Some(snapshot) = &prepared {
        // The newest messages are not recorded; what is covered is.
        let at = snapshot.meta.to;
        events::activated(shop, &track, applied.last(), at, snapshot);
    }
    Ok(prepared)
}

pub(super) async fn load(
    shop: &Shop,
    scope: &Scope,
    history: &History,
) -> Result<Track, StoreError> {
    let chain: Vec<Link> = history.turns().iter().map(|turn| turn.link).collect();
    load_chain(shop, scope, &chain).await
}

pub(super) async fn load_chain(
    shop: &Shop,
    scope: &Scope,
    chain: &[Link],
) -> Result<Track, StoreError> {
    let known = shop.store.known(scope, chain).await?;
    let by_chance = known.branches && known.nodes.len() <= CHANCE;
    // What follows it is not known here: a longer request must not be taken for new.
    let followed = known.branches && known.nodes.len() == chain.len();
    let mut track = Track::of(scope, known);
    track.stale = followed;
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
    occasion: &Occasion<'_>,
    settings: &Settings,
) -> Result<Option<Arc<Snapshot>>, StoreError> {
    match draft(shop, scope, plan, occasion, settings, true).await? {
        Some(snapshot) => commit(shop, scope, &snapshot).await.map(Some),
        None => Ok(None),
    }
}

/// The id of a snapshot that is in no store; stored ones count from 1.
const PASSING: SnapshotId = SnapshotId(0);

/// A snapshot for one request that may leave no trace.
fn passing(new: NewSnapshot) -> Snapshot {
    Snapshot {
        meta: SnapshotMeta {
            id: PASSING,
            to: new.to,
            to_count: new.to_count,
            eligible_from: new.tip_count,
            pin: new.pin,
            parts: new.parts,
            tokens: new.tokens,
            cause: new.cause,
            placement: new.placement,
        },
        segments: new.segments,
    }
}

/// The snapshot of `plan`, rendered; `None` where a part of it was deleted meanwhile. Unless it is to
/// be kept (`keep`), how its parts are written is fixed for this once.
pub(super) async fn draft(
    shop: &Shop,
    scope: &Scope,
    plan: Plan,
    occasion: &Occasion<'_>,
    settings: &Settings,
    keep: bool,
) -> Result<Option<NewSnapshot>, StoreError> {
    let at_ms = shop.clock.now_ms();
    // What is configured now is fixed here; what is sent already keeps what it was made with.
    let rendering = Rendering {
        preamble: render::PREAMBLE_VERSION,
        as_of: dates::date(at_ms, occasion.zone),
    };
    let parts = if keep {
        shop.store.freeze(scope, &plan.parts, rendering).await?
    } else {
        shop.store.parts(scope, &plan.parts).await?
    };
    if parts.len() != plan.parts.len() {
        // One was deleted meanwhile: what it covered would be lost (INV-COVER).
        return Ok(None);
    }
    Ok(Some(write(
        shop, plan, &parts, rendering, occasion, settings,
    )))
}

/// The snapshot of `plan` with `parts`, each written as it was before, else as `rendering` says.
pub(super) fn write(
    shop: &Shop,
    plan: Plan,
    parts: &[Part],
    rendering: Rendering,
    occasion: &Occasion<'_>,
    settings: &Settings,
) -> NewSnapshot {
    let wanted = settings.hints;
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
    let entries: Vec<render::Entry<'_>> = parts
        .iter()
        .map(|part| render::Entry {
            text: &part.body.text,
            rendering: part.rendering.unwrap_or(rendering),
        })
        .collect();
    NewSnapshot {
        to: plan.to,
        to_count: plan.to_count,
        pin: plan.pin,
        parts: plan.parts,
        tokens: plan.tokens,
        cause: plan.cause,
        segments: render::segments(&entries, hints),
        placement: settings
            .placement
            .map_or(NOWHERE, Placement::name)
            .to_owned(),
        made_with: made_with(&entries, occasion),
        tip: occasion.tip,
        tip_count: occasion.tip_count,
        at_once: occasion.at_once,
        at_ms: shop.clock.now_ms(),
    }
}

/// Commits a snapshot, and tells the request path of it.
pub(super) async fn commit(
    shop: &Shop,
    scope: &Scope,
    snapshot: &NewSnapshot,
) -> Result<Arc<Snapshot>, StoreError> {
    let committed = shop.store.commit_snapshot(scope, snapshot).await?;
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
    Ok(shop.recall.insert(scope, committed))
}

/// By which settings a snapshot is made, for whoever asks later why it is as it is.
fn made_with(entries: &[render::Entry<'_>], occasion: &Occasion<'_>) -> String {
    let Occasion { policy, zone, .. } = occasion;
    serde_json::json!({
        "preamble": entries.first().map(|first| first.rendering.preamble),
        "timezone": zone.iana_name(),
        "message_tokens": policy.message_tokens,
        "buffer_tokens": policy.buffer_tokens,
        "retention_floor": policy.retention_floor,
        "block_after": policy.block_after,
        "observation_tokens": policy.observation_tokens,
    })
    .to_string()
}
