//! The snapshots of a conversation: prepared when due, composed for a model switch, made possible by
//! shortening a log that no model condensed; and the digest that other conversations read.

use super::state::Recorder;
use crate::jobs::code_reflector::Shortened;
use crate::jobs::events::ConversationState;
use crate::jobs::failure::log_store_failure;
use crate::jobs::snapshots::{PreparedSnapshot, SnapshotDraft, SnapshotTarget};
use crate::jobs::track::Track;
use crate::memory::advance::{SnapshotPlan, early, observed_parts};
use crate::memory::{SnapshotCause, Span};

impl Recorder {
    /// Composes the snapshot to send if the next request names another model, if that is
    /// configured.
    pub(super) async fn prepare_model_switch(&self, track: &Track) {
        let settings = self.base.settings();
        let policy = &self.base.policy_for(&settings, &track.model);
        let settings = settings.for_model(&track.model);
        if !policy.early_activation.model_change && !policy.early_reflection.model_change {
            return;
        }
        let Some(tip) = track.nodes.last() else {
            return;
        };
        let target = SnapshotTarget {
            tip: tip.link,
            tip_count: track.nodes.len(),
            eligible_now: false,
            zone: track.zone.as_ref().unwrap_or(&settings.zone),
            policy,
        };
        let composed = match early(&track.path(), policy, SnapshotCause::ModelChange) {
            None => Ok(None),
            Some(plan) => {
                self.snapshots
                    .draft(&track.scope, plan, &target, &settings, true)
                    .await
            }
        };
        let snapshot = composed.unwrap_or_else(|error| {
            log_store_failure("a snapshot for another model could not be composed", &error);
            None
        });
        let draft_for_switch = match snapshot {
            None => None,
            Some(new) => Some(SnapshotDraft::new(
                new,
                self.peer_memory
                    .section_for(track, None, track.last_confirmed())
                    .await,
            )),
        };
        self.shared.model_switch_snapshots.replace(
            ConversationState::from_track(track),
            &track.nodes,
            draft_for_switch,
        );
    }

    pub(super) async fn snapshot(&self, track: &mut Track, plan: SnapshotPlan) -> bool {
        let (Some(tip), tip_count) = (track.nodes.last(), track.nodes.len()) else {
            return false;
        };
        let settings = self.base.settings();
        let policy = &self.base.policy_for(&settings, &track.model);
        let settings = settings.for_model(&track.model);
        let target = SnapshotTarget {
            tip: tip.link,
            tip_count,
            eligible_now: false,
            zone: track.zone.as_ref().unwrap_or(&settings.zone),
            policy,
        };
        let peer_section = self
            .peer_memory
            .section_for(track, None, track.last_confirmed())
            .await;
        let conversation = ConversationState::from_track(track);
        match self
            .snapshots
            .prepare(&track.scope, plan, &target, &settings, peer_section)
            .await
        {
            Ok(Some(PreparedSnapshot {
                snapshot,
                peer_snapshot,
            })) => {
                track
                    .snapshots
                    .extend(peer_snapshot.map(|stored| stored.meta.clone()));
                let is_new = track
                    .snapshots
                    .iter()
                    .all(|existing| existing.id != snapshot.meta.id);
                if is_new {
                    let meta = &snapshot.meta;
                    self.base
                        .events
                        .emit_activated(&conversation, &track.model, tip.link, meta);
                    track.snapshots.push(meta.clone());
                }
                is_new
            }
            Ok(None) => {
                track.stale = true;
                false
            }
            Err(error) => {
                track.stale = true;
                log_store_failure("a snapshot could not be prepared", &error);
                false
            }
        }
    }

    /// Shortens the log of `plan` by code. If nothing can be left out, prepares the snapshot as it
    /// is. Returns whether anything changed.
    pub(super) async fn shorten(
        &self,
        track: &mut Track,
        plan: SnapshotPlan,
        span: Span,
        sizes: (u32, u32),
    ) -> bool {
        let settings = self.base.settings().for_model(&track.model);
        match self
            .code_reflector
            .shorten(&track.scope, &settings, &plan, span, sizes)
            .await
        {
            Ok(Shortened::Written(written)) => {
                let (part, report) = *written;
                self.shared
                    .reporter
                    .report(&track.scope, Some(track), &part, report);
                track.add_code_reflection(part);
                true
            }
            Ok(Shortened::Irreducible) => self.snapshot(track, plan).await,
            Ok(Shortened::Stale) => {
                track.stale = true;
                false
            }
            Err(error) => {
                track.stale = true;
                log_store_failure("a log could not be shortened", &error);
                false
            }
        }
    }

    /// Publishes what is new in this conversation for the user's other ones.
    pub(super) async fn publish_digest(&self, track: &mut Track) {
        let settings = self.base.settings();
        let (Some(budget), Some(lineage)) = (
            settings
                .peer_memory_tokens
                .filter(|_| track.allows_peer_memory),
            track.lineage,
        ) else {
            return;
        };
        let log = observed_parts(&track.path());
        if log.is_empty() || log == track.published_log {
            return;
        }
        match self
            .peer_memory
            .publish_digest(&track.scope, lineage, &log, budget, &settings)
            .await
        {
            Ok(()) => track.published_log = log,
            Err(error) => log_store_failure(
                "a digest for other conversations could not be published",
                &error,
            ),
        }
    }
}
