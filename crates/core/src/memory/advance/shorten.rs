//! The hard limit of the log: what is done where no model condensed it in time (INV-BOUND).
//!
//! Code can shorten a log, but it can only leave things out. So it is the last resort, at the limit
//! alone, and what it writes is a stopgap: a Reflector is asked all the same, with what the log was
//! before, and what it writes is preferred from the next activation on, however late it comes.

use super::view::{View, text_tokens};
use super::{Path, Plan, Step};
use crate::memory::{Cause, PartMeta, Policy, Span};

/// The snapshot of `plan`, for whatever reason it was made, or where its log has reached the limit, a
/// shorter log first.
pub fn bounded(path: &Path<'_>, policy: &Policy, plan: Plan) -> Step {
    within(&View::of(path), policy, plan)
}

/// The snapshot of `plan`, or where its log has reached the limit, a shorter log first.
pub(super) fn within(view: &View<'_>, policy: &Policy, plan: Plan) -> Step {
    let span = Span {
        from: view.path.root,
        from_count: 0,
        to: plan.to,
        to_count: plan.to_count,
    };
    let shortens = plan.tokens >= policy.observation_limit && possible(view, span.to_count);
    if !shortens {
        return Step::Snapshot(plan);
    }
    let parts = view.path.parts.iter();
    let message_tokens = parts
        .filter(|part| plan.parts.contains(&part.id))
        .fold(0, |sum: u32, part| sum.saturating_add(part.message_tokens));
    Step::Shorten {
        span,
        message_tokens,
        limit: policy.observation_limit,
        plan,
    }
}

/// What is sent has reached the limit, with no activation due that would bring it back.
pub(super) fn overdue(view: &View<'_>, policy: &Policy) -> Option<Step> {
    let current = view.current?;
    let sent = view.continued(current.to_count)?;
    let tokens = text_tokens(&sent);
    if tokens < policy.observation_limit || !possible(view, current.to_count) {
        return None;
    }
    let plan = Plan {
        to: current.to,
        to_count: current.to_count,
        pin: current.pin,
        parts: sent.iter().map(|part| part.id).collect(),
        later: view.later(current.to_count),
        tokens,
        // What is sent already costs nothing more.
        saves: u32::MAX,
        cause: Cause::Reflection,
    };
    Some(within(view, policy, plan))
}

/// Whether code may shorten the log up to `to_count`: not twice, what it left once is all it can leave.
fn possible(view: &View<'_>, to_count: usize) -> bool {
    let ends_there = |part: &PartMeta| part.stopgap && part.span.to_count == to_count;
    !view.path.parts.iter().any(ends_there)
}
