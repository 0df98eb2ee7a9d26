//! What is to be observed of a request at once, because it does not fit its model. Pure; nothing of it
//! waits for confirmation or for a buffer to fill: the client waits.

use super::view::{View, tokens};
use super::{Path, span};
use crate::memory::Span;

/// What is not observed of `path` up to `to_count`, in ranges of `at_most` tokens or a little more,
/// each with its tokens. No range parts a tool call from its result.
pub fn unobserved(path: &Path<'_>, to_count: usize, at_most: u32) -> Vec<(Span, u32)> {
    let view = View::of(path);
    let mut ranges = Vec::new();
    let (mut from, mut sum) = (view.observed(), 0_u32);
    let rest = path.nodes.get(from..to_count).unwrap_or_default();
    for node in rest {
        sum = sum.saturating_add(node.tokens);
        if node.count == to_count || (node.closed && sum >= at_most) {
            let range = &path.nodes[from..node.count];
            ranges.push((span(&view, from, node.count), tokens(range)));
            (from, sum) = (node.count, 0);
        }
    }
    ranges
}
