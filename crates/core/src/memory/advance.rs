//! What is to be done next for one chain: observe, reflect, prepare a snapshot.
//!
//! A pure function of what the store knows of the chain and of the policy; it performs nothing.
//! Called by `jobs` after every recorded request and every committed part, and by the property
//! tests. Boundaries are a function of content and stored counts alone, so every process computes
//! the same ranges and the unique key of a job makes the work happen once.

mod early;
mod reflect;
pub mod rescue;
mod shorten;
mod size;
mod standing;
mod view;

pub use early::early;
use reflect::reflect;
pub use reflect::reflection;
pub use shorten::bounded;
pub use standing::{Standing, standing};
use view::{View, text_tokens, tokens, usable};

use super::{Cause, Node, PartId, PartKind, PartMeta, Policy, SnapshotMeta, Span};
use crate::history::Link;

/// Everything known of one chain.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    /// The link before the first message.
    pub root: Link,
    /// The messages of the longest recorded request on this chain.
    pub nodes: &'a [Node],
    /// Chunks and reflections on the chain.
    pub parts: &'a [PartMeta],
    /// Snapshots on the chain.
    pub snapshots: &'a [SnapshotMeta],
    /// Work that is waiting or running, or was given up.
    pub work: &'a [Work],
}

/// A job as far as decisions depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// What it will write.
    pub kind: PartKind,
    /// Its range.
    pub span: Span,
    /// How it stands.
    pub state: WorkState,
}

/// How a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkState {
    /// Waiting for its first try, or running.
    Fresh,
    /// Tried in vain and waiting to be tried again.
    Retrying,
    /// Given up for this range.
    Abandoned,
}

/// A thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write a chunk of this range. Several come in order; each sees what the ones before wrote.
    Observe {
        /// The range.
        span: Span,
        /// Tokens of its messages.
        message_tokens: u32,
    },
    /// Condense these parts.
    Reflect {
        /// In order, gapless from the root.
        sources: Vec<PartId>,
        /// What they cover.
        span: Span,
        /// Tokens of their text.
        tokens: u32,
        /// Tokens of the messages they cover.
        message_tokens: u32,
    },
    /// Prepare a snapshot.
    Snapshot(Plan),
    /// Shorten the log of `plan` without a model, below `limit` tokens, and decide again. Where nothing
    /// can be left out, `plan` is prepared as it is.
    Shorten {
        /// What the shorter log covers.
        span: Span,
        /// Tokens of the messages it covers.
        message_tokens: u32,
        /// Tokens of the log that are too many.
        limit: u32,
        /// The snapshot that waits for it.
        plan: Plan,
    },
}

/// A snapshot to be prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The last link covered.
    pub to: Link,
    /// How many messages are covered.
    pub to_count: usize,
    /// See [`SnapshotMeta::pin`].
    pub pin: Option<usize>,
    /// The parts in order.
    pub parts: Vec<PartId>,
    /// Chunks of what stands behind it, in order. They are not told yet, but what they say is done is no
    /// task for its hints.
    pub later: Vec<PartId>,
    /// Tokens of the text of `parts`.
    pub tokens: u32,
    /// Tokens by which it makes the next request smaller. The hints are not counted in it: they are only
    /// read when it is written, and go where they would cost as much.
    pub saves: u32,
    /// Why.
    pub cause: Cause,
}

/// What to do next for `path`. Empty where everything is as it should be.
pub fn advance(path: &Path<'_>, policy: &Policy) -> Vec<Step> {
    let view = View::of(path);
    let (mut steps, coming) = observe(&view, policy);
    // An older request that came again is no place to prepare from: a longer one has carried its
    // newest message. What is prepared is used after the longest, and this one's question may be
    // long answered by then; pinned all the same, it would cost more than it saves (INV-WORTH).
    let newest = path.nodes.last().is_some_and(|tip| !tip.confirmed);
    if newest {
        steps.extend(
            activate(&view, policy, &coming)
                .or_else(|| condense(&view, policy))
                .map(|plan| shorten::within(&view, policy, plan))
                .or_else(|| shorten::overdue(&view, policy)),
        );
    }
    steps.extend(reflect(&view, policy));
    steps
}

