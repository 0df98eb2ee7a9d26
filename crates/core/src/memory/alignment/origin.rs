//! Where messages were first said, so that one that stands on several chains is known as one.
//!
//! A client that drops, moves or changes messages makes a new chain with each request. What is proven to
//! be the same conversation keeps the origin it had. What another conversation says as well has another
//! one: then it proves nothing any more.

use super::known_chains::{KnownChains, Origin, PathEntry};
use super::result::{Alignment, AlignmentKind, SharedMessages};
use super::shared_messages;
use crate::history::align::Run;
use crate::history::{Fingerprint, History};

/// Where each message of `client` was first said. `alignment` is the one that `known` led to.
pub fn origins(
    client: &History,
    known: &KnownChains,
    alignment: Option<&Alignment>,
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
        return fill_origins(client, begin, known.recorded_count, |at| {
            known_origin(at).or_else(|| recorded(at))
        });
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
    fill_origins(client, begin, known.recorded_count, |at| {
        known_origin(at).or_else(|| recorded(at))
    })
}

/// Messages of a request that are known to be messages of a path.
struct KnownOrigins<'a> {
    runs: &'a [Run],
    /// The part of the path, from its beginning, that this holds for.
    path_end: usize,
}

impl<'a> KnownOrigins<'a> {
    /// If it is the same conversation, all shared messages. Otherwise only the beginning of the
    /// path that the request holds completely, with nothing in between: two conversations may share a beginning. Behind a
    /// message that the path does not have, an equal answer was given to something else.
    fn new(shared: &'a SharedMessages, is_same: bool, path: &[PathEntry]) -> Self {
        let runs = &shared.runs;
        if is_same {
            return Self {
                runs,
                path_end: path.len(),
            };
        }
        let ends = std::iter::once(0).chain(runs.iter().map(Run::client_end));
        let without_gap = runs.iter().zip(ends);
        let without_gap = without_gap.take_while(|(run, end)| run.client == *end);
        Self {
            runs: &runs[..without_gap.count()],
            path_end: shared.complete_until.min(path.len()),
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
            before = known_origin(at).unwrap_or_else(first_origin);
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
