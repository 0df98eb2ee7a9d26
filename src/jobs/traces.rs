//! What an accepted request leaves behind for those that do not continue its chain: what its messages
//! are known and found by, where they stand, what was answered. Called by the recorder.

use std::sync::Arc;

use super::exchange::Exchange;
use crate::history::{Link, MessageKey, Role, anchor};
use crate::memory::Node;
use crate::memory::alignment::{Origin, SharedMessages, StoredAlignment};
use crate::store::{LookupEntries, MessageMarks};

/// The traces of `exchange`, whose messages `new` were not recorded before. `gave` says which of them the
/// upstream gave as its answers.
pub(super) fn for_exchange(
    exchange: &Exchange,
    new: &[Node],
    is_from_upstream: impl Fn(Origin) -> bool,
) -> LookupEntries {
    let root = exchange.history.root();
    let client = exchange
        .alignment
        .as_ref()
        .map_or(&exchange.history, |alignment| &alignment.client);
    let item = |index: usize| {
        Some(MessageKey::from_message(
            &root,
            &client.turns().get(index)?.message,
        ))
    };
    let mark = |node: &Node| {
        // By its neighbour in the request, which is what the next request is looked up by.
        let index = exchange.request_index(node.count - 1)?;
        let current = item(index)?;
        let previous = index.checked_sub(1).and_then(item);
        let origin = exchange.origins.get(index).copied().unwrap_or_default();
        Some(MessageMarks {
            item: current,
            anchor: previous.and_then(|previous| anchor(&root, &previous, &current)),
            origin,
            from_upstream: node.role == Role::Assistant && is_from_upstream(origin),
        })
    };
    LookupEntries {
        marks: new.iter().map_while(mark).collect(),
        alignment: exchange.alignment.as_ref().and_then(|alignment| {
            let stored = StoredAlignment {
                count: alignment.client.len(),
                base: alignment.history.tip()?,
                positions: alignment.positions.clone(),
                proof: alignment.proof.clone(),
                withheld: alignment.withheld,
            };
            Some((alignment.client.tip()?, stored))
        }),
        answer: exchange
            .answer
            .map(|mark| (mark, Arc::clone(&exchange.history))),
        system: exchange.system,
        kept_messages: Vec::new(),
    }
}

/// Says which of the `new` messages were said while somebody watched. What another chain carried before
/// was, if it was then; what is new in a request that goes on from another one is said now, though it
/// is the first of its own chain. `agreed` says what it says again.
pub(super) fn mark_live(exchange: &Exchange, new: &mut [Node], shared_messages: &SharedMessages) {
    for node in new {
        let sent = exchange.request_index(node.count - 1);
        node.live = match sent.and_then(|sent| shared_messages.was_live(sent)) {
            Some(live) => live,
            None => node.live || !shared_messages.runs.is_empty(),
        };
    }
}

/// Confirms those of the `new` messages that an accepted request carried before on another chain,
/// where this one carries more than that; returns their links. The newest message is never among
/// them.
pub(super) fn confirm_repeated(
    exchange: &Exchange,
    new: &mut [Node],
    shared_messages: &SharedMessages,
) -> Vec<Link> {
    let length = exchange.history.len();
    let sent_count = exchange
        .alignment
        .as_ref()
        .map_or(length, |alignment| alignment.client.len());
    let last = shared_messages.runs.last();
    let has_more = last.is_some_and(|run| run.client + run.len < sent_count);
    let is_repeated = |place: usize| {
        let sent = exchange.request_index(place);
        sent.is_some_and(|sent| shared_messages.was_live(sent).is_some())
    };
    new.iter_mut()
        .filter(|node| has_more && node.count < length && is_repeated(node.count - 1))
        .map(|node| {
            node.confirmed = true;
            node.link
        })
        .collect()
}