/// The snapshot with everything that is observed, thresholds aside: a request was refused as too
/// long. Its newest message stays raw, also where a longer request had that observed. `None` where that
/// would not make it smaller than what was sent.
pub fn overflow(path: &Path<'_>, policy: &Policy) -> Option<Plan> {
    let view = View::of(path);
    let mut chunks = view.fresh_chunks().into_iter();
    let last = chunks.rfind(|chunk| chunk.span.to_count < path.nodes.len())?;
    plan(&view, policy, last.span, Cause::Overflow)
}

/// The snapshot that covers what a client no longer sends, the messages before the one at `sent_from`,
/// as far as it is observed. `None` where that is sent already, or would not be worth its tokens.
pub fn dropped(path: &Path<'_>, policy: &Policy, sent_from: usize) -> Option<Plan> {
    let view = View::of(path);
    if view.covered() >= sent_from {
        return None;
    }
    let chunks = view.fresh_chunks();
    let reaching = chunks.iter().find(|chunk| chunk.span.to_count >= sent_from);
    let last = reaching.or(chunks.last())?;
    plan(&view, policy, last.span, Cause::Dropped)
}

/// The first boundary after `from` among the first `limit` messages: at least `buffer_tokens`
/// further on, where no tool call is open. The end of a turn is preferred, since then the tail
/// begins with the user's words and no question is observed without its answer; but not for longer
/// than half the size again. With `buffer_on_idle` the end of any turn is a boundary.
fn boundary(nodes: &[Node], from: usize, limit: usize, policy: &Policy) -> Option<usize> {
    let buffer_tokens = policy.buffer_tokens;
    // A chunk is never so large that raw history would have to outgrow its own threshold for it.
    let half = (buffer_tokens / 2).min(policy.message_tokens.saturating_sub(buffer_tokens));
    let most = buffer_tokens.saturating_add(half);
    let mut sum = 0_u32;
    let mut first = None;
    for node in nodes.get(from..limit)? {
        sum = sum.saturating_add(node.tokens);
        let turn_end = node.closed && node.turn_end;
        if sum < buffer_tokens && !(policy.buffer_on_idle && turn_end) {
            continue;
        }
        if turn_end {
            return Some(first.filter(|_| sum >= most).unwrap_or(node.count));
        }
        if node.closed && first.is_none() {
            first = Some(node.count);
        }
        if first.is_some() && sum >= most {
            return first;
        }
    }
    None
}

/// What the Observer is about to write.
struct Coming {
    /// Ranges that are offered now.
    offered: bool,
    /// A range that is complete, and waits for the next request to confirm it.
    unconfirmed: bool,
    /// How many messages lie in ranges; `None` behind one that was given up.
    in_ranges: Option<usize>,
}

/// Every range that is complete and confirmed but not yet observed or offered, up to the first that was
/// given up: what lies behind it can be part of no log, which has no gaps, and would be paid for in vain.
fn observe(view: &View<'_>, policy: &Policy) -> (Vec<Step>, Coming) {
    let nodes = view.path.nodes;
    let mut steps = Vec::new();
    let mut from = view.observed();
    while let Some(to) =
        queued(view, from).or_else(|| boundary(nodes, from, view.confirmed, policy))
    {
        let span = span(view, from, to);
        let taken = view.path.work.iter().find(|work| {
            work.kind == PartKind::Chunk && work.span.from == span.from && work.span.to == span.to
        });
        match taken.map(|work| work.state) {
            None => steps.push(Step::Observe {
                span,
                message_tokens: tokens(&nodes[from..to]),
            }),
            Some(WorkState::Fresh | WorkState::Retrying) => {}
            Some(WorkState::Abandoned) => {
                let coming = Coming {
                    offered: !steps.is_empty(),
                    unconfirmed: false,
                    in_ranges: None,
                };
                return (steps, coming);
            }
        }
        from = to;
    }
    let coming = Coming {
        offered: !steps.is_empty(),
        unconfirmed: boundary(nodes, from, nodes.len(), policy).is_some(),
        in_ranges: Some(from),
    };
    (steps, coming)
}

