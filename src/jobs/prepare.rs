//! Snapshots: rendered, committed, and told to the request path; by the recorder when one is due, and
//! beside it for a request that was refused as too long.

use std::sync::Arc;

use jiff::tz::TimeZone;

use super::events::{self, ConversationState};
use super::peer_memory::{self, PeerSection};
use super::shorten::{Shortened, shorten};
use super::track::Track;
use super::{Settings, Shop, evidence};
use crate::history::{History, Link, Scope};
use crate::memory::advance::{
    Action, ChainState, SnapshotPlan, bounded_snapshot, overflow as plan_overflow,
};
use crate::memory::peer_memory::MAX_CHANCE_PREFIX;
use crate::memory::{
    Part, Policy, Rendering, Snapshot, SnapshotId, SnapshotMeta, dates, record, render,
};
use crate::store::{NewSnapshot, StoreError};
use crate::telemetry;

/// The request that a snapshot is prepared for.
pub(super) struct SnapshotTarget<'a> {
    /// Its last link.
    pub(super) tip: Link,
    /// Its length.
    pub(super) tip_count: usize,
    /// Whether it is to go out with it itself.
    pub(super) eligible_now: bool,
    /// Whose day it is.
    pub(super) zone: &'a TimeZone,
    /// The thresholds it was prepared by.
    pub(super) policy: &'a Policy,
}

/// A request that was refused as too long.
#[derive(Clone, Debug)]
pub struct OversizedRequest {
    /// Whose it is.
    pub scope: Scope,
    /// Its messages.
    pub history: Arc<History>,
    /// The model it asked for, whose thresholds count.
    pub model: String,
    /// What it was sent with.
    pub sent_snapshot: Option<SnapshotId>,
    /// Whose day it is, where its client names a zone.
    pub zone: Option<TimeZone>,
    /// Whether what is prepared for it is kept; otherwise nothing is written.
    pub persist: bool,
    /// Whether it may be told of the user's other conversations, and under which name it goes.
    pub allows_peer_memory: bool,
    /// See `shared`.
    pub thread_key: Option<String>,
}

/// How often a plan is made anew because its log was shortened, by whomever.
const MAX_SHORTENINGS: usize = 2;

/// Applies everything observed to a request that was refused as too long.
pub(super) async fn activate_all_observed(
    shop: &Shop,
    request: &OversizedRequest,
) -> Result<Option<Prepared>, StoreError> {
    let (scope, history) = (&request.scope, &request.history);
    let Some(tip) = history.tip() else {
        return Ok(None);
    };
    let settings = shop.settings.current().for_model(&request.model);
    let policy = &settings.policy;
    let mut shortened = 0;
    let (mut track, applied, plan) = loop {
        let (track, applied, step) = load_overflow_plan(shop, request, policy).await?;
        match step {
            // A log at its hard limit is shortened first, and then it is another plan. Of what may not be
            // kept nothing is written, so it goes out as it is, this once.
            Some(Action::Shorten {
                span,
                message_tokens,
                limit,
                plan,
            }) if request.persist && shortened < MAX_SHORTENINGS => {
                let sizes = (message_tokens, limit);
                match shorten(shop, scope, &settings, &plan, span, sizes).await? {
                    Shortened::Written(written) => {
                        let (part, report) = *written;
                        evidence::report_part(shop, scope, Some(&track), &part, report);
                    }
                    Shortened::Irreducible => break (track, applied, plan),
                    Shortened::Stale => {}
                }
                shortened += 1;
            }
            Some(Action::Snapshot(plan) | Action::Shorten { plan, .. }) => {
                break (track, applied, plan);
            }
            _ => return Ok(None),
        }
    };
    let target = SnapshotTarget {
        tip,
        tip_count: history.len(),
        eligible_now: true,
        zone: request.zone.as_ref().unwrap_or(&settings.zone),
        policy,
    };
    if !request.persist {
        let drafted = draft(shop, scope, plan, &target, &settings, false).await?;
        let passing = drafted.map(|new| Arc::new(ephemeral_snapshot(new)));
        return Ok(passing.map(|snapshot| Prepared {
            snapshot,
            peer_snapshot: None,
        }));
    }
    track.allows_peer_memory |= request.allows_peer_memory;
    let last_confirmed = track.last_confirmed_after(history.len());
    let peer_section =
        peer_memory::for_track(shop, &track, request.thread_key.as_deref(), last_confirmed).await;
    let prepared = prepare(shop, scope, plan, &target, &settings, peer_section).await?;
    if let Some(Prepared { snapshot, .. }) = &prepared {
        // Another request may have been refused for which it was prepared.
        if track
            .snapshots
            .iter()
            .all(|existing| existing.id != snapshot.meta.id)
        {
            let conversation = ConversationState::with_snapshot(&track, applied.last());
            // The newest messages are not recorded; what is covered is.
            let meta = &snapshot.meta;
            events::emit_activated(shop, &conversation, &request.model, meta.to, meta);
        }
    }
    Ok(prepared)
}

