//! What an accepted request adds to its chain: new messages, and old ones that it confirms. Pure. The
//! jobs module stores the result; the property tests apply it directly.

use std::collections::HashMap;

use super::Node;
use crate::history::{Fingerprint, History, Link, Role, Scope};

/// The messages of `history` behind the first `known_count`, with their `tokens`, of a request that
/// came at `at_ms`. The first of them may be the answer to the known ones. It was given at
/// `answered_ms` if that is known, and otherwise counts as given when the request brought it back,
/// which may be hours later.
pub fn new_nodes(
    history: &History,
    known_count: usize,
    tokens: &[u32],
    at_ms: i64,
    answered_ms: Option<i64>,
) -> Vec<Node> {
    let length = history.len();
    let answered_ms = answered_ms.map_or(at_ms, |answered| answered.min(at_ms));
    tokens
        .iter()
        .zip(known_count..length)
        .map(|(tokens, index)| {
            let chained = &history.messages()[index];
            let is_answer =
                index == known_count && known_count > 0 && chained.message.role == Role::Assistant;
            Node {
                link: chained.link,
                count: index + 1,
                role: chained.message.role,
                tokens: *tokens,
                closed: history.cuts().is_closed(index + 1),
                turn_end: chained.message.role == Role::Assistant
                    && chained.message.calls.is_empty(),
                first_length: length,
                confirmed: false,
                received_ms: if is_answer { answered_ms } else { at_ms },
                // In the history of a first request, only the newest message is
                // certainly new.
                live: known_count > 0 || index + 1 == length,
            }
        })
        .collect()
}

/// The messages of a refused request, as if it had been accepted: the known ones as they are, the
/// others without tokens and time.
pub fn refused_nodes(history: &History, known_nodes: &[Node]) -> Vec<Node> {
    let fresh = vec![0; history.len().saturating_sub(known_nodes.len())];
    let known_nodes = &known_nodes[..known_nodes.len().min(history.len())];
    let mut nodes = known_nodes.to_vec();
    nodes.extend(new_nodes(history, known_nodes.len(), &fresh, 0, None));
    nodes
}

/// Confirms the messages that a shorter accepted request carried and this one, of `length` messages,
/// carries again. Returns the links that were not confirmed before. A repeated request has the same
/// length and confirms nothing.
pub fn confirm_nodes(nodes: &mut [Node], length: usize) -> Vec<Link> {
    nodes
        .iter_mut()
        .filter(|node| !node.confirmed && node.first_length < length)
        .map(|node| {
            node.confirmed = true;
            node.link
        })
        .collect()
}

/// A message by its content, on whatever chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageContent {
    /// The key of the content.
    pub key: ContentKey,
    /// Its tokens.
    pub tokens: u32,
}

/// The hash of a message's content and of how often its chain had said it up to there ("yes", "yes" are
/// two contents). It is seeded by the owner like a link, so two owners cannot compare their stores.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentKey([u8; 32]);

impl ContentKey {
    fn new(root: &Link, fingerprint: &Fingerprint, occurrence: u64) -> Self {
        // A link hashes 32 bytes under this key and a content 40, so no link equals a content.
        let mut hasher = blake3::Hasher::new_keyed(root.as_bytes());
        hasher.update(fingerprint.as_bytes());
        hasher.update(&occurrence.to_be_bytes());
        Self(*hasher.finalize().as_bytes())
    }

    /// The stored form.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for ContentKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ContentKey({:02x?})", &self.0[..6])
    }
}

/// The contents of the messages at `confirmed` (the result of [`confirm_nodes`] for `nodes`). A client
/// that drops its oldest messages makes new chains but no new contents: each remaining occurrence gets
/// a number that was given before.
pub fn message_contents(
    scope: &Scope,
    history: &History,
    nodes: &[Node],
    confirmed: &[Link],
) -> Vec<MessageContent> {
    let root = Link::root(scope);
    let mut occurrences: HashMap<&Fingerprint, u64> = HashMap::new();
    let mut contents = Vec::with_capacity(confirmed.len());
    for (chained, node) in history.messages().iter().zip(nodes) {
        if contents.len() == confirmed.len() {
            break;
        }
        let occurrence = occurrences.entry(&chained.message.fingerprint).or_default();
        *occurrence += 1;
        if confirmed[contents.len()] == node.link {
            contents.push(MessageContent {
                key: ContentKey::new(&root, &chained.message.fingerprint, *occurrence),
                tokens: node.tokens,
            });
        }
    }
    contents
}
