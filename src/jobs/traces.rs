//! What an accepted request leaves behind for those that do not continue its chain: what its messages
//! are known and found by, where they stand, what was answered. Called by the recorder.

use std::sync::Arc;

use super::intake::Exchange;
use crate::history::{Item, Link, Role, anchor};
use crate::memory::Node;
use crate::memory::place::{Agreed, Origin, StoredView};
use crate::store::{MessageMarks, Traces};

/// The traces of `exchange`, whose messages `new` were not recorded before. `gave` says which of them the
/// upstream gave as its answers.
pub(super) fn of(exchange: &Exchange, new: &[Node], gave: impl Fn(Origin) -> bool) -> Traces {
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
        let origin = exchange.origins.get(index).copied().unwrap_or_default();
        Some(MessageMarks {
            item: this,
            anchor: before.and_then(|before| anchor(&root, &before, &this)),
            origin,
            given: node.role == Role::Assistant && gave(origin),
        })
    };
    Traces {
        marks: new.iter().map_while(mark).collect(),
        view: exchange.seen.as_ref().and_then(|seen| {
            let stored = StoredView {
                count: seen.client.len(),
                base: seen.history.tip()?,
                view: seen.view.clone(),
                proof: seen.proof.clone(),
                held: seen.held,
            };
            Some((seen.client.tip()?, stored))
        }),
        answer: exchange
            .answer
            .map(|mark| (mark, Arc::clone(&exchange.history))),
        system: exchange.system,
        words: Vec::new(),
    }
}

/// Says which of the `new` messages were said while somebody watched. What another chain carried before
/// was, if it was then; what is new in a request that goes on from another one is said now, though it
/// is the first of its own chain. `agreed` says what it says again.
pub(super) fn date(exchange: &Exchange, new: &mut [Node], agreed: &Agreed) {
    for node in new {
        let sent = exchange.sent(node.count - 1);
        node.live = match sent.and_then(|sent| agreed.said_live(sent)) {
            Some(live) => live,
            None => node.live || !agreed.runs.is_empty(),
        };
    }
}

/// Confirms those of the `new` messages that an accepted request carried before on another chain,
/// where this one carries more than that; returns their links. The newest message is never among
/// them.
pub(super) fn confirm(exchange: &Exchange, new: &mut [Node], agreed: &Agreed) -> Vec<Link> {
    let length = exchange.history.len();
    let sent = exchange
        .seen
        .as_ref()
        .map_or(length, |seen| seen.client.len());
    let last = agreed.runs.last();
    let brings_more = last.is_some_and(|run| run.client + run.len < sent);
    let said_before = |place: usize| {
        let sent = exchange.sent(place);
        sent.is_some_and(|sent| agreed.said_live(sent).is_some())
    };
    new.iter_mut()
        .filter(|node| brings_more && node.count < length && said_before(node.count - 1))
        .map(|node| {
            node.confirmed = true;
            node.link
        })
        .collect()
}
