//! The hard limit of the log: what happens if no model condensed it in time (INV-BOUND).
//!
//! Code can shorten a log only by leaving lines out. So it does this as a last resort, at the limit,
//! and its result is temporary. A Reflector is still asked for the log as it was before, and its answer
//! is preferred from the next activation on, however late it comes.

use super::chain_state::{Action, ChainState, SnapshotPlan};
use super::chain_view::{ChainView, part_tokens};
use crate::memory::{PartMeta, Policy, SnapshotCause, Span};

/// The snapshot of `plan`, whatever caused it; or if its log has reached the limit, a shorter log
/// first.
pub fn bounded_snapshot(chain: &ChainState<'_>, policy: &Policy, plan: SnapshotPlan) -> Action {
    snapshot_or_shorten(&ChainView::new(chain), policy, plan)
}

/// The snapshot of `plan`; or if its log has reached the limit, a shorter log first.
pub(super) fn snapshot_or_shorten(
    view: &ChainView<'_>,
    policy: &Policy,
    plan: SnapshotPlan,
) -> Action {
    let span = Span {
        from: view.chain.root,
        from_count: 0,
        to: plan.to,
        to_count: plan.to_count,
    };
    let must_shorten = plan.tokens >= policy.observation_limit && can_shorten(view, span.to_count);
    if !must_shorten {
        return Action::Snapshot(plan);
    }
    let parts = view.chain.parts.iter();
    let message_tokens = parts
        .filter(|part| plan.parts.contains(&part.id))
        .fold(0, |sum: u32, part| sum.saturating_add(part.message_tokens));
    Action::Shorten {
        span,
        message_tokens,
        limit: policy.observation_limit,
        plan,
    }
}

/// The action if the log that is sent has reached the limit and no activation is due.
pub(super) fn shorten_sent(view: &ChainView<'_>, policy: &Policy) -> Option<Action> {
    let current = view.current?;
    let sent = view.appended_log(current.to_count)?;
    let tokens = part_tokens(&sent);
    if tokens < policy.observation_limit || !can_shorten(view, current.to_count) {
        return None;
    }
    let plan = SnapshotPlan {
        to: current.to,
        to_count: current.to_count,
        pin: current.pin,
        parts: sent.iter().map(|part| part.id).collect(),
        later_chunks: view.later_chunks(current.to_count),
        tokens,
        // The log is sent already, so its snapshot costs nothing more.
        saved_tokens: u32::MAX,
        cause: SnapshotCause::Reflection,
    };
    Some(snapshot_or_shorten(view, policy, plan))
}

/// Whether code may shorten the log up to `to_count`. It does so once: a second time it could leave out
/// nothing more.
fn can_shorten(view: &ChainView<'_>, to_count: usize) -> bool {
    let ends_there = |part: &PartMeta| part.code_reflection && part.span.to_count == to_count;
    !view.chain.parts.iter().any(ends_there)
}