/// Everything that is confirmed and not yet observed or offered, whatever it weighs: somebody asked.
pub fn everything(path: &Path<'_>, policy: &Policy) -> Vec<Step> {
    let view = View::of(path);
    let (mut steps, coming) = observe(&view, policy);
    let Some(from) = coming.in_ranges else {
        return steps;
    };
    let rest = path.nodes.get(from..view.confirmed).unwrap_or_default();
    if let Some(last) = rest.iter().rev().find(|node| node.closed) {
        steps.push(Step::Observe {
            span: span(&view, from, last.count),
            message_tokens: tokens(&path.nodes[from..last.count]),
        });
    }
    steps
}

/// Everything that is observed of `path` without a gap: the newest reflection and what follows it.
pub fn observed(path: &Path<'_>) -> Vec<PartId> {
    let view = View::of(path);
    let log = view.log(view.observed()).unwrap_or_default();
    log.iter().map(|part| part.id).collect()
}

/// Where a range ends that is being observed from `from` on: it was cut when `buffer_tokens` was
/// another, or by a process for which it is. To cut it again would show the same words twice.
fn queued(view: &View<'_>, from: usize) -> Option<usize> {
    let begins = |work: &&Work| {
        work.kind == PartKind::Chunk
            && work.state != WorkState::Abandoned
            && work.span.from_count == from
    };
    view.path
        .work
        .iter()
        .filter(begins)
        .map(|work| work.span.to_count)
        .filter(|to| (from + 1..=view.confirmed).contains(to))
        .max()
}

fn span(view: &View<'_>, from: usize, to: usize) -> Span {
    let link = |count: usize| match count {
        0 => view.path.root,
        _ => view.path.nodes[count - 1].link,
    };
    Span {
        from: link(from),
        from_count: from,
        to: link(to),
        to_count: to,
    }
}

/// The raw history reached `message_tokens`: bring it down to the floor.
fn activate(view: &View<'_>, policy: &Policy, coming: &Coming) -> Option<Plan> {
    let policy = &policy.beside(view.sent_tokens());
    let pending = view.pending();
    let chunks = view.fresh_chunks();
    if pending < policy.message_tokens || chunks.is_empty() {
        return None;
    }
    let sums = sums(&chunks);
    // Every activation costs the cache of the tail once, so a large backlog is not activated chunk
    // by chunk: while the Observer is still at work on what would be covered too, wait, or take at
    // least half of what is wanted.
    let at_work = coming.offered
        || view.path.work.iter().any(|work| {
            work.kind == PartKind::Chunk
                && work.state == WorkState::Fresh
                && work.span.from_count >= view.observed()
        });
    let target = pending.saturating_sub(policy.retention_floor);
    let reached = sums.last().copied().unwrap_or(0);
    if at_work && reached < target && (pending < policy.block_after || reached < target / 2) {
        return None;
    }
    let count = size::due(&sums, pending, policy, coming.unconfirmed)?;
    plan(view, policy, chunks[count - 1].span, Cause::Threshold)
}

/// Tokens of the messages of the first one, two, ... of `chunks`.
fn sums(chunks: &[&PartMeta]) -> Vec<u32> {
    chunks
        .iter()
        .scan(0_u32, |sum, chunk| {
            *sum = sum.saturating_add(chunk.message_tokens);
            Some(*sum)
        })
        .collect()
}

