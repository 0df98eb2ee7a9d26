//! Where messages were first said, so that one that stands on several chains is known as one.
//!
//! A client that drops, moves or changes messages makes a new chain with each request. What is proven to
//! be the same conversation keeps the origin it had. What another conversation says as well has another
//! one: then it proves nothing any more.

use super::evidence::{Evidence, Step};
use super::{Agreed, How, Sighting, agreed};
use crate::history::align::Run;
use crate::history::{Fingerprint, History, Link};

/// Where a message was first said: a short hash of all that was said before it, and of itself. Zero where
/// that is not known, as in rows of a version that did not write it down; such a message proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin(pub i64);

impl Origin {
    /// That of a message of which nothing but its `link` is known.
    pub fn of(link: &Link) -> Self {
        Self::short(link.as_bytes())
    }

    /// That of a `message` that is said for the first time, behind one of this origin; `link` is its own.
    fn then(self, message: &Fingerprint, link: &Link) -> Self {
        if self == Self::default() {
            return Self::of(link);
        }
        let mut hasher = blake3::Hasher::new_derive_key("diarist 2026-11 origin");
        hasher.update(&self.0.to_be_bytes());
        hasher.update(message.as_bytes());
        Self::short(hasher.finalize().as_bytes())
    }

    fn short(hash: &[u8; 32]) -> Self {
        let mut first = [0; 8];
        first.copy_from_slice(&hash[..8]);
        // Never zero.
        Self(i64::from_be_bytes(first) | 1)
    }
}

/// Where each message of `client` was first said. `seen` says where it stands, as `evidence` made sure of.
pub fn origins(client: &History, evidence: &Evidence, seen: Option<&Sighting>) -> Vec<Origin> {
    let own = |at: usize| (at + 1 == evidence.depth).then_some(evidence.depth_origin);
    let path = &evidence.path;
    let Some(seen) = seen else {
        // What was proven of a request that this one goes on from holds, whether it is a view still.
        let viewed = |at: usize| {
            let (stored, base) = evidence.view.as_ref().filter(|_| evidence.view_holds)?;
            let place = stored.view.place(at).filter(|_| at < stored.count)?;
            at_place(base, place)
        };
        let (agreed, same) = agreed(client, evidence).unwrap_or_default();
        let agreed = Known::of(&agreed, same, path);
        let known = |at: usize| agreed.origin(at, path).or_else(|| viewed(at));
        return walk(client, evidence.depth, |at| known(at).or_else(|| own(at)));
    };
    let (base, answered) = (evidence.view.as_ref(), evidence.answered.as_ref());
    let aligned = Known::of(&seen.agreed, seen.lineage.is_some(), path);
    let known = |at: usize| match seen.how {
        How::Aligned => aligned.origin(at, path),
        How::Continued => base.and_then(|(_, base)| at_place(base, seen.view.place(at)?)),
        How::Compacted => answered.and_then(|found| on(seen.view.runs(), at, &found.path)),
    };
    walk(client, evidence.depth, |at| known(at).or_else(|| own(at)))
}

/// Messages of a request that are known to be those of a path.
struct Known<'a> {
    runs: &'a [Run],
    /// Up to here on the path.
    to: usize,
}

impl<'a> Known<'a> {
    /// All that agree, where the conversation is the `same`. Else what the path begins with, as far as
    /// the request holds all of it: that is shared, as a common beginning is.
    fn of(agreed: &'a Agreed, same: bool, path: &[Step]) -> Self {
        Self {
            runs: &agreed.runs,
            to: if same {
                path.len()
            } else {
                agreed.held.min(path.len())
            },
        }
    }

    fn origin(&self, at: usize, path: &[Step]) -> Option<Origin> {
        on(self.runs, at, &path[..self.to])
    }
}

/// Where the message at `at` was first said, if one of `runs` has it on `path`.
fn on(runs: &[Run], at: usize, path: &[Step]) -> Option<Origin> {
    let mut runs = runs.iter();
    let run = runs.find(|run| (run.client..run.client + run.len).contains(&at))?;
    at_place(path, run.path + (at - run.client))
}

fn at_place(path: &[Step], place: usize) -> Option<Origin> {
    path.get(place).map(|step| step.origin)
}

/// The origins of `client`, of which `recorded` messages stand as they are on a chain of its own: theirs
/// are written down, and nobody asks for them but for the last one's.
fn walk(client: &History, recorded: usize, known: impl Fn(usize) -> Option<Origin>) -> Vec<Origin> {
    let mut before = Origin::of(&client.root());
    let turns = client.turns().iter().enumerate();
    turns
        .map(|(at, turn)| {
            let new = || {
                if at + 1 < recorded {
                    return Origin::default();
                }
                before.then(&turn.message.fingerprint, &turn.link)
            };
            before = known(at).unwrap_or_else(new);
            before
        })
        .collect()
}

/// Where an answer to `client` will have been said, if a later request carries it as `message`.
pub fn origin_of_answer(client: &History, origins: &[Origin], message: &Fingerprint) -> Origin {
    let (before, tip) = match (origins.last(), client.tip()) {
        (Some(before), Some(tip)) => (*before, tip),
        _ => (Origin::of(&client.root()), client.root()),
    };
    before.then(message, &tip.next(message))
}
