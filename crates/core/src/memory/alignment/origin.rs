//! Where messages were first said, so that one that stands on several chains is known as one.
//!
//! A client that drops, moves or changes messages makes a new chain with each request. What is proven to
//! be the same conversation keeps the origin it had. What another conversation says as well has another
//! one: then it proves nothing any more.

use super::known_chains::{KnownChains, Origin, PathEntry};
use super::result::{Alignment, AlignmentKind, SharedMessages};
use super::shared_messages;
use crate::history::align::Run;
use crate::history::{Fingerprint, History, Role, ScopedHash};

/// So many messages in front of an answer may be additions of the client: retrieved text, a reminder, a note.
const MAX_ADDITIONS: usize = 3;

/// Answers that are not recorded are among so many messages at the end of a request. Each takes some look-ups, and a request
/// may have 50,000; the recorder is never so far behind in one conversation.
pub const MAX_UNRECORDED: usize = 256;

/// Where each message of `client` was first said. `alignment` is the one that `known` led to. `given_answer` is the origin of
/// the answer with a hash, if the upstream gave it behind the message of an origin, or behind that message and what the client
/// added to it ([`origins_without_additions`]).
pub fn origins(
    client: &History,
    known: &KnownChains,
    alignment: Option<&Alignment>,
    given_answer: impl Fn(Origin, ScopedHash) -> Option<Origin>,
) -> Vec<Origin> {
    // Behind a summary in the leading system messages, the same words as another conversation's first ones have another
    // origin.
    let in_front = alignment.filter(|alignment| alignment.summary_in_front.is_some());
    let begin = in_front
        .and_then(|alignment| alignment.proof.first())
        .map_or_else(
            || Origin::for_link(&client.root()),
            |summary| summary.origin,
        );
    let recorded = |at: usize| (at + 1 == known.recorded_count).then_some(known.recorded_origin);
    let path = &known.path;
    let Some(alignment) = alignment else {
        // An earlier, aligned request proved where its messages belong. That still holds for a
        // request that continues it without being aligned.
        let stored_origin = |at: usize| {
            let (stored, base) = known.stored.as_ref().filter(|_| known.stored_holds)?;
            let place = stored
                .positions
                .chain_index(at)
                .filter(|_| at < stored.count)?;
            base.origin(place)
        };
        let (shared, is_same) = shared_messages(client, known).unwrap_or_default();
        let known_origins = KnownOrigins::new(&shared, is_same, path);
        let known_origin = |at: usize| known_origins.origin(at, path).or_else(|| stored_origin(at));
        let known_origin = |at: usize| known_origin(at).or_else(|| recorded(at));
        return fill_origins(
            client,
            begin,
            known.recorded_count,
            known_origin,
            given_answer,
        );
    };
    let (base, summary) = (known.stored.as_ref(), known.summary.as_ref());
    let known_origins = KnownOrigins::new(&alignment.shared, alignment.lineage.is_some(), path);
    let known_origin = |at: usize| match alignment.kind {
        AlignmentKind::Aligned => known_origins.origin(at, path),
        AlignmentKind::Continued => {
            base.and_then(|(_, base)| base.origin(alignment.positions.chain_index(at)?))
        }
        AlignmentKind::Compacted => summary
            .and_then(|summary| origin_in_runs(alignment.positions.runs(), at, &summary.path)),
    };
    let known_origin = |at: usize| known_origin(at).or_else(|| recorded(at));
    fill_origins(
        client,
        begin,
        known.recorded_count,
        known_origin,
        given_answer,
    )
}

/// Messages of a request that are known to be messages of a path.
struct KnownOrigins<'a> {
    runs: &'a [Run],
    /// The part of the path, from its beginning, that this holds for.
    path_end: usize,
}

impl<'a> KnownOrigins<'a> {
    /// If it is the same conversation, all shared messages. Otherwise only the beginning of the
    /// path that the request holds completely: two conversations may share a beginning.
    fn new(shared: &'a SharedMessages, is_same: bool, path: &[PathEntry]) -> Self {
        Self {
            runs: &shared.runs,
            path_end: if is_same {
                path.len()
            } else {
                shared.complete_until.min(path.len())
            },
        }
    }

