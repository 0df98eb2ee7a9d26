//! Snapshots: rendered, committed, and told to the request path; by the recorder when one is due, and
//! beside it for a request that was refused as too long.

use std::sync::Arc;

use jiff::tz::TimeZone;

use super::events::{self, Stood};
use super::others::{self, Told};
use super::shorten::{Shortened, shorten};
use super::track::Track;
use super::{Settings, Shop, evidence};
use crate::history::{History, Link, Scope};
use crate::memory::advance::{Path, Plan, Step, bounded, overflow as plan_overflow};
use crate::memory::others::CHANCE;
use crate::memory::{
    Part, Policy, Rendering, Snapshot, SnapshotId, SnapshotMeta, dates, record, render,
};
use crate::store::{NewSnapshot, StoreError};
use crate::telemetry;

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

/// A request that was refused as too long.
#[derive(Clone, Debug)]
pub struct TooLong {
    /// Whose it is.
    pub scope: Scope,
    /// Its messages.
    pub history: Arc<History>,
    /// The model it asked for, whose thresholds count.
    pub model: String,
    /// What it was sent with.
    pub sent: Option<SnapshotId>,
    /// Whose day it is, where its client names a zone.
    pub zone: Option<TimeZone>,
    /// Whether what is prepared for it is kept; otherwise nothing is written.
    pub keep: bool,
    /// Whether it may be told of the user's other conversations, and under which name it goes.
    pub shared: bool,
    /// See `shared`.
    pub key: Option<String>,
}

/// How often a plan is made anew because its log was shortened, by whomever.
const SHORTENED: usize = 2;

/// Applies everything observed to a request that was refused as too long.
pub(super) async fn overflow(
    shop: &Shop,
    refused: &TooLong,
) -> Result<Option<Prepared>, StoreError> {
    let (scope, history) = (&refused.scope, &refused.history);
    let Some(tip) = history.tip() else {
        return Ok(None);
    };
    let settings = shop.settings.now().for_model(&refused.model);
    let policy = &settings.policy;
    let mut shortened = 0;
    let (mut track, applied, plan) = loop {
        let (track, applied, step) = applying(shop, refused, policy).await?;
        match step {
            // A log at its hard limit is shortened first, and then it is another plan. Of what may not be
            // kept nothing is written, so it goes out as it is, this once.
            Some(Step::Shorten {
                span,
                message_tokens,
                limit,
                plan,
            }) if refused.keep && shortened < SHORTENED => {
                let sizes = (message_tokens, limit);
                match shorten(shop, scope, &settings, &plan, span, sizes).await? {
                    Shortened::Written(written) => {
                        let (part, kept) = *written;
                        evidence::tell(shop, scope, Some(&track), &part, kept);
                    }
                    Shortened::Whole => break (track, applied, plan),
                    Shortened::Changed => {}
                }
                shortened += 1;
            }
            Some(Step::Snapshot(plan) | Step::Shorten { plan, .. }) => {
                break (track, applied, plan);
            }
            _ => return Ok(None),
        }
    };
    let occasion = Occasion {
        tip,
        tip_count: history.len(),
        at_once: true,
        zone: refused.zone.as_ref().unwrap_or(&settings.zone),
        policy,
    };
    if !refused.keep {
        let drafted = draft(shop, scope, plan, &occasion, &settings, false).await?;
        let passing = drafted.map(|new| Arc::new(passing(new)));
        return Ok(passing.map(|snapshot| Prepared {
            snapshot,
            bound: None,
        }));
    }
    track.shared |= refused.shared;
    let settled = track.settled_by(history.len());
    let told = others::of(shop, &track, refused.key.as_deref(), settled).await;
    let prepared = prepare(shop, scope, plan, &occasion, &settings, told).await?;
    if let Some(Prepared { snapshot, .. }) = &prepared {
        // Another request may have been refused for which it was prepared.
        if track
            .snapshots
            .iter()
            .all(|known| known.id != snapshot.meta.id)
        {
            let stood = Stood::sent_with(&track, applied.last());
            // The newest messages are not recorded; what is covered is.
            let meta = &snapshot.meta;
            events::activated(shop, &stood, &refused.model, meta.to, meta);
        }
    }
    Ok(prepared)
}

/// The chain of a request that was refused, the snapshot that it was sent with, and what applies everything
/// that is observed.
async fn applying(
    shop: &Shop,
    refused: &TooLong,
    policy: &Policy,
) -> Result<(Track, Vec<SnapshotMeta>, Option<Step>), StoreError> {
    let history = &refused.history;
    let mut track = load(shop, &refused.scope, history).await?;
    track.model.clone_from(&refused.model);
    // The newest messages were never accepted, so they are not recorded; what is observed lies before
    // them, and only their roles matter here.
    let nodes = record::refused(history, &track.nodes);
    // Others may cover more: prepared for longer requests, or since this one, which is repeated as it
    // was, went out first. They count as not applied.
    let applied = sent_with(&track, refused.sent);
    let path = Path {
        nodes: &nodes,
        snapshots: &applied,
        ..track.path()
    };
    let step = plan_overflow(&path, policy).map(|plan| bounded(&path, policy, plan));
    Ok((track, applied, step))
}

