//! What a conversation has cost so far, with memory and without, by what is stored about its chain.
//!
//! Every recorded request is priced: its history, the snapshot that it used, and the prompt of the request before,
//! which stands in the cache. It decides nothing. Called by the policy that weighs costs.

use std::ops::Range;

use super::call_costs::{call_cost, open_call_cost};
use super::chain_view::{ChainView, node_tokens};
use super::{ChainJob, JobState};
use crate::memory::{CostRules, Node, PartKind, Policy, SnapshotMeta, select};

/// The costs so far, in uncached prompt tokens of the conversation's model.
#[derive(Debug, Default)]
pub(super) struct Spent {
    with_memory: f64,
    without: f64,
    /// The lengths of the recorded requests, in order.
    lengths: Vec<usize>,
    /// Tokens that the log which is sent was read again with, since it was last condensed, without its reflection.
    pub(super) log_read_again: f64,
    /// Tokens that a request adds, on average.
    pub(super) turn_tokens: u32,
}

/// A prompt that was sent.
#[derive(Clone, Copy, Default)]
struct Sent<'a> {
    snapshot: Option<&'a SnapshotMeta>,
    tokens: u32,
    whole: u32,
}

impl Spent {
    pub(super) fn on(view: &ChainView<'_>, policy: &Policy, rules: &CostRules) -> Self {
        let nodes = view.chain.nodes;
        let mut lengths: Vec<usize> = nodes.iter().map(|node| node.first_length).collect();
        lengths.retain(|length| *length <= nodes.len());
        lengths.sort_unstable();
        lengths.dedup();
        let mut spent = Self {
            with_memory: calls(view, rules),
            ..Self::default()
        };
        let mut snapshots: Vec<&SnapshotMeta> = view.chain.snapshots.iter().collect();
        snapshots.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.eligible_from));
        let sums = TokenSums::new(nodes);
        let (mut before, mut whole) = (Sent::default(), 0);
        let mut used: Option<&SnapshotMeta> = None;
        for length in &lengths {
            whole = sums.tokens_in(0..*length);
            while let Some(next) = snapshots.pop_if(|next| next.eligible_from <= *length) {
                used = used.max_by_rank(next);
            }
            let covered = used.map_or(0, |used| used.to_count).min(*length);
            let block = used.map_or(0, |used| policy.block_overhead + used.tokens);
            let tokens = block.saturating_add(sums.tokens_in(covered..*length));
            let now = Sent {
                snapshot: used,
                tokens,
                whole,
            };
            spent.add(view, rules, before, now);
            before = now;
        }
        let count = u32::try_from(lengths.len()).unwrap_or(u32::MAX).max(1);
        spent.turn_tokens = whole / count;
        spent.lengths = lengths;
        spent
    }

    fn add(&mut self, view: &ChainView<'_>, rules: &CostRules, before: Sent<'_>, now: Sent<'_>) {
        let (read, write) = rules.cache();
        let price = |common: u32, all: u32| {
            let common = common.min(all);
            f64::from(common) * read + f64::from(all - common) * write
        };
        self.without += price(before.whole, now.whole);
        self.with_memory += price(before.common(&now), now.tokens);
        let log_start = |snapshot: &SnapshotMeta| snapshot.parts.first().copied();
        if let Some(sent) = now.snapshot
            && view.current.and_then(log_start) == log_start(sent)
        {
            let reflection =
                view.chain.parts.iter().find(|part| {
                    part.kind == PartKind::Reflection && Some(part.id) == log_start(sent)
                });
            let condensed = reflection.map_or(0, |part| part.tokens);
            self.log_read_again += f64::from(sent.tokens.saturating_sub(condensed));
        }
    }

    /// How many recorded requests are at least `length` messages long.
    pub(super) fn requests_from(&self, length: usize) -> f64 {
        let first = self.lengths.partition_point(|known| *known < length);
        f64::from(u32::try_from(self.lengths.len() - first).unwrap_or(u32::MAX))
    }

    /// Whether the conversation may spend `cost` more and stay within its bound, even if it ends then.
    pub(super) fn allows(&self, cost: f64, rules: &CostRules) -> bool {
        let bound = 1.0 + f64::from(rules.max_loss) / 1_000.0;
        self.with_memory + cost <= self.without * bound
    }
}

/// The tokens of any range of messages, without adding them up anew: a long conversation has thousands of requests of
/// thousands of messages.
struct TokenSums(Vec<u64>);

impl TokenSums {
    fn new(nodes: &[Node]) -> Self {
        let sums = nodes.iter().scan(0, |sum, node| {
            *sum += u64::from(node.tokens);
            Some(*sum)
        });
        Self(std::iter::once(0).chain(sums).collect())
    }

    fn tokens_in(&self, range: Range<usize>) -> u32 {
        u32::try_from(self.0[range.end] - self.0[range.start]).unwrap_or(u32::MAX)
    }
}

impl Sent<'_> {
    /// The tokens of this prompt that the cache holds for `next`.
    fn common(&self, next: &Self) -> u32 {
        let (Some(old), Some(new)) = (self.snapshot, next.snapshot) else {
            return if next.snapshot.is_none() {
                self.tokens
            } else {
                0
            };
        };
        if old.id == new.id {
            self.tokens
        } else if new.parts.starts_with(&old.parts) {
            old.tokens
        } else {
            0
        }
    }
}

trait MaxByRank<'a> {
    fn max_by_rank(self, other: &'a SnapshotMeta) -> Self;
}

impl<'a> MaxByRank<'a> for Option<&'a SnapshotMeta> {
    fn max_by_rank(self, other: &'a SnapshotMeta) -> Self {
        let both = self.into_iter().chain([other]);
        both.max_by_key(|snapshot| select::rank(snapshot))
    }
}

/// What the calls of memory cost for this chain, open ones included.
fn calls(view: &ChainView<'_>, rules: &CostRules) -> f64 {
    let parts = view.chain.parts.iter();
    let written: f64 = parts.map(|part| call_cost(part, rules)).sum();
    let open = |job: &&ChainJob| job.kind == PartKind::Chunk && job.state != JobState::Abandoned;
    let jobs = view.chain.jobs.iter().filter(open);
    let open: f64 = jobs
        .map(|job| {
            let nodes = &view.chain.nodes;
            let to = job.span.to_count.min(nodes.len());
            open_call_cost(node_tokens(&nodes[job.span.from_count.min(to)..to]), rules)
        })
        .sum();
    written + open
}
