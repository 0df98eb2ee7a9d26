//! Snapshots: rendered, committed, and put into the cache for the request path.
//!
//! Decides nothing: the plan says which parts a snapshot has. Called by the recorder when a snapshot
//! is due, and beside it for a request that was refused as too long.

use std::sync::Arc;

use jiff::tz::TimeZone;

use super::base::Base;
use super::peer_memory::PeerSection;
use super::settings::Settings;
use crate::history::{Link, Scope};
use crate::memory::advance::SnapshotPlan;
use crate::memory::{Part, Policy, Rendering, Snapshot, SnapshotCause, Span, dates, render};
use crate::store::{NewSnapshot, StoreError};
use crate::telemetry;

/// The request that a snapshot is prepared for.
pub(super) struct SnapshotTarget<'a> {
    /// Its last link.
    pub(super) tip: Link,
    /// Its length.
    pub(super) tip_count: usize,
    /// Whether this request itself may use the snapshot.
    pub(super) eligible_now: bool,
    /// The time zone of dates in the block.
    pub(super) zone: &'a TimeZone,
    /// The thresholds in force.
    pub(super) policy: &'a Policy,
}

/// A snapshot that requests may get.
#[derive(Clone, Debug)]
pub struct PreparedSnapshot {
    /// For every request with the prefix.
    pub snapshot: Arc<Snapshot>,
    /// The same with peer memory, for the conversation it was prepared for.
    pub peer_snapshot: Option<Arc<Snapshot>>,
}

impl PreparedSnapshot {
    /// The snapshot that its own conversation gets.
    pub fn best(&self) -> &Arc<Snapshot> {
        self.peer_snapshot.as_ref().unwrap_or(&self.snapshot)
    }
}

/// A snapshot, alone and with peer memory, before it is stored.
#[derive(Clone, Debug)]
pub(super) struct SnapshotDraft {
    pub(super) snapshot: NewSnapshot,
    pub(super) peer_snapshot: Option<NewSnapshot>,
}

impl SnapshotDraft {
    /// `snapshot`, and a copy of it with `peer_section`.
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

/// Makes the snapshots of this process.
#[derive(Clone)]
pub(super) struct Snapshots {
    base: Base,
}

impl Snapshots {
    pub(super) fn new(base: &Base) -> Self {
        Self { base: base.clone() }
    }

    /// Renders a snapshot, and a copy with peer memory; commits both and puts them into the cache.
    pub(super) async fn prepare(
        &self,
        scope: &Scope,
        plan: SnapshotPlan,
        target: &SnapshotTarget<'_>,
        settings: &Settings,
        peer_section: Option<PeerSection>,
    ) -> Result<Option<PreparedSnapshot>, StoreError> {
        let Some(new) = self.draft(scope, plan, target, settings, true).await? else {
            return Ok(None);
        };
        self.commit(scope, &SnapshotDraft::new(new, peer_section))
            .await
            .map(Some)
    }

    /// Renders the snapshot of `plan`. `None` if one of its parts is no longer there. With
    /// `persist`, the store fixes how each part is written; otherwise nothing is stored.
    pub(super) async fn draft(
        &self,
        scope: &Scope,
        plan: SnapshotPlan,
        target: &SnapshotTarget<'_>,
        settings: &Settings,
        persist: bool,
    ) -> Result<Option<NewSnapshot>, StoreError> {
        let at_ms = self.base.now_ms();
        // The configuration of now is fixed in this snapshot. Snapshots that are sent already keep
        // theirs.
        let rendering = Rendering {
            preamble: render::PREAMBLE_VERSION,
            as_of: dates::date(at_ms, target.zone),
        };
        let parts = if persist {
            self.base
                .store
                .fix_rendering(scope, &plan.parts, rendering)
                .await?
        } else {
            self.base.store.parts(scope, &plan.parts).await?
        };
        let spans = parts.iter().map(|part| &part.body.span);
        if parts.len() != plan.parts.len() || !Span::cover_up_to(spans, &plan.to) {
            // A part was deleted meanwhile. Without it, the messages it covered would be lost
            // (INV-COVER). Or a backup took the place of the database, and the number is another part's.
            return Ok(None);
        }
        let later = match parts.last() {
            Some(last)
                if !plan.later_chunks.is_empty() && hints(last, &plan, settings).is_some() =>
            {
                // A missing part only makes the hints less exact, which is no reason for an
                // activation to fail.
                let later = self.base.store.parts(scope, &plan.later_chunks).await;
                later.unwrap_or_default()
            }
            _ => Vec::new(),
        };
        let texts = (&*parts, &*later);
        let new = self.render(plan, texts, rendering, target, settings).await;
        Ok(Some(new))
    }

    /// Renders the snapshot of `plan` with `parts`: each as its rendering is fixed, or else by
    /// `rendering`. The hints are fixed with it. A hint leaves out what the `later` chunks say is
    /// done.
    pub(super) async fn render(
        &self,
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
        let (counter, block, length) = (
            Arc::clone(&self.base.counter),
            segments.clone(),
            parts.len(),
        );
        let tokens = tokio::task::spawn_blocking(move || {
            render::log_tokens(&block, length, |segment| counter.count(segment))
        });
        NewSnapshot {
            to: plan.to,
            to_count: plan.to_count,
            pin: plan.pin,
            parts: plan.parts,
            // The counter catches its own failures. If the computation panicked all the same, the plan
            // has an upper bound.
            tokens: tokens.await.unwrap_or(plan.tokens),
            cause: plan.cause,
            segments,
            placement: settings.placement_name().to_owned(),
            peer_memory: None,
            settings_json: made_with(&entries, target),
            tip: target.tip,
            tip_count: target.tip_count,
            eligible_now: target.eligible_now,
            at_ms: self.base.now_ms(),
        }
    }

    /// Commits a draft in one transaction and puts it into the cache of the request path.
    pub(super) async fn commit(
        &self,
        scope: &Scope,
        draft: &SnapshotDraft,
    ) -> Result<PreparedSnapshot, StoreError> {
        let new = &draft.snapshot;
        let (committed, stored_peer) = match &draft.peer_snapshot {
            Some(peer_snapshot) => {
                self.base
                    .store
                    .commit_snapshot_pair(scope, new, peer_snapshot)
                    .await?
            }
            None => (self.base.store.commit_snapshot(scope, new).await?, None),
        };
        metrics::counter!(telemetry::SNAPSHOTS, "cause" => new.cause.name()).increment(1);
        tracing::info!(
            tenant = %scope.tenant_label(),
            snapshot = committed.meta.id.0,
            covers = committed.meta.to_count,
            eligible_from = committed.meta.eligible_from,
            observation_tokens = committed.meta.tokens,
            cause = new.cause.name(),
            peer_memory = stored_peer.is_some(),
            "prepared a snapshot"
        );
        // The copy with peer memory first, so that no request of its conversation goes out without
        // it.
        let peer_snapshot =
            stored_peer.map(|stored| self.base.cache.insert_snapshot(scope, stored));
        let snapshot = self.base.cache.insert_snapshot(scope, committed);
        Ok(PreparedSnapshot {
            snapshot,
            peer_snapshot,
        })
    }
}

/// The configured hints of a log that ends with `last`.
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

/// The settings behind a snapshot, stored for people who ask why it is as it is.
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

/// Lets every series exist before its first event.
pub(super) fn register_metrics() {
    for cause in SnapshotCause::ALL {
        metrics::counter!(telemetry::SNAPSHOTS, "cause" => cause.name()).increment(0);
    }
}
