//! What this process heard, recorded or not: messages by where they were first said, answers that the
//! upstream gave, and replies that may come back as summaries.
//!
//! A message proves a conversation only as long as no other one holds it. So whatever passes is written
//! down here before anything is decided by it, also where the request has no memory, was refused, or was
//! dropped by the recorder. Only hashes are kept.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use crate::history::{History, Link, Mark};
use crate::memory::place::{Origin, Witness};

/// Entries of each kind in one generation; two are held. Some 40 bytes each, 25 MB in all at most.
const GENERATION: usize = 100_000;

/// What was heard lately: the younger of two generations is written to, and the older is forgotten once
/// it is full.
#[derive(Debug)]
struct Lately<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K, V> Default for Lately<K, V> {
    fn default() -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash, V: Copy> Lately<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        let found = self.young.get(key).or_else(|| self.old.get(key));
        found.copied()
    }

    /// Whether something was forgotten for it.
    fn put(&mut self, key: K, value: V) -> bool {
        let full = self.young.len() >= GENERATION && !self.young.contains_key(&key);
        let mut forgot = false;
        if full {
            self.old = std::mem::take(&mut self.young);
            forgot = true;
        }
        self.young.insert(key, value);
        forgot
    }
}

/// Where something was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Once(Origin),
    Several,
}

impl Where {
    fn is_beside(self, origin: Origin) -> bool {
        self != Self::Once(origin)
    }
}

/// A reply that may come back as a summary: the chain that it was given to.
#[derive(Clone, Copy, Debug)]
enum Reply {
    To { tip: Link, before: Link },
    Several,
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct Heard {
    messages: Lately<Mark, Where>,
    replies: Lately<Mark, Reply>,
    /// What the upstream gave behind a link, and where that was first said.
    answers: Lately<(Link, Mark), Origin>,
    given: [HashSet<Origin>; 2],
}

impl Heard {
    /// A message that was first said at `origin`. `true` where something else was forgotten for it, so
    /// that what is believed to be known in one conversation alone has to be asked for again.
    pub(super) fn message(&mut self, mark: Mark, origin: Origin) -> bool {
        let known = self.messages.get(&mark);
        if known == Some(Where::Once(origin)) || known == Some(Where::Several) {
            return false;
        }
        let now = match known {
            None => Where::Once(origin),
            Some(_) => Where::Several,
        };
        self.messages.put(mark, now)
    }

    /// Behind `tip` the upstream gave what is known by `mark`, and is first said at `origin`.
    pub(super) fn give(&mut self, tip: Link, mark: Mark, origin: Origin) {
        self.answers.put((tip, mark), origin);
        let [young, old] = &mut self.given;
        if young.len() >= GENERATION {
            *old = std::mem::take(young);
        }
        young.insert(origin);
    }

    /// Where what is known by `mark` was first said, if the upstream gave it behind `tip`.
    pub(super) fn answer(&self, tip: Link, mark: Mark) -> Option<Origin> {
        self.answers.get(&(tip, mark))
    }

    /// Whether the upstream gave it, as far as this process knows.
    pub(super) fn gave(&self, origin: Origin) -> bool {
        self.given.iter().any(|given| given.contains(&origin))
    }

    /// The last message of `chain` was answered with this. The same conversation may be answered twice
    /// in the same words.
    pub(super) fn reply(&mut self, mark: Mark, chain: &History) {
        let Some(tip) = chain.tip() else { return };
        let mut links = chain.turns().iter().rev().map(|turn| turn.link);
        let before = links.clone().nth(1).unwrap_or_else(|| chain.root());
        let now = Reply::To { tip, before };
        let now = match self.replies.get(&mark) {
            None => now,
            Some(Reply::Several) => return,
            Some(Reply::To { tip, before }) => {
                let goes_on = links.any(|link| link == tip || link == before);
                if goes_on { now } else { Reply::Several }
            }
        };
        self.replies.put(mark, now);
    }

    /// A request quotes a reply, and does not stand for what that summarises.
    pub(super) fn quoted(&mut self, mark: Mark) {
        self.replies.put(mark, Reply::Several);
    }

    pub(super) fn knows_reply(&self, mark: &Mark) -> bool {
        self.replies.get(mark).is_some()
    }

    /// Whether what proved something was heard in another conversation since.
    pub(super) fn is_elsewhere(&self, witness: &Witness) -> bool {
        let message = self.messages.get(&witness.mark);
        let reply = match self.replies.get(&witness.mark) {
            None => false,
            Some(Reply::Several) => true,
            Some(Reply::To { tip, .. }) => Origin::of(&tip) != witness.origin,
        };
        reply || message.is_some_and(|known| known.is_beside(witness.origin))
    }
}
