//! Decides what can be activated when the prompt cache is lost anyway: the conversation was idle for
//! longer than its provider keeps a prompt, or another model is asked.
//!
//! No threshold has to be reached, because such an activation costs nothing. The retention floor, the
//! minimum and INV-WORTH hold as always. A reflection is used early only if it saves much and enough
//! observations follow it; otherwise it would remove more detail than it saves (the published guard).

use super::chain_view::{ChainView, part_tokens};
use super::{
    ChainState, ReflectionUse, SnapshotPlan, activation_size, chunk_token_sums, cost_aware, plan,
    plan_with,
};
use crate::memory::{EarlyTriggers, IdleTrigger, PartKind, Policy, SnapshotCause};

/// The snapshot that may be prepared for `chain` because of `cause`; `None` if the policy does not ask
/// for one, or if it would gain nothing.
pub fn early(
    chain: &ChainState<'_>,
    policy: &Policy,
    cause: SnapshotCause,
) -> Option<SnapshotPlan> {
    let view = ChainView::new(chain);
    let policy = &cost_aware::thresholds(&view, policy);
    // As in `advance`, no snapshot is prepared from an older request that came again.
    if chain.nodes.last().is_none_or(|tip| tip.confirmed) {
        return None;
    }
    let enabled = |early: EarlyTriggers| match cause {
        SnapshotCause::Idle => early.idle != IdleTrigger::Never,
        SnapshotCause::ModelChange => early.model_change,
        SnapshotCause::Threshold
        | SnapshotCause::Reflection
        | SnapshotCause::Overflow
        | SnapshotCause::Dropped
        | SnapshotCause::PeerMemory => false,
    };
    let activated = enabled(policy.early_activation)
        .then(|| activate(&view, policy, cause))
        .flatten();
    let to_count = activated
        .as_ref()
        .map_or(view.covered_count(), |plan| plan.to_count);
    let condensed = enabled(policy.early_reflection)
        .then(|| use_reflection(&view, policy, to_count, cause))
        .flatten()
        .filter(|plan| within_limit(plan, policy, cause));
    condensed.or(activated)
}

/// Whether `plan` may be used as it is. A snapshot for another model may never be used, so no log is
/// shortened for it: it must fit below the hard limit.
fn within_limit(plan: &SnapshotPlan, policy: &Policy, cause: SnapshotCause) -> bool {
    cause != SnapshotCause::ModelChange || plan.tokens < policy.observation_limit
}

fn activate(view: &ChainView<'_>, policy: &Policy, cause: SnapshotCause) -> Option<SnapshotPlan> {
    let policy = &policy.with_observations(view.sent_log_tokens());
    let chunks = view.fresh_chunks();
    let count = activation_size::chunks_when_early(
        &chunk_token_sums(&chunks),
        view.pending_tokens(),
        policy,
    )?;
    let mut plans = chunks[..count].iter().rev();
    plans
        .find_map(|last| match plan(view, policy, last.span, cause) {
            Some(plan) if !within_limit(&plan, policy, cause) => None,
            plan => Some(plan),
        })
        .flatten()
}

/// The log up to `to_count` with its newest reflection, if that one is not sent yet. The chunks behind
/// the reflection must have at least as many tokens as the reflection. Both together must have three
/// quarters of the distance between the point where a reflection is prepared and the budget (15,000
/// tokens by default).
fn use_reflection(
    view: &ChainView<'_>,
    policy: &Policy,
    to_count: usize,
    cause: SnapshotCause,
) -> Option<SnapshotPlan> {
    let current = view.current?;
    let log = view.log_within(to_count, policy.observation_limit)?;
    let (first, tail) = log.split_first()?;
    if first.kind != PartKind::Reflection || current.parts.contains(&first.id) {
        return None;
    }
    let tail_tokens = part_tokens(tail);
    let total_tokens = u64::from(first.tokens) + u64::from(tail_tokens);
    let span = policy
        .observation_tokens
        .saturating_sub(policy.reflect_from);
    if tail_tokens < first.tokens || total_tokens * 4 < u64::from(span) * 3 {
        return None;
    }
    let last = view
        .chunks
        .iter()
        .find(|chunk| chunk.span.to_count == to_count)?;
    plan_with(view, policy, last.span, cause, ReflectionUse::Now)
}
