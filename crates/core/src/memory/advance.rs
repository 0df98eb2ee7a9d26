//! Decides what to do next for one chain: observe, reflect, prepare a snapshot.
//!
//! A pure function of the policy and of what the store knows about the chain; it performs nothing.
//! Called by the jobs module after every recorded request and every committed part, and by the property
//! tests. Boundaries depend only on content and stored counts. So every process computes the same
//! ranges, and the unique key of a job makes sure that the work is done once.

mod activation_size;
mod call_costs;
mod chain_state;
mod chain_view;
mod cost_aware;
mod early;
pub mod overflow_observe;
mod reflect;
mod shorten;
mod spent;
mod threshold_status;

pub use chain_state::{Action, ChainJob, ChainState, JobState, SnapshotPlan};
use chain_view::{ChainView, is_usable, node_tokens, part_tokens};
pub use early::early;
use reflect::reflect;
pub use reflect::reflect_on_request;
pub use shorten::bounded_snapshot;
pub use threshold_status::{ThresholdStatus, threshold_status};

use super::{Node, PartId, PartKind, PartMeta, Policy, SnapshotCause, Span};

/// The next actions for `chain`; empty if there is nothing to do.
pub fn advance(chain: &ChainState<'_>, policy: &Policy) -> Vec<Action> {
    let view = ChainView::new(chain);
    let due = cost_aware::thresholds(&view, policy);
    let (mut steps, upcoming) = observe(&view, &cost_aware::range_thresholds(policy, &due));
    let policy = &due;
    // No snapshot is prepared from an older request that came again. It would be used only by
    // requests longer than the longest one, where the newest message of this request may be answered
    // long ago; to pin it there would cost more than it saves (INV-WORTH).
    let newest = chain.nodes.last().is_some_and(|tip| !tip.confirmed);
    if newest {
        steps.extend(
            activate(&view, policy, &upcoming)
                .or_else(|| use_reflection(&view, policy))
                .map(|plan| shorten::snapshot_or_shorten(&view, policy, plan))
                .or_else(|| shorten::shorten_sent(&view, policy)),
        );
    }
    steps.extend(reflect(&view, policy));
    steps
}

/// The snapshot with everything that is observed, whatever the thresholds say: a request was refused as
/// too long. Its newest message stays raw, even if a longer request had it observed. `None` if the
/// snapshot would not make the request smaller.
pub fn overflow(chain: &ChainState<'_>, policy: &Policy) -> Option<SnapshotPlan> {
    let view = ChainView::new(chain);
    let mut chunks = view.fresh_chunks().into_iter();
    let last = chunks.rfind(|chunk| chunk.span.to_count < chain.nodes.len())?;
    plan(&view, policy, last.span, SnapshotCause::Overflow)
}

/// The snapshot that covers what the client no longer sends, the messages before the one at
/// `sent_from`, as far as it is observed. `None` if that is covered already, or would not be worth its
/// tokens.
pub fn dropped(chain: &ChainState<'_>, policy: &Policy, sent_from: usize) -> Option<SnapshotPlan> {
    let view = ChainView::new(chain);
    if view.covered_count() >= sent_from {
        return None;
    }
    let chunks = view.fresh_chunks();
    let reaching = chunks.iter().find(|chunk| chunk.span.to_count >= sent_from);
    let last = reaching.or(chunks.last())?;
    plan(&view, policy, last.span, SnapshotCause::Dropped)
}