/// The chain of a request that was refused, the snapshot that it was sent with, and what applies everything
/// that is observed.
async fn load_overflow_plan(
    shop: &Shop,
    request: &OversizedRequest,
    policy: &Policy,
) -> Result<(Track, Vec<SnapshotMeta>, Option<Action>), StoreError> {
    let history = &request.history;
    let mut track = load(shop, &request.scope, history).await?;
    track.model.clone_from(&request.model);
    // The newest messages were never accepted, so they are not recorded; what is observed lies before
    // them, and only their roles matter here.
    let nodes = record::refused_nodes(history, &track.nodes);
    // Others may cover more: prepared for longer requests, or since this one, which is repeated as it
    // was, went out first. They count as not applied.
    let applied = sent_snapshots(&track, request.sent_snapshot);
    let path = ChainState {
        nodes: &nodes,
        snapshots: &applied,
        ..track.path()
    };
    let step = plan_overflow(&path, policy).map(|plan| bounded_snapshot(&path, policy, plan));
    Ok((track, applied, step))
}

/// The snapshot `sent`, as decisions see it: without what others know, which covers nothing.
pub(super) fn sent_snapshots(track: &Track, sent: Option<SnapshotId>) -> Vec<SnapshotMeta> {
    let mut found = track.snapshots.iter().filter(|meta| Some(meta.id) == sent);
    let without_peers = |meta: &SnapshotMeta| SnapshotMeta {
        peer_memory: None,
        ..meta.clone()
    };
    found.next().map(without_peers).into_iter().collect()
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
    let stored = shop.store.load_chain(scope, chain).await?;
    let is_coincidence = stored.has_successor && stored.nodes.len() <= MAX_CHANCE_PREFIX;
    // What follows it is not known here: a longer request must not be taken for new.
    let has_successors = stored.has_successor && stored.nodes.len() == chain.len();
    let mut track = Track::new(scope, stored);
    track.stale = has_successors;
    if is_coincidence {
        track.detach_lineage();
    }
    Ok(track)
}

/// What was prepared.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// What serves whoever has the prefix.
    pub snapshot: Arc<Snapshot>,
    /// The same with what other conversations know, for the one it was prepared for.
    pub peer_snapshot: Option<Arc<Snapshot>>,
}

impl Prepared {
    /// What its conversation is sent.
    pub fn best(&self) -> &Arc<Snapshot> {
        self.peer_snapshot.as_ref().unwrap_or(&self.snapshot)
    }
}

/// The same before it is stored.
#[derive(Clone, Debug)]
pub(super) struct SnapshotDraft {
    pub(super) snapshot: NewSnapshot,
    pub(super) peer_snapshot: Option<NewSnapshot>,
}

impl SnapshotDraft {
    /// `snapshot`, and beside it one with what was `told` of other conversations.
    pub(super) fn new(snapshot: NewSnapshot, peer_section: Option<PeerSection>) -> Self {
        let peer_snapshot = peer_section.map(|section| NewSnapshot {
            segments: render::peer_memory::insert_section(&snapshot.segments, section.section),
            peer_memory: Some(Arc::new(section.peer_memory)),
            ..snapshot.clone()
        });
        Self {
            snapshot,
            peer_snapshot,
        }
    }
}

/// Renders and commits a snapshot, and beside it one with what was `told` of other conversations, and
/// tells the request path of both.
pub(super) async fn prepare(
    shop: &Shop,
    scope: &Scope,
    plan: SnapshotPlan,
    target: &SnapshotTarget<'_>,
    settings: &Settings,
    peer_section: Option<PeerSection>,
) -> Result<Option<Prepared>, StoreError> {
    let Some(new) = draft(shop, scope, plan, target, settings, true).await? else {
        return Ok(None);
    };
    commit(shop, scope, &SnapshotDraft::new(new, peer_section))
        .await
        .map(Some)
}

/// The id of a snapshot that is in no store; stored ones count from 1.
const EPHEMERAL: SnapshotId = SnapshotId(0);

/// A snapshot for one request that may leave no trace.
fn ephemeral_snapshot(new: NewSnapshot) -> Snapshot {
    Snapshot {
        meta: SnapshotMeta {
            id: EPHEMERAL,
            to: new.to,
            to_count: new.to_count,
            eligible_from: new.tip_count,
            pin: new.pin,
            parts: new.parts,
            tokens: new.tokens,
            cause: new.cause,
            placement: new.placement,
            peer_memory: None,
        },
        segments: new.segments,
    }
}

