//! What an accepted request adds to what is known of its chain: new messages, and which of the old
//! ones it confirms. Pure; `jobs` writes the result down, the property tests apply it directly.

use super::Node;
use crate::history::{History, Link, Role};

/// The messages of `history` beyond the first `known`, weighing `tokens` each, seen at `at_ms`.
pub fn added(history: &History, known: usize, tokens: &[u32], at_ms: i64) -> Vec<Node> {
    let length = history.len();
    tokens
        .iter()
        .zip(known..length)
        .map(|(tokens, index)| {
            let turn = &history.turns()[index];
            Node {
                link: turn.link,
                count: index + 1,
                role: turn.message.role,
                tokens: *tokens,
                closed: history.cuts().closed(index + 1),
                turn_end: turn.message.role == Role::Assistant && turn.message.calls.is_empty(),
                born: length,
                confirmed: false,
                seen_ms: at_ms,
                // Of a history that was there before its first request only the newest message is
                // known to have been said now.
                live: known > 0 || index + 1 == length,
            }
        })
        .collect()
}

/// Confirms what a shorter accepted request carried and one of `length` messages carries again.
/// Returns the links that were not confirmed before. A repetition has the same length and confirms
/// nothing.
pub fn confirm(nodes: &mut [Node], length: usize) -> Vec<Link> {
    nodes
        .iter_mut()
        .filter(|node| !node.confirmed && node.born < length)
        .map(|node| {
            node.confirmed = true;
            node.link
        })
        .collect()
}
