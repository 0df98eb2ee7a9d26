//! What this process heard, recorded or not: messages by where they were first said, answers that the
//! upstream gave, and replies that may come back as summaries.
//!
//! A message proves a conversation only as long as no other one holds it. So whatever passes is written
//! down here before anything is decided by it, also where the request has no memory, was refused, or was
//! dropped by the recorder. Only hashes are kept.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use crate::history::{History, Link, ScopedHash};
use crate::memory::alignment::{Origin, Witness};

/// Entries of each kind in one generation; two are held. Some 40 bytes each, 25 MB in all at most.
const GENERATION: usize = 100_000;

/// What was heard lately: the younger of two generations is written to, and the older is forgotten once
/// it is full.
#[derive(Debug)]
struct RecentMap<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K, V> Default for RecentMap<K, V> {
    fn default() -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash, V: Copy> RecentMap<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        let found = self.young.get(key).or_else(|| self.old.get(key));
        found.copied()
    }

    /// Whether something was forgotten for it.
    fn insert(&mut self, key: K, value: V) -> bool {
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
enum Occurrence {
    Once(Origin),
    Several,
}

impl Occurrence {
    fn is_outside(self, origin: Origin) -> bool {
        self != Self::Once(origin)
    }
}

/// A reply that may come back as a summary: the chain that it was given to.
#[derive(Clone, Copy, Debug)]
enum ReplyChain {
    To { tip: Link, parent: Link },
    Several,
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct OriginIndex {
    messages: RecentMap<ScopedHash, Occurrence>,
    replies: RecentMap<ScopedHash, ReplyChain>,
    /// What the upstream gave behind a link, and where that was first said.
    answers: RecentMap<(Link, ScopedHash), Origin>,
    upstream_origins: [HashSet<Origin>; 2],
}

impl OriginIndex {
    /// A message that was first said at `origin`. `true` where something else was forgotten for it, so
    /// that what is believed to be known in one conversation alone has to be asked for again.
    pub(super) fn add_message(&mut self, mark: ScopedHash, origin: Origin) -> bool {
        let occurrence = self.messages.get(&mark);
        if occurrence == Some(Occurrence::Once(origin)) || occurrence == Some(Occurrence::Several) {
            return false;
        }
        let updated = match occurrence {
            None => Occurrence::Once(origin),
            Some(_) => Occurrence::Several,
        };
        self.messages.insert(mark, updated)
    }

    /// Behind `tip` the upstream gave what is known by `mark`, and is first said at `origin`.
    pub(super) fn add_answer(&mut self, tip: Link, mark: ScopedHash, origin: Origin) {
        self.answers.insert((tip, mark), origin);
        let [young, old] = &mut self.upstream_origins;
        if young.len() >= GENERATION {
            *old = std::mem::take(young);
        }
        young.insert(origin);
    }

    /// Where what is known by `mark` was first said, if the upstream gave it behind `tip`.
    pub(super) fn answer_origin(&self, tip: Link, mark: ScopedHash) -> Option<Origin> {
        self.answers.get(&(tip, mark))
    }

    /// Whether the upstream gave it, as far as this process knows.
    pub(super) fn is_from_upstream(&self, origin: Origin) -> bool {
        self.upstream_origins
            .iter()
            .any(|origins| origins.contains(&origin))
    }

    /// The last message of `chain` was answered with this. The same conversation may be answered twice
    /// in the same words.
    pub(super) fn add_reply(&mut self, mark: ScopedHash, chain: &History) {
        let Some(tip) = chain.tip() else { return };
        let mut links = chain.turns().iter().rev().map(|turn| turn.link);
        let before = links.clone().nth(1).unwrap_or_else(|| chain.root());
        let now = ReplyChain::To {
            tip,
            parent: before,
        };
        let now = match self.replies.get(&mark) {
            None => now,
            Some(ReplyChain::Several) => return,
            Some(ReplyChain::To {
                tip,
                parent: before,
            }) => {
                let continues = links.any(|link| link == tip || link == before);
                if continues { now } else { ReplyChain::Several }
            }
        };
        self.replies.insert(mark, now);
    }

    /// A request quotes a reply, and does not stand for what that summarises.
    pub(super) fn mark_quoted(&mut self, mark: ScopedHash) {
        self.replies.insert(mark, ReplyChain::Several);
    }

    pub(super) fn has_reply(&self, mark: &ScopedHash) -> bool {
        self.replies.get(mark).is_some()
    }

    /// Whether what proved something was heard in another conversation since.
    pub(super) fn is_contested(&self, witness: &Witness) -> bool {
        let message = self.messages.get(&witness.hash);
        let reply = match self.replies.get(&witness.hash) {
            None => false,
            Some(ReplyChain::Several) => true,
            Some(ReplyChain::To { tip, .. }) => Origin::for_link(&tip) != witness.origin,
        };
        reply || message.is_some_and(|occurrence| occurrence.is_outside(witness.origin))
    }
}
