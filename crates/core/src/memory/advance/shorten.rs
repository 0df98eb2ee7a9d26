//! The hard limit of the log: what is done where no model condensed it in time (INV-BOUND).
//!
//! Code can shorten a log, but it can only leave things out. So it is the last resort, at the limit
//! alone, and what it writes is a stopgap: a Reflector is asked all the same, with what the log was
//! before, and what it writes is preferred from the next activation on, however late it comes.

use super::chain_state::{Action, ChainState, SnapshotPlan};
use super::chain_view::{ChainView, part_tokens};
use crate::memory::{PartMeta, Policy, SnapshotCause, Span};

/// The snapshot of `plan`, for whatever reason it was made, or where its log has reached the limit, a
/// shorter log first.
pub fn bounded_snapshot(chain: &ChainState<'_>, policy: &Policy, plan: SnapshotPlan) -> Action {
    snapshot_or_shorten(&ChainView::new(chain), policy, plan)
}

/// The snapshot of `plan`, or where its log has reached the limit, a shorter log first.
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

/// What is sent has reached the limit, with no activation due that would bring it back.
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
        // What is sent already costs nothing more.
        saved_tokens: u32::MAX,
        cause: SnapshotCause::Reflection,
    };
    Some(snapshot_or_shorten(view, policy, plan))
}

/// Whether code may shorten the log up to `to_count`: not twice, what it left once is all it can leave.
fn can_shorten(view: &ChainView<'_>, to_count: usize) -> bool {
    let ends_there = |part: &PartMeta| part.code_reflection && part.span.to_count == to_count;
    !view.chain.parts.iter().any(ends_there)
}
