//! What an accepted request leaves behind for those that do not continue its chain: what its messages
//! are known and found by, where they stand, what was answered. Called by the recorder.

use super::intake::Exchange;
use crate::history::{Item, Link, anchor};
use crate::memory::Node;
use crate::memory::place::StoredView;
use crate::store::Traces;

/// The traces of `exchange`, whose messages `new` were not recorded before.
pub(super) fn of(exchange: &Exchange, new: &[Node]) -> Traces {
    let root = exchange.history.root();
    let client = exchange
        .seen
        .as_ref()
        .map_or(&exchange.history, |seen| &seen.client);
    let item = |index: usize| Some(Item::of(&root, &client.turns().get(index)?.message));
    let mark = |node: &Node| {
        // By its neighbour in the request, which is what the next request is looked up by.
        let index = exchange.sent(node.count - 1)?;
        let this = item(index)?;
        let before = index.checked_sub(1).and_then(item);
        Some((
            this,
            before.and_then(|before| anchor(&root, &before, &this)),
        ))
    };
    Traces {
        marks: new.iter().map_while(mark).collect(),
        view: exchange.seen.as_ref().and_then(|seen| {
            let stored = StoredView {
                count: seen.client.len(),
                base: seen.history.tip()?,
                view: seen.view.clone(),
            };
            Some((seen.client.tip()?, stored))
        }),
        answer: exchange.answer,
    }
}

/// Says which of the `new` messages were said while somebody watched. What another chain carried before
/// was, if it was then; what is new in a request that goes on from another one is said now, though it
/// is the first of its own chain.
pub(super) fn date(exchange: &Exchange, new: &mut [Node]) {
    let Some(seen) = &exchange.seen else {
        return;
    };
    for node in new {
        node.live = match seen.said_live(node.count - 1) {
            Some(live) => live,
            None => node.live || !seen.agreed.is_empty(),
        };
    }
}

/// Confirms those of the `new` messages that an accepted request carried before on another chain,
/// where this one carries more than that; returns their links. The newest message is never among
/// them.
pub(super) fn confirm(exchange: &Exchange, new: &mut [Node]) -> Vec<Link> {
    let Some(seen) = &exchange.seen else {
        return Vec::new();
    };
    let length = seen.history.len();
    let brings_more = seen
        .agreed
        .last()
        .is_some_and(|run| run.client + run.len < seen.client.len());
    new.iter_mut()
        .filter(|node| brings_more && node.count < length && seen.said_before(node.count - 1))
        .map(|node| {
            node.confirmed = true;
            node.link
        })
        .collect()
}