/// The first boundary after `from` among the first `limit` messages: at least `buffer_tokens` further
/// on, where no tool call is open. The end of a turn is preferred, because the tail then begins with a
/// user message and no question is observed without its answer. But the search for it ends at one and a
/// half times `buffer_tokens`. With `buffer_on_idle`, the end of any turn is a boundary.
fn boundary(nodes: &[Node], from: usize, limit: usize, policy: &Policy) -> Option<usize> {
    let buffer_tokens = policy.buffer_tokens;
    // A chunk is never so large that the raw history would have to outgrow its own threshold first.
    let half = (buffer_tokens / 2).min(policy.message_tokens.saturating_sub(buffer_tokens));
    let max_sum = buffer_tokens.saturating_add(half);
    let mut sum = 0_u32;
    let mut first = None;
    for node in nodes.get(from..limit)? {
        sum = sum.saturating_add(node.tokens);
        let turn_end = node.closed && node.turn_end;
        if sum < buffer_tokens && !(policy.buffer_on_idle && turn_end) {
            continue;
        }
        if turn_end {
            return Some(first.filter(|_| sum >= max_sum).unwrap_or(node.count));
        }
        if node.closed && first.is_none() {
            first = Some(node.count);
        }
        if first.is_some() && sum >= max_sum {
            return first;
        }
    }
    None
}

/// The ranges that the Observer will write next.
struct UpcomingRanges {
    /// Whether a range can be observed now.
    has_offered: bool,
    /// Whether a range is complete, but waits for the next request to confirm it.
    has_unconfirmed: bool,
    /// How many messages lie in ranges; `None` behind a range that was given up.
    ranged_count: Option<usize>,
}

/// Every range that is complete and confirmed, but not yet observed or queued, up to the first range
/// that was given up. A log has no gaps, so observations behind that one could not be used.
fn observe(view: &ChainView<'_>, policy: &Policy) -> (Vec<Action>, UpcomingRanges) {
    let nodes = view.chain.nodes;
    let mut steps = Vec::new();
    let mut from = view.observed_count();
    while let Some(to) =
        queued_range_end(view, from).or_else(|| boundary(nodes, from, view.confirmed_count, policy))
    {
        let span = span(view, from, to);
        let job = view.chain.jobs.iter().find(|work| {
            work.kind == PartKind::Chunk && work.span.from == span.from && work.span.to == span.to
        });
        match job.map(|work| work.state) {
            None => steps.push(Action::Observe {
                span,
                message_tokens: node_tokens(&nodes[from..to]),
            }),
            Some(JobState::Fresh | JobState::Retrying) => {}
            Some(JobState::Abandoned) => {
                let upcoming = UpcomingRanges {
                    has_offered: !steps.is_empty(),
                    has_unconfirmed: false,
                    ranged_count: None,
                };
                return (steps, upcoming);
            }
        }
        from = to;
    }
    let upcoming = UpcomingRanges {
        has_offered: !steps.is_empty(),
        has_unconfirmed: boundary(nodes, from, nodes.len(), policy).is_some(),
        ranged_count: Some(from),
    };
    (steps, upcoming)
}

/// Everything that is confirmed and not yet observed or queued, of whatever size: an operator requested
/// it.
pub fn observe_all(chain: &ChainState<'_>, policy: &Policy) -> Vec<Action> {
    let view = ChainView::new(chain);
    let (mut steps, upcoming) = observe(&view, policy);
    let Some(from) = upcoming.ranged_count else {
        return steps;
    };
    let rest = chain
        .nodes
        .get(from..view.confirmed_count)
        .unwrap_or_default();
    if let Some(last) = rest.iter().rev().find(|node| node.closed) {
        steps.push(Action::Observe {
            span: span(&view, from, last.count),
            message_tokens: node_tokens(&chain.nodes[from..last.count]),
        });
    }
    steps
}

/// The parts that observe `chain` without a gap: the newest reflection and the chunks behind it.
pub fn observed_parts(chain: &ChainState<'_>) -> Vec<PartId> {
    let view = ChainView::new(chain);
    let log = view.log(view.observed_count()).unwrap_or_default();
    log.iter().map(|part| part.id).collect()
}

/// Where a queued range that begins at `from` ends. It may have been cut with another `buffer_tokens`,
/// earlier or by another process; a second cut would observe the same text twice.
fn queued_range_end(view: &ChainView<'_>, from: usize) -> Option<usize> {
    let begins_here = |work: &&ChainJob| {
        work.kind == PartKind::Chunk
            && work.state != JobState::Abandoned
            && work.span.from_count == from
    };
    view.chain
        .jobs
        .iter()
        .filter(begins_here)
        .map(|work| work.span.to_count)
        .filter(|to| (from + 1..=view.confirmed_count).contains(to))
        .max()
}

