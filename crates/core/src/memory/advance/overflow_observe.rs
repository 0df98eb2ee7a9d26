//! The ranges of a request to observe at once because it does not fit its model. Nothing waits for a
//! confirmation or for a full buffer, because the client waits. Pure.

use super::chain_state::ChainState;
use super::chain_view::{ChainView, node_tokens};
use super::span;
use crate::memory::Span;

/// The part of `chain` up to `to_count` that is not observed, in ranges of `max_tokens` or a little
/// more, each with its tokens. No range separates a tool call from its result.
pub fn unobserved_ranges(
    chain: &ChainState<'_>,
    to_count: usize,
    max_tokens: u32,
) -> Vec<(Span, u32)> {
    let view = ChainView::new(chain);
    let mut ranges = Vec::new();
    let (mut from, mut sum) = (view.observed_count(), 0_u32);
    let rest = chain.nodes.get(from..to_count).unwrap_or_default();
    for node in rest {
        sum = sum.saturating_add(node.tokens);
        if node.count == to_count || (node.closed && sum >= max_tokens) {
            let range = &chain.nodes[from..node.count];
            ranges.push((span(&view, from, node.count), node_tokens(range)));
            (from, sum) = (node.count, 0);
        }
    }
    ranges
}
