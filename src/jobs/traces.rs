//! What an accepted request leaves for later requests that do not continue its chain: the keys by
//! which its messages are found, their places, and its answer. Called by the recorder.

use std::sync::Arc;

use super::exchange::Exchange;
use crate::history::{Link, Role, anchor};
use crate::memory::Node;
use crate::memory::alignment::{Origin, SharedMessages, StoredAlignment};
use crate::store::{LookupEntries, MessageMarks};

/// The lookup entries of `exchange`, whose messages `new` were not recorded before.
/// `is_from_upstream` tells whether an origin is an answer of the upstream.
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
    let client_summary = exchange
        .alignment
        .as_ref()
        .and_then(|alignment| alignment.client_summary);
    let item = |index: usize| (index < client.len()).then(|| client.message_key(index));
    let mark = |node: &Node| {
        // The neighbour in the request, not on the chain: the next request is looked up by its own
        // neighbours.
        let index = exchange.request_index(node.count - 1)?;
        let current = item(index)?;
        let previous = index.checked_sub(1).and_then(item);
        let origin = exchange.origins.get(index).copied().unwrap_or_default();
        Some(MessageMarks {
            item: current,
            anchor: previous.and_then(|previous| anchor(&root, &previous, &current)),
            origin,
            from_upstream: node.role == Role::Assistant && is_from_upstream(origin),
            summary_start: client_summary
                .filter(|(at, _)| *at == index)
                .map(|(_, start)| start),
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

/// Marks which of the `new` messages are live, that is, sent while this process watched. A message
/// that another chain carried before is live if it was live there. A message that is new in a
/// request that continues another chain is live too, even if it is the first of its own chain.
/// `shared_messages` are those that another chain carried before.
pub(super) fn mark_live(exchange: &Exchange, new: &mut [Node], shared_messages: &SharedMessages) {
    for node in new {
        let sent = exchange.request_index(node.count - 1);
        node.live = match sent.and_then(|sent| shared_messages.was_live(sent)) {
            Some(live) => live,
            None => node.live || !shared_messages.runs.is_empty(),
        };
    }
}

/// How many messages a request must have behind the repeated ones to confirm them: an answer, and what the client says
/// next. A request with only one may be no longer than the one before, and only replace its newest message. That
/// confirms nothing.
const MIN_NEW: usize = 2;

/// Confirms those of the `new` messages that an accepted request on another chain carried before,
/// if this request goes on behind them with [`MIN_NEW`] messages. Returns their links. The newest message is never
/// confirmed. Nor is one that another process recorded on this very chain: no request that is longer has
/// carried it again yet.
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
    let has_more = goes_on(shared_messages, sent_count);
    let aligned = exchange.alignment.as_ref();
    let recorded_count = aligned.map_or(0, |alignment| alignment.recorded_count);
    let is_repeated = |place: usize| {
        let sent = exchange.request_index(place);
        sent.is_some_and(|sent| shared_messages.was_live(sent).is_some())
    };
    new.iter_mut()
        .filter(|node| has_more && (recorded_count + 1..length).contains(&node.count))
        .filter(|node| is_repeated(node.count - 1))
        .map(|node| {
            node.confirmed = true;
            node.link
        })
        .collect()
}

/// The length by which a request confirms the recorded beginning of its own chain. A client that keeps its first messages and
/// its newest ones always sends as many, but it goes on behind what another chain of the same conversation carried
/// (`is_same`): any length is shorter than that.
pub(super) fn carried_length(
    exchange: &Exchange,
    shared_messages: &SharedMessages,
    is_same: bool,
) -> usize {
    let length = exchange.history.len();
    if is_same && exchange.alignment.is_none() && goes_on(shared_messages, length) {
        usize::MAX
    } else {
        length
    }
}

/// Whether a request of `sent_count` messages goes on behind those that another chain carried.
fn goes_on(shared_messages: &SharedMessages, sent_count: usize) -> bool {
    let last = shared_messages.runs.last();
    last.is_some_and(|run| run.client + run.len + MIN_NEW <= sent_count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::align::Run;

    /// `docs/reliability.md`: a client dropped its beginning, and then replaced its newest message.
    #[test]
    fn a_request_that_replaces_the_newest_message_confirms_nothing() {
        let mut shared = SharedMessages::default();
        assert!(!goes_on(&shared, 9), "nothing is shared");
        shared.runs.push(Run {
            client: 1,
            path: 3,
            len: 4,
        });
        // A repetition, one with another newest message, and one with an answer and a next message.
        assert_eq!(
            [5, 6, 7].map(|sent| goes_on(&shared, sent)),
            [false, false, true]
        );
    }
}