/// The snapshot `sent`, as decisions see it: without what others know, which covers nothing.
pub(super) fn sent_with(track: &Track, sent: Option<SnapshotId>) -> Vec<SnapshotMeta> {
    let mut found = track.snapshots.iter().filter(|meta| Some(meta.id) == sent);
    let own = |meta: &SnapshotMeta| SnapshotMeta {
        others: None,
        ..meta.clone()
    };
    found.next().map(own).into_iter().collect()
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

/// What was prepared.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// What serves whoever has the prefix.
    pub snapshot: Arc<Snapshot>,
    /// The same with what other conversations know, for the one it was prepared for.
    pub bound: Option<Arc<Snapshot>>,
}

impl Prepared {
    /// What its conversation is sent.
    pub fn best(&self) -> &Arc<Snapshot> {
        self.bound.as_ref().unwrap_or(&self.snapshot)
    }
}

/// The same before it is stored.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) snapshot: NewSnapshot,
    pub(super) bound: Option<NewSnapshot>,
}

impl Draft {
    /// `snapshot`, and beside it one with what was `told` of other conversations.
    pub(super) fn of(snapshot: NewSnapshot, told: Option<Told>) -> Self {
        let bound = told.map(|told| NewSnapshot {
            segments: render::others::beside(&snapshot.segments, told.section),
            others: Some(Arc::new(told.others)),
            ..snapshot.clone()
        });
        Self { snapshot, bound }
    }
}

/// Renders and commits a snapshot, and beside it one with what was `told` of other conversations, and
/// tells the request path of both.
pub(super) async fn prepare(
    shop: &Shop,
    scope: &Scope,
    plan: Plan,
    occasion: &Occasion<'_>,
    settings: &Settings,
    told: Option<Told>,
) -> Result<Option<Prepared>, StoreError> {
    let Some(new) = draft(shop, scope, plan, occasion, settings, true).await? else {
        return Ok(None);
    };
    commit(shop, scope, &Draft::of(new, told)).await.map(Some)
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
            others: None,
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
    let later = match parts.last() {
        Some(last) if !plan.later.is_empty() && hints(last, &plan, settings).is_some() => {
            // An activation does not fail for what is only asked for the sake of its hints.
            let later = shop.store.parts(scope, &plan.later).await;
            later.unwrap_or_default()
        }
        _ => Vec::new(),
    };
    let texts = (&*parts, &*later);
    let new = write(shop, plan, texts, rendering, occasion, settings).await;
    Ok(Some(new))
}

/// The hints of a log that ends with `last`, as far as they are wanted.
fn hints<'a>(last: &'a Part, plan: &Plan, settings: &Settings) -> Option<render::Hints<'a>> {
    let (wanted, body) = (settings.hints, &last.body);
    let task = body.current_task.as_deref();
    let response = body.suggested_response.as_deref();
    let hints = render::Hints {
        current_task: task.filter(|_| wanted.current_task),
        suggested_response: response.filter(|_| wanted.suggested_response),
    };
    (body.span.to == plan.to && hints != render::Hints::default()).then_some(hints)
}

/// The snapshot of `plan` with `parts`, each written as it was before, else as `rendering` says. Its hints
/// are frozen with it, so they leave out what is done by the end of what is `later` observed.
pub(super) async fn write(
    shop: &Shop,
    plan: Plan,
    (parts, later): (&[Part], &[Part]),
    rendering: Rendering,
    occasion: &Occasion<'_>,
    settings: &Settings,
) -> NewSnapshot {
    let later: Vec<&str> = later.iter().map(|part| &*part.body.text).collect();
    let hints = parts
        .last()
        .and_then(|last| hints(last, &plan, settings))
        .map(|hints| hints.after(&later));
    let entries: Vec<render::Entry<'_>> = parts
        .iter()
        .map(|part| render::Entry {
            text: &part.body.text,
            rendering: part.rendering.unwrap_or(rendering),
        })
        .collect();
    let segments = render::worth(&entries, hints, plan.saves);
    let (counter, block, length) = (Arc::clone(&shop.counter), segments.clone(), parts.len());
    let counted = tokio::task::spawn_blocking(move || {
        render::log_tokens(&block, length, |segment| counter.count(segment))
    });
    NewSnapshot {
        to: plan.to,
        to_count: plan.to_count,
        pin: plan.pin,
        parts: plan.parts,
        // The counter guards itself; should its thread die all the same, it is what it is at most.
        tokens: counted.await.unwrap_or(plan.tokens),
        cause: plan.cause,
        segments,
        placement: settings.placed().to_owned(),
        others: None,
        made_with: made_with(&entries, occasion),
        tip: occasion.tip,
        tip_count: occasion.tip_count,
        at_once: occasion.at_once,
        at_ms: shop.clock.now_ms(),
    }
}

/// Commits what was drafted, all of it at once, and tells the request path of it.
pub(super) async fn commit(
    shop: &Shop,
    scope: &Scope,
    draft: &Draft,
) -> Result<Prepared, StoreError> {
    let new = &draft.snapshot;
    let (committed, told) = match &draft.bound {
        Some(bound) => shop.store.commit_both(scope, new, bound).await?,
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
        told = told.is_some(),
        "prepared a snapshot"
    );
    // First, so that no request of its conversation goes out without it in between.
    let bound = told.map(|told| shop.recall.insert(scope, told));
    let snapshot = shop.recall.insert(scope, committed);
    Ok(Prepared { snapshot, bound })
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