fn span(view: &ChainView<'_>, from: usize, to: usize) -> Span {
    let link = |count: usize| match count {
        0 => view.chain.root,
        _ => view.chain.nodes[count - 1].link,
    };
    Span {
        from: link(from),
        from_count: from,
        to: link(to),
        to_count: to,
    }
}

/// The activation that is due when the raw history has reached `message_tokens`: it brings the history
/// down to the retention floor.
fn activate(
    view: &ChainView<'_>,
    policy: &Policy,
    upcoming: &UpcomingRanges,
) -> Option<SnapshotPlan> {
    let policy = &policy.with_observations(view.sent_log_tokens());
    let pending = view.pending_tokens();
    let chunks = view.fresh_chunks();
    if pending < policy.message_tokens || chunks.is_empty() {
        return None;
    }
    let chunk_sums = chunk_token_sums(&chunks);
    // Every activation costs the prompt cache of the tail once, so a large backlog is not activated
    // chunk by chunk. While the Observer still works on ranges that this activation should cover,
    // wait, unless the history is overdue and at least half of the target is ready.
    let observer_busy = upcoming.has_offered
        || view.chain.jobs.iter().any(|work| {
            work.kind == PartKind::Chunk
                && work.state == JobState::Fresh
                && work.span.from_count >= view.observed_count()
        });
    let target = pending.saturating_sub(policy.retention_floor);
    let reachable = chunk_sums.last().copied().unwrap_or(0);
    if observer_busy
        && reachable < target
        && (pending < policy.block_after || reachable < target / 2)
    {
        return None;
    }
    let count =
        activation_size::chunks_when_due(&chunk_sums, pending, policy, upcoming.has_unconfirmed)?;
    plan(
        view,
        policy,
        chunks[count - 1].span,
        SnapshotCause::Threshold,
    )
}

/// Tokens of the messages of the first chunk, of the first two, and so on.
fn chunk_token_sums(chunks: &[&PartMeta]) -> Vec<u32> {
    chunks
        .iter()
        .scan(0_u32, |sum, chunk| {
            *sum = sum.saturating_add(chunk.message_tokens);
            Some(*sum)
        })
        .collect()
}

/// The snapshot that puts a reflection in place of the observations that are sent: they reached their
/// budget, or an operator requested a reflection.
fn use_reflection(view: &ChainView<'_>, policy: &Policy) -> Option<SnapshotPlan> {
    let current = view.current?;
    let to_count = current.to_count;
    let due = part_tokens(&view.appended_log(to_count)?) >= policy.observation_tokens;
    let requested = requested_reflection(view).is_some_and(|part| part.span.to_count <= to_count);
    if !due && !requested {
        return None;
    }
    let reflection = view.reflection?;
    if current.parts.contains(&reflection.id) {
        return None;
    }
    let last = view
        .chunks
        .iter()
        .find(|chunk| chunk.span.to_count == to_count)?;
    // A reflection that reaches further than the current snapshot waits for the next activation. To
    // send the same parts again, only without a pin that is no longer needed, would cost the cache
    // and gain nothing.
    plan(view, policy, last.span, SnapshotCause::Reflection)
        .filter(|plan| plan.parts != current.parts)
}

/// A snapshot up to the end of `last`, or further if a fork has prepared a snapshot that reaches
/// further. That one will be sent when this chain is as long as the fork was, and would undo the
/// rewriting of this one (INV-PREFIX).
fn plan(
    view: &ChainView<'_>,
    policy: &Policy,
    last: Span,
    cause: SnapshotCause,
) -> Option<SnapshotPlan> {
    let reflection_use = match requested_reflection(view) {
        Some(_) => ReflectionUse::Now,
        None => ReflectionUse::AtBudget,
    };
    plan_with(view, policy, last, cause, reflection_use)
}

