//! Performs the steps that [`advance`] returns for a conversation, and keeps the route and urgency
//! of its open jobs up to date.

use super::state::Recorder;
use crate::jobs::exchange::Exchange;
use crate::jobs::failure::log_store_failure;
use crate::jobs::track::Track;
use crate::memory::advance::{Action, advance, bounded_snapshot, dropped as plan_dropped};
use crate::memory::{PartKind, Span};
use crate::store::Urgency;

impl Recorder {
    /// Gives the open jobs of this conversation the route and the urgency of its newest request, if
    /// they changed. A job with the route of a credential that is no longer used would wait for
    /// ever.
    pub(super) async fn reprioritize(&self, track: &mut Track) {
        let ends = track.open_job_ends();
        if ends.is_empty() {
            return;
        }
        let urgency = Urgency {
            observation: self.urgency(track, PartKind::Chunk),
            reflection: self.urgency(track, PartKind::Reflection),
        };
        let tenths = [urgency.observation / 100, urgency.reflection / 100];
        let priorities = Some((track.route, tenths));
        if track.last_priorities == priorities {
            return;
        }
        let store = &self.base.store;
        match store
            .reprioritize(&track.scope, &ends, track.route, urgency)
            .await
        {
            Ok(()) => {
                track.last_priorities = priorities;
                self.shared.wake.notify_one();
            }
            Err(error) => {
                log_store_failure("the urgency of waiting jobs could not be updated", &error);
            }
        }
    }

    /// Performs the steps for `track` until none is left.
    pub(super) async fn perform_steps(
        &mut self,
        mut track: Track,
        exchange: Option<&Exchange>,
    ) -> Track {
        // One round can make one more snapshot or reflection due. A third round is rare.
        for _ in 0..4 {
            let settings = self.base.settings();
            let steps = advance(
                &track.path(),
                &self.base.policy_for(&settings, &track.model),
            );
            let (mut changed, mut ranges) = (false, Vec::new());
            for step in steps {
                changed |= self.step(&mut track, step, &mut ranges).await;
            }
            // If something changed, dropped messages may be covered by that already.
            let rest = exchange.filter(|_| !changed);
            if let Some(step) = rest.and_then(|exchange| self.cover_dropped(&track, exchange)) {
                changed |= self.step(&mut track, step, &mut ranges).await;
            }
            // The text of a range is at hand only while its request is.
            if let Some(exchange) = exchange.filter(|_| !ranges.is_empty() && !track.paused) {
                self.observe(&mut track, ranges, exchange, None).await;
            }
            if !changed {
                break;
            }
        }
        track
    }

    /// Performs `step`; a range to observe is only added to `ranges`. Returns whether another step
    /// may follow now.
    async fn step(&self, track: &mut Track, step: Action, ranges: &mut Vec<(Span, u32)>) -> bool {
        match step {
            Action::Observe {
                span,
                message_tokens,
            } => {
                ranges.push((span, message_tokens));
                false
            }
            Action::Reflect {
                sources,
                span,
                message_tokens,
                ..
            } => {
                self.reflect(track, sources, span, message_tokens).await;
                false
            }
            Action::Snapshot(plan) => self.snapshot(track, plan).await,
            Action::Shorten {
                span,
                message_tokens,
                limit,
                plan,
            } => {
                let sizes = (message_tokens, limit);
                self.shorten(track, plan, span, sizes).await
            }
        }
    }

    /// Covers messages that the client no longer sends as soon as they are observed. Without that,
    /// the model would know nothing of them.
    fn cover_dropped(&self, track: &Track, exchange: &Exchange) -> Option<Action> {
        let alignment = exchange.alignment.as_ref()?;
        let sent_from = match alignment.positions.fully_sent_from() {
            0 => return None,
            // A client with a sliding window will drop as many messages again as were added last.
            from => {
                from + track
                    .nodes
                    .iter()
                    .rev()
                    .take_while(|n| n.first_length == track.nodes.len())
                    .count()
            }
        };
        let settings = self.base.settings();
        let policy = self.base.policy_for(&settings, &track.model);
        let path = track.path();
        plan_dropped(&path, &policy, sent_from).map(|plan| bounded_snapshot(&path, &policy, plan))
    }
}
