//! Activates everything that is observed, for a request that the upstream refused as too long.
//!
//! Calls no model and waits for no job. If the Observer does not work, code covers what waits for it. Called by
//! [`super::Jobs`] from the request path, in a task of its own.

use std::sync::Arc;

use jiff::tz::TimeZone;

use super::base::Base;
use super::code_reflector::{CodeReflector, Shortened};
use super::events::ConversationState;
use super::model_health::Notice;
use super::part_report::PartReporter;
use super::peer_memory::PeerMemories;
use super::snapshots::{PreparedSnapshot, SnapshotTarget, Snapshots};
use super::track::Track;
use super::worker::Worker;
use crate::history::{History, Scope};
use crate::memory::advance::{Action, ChainState, bounded_snapshot, overflow};
use crate::memory::{PartKind, Policy, SnapshotId, SnapshotMeta, Span, record};
use crate::store::StoreError;

/// A request that was refused as too long.
#[derive(Clone, Debug)]
pub struct OversizedRequest {
    /// The owner.
    pub scope: Scope,
    /// Its messages.
    pub history: Arc<History>,
    /// The model it named, whose thresholds apply.
    pub model: String,
    /// The snapshot it was sent with.
    pub sent_snapshot: Option<SnapshotId>,
    /// The time zone of its client, if the client names one.
    pub zone: Option<TimeZone>,
    /// Whether the new snapshot is stored; otherwise nothing is written.
    pub persist: bool,
    /// Whether it may receive peer memory.
    pub allows_peer_memory: bool,
    /// Its thread key. Peer memory excludes conversations with the same key.
    pub thread_key: Option<String>,
}

/// Lines that code has written for an Observer that does not work.
struct CoveredByCode {
    thread: Option<String>,
    ranges: usize,
}

impl CoveredByCode {
    /// Says what became of them. `sent` says that they stand in the place of messages now.
    fn log(&self, scope: &Scope, sent: bool) {
        let outcome = Self::outcome(sent);
        tracing::warn!(
            tenant = %scope.tenant_label(),
            thread = self.thread,
            ranges = self.ranges,
            "a request does not fit its model, and the Observer does not work: code wrote lines about the oldest \
             messages. {outcome}"
        );
    }

    fn outcome(sent: bool) -> &'static str {
        if sent {
            "They stand in the place of these messages"
        } else {
            "They would not make the request shorter, so it keeps its messages"
        }
    }
}

/// How often a new plan is made because the log was shortened, here or by another process.
const MAX_SHORTENINGS: usize = 2;

/// Shortens a request that is too long by what is observed already.
#[derive(Clone)]
pub(super) struct OverflowActivator {
    base: Base,
    snapshots: Snapshots,
    peer_memory: PeerMemories,
    code_reflector: CodeReflector,
    reporter: PartReporter,
    worker: Arc<Worker>,
}

impl OverflowActivator {
    pub(super) fn new(base: &Base, reporter: &PartReporter, worker: &Arc<Worker>) -> Self {
        Self {
            base: base.clone(),
            snapshots: Snapshots::new(base),
            peer_memory: PeerMemories::new(base),
            code_reflector: CodeReflector::new(base),
            reporter: reporter.clone(),
            worker: Arc::clone(worker),
        }
    }

    /// Lets code cover what waits for an Observer that does not work. The upstream has just said that the
    /// request does not fit with it.
    async fn cover_waiting_ranges(
        &self,
        request: &OversizedRequest,
    ) -> Result<Option<CoveredByCode>, StoreError> {
        let settings = self.base.settings().for_model(&request.model);
        let (scope, phase) = (&request.scope, &settings.observation);
        let notice = self
            .base
            .health
            .notice(&scope.tenant, phase, &request.model);
        if !matches!(notice, Some(Notice::ObserverFailing(_))) {
            return Ok(None);
        }
        let track = Track::load(&*self.base.store, scope, &request.history).await?;
        let waiting = track.open_jobs().filter(|job| job.kind == PartKind::Chunk);
        let mut spans: Vec<Span> = waiting.map(|job| job.span).collect();
        spans.sort_unstable_by_key(|span| span.from_count);
        let mut ranges = 0;
        for span in spans {
            // What follows a range that a worker holds would leave a gap.
            let Some((part, report)) = self.worker.cover_by_code(scope, &span).await? else {
                break;
            };
            self.reporter.report(scope, Some(&track), &part, report);
            ranges += 1;
        }
        Ok((ranges > 0).then(|| CoveredByCode {
            thread: track.label(),
            ranges,
        }))
    }