/// The snapshot of `plan`, rendered; `None` where a part of it was deleted meanwhile. Unless it is to
/// be kept (`keep`), how its parts are written is fixed for this once.
pub(super) async fn draft(
    shop: &Shop,
    scope: &Scope,
    plan: SnapshotPlan,
    target: &SnapshotTarget<'_>,
    settings: &Settings,
    persist: bool,
) -> Result<Option<NewSnapshot>, StoreError> {
    let at_ms = shop.clock.now_ms();
    // What is configured now is fixed here; what is sent already keeps what it was made with.
    let rendering = Rendering {
        preamble: render::PREAMBLE_VERSION,
        as_of: dates::date(at_ms, target.zone),
    };
    let parts = if persist {
        shop.store
            .fix_rendering(scope, &plan.parts, rendering)
            .await?
    } else {
        shop.store.parts(scope, &plan.parts).await?
    };
    if parts.len() != plan.parts.len() {
        // One was deleted meanwhile: what it covered would be lost (INV-COVER).
        return Ok(None);
    }
    let later = match parts.last() {
        Some(last) if !plan.later_chunks.is_empty() && hints(last, &plan, settings).is_some() => {
            // An activation does not fail for what is only asked for the sake of its hints.
            let later = shop.store.parts(scope, &plan.later_chunks).await;
            later.unwrap_or_default()
        }
        _ => Vec::new(),
    };
    let texts = (&*parts, &*later);
    let new = render_snapshot(shop, plan, texts, rendering, target, settings).await;
    Ok(Some(new))
}

/// The hints of a log that ends with `last`, as far as they are wanted.
fn hints<'a>(
    last: &'a Part,
    plan: &SnapshotPlan,
    settings: &Settings,
) -> Option<render::Hints<'a>> {
    let (enabled, body) = (settings.hints, &last.body);
    let task = body.current_task.as_deref();
    let response = body.suggested_response.as_deref();
    let hints = render::Hints {
        current_task: task.filter(|_| enabled.current_task),
        suggested_response: response.filter(|_| enabled.suggested_response),
    };
    (body.span.to == plan.to && hints != render::Hints::default()).then_some(hints)
}

/// The snapshot of `plan` with `parts`, each written as it was before, else as `rendering` says. Its hints
/// are frozen with it, so they leave out what is done by the end of what is `later` observed.
pub(super) async fn render_snapshot(
    shop: &Shop,
    plan: SnapshotPlan,
    (parts, later): (&[Part], &[Part]),
    rendering: Rendering,
    target: &SnapshotTarget<'_>,
    settings: &Settings,
) -> NewSnapshot {
    let later: Vec<&str> = later.iter().map(|part| &*part.body.text).collect();
    let hints = parts
        .last()
        .and_then(|last| hints(last, &plan, settings))
        .map(|hints| hints.without_done(&later));
    let entries: Vec<render::BlockPart<'_>> = parts
        .iter()
        .map(|part| render::BlockPart {
            text: &part.body.text,
            rendering: part.rendering.unwrap_or(rendering),
        })
        .collect();
    let segments = render::affordable_segments(&entries, hints, plan.saved_tokens);
    let (counter, block, length) = (Arc::clone(&shop.counter), segments.clone(), parts.len());
    let tokens = tokio::task::spawn_blocking(move || {
        render::log_tokens(&block, length, |segment| counter.count(segment))
    });
    NewSnapshot {
        to: plan.to,
        to_count: plan.to_count,
        pin: plan.pin,
        parts: plan.parts,
        // The counter guards itself; should its thread die all the same, it is what it is at most.
        tokens: tokens.await.unwrap_or(plan.tokens),
        cause: plan.cause,
        segments,
        placement: settings.placement_name().to_owned(),
        peer_memory: None,
        settings_json: made_with(&entries, target),
        tip: target.tip,
        tip_count: target.tip_count,
        eligible_now: target.eligible_now,
        at_ms: shop.clock.now_ms(),
    }
}

/// Commits what was drafted, all of it at once, and tells the request path of it.
pub(super) async fn commit(
    shop: &Shop,
    scope: &Scope,
    draft: &SnapshotDraft,
) -> Result<Prepared, StoreError> {
    let new = &draft.snapshot;
    let (committed, stored_peer) = match &draft.peer_snapshot {
        Some(peer_snapshot) => {
            shop.store
                .commit_snapshot_pair(scope, new, peer_snapshot)
                .await?
        }
        None => (shop.store.commit_snapshot(scope, new).await?, None),
    };
    metrics::counter!(telemetry::SNAPSHOTS, "cause" => new.cause.name()).increment(1);
    tracing::info!(
        tenant = %scope.tenant_label(),
        snapshot = committed.meta.id.0,
        covers = committed.meta.to_count,
        eligible_from = committed.meta.eligible_from,
        observation_tokens = committed.meta.tokens,
        cause = new.cause.name(),
        told = stored_peer.is_some(),
        "prepared a snapshot"
    );
    // First, so that no request of its conversation goes out without it in between.
    let peer_snapshot = stored_peer.map(|stored| shop.recall.insert_snapshot(scope, stored));
    let snapshot = shop.recall.insert_snapshot(scope, committed);
    Ok(Prepared {
        snapshot,
        peer_snapshot,
    })
}

/// By which settings a snapshot is made, for whoever asks later why it is as it is.
fn made_with(entries: &[render::BlockPart<'_>], target: &SnapshotTarget<'_>) -> String {
    let SnapshotTarget { policy, zone, .. } = target;
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