    fn origin(&self, at: usize, path: &[PathEntry]) -> Option<Origin> {
        origin_in_runs(self.runs, at, &path[..self.path_end])
    }
}

/// Where the message at `at` was first said, if it is in one of `runs`.
fn origin_in_runs(runs: &[Run], at: usize, path: &[PathEntry]) -> Option<Origin> {
    let mut runs = runs.iter();
    let run = runs.find(|run| (run.client..run.client + run.len).contains(&at))?;
    origin_at(path, run.path + (at - run.client))
}

fn origin_at(path: &[PathEntry], place: usize) -> Option<Origin> {
    path.get(place).map(|step| step.origin)
}

/// The origins of all messages of `client`, the first of them behind `begin`. The first `recorded` of them are on a chain
/// of its own and have a stored origin; of these, only the last one's is needed.
fn fill_origins(
    client: &History,
    begin: Origin,
    recorded: usize,
    known_origin: impl Fn(usize) -> Option<Origin>,
    given_answer: impl Fn(Origin, ScopedHash) -> Option<Origin>,
) -> Vec<Origin> {
    let answers_begin = client.len().saturating_sub(MAX_UNRECORDED);
    let given_answer = |at: usize, question: Origin| {
        let is_model = client.messages()[at].message.role == Role::Assistant;
        let may_be_answer = is_model && at >= answers_begin && question != Origin::default();
        let key = may_be_answer.then(|| client.message_key(at))?;
        given_answer(question, key.ids.unwrap_or(key.content))
    };
    let mut before = begin;
    let messages = client.messages().iter().enumerate();
    messages
        .map(|(at, chained)| {
            let first_origin = || {
                if at + 1 < recorded {
                    return Origin::default();
                }
                given_answer(at, before)
                    .unwrap_or_else(|| before.next(&chained.message.fingerprint, &chained.link))
            };
            before = known_origin(at).unwrap_or_else(first_origin);
            before
        })
        .collect()
}

/// The origins that the last message of `origins` would have if the client had not added some messages to the request, of
/// those that stand behind the last answer. A result of a tool is no addition, and one message is always left: the same answer
/// to other words is another one's.
pub fn origins_without_additions(
    client: &History,
    begin: Origin,
    origins: &[Origin],
) -> impl Iterator<Item = Origin> {
    let messages = &client.messages()[..origins.len()];
    let answer = messages
        .iter()
        .rposition(|chained| chained.message.role == Role::Assistant);
    let question = answer.map_or(0, |answer| answer + 1);
    let first = question.max(messages.len().saturating_sub(MAX_ADDITIONS));
    let whole = (1_u32 << (messages.len() - first)) - 1;
    let choices = if first == question { whole } else { whole + 1 };
    (1..choices).filter_map(move |added| {
        let is_added = |at: usize| added & (1 << (at - first)) != 0;
        let mut before = first.checked_sub(1).map_or(begin, |at| origins[at]);
        let mut is_changed = false;
        for at in first..messages.len() {
            let chained = &messages[at];
            match (is_added(at), is_changed) {
                (true, _) if chained.message.role == Role::Tool => return None,
                (true, _) => is_changed = true,
                (false, false) => before = origins[at],
                // Behind a message of unknown origin.
                (false, true) if before == Origin::default() => return None,
                (false, true) => before = before.next(&chained.message.fingerprint, &chained.link),
            }
        }
        (before != Origin::default()).then_some(before)
    })
}

/// The origin that an answer to `client` will have if a later request carries it as `message`.
pub fn origin_of_answer(client: &History, origins: &[Origin], message: &Fingerprint) -> Origin {
    let (before, tip) = match (origins.last(), client.tip()) {
        (Some(before), Some(tip)) => (*before, tip),
        _ => (Origin::for_link(&client.root()), client.root()),
    };
    before.next(message, &tip.next(message))
}