/// The observations that are sent reached their budget and a reflection can take their place, or
/// somebody asked for one.
fn condense(view: &View<'_>, policy: &Policy) -> Option<Plan> {
    let current = view.current?;
    let to_count = current.to_count;
    let due = text_tokens(&view.continued(to_count)?) >= policy.observation_tokens;
    let asked = asked_for(view).is_some_and(|part| part.span.to_count <= to_count);
    if !due && !asked {
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
    // A reflection that reaches further than what is sent waits for the next activation; to send the
    // same parts again without a pin that has had its day would cost the cache and gain nothing.
    plan(view, policy, last.span, Cause::Reflection).filter(|plan| plan.parts != current.parts)
}

/// A snapshot up to the end of `last`, or further where a fork prepared one that reaches further: it
/// will be sent once this chain is as long as the fork was, and would take back what this one rewrites
/// (INV-PREFIX).
fn plan(view: &View<'_>, policy: &Policy, last: Span, cause: Cause) -> Option<Plan> {
    let reflected = match asked_for(view) {
        Some(_) => Reflected::Now,
        None => Reflected::AtBudget,
    };
    plan_with(view, policy, last, cause, reflected)
}

/// The newest reflection, where somebody asked for it and it is not sent yet.
fn asked_for<'a>(view: &View<'a>) -> Option<&'a PartMeta> {
    let sent = |part: &PartMeta| {
        let current = view.current;
        current.is_some_and(|current| current.parts.contains(&part.id))
    };
    view.reflection.filter(|part| part.asked && !sent(part))
}

/// When the newest reflection takes the place of what it condenses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reflected {
    /// Where what is sent would reach `observation_tokens` otherwise.
    AtBudget,
    /// Now.
    Now,
}

fn plan_with(
    view: &View<'_>,
    policy: &Policy,
    last: Span,
    cause: Cause,
    reflected: Reflected,
) -> Option<Plan> {
    let plan = plan_to(view, policy, last, cause, reflected)?;
    let forked = view
        .path
        .snapshots
        .iter()
        .filter(|other| other.to_count > plan.to_count && !other.parts.starts_with(&plan.parts))
        .filter(|other| usable(&view.path, other))
        .map(|other| other.to_count)
        .max();
    let further = view
        .chunks
        .iter()
        .find(|chunk| Some(chunk.span.to_count) == forked)
        .and_then(|chunk| plan_to(view, policy, chunk.span, cause, reflected));
    further.or(Some(plan))
}

/// The snapshot up to the end of `last`, if it makes the request smaller (INV-WORTH).
fn plan_to<'a>(
    view: &View<'a>,
    policy: &Policy,
    last: Span,
    cause: Cause,
    reflected: Reflected,
) -> Option<Plan> {
    let to_count = last.to_count;
    let condensed = view.log_within(to_count, policy.observation_limit);
    let appended = view.continued(to_count).or_else(|| condensed.clone());
    let over_budget = appended
        .as_ref()
        .is_none_or(|log| text_tokens(log) >= policy.observation_tokens);
    let first = |log: &Option<Vec<&'a PartMeta>>| log.as_ref()?.first().copied();
    let answered = stood_in(first(&appended), first(&condensed));
    let log = if over_budget || reflected == Reflected::Now || answered {
        condensed.or(appended)
    } else {
        appended
    }?;
    let log_tokens = text_tokens(&log);
    let pin = view.pin(to_count);
    let before = view.current.map_or_else(
        || view.size(policy, 0, None, 0),
        |now| view.size(policy, now.to_count, now.pin, now.tokens),
    );
    let after = view.size(policy, to_count, pin, view.at_most(&log));
    // Whoever asks why the cache missed is told of the rewriting: the appending costs far less.
    let rewrites = log.first().is_some_and(|first| {
        let sent = view
            .current
            .is_some_and(|current| current.parts.contains(&first.id));
        first.kind == PartKind::Reflection && !sent
    });
    let cause = match cause {
        Cause::Threshold if rewrites => Cause::Reflection,
        cause => cause,
    };
    (after < before).then(|| Plan {
        to: last.to,
        to_count,
        pin,
        parts: log.iter().map(|part| part.id).collect(),
        later: view.later(to_count),
        tokens: log_tokens,
        saves: before - after,
        cause,
    })
}

/// Whether what would be sent begins with what code wrote while a Reflector was at work, which has
/// answered since. What code left out comes back, so that waits for no budget.
fn stood_in(appended: Option<&PartMeta>, condensed: Option<&PartMeta>) -> bool {
    let written = |part: &PartMeta| part.kind == PartKind::Reflection && !part.stopgap;
    appended.is_some_and(|part| part.stopgap) && condensed.is_some_and(written)
}

#[cfg(test)]
mod tests;