/// The newest reflection, if an operator requested it and it is not sent yet.
fn requested_reflection<'a>(view: &ChainView<'a>) -> Option<&'a PartMeta> {
    let sent = |part: &PartMeta| {
        let current = view.current;
        current.is_some_and(|current| current.parts.contains(&part.id))
    };
    view.reflection.filter(|part| part.requested && !sent(part))
}

/// When the newest reflection replaces the parts that it condenses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReflectionUse {
    /// When the log would reach `observation_tokens` without it.
    AtBudget,
    /// In this snapshot.
    Now,
}

fn plan_with(
    view: &ChainView<'_>,
    policy: &Policy,
    last: Span,
    cause: SnapshotCause,
    reflection_use: ReflectionUse,
) -> Option<SnapshotPlan> {
    let plan = plan_to(view, policy, last, cause, reflection_use)?;
    let fork_end = view
        .chain
        .snapshots
        .iter()
        .filter(|other| other.to_count > plan.to_count && !other.parts.starts_with(&plan.parts))
        .filter(|other| is_usable(&view.chain, other))
        .map(|other| other.to_count)
        .max();
    let fork_plan = view
        .chunks
        .iter()
        .find(|chunk| Some(chunk.span.to_count) == fork_end)
        .and_then(|chunk| plan_to(view, policy, chunk.span, cause, reflection_use));
    fork_plan.or(Some(plan))
}

/// The snapshot up to the end of `last`, if it makes the request smaller (INV-WORTH).
fn plan_to<'a>(
    view: &ChainView<'a>,
    policy: &Policy,
    last: Span,
    cause: SnapshotCause,
    reflection_use: ReflectionUse,
) -> Option<SnapshotPlan> {
    let to_count = last.to_count;
    let condensed_log = view.log_within(to_count, policy.observation_limit);
    let appended_log = view
        .appended_log(to_count)
        .or_else(|| condensed_log.clone());
    let over_budget = appended_log
        .as_ref()
        .is_none_or(|log| part_tokens(log) >= policy.observation_tokens);
    let first = |log: &Option<Vec<&'a PartMeta>>| log.as_ref()?.first().copied();
    let model_answered = replaces_code_reflection(first(&appended_log), first(&condensed_log));
    let log = if over_budget || reflection_use == ReflectionUse::Now || model_answered {
        condensed_log.or(appended_log)
    } else {
        appended_log
    }?;
    let log_tokens = part_tokens(&log);
    let pin = view.pin(to_count);
    let before = view.current.map_or_else(
        || view.request_tokens(policy, 0, None, 0),
        |now| view.request_tokens(policy, now.to_count, now.pin, now.tokens),
    );
    let after = view.request_tokens(policy, to_count, pin, view.max_log_tokens(&log));
    // If a threshold activation also rewrites the block, the cause is the reflection: rewriting
    // costs most of the cache, and operators look for that.
    let rewrites_block = log.first().is_some_and(|first| {
        let sent = view
            .current
            .is_some_and(|current| current.parts.contains(&first.id));
        first.kind == PartKind::Reflection && !sent
    });
    let cause = match cause {
        SnapshotCause::Threshold if rewrites_block => SnapshotCause::Reflection,
        cause => cause,
    };
    (after < before).then(|| SnapshotPlan {
        to: last.to,
        to_count,
        pin,
        parts: log.iter().map(|part| part.id).collect(),
        later_chunks: view.later_chunks(to_count),
        tokens: log_tokens,
        saved_tokens: before - after,
        cause,
    })
}

/// Whether the log would begin with a code-written reflection although a Reflector's has come in since.
/// The Reflector's keeps what code left out, so it is used without waiting for a budget.
fn replaces_code_reflection(appended: Option<&PartMeta>, condensed: Option<&PartMeta>) -> bool {
    let by_model = |part: &PartMeta| part.kind == PartKind::Reflection && !part.code_reflection;
    appended.is_some_and(|part| part.code_reflection) && condensed.is_some_and(by_model)
}

#[cfg(test)]
mod tests;
