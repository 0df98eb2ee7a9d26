//! Where messages were first said, so that one that stands on several chains is known as one.
//!
//! A client that drops, moves or changes messages makes a new chain with each request. What is proven to
//! be the same conversation keeps the origin it had. What another conversation says as well has another
//! one: then it proves nothing any more.

use super::known_chains::{KnownChains, Origin, PathEntry};
use super::result::{Alignment, AlignmentKind, SharedMessages};
use super::shared_messages;
use crate::history::align::Run;
use crate::history::{Fingerprint, History, Role};

/// Where each message of `client` was first said. `alignment` is the one that `known` led to. `is_given` says whether this
/// process has seen the upstream give the message of an origin.
pub fn origins(
    client: &History,
    known: &KnownChains,
    alignment: Option<&Alignment>,
    is_given: impl Fn(Origin) -> bool,
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
        let mut own_answers = OwnAnswers::new(client, known.recorded_count, is_given);
        return fill_origins(client, begin, known.recorded_count, |at, before| {
            let on_path = known_origins.origin(at, path);
            on_path
                .filter(|on_path| is_same || own_answers.confirm(at, before, *on_path))
                .or_else(|| stored_origin(at))
                .or_else(|| recorded(at))
        });
    };
    let (base, summary) = (known.stored.as_ref(), known.summary.as_ref());
    let is_same = alignment.lineage.is_some();
    let known_origins = KnownOrigins::new(&alignment.shared, is_same, path);
    let mut own_answers = OwnAnswers::new(client, known.recorded_count, is_given);
    let mut known_origin = |at: usize, before: Origin| match alignment.kind {
        AlignmentKind::Aligned => known_origins
            .origin(at, path)
            .filter(|on_path| is_same || own_answers.confirm(at, before, *on_path)),
        AlignmentKind::Continued => {
            base.and_then(|(_, base)| base.origin(alignment.positions.chain_index(at)?))
        }
        AlignmentKind::Compacted => summary
            .and_then(|summary| origin_in_runs(alignment.positions.runs(), at, &summary.path)),
    };
    fill_origins(client, begin, known.recorded_count, |at, before| {
        known_origin(at, before).or_else(|| recorded(at))
    })
}

/// The answers that were given to the conversation of a request. A request may hold all of another conversation's messages, with
/// some in between: then its answers have the origin at which they were given, and what stands behind the first of them is
/// no more of that conversation.
struct OwnAnswers<'a, G> {
    client: &'a History,
    recorded: usize,
    is_given: G,
    has_left: bool,
}

impl<'a, G: Fn(Origin) -> bool> OwnAnswers<'a, G> {
    fn new(client: &'a History, recorded: usize, is_given: G) -> Self {
        Self {
            client,
            recorded,
            is_given,
            has_left: false,
        }
    }

    /// Whether the message at `at`, behind one of the origin `before`, may have the origin that it has on a path which is not
    /// proven to be of the same conversation. To be called for each message in order.
    fn confirm(&mut self, at: usize, before: Origin, on_path: Origin) -> bool {
        let chained = &self.client.messages()[at];
        let here = before.next(&chained.message.fingerprint, &chained.link);
        let may_be_answer = at >= self.recorded && chained.message.role == Role::Assistant;
        self.has_left |= may_be_answer && here != on_path && (self.is_given)(here);
        !self.has_left
    }
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
    mut known_origin: impl FnMut(usize, Origin) -> Option<Origin>,
) -> Vec<Origin> {
    let mut before = begin;
    let messages = client.messages().iter().enumerate();
    messages
        .map(|(at, chained)| {
            let first_origin = || {
                if at + 1 < recorded {
                    return Origin::default();
                }
                before.next(&chained.message.fingerprint, &chained.link)
            };
            before = known_origin(at, before).unwrap_or_else(first_origin);
            before
        })
        .collect()
}

/// The origin that an answer to `client` will have if a later request carries it as `message`.
pub fn origin_of_answer(client: &History, origins: &[Origin], message: &Fingerprint) -> Origin {
    let (before, tip) = match (origins.last(), client.tip()) {
        (Some(before), Some(tip)) => (*before, tip),
        _ => (Origin::for_link(&client.root()), client.root()),
    };
    before.next(message, &tip.next(message))
}