    /// Activates everything observed of `request`. `None` if that covers no more than was sent.
    pub(super) async fn activate(
        &self,
        request: &OversizedRequest,
    ) -> Result<Option<PreparedSnapshot>, StoreError> {
        let covered = if request.persist {
            self.cover_waiting_ranges(request).await?
        } else {
            None
        };
        let prepared = self.activate_observed(request).await;
        if let Some(covered) = covered {
            // Said when it is known: lines that would not shorten the request do not replace its messages.
            covered.log(&request.scope, matches!(prepared, Ok(Some(_))));
        }
        prepared
    }

    /// The same, of what is observed or covered by code.
    async fn activate_observed(
        &self,
        request: &OversizedRequest,
    ) -> Result<Option<PreparedSnapshot>, StoreError> {
        let (scope, history) = (&request.scope, &request.history);
        let Some(tip) = history.tip() else {
            return Ok(None);
        };
        let settings = self.base.settings();
        let policy = &self.base.policy_for(&settings, &request.model);
        let settings = settings.for_model(&request.model);
        let mut shortened = 0;
        let (mut track, applied, plan) = loop {
            let (track, applied, step) = self.plan(request, policy).await?;
            match step {
                // A log at its hard limit is shortened first, which needs another plan. Without
                // `persist` nothing may be written, so this one request gets the long log.
                Some(Action::Shorten {
                    span,
                    message_tokens,
                    limit,
                    plan,
                }) if request.persist && shortened < MAX_SHORTENINGS => {
                    let sizes = (message_tokens, limit);
                    match self
                        .code_reflector
                        .shorten(scope, &settings, &plan, span, sizes)
                        .await?
                    {
                        Shortened::Written(written) => {
                            let (part, report) = *written;
                            self.reporter.report(scope, Some(&track), &part, report);
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
            let drafted = self
                .snapshots
                .draft(scope, plan, &target, &settings, false)
                .await?;
            return Ok(drafted.map(|new| {
                let eligible_from = new.tip_count;
                PreparedSnapshot {
                    snapshot: Arc::new(new.into_snapshot(EPHEMERAL, eligible_from)),
                    peer_snapshot: None,
                }
            }));
        }
        track.allows_peer_memory |= request.allows_peer_memory;
        let last_confirmed = track.last_confirmed_after(history.len());
        let peer_section = self
            .peer_memory
            .section_for(&track, request.thread_key.as_deref(), last_confirmed)
            .await;
        let prepared = self
            .snapshots
            .prepare(scope, plan, &target, &settings, peer_section)
            .await?;
        if let Some(PreparedSnapshot { snapshot, .. }) = &prepared {
            // The snapshot may exist already, prepared for another request that was refused.
            if track
                .snapshots
                .iter()
                .all(|existing| existing.id != snapshot.meta.id)
            {
                let conversation = ConversationState::with_snapshot(&track, applied.last());
                // The newest messages are not recorded, but the covered ones are.
                let meta = &snapshot.meta;
                self.base
                    .events
                    .emit_activated(&conversation, &request.model, meta.to, meta);
            }
        }
        Ok(prepared)
    }

    /// Loads the chain of `request`, the snapshot that it was sent with, and the plan that
    /// activates everything observed.
    async fn plan(
        &self,
        request: &OversizedRequest,
        policy: &Policy,
    ) -> Result<(Track, Vec<SnapshotMeta>, Option<Action>), StoreError> {
        let history = &request.history;
        let mut track = Track::load(&*self.base.store, &request.scope, history).await?;
        track.model.clone_from(&request.model);
        // The newest messages were never accepted, so they are not recorded. All observed messages
        // lie before them, so only their roles matter.
        let nodes = record::refused_nodes(history, &track.nodes);
        // Other snapshots may cover more: those for longer requests, or one that was prepared after
        // this request first went out. They count as not sent.
        let applied = track.sent_snapshots(request.sent_snapshot);
        let path = ChainState {
            nodes: &nodes,
            snapshots: &applied,
            ..track.path()
        };
        let step = overflow(&path, policy).map(|plan| bounded_snapshot(&path, policy, plan));
        Ok((track, applied, step))
    }
}

/// The id of a snapshot that is in no store. Stored ones count from 1.
const EPHEMERAL: SnapshotId = SnapshotId(0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_text_reports_whether_code_lines_replace_the_messages() {
        assert!(CoveredByCode::outcome(true).contains("in the place of these messages"));
        let kept = CoveredByCode::outcome(false);
        assert!(kept.contains("keeps its messages") && !kept.contains("in the place"));
    }
}
