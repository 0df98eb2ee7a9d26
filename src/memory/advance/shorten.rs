//! The hard limit of the log: what is done where no model condensed it in time (INV-BOUND).
//!
//! Code can shorten a log, but it can only leave things out. So it is the last resort: only at the
//! limit, and only while no Reflector is at work on its first try.

use super::view::{View, text_tokens};
use super::{Plan, Step, WorkState, reflect};
use crate::memory::{Cause, PartKind, PartMeta, Policy, Span};

/// The snapshot of `plan`, or where its log has reached the limit, a shorter log first.
pub(super) fn within(view: &View<'_>, policy: &Policy, plan: Plan) -> Step {
    let span = Span {
        from: view.path.root,
        from_count: 0,
        to: plan.to,
        to_count: plan.to_count,
    };
    let shortens = plan.tokens >= policy.observation_limit && possible(view, policy, span.to_count);
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
    if tokens < policy.observation_limit || !possible(view, policy, current.to_count) {
        return None;
    }
    let plan = Plan {
        to: current.to,
        to_count: current.to_count,
        pin: current.pin,
        parts: sent.iter().map(|part| part.id).collect(),
        tokens,
        // What is sent already costs nothing more.
        saves: u32::MAX,
        cause: Cause::Reflection,
    };
    Some(within(view, policy, plan))
}

/// Whether code may shorten the log up to `to_count`: nobody else is about to, and a range has one
/// reflection.
fn possible(view: &View<'_>, policy: &Policy, to_count: usize) -> bool {
    let reflecting = view
        .path
        .work
        .iter()
        .any(|work| work.kind == PartKind::Reflection && work.state == WorkState::Fresh);
    let ends_there =
        |part: &PartMeta| part.kind == PartKind::Reflection && part.span.to_count == to_count;
    !reflecting && reflect(view, policy).is_none() && !view.path.parts.iter().any(ends_there)
}
