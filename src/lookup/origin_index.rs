//! The messages that this process has seen, recorded or not: the origin of each, answers that the upstream
//! gave, and answers that may come back as summaries.
//!
//! A message proves a conversation only as long as no other conversation holds it. So every message is added
//! here before anything is decided by it, also if the request has no memory, was refused, or was dropped by
//! the recorder. Holds only hashes.

use std::hash::Hash;

use foldhash::{HashMap, HashSet};

use crate::history::{AnswerHash, History, Link, ScopedHash};
use crate::memory::alignment::{Origin, Witness};

/// Entries of each kind in one generation. Two generations are kept: about 40 bytes an entry, at most 40 MB
/// in all.
const GENERATION: usize = 100_000;

/// A map of the latest entries, in two generations. New entries go into the younger one; when it is full, the
/// older one is dropped.
#[derive(Debug)]
struct RecentMap<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K, V> Default for RecentMap<K, V> {
    fn default() -> Self {
        Self {
            young: HashMap::default(),
            old: HashMap::default(),
        }
    }
}

impl<K: Eq + Hash, V: Copy> RecentMap<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        let found = self.young.get(key).or_else(|| self.old.get(key));
        found.copied()
    }

    /// Adds an entry; returns whether others were dropped for it.
    fn insert(&mut self, key: K, value: V) -> bool {
        let full = self.young.len() >= GENERATION && !self.young.contains_key(&key);
        let mut forgot = false;
        if full {
            // Cleared, so that it keeps its room: a table that grows moves all its entries, which takes milliseconds.
            std::mem::swap(&mut self.old, &mut self.young);
            self.young.clear();
            forgot = true;
        }
        self.young.insert(key, value);
        forgot
    }
}

/// In which conversations a message has occurred.
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

/// The chain that got an answer which may come back as a summary.
#[derive(Clone, Copy, Debug)]
enum ReplyChain {
    To { tip: Link, parent: Link },
    Several,
}

/// An answer that may come back as a summary.
#[derive(Clone, Copy, Debug)]
struct Reply {
    chain: ReplyChain,
    /// The hash of its ending; `None` if only the store knows it.
    ending: Option<ScopedHash>,
}

/// All indexes.
#[derive(Debug, Default)]
pub(super) struct OriginIndex {
    messages: RecentMap<ScopedHash, Occurrence>,
    /// Those of tenants that the upstream has not accepted yet. Anybody can send them, so they must not push out others.
    stranger_messages: RecentMap<ScopedHash, Occurrence>,
    replies: RecentMap<ScopedHash, Reply>,
    /// Their endings. Each is added whenever a reply is, so it stays at least as long.
    reply_endings: RecentMap<ScopedHash, ()>,
    /// Answers of the upstream by the link before them, with their origin.
    answers: RecentMap<(Link, ScopedHash), Origin>,
    upstream_origins: [HashSet<Origin>; 2],
}

impl OriginIndex {
    /// Adds a message with its origin. `true` if other entries were dropped for it: then the cache no longer
    /// knows which messages are unique to one conversation.
    pub(super) fn add_message(
        &mut self,
        mark: ScopedHash,
        origin: Origin,
        is_stranger: bool,
    ) -> bool {
        let occurrence = self.occurrence(&mark);
        let updated = match occurrence {
            None => Occurrence::Once(origin),
            Some(Occurrence::Once(other)) if other == origin => Occurrence::Once(origin),
            Some(_) => Occurrence::Several,
        };
        let is_known = self.messages.get(&mark) == Some(updated);
        if is_stranger {
            if occurrence != Some(updated) {
                self.stranger_messages.insert(mark, updated);
            }
            // A tenant that was never accepted has no memory that could be told wrongly.
            return false;
        }
        !is_known && self.messages.insert(mark, updated)
    }

    /// In which conversations the message was seen.
    fn occurrence(&self, mark: &ScopedHash) -> Option<Occurrence> {
        let found = [&self.messages, &self.stranger_messages].map(|map| map.get(mark));
        match found {
            [Some(one), Some(other)] if one != other => Some(Occurrence::Several),
            [one, other] => one.or(other),
        }
    }

    /// Adds an answer of the upstream behind `tip`: its hash and its origin.
    pub(super) fn add_answer(&mut self, tip: Link, mark: ScopedHash, origin: Origin) {
        self.answers.insert((tip, mark), origin);
        let [young, old] = &mut self.upstream_origins;
        if young.len() >= GENERATION {
            *old = std::mem::take(young);
        }
        young.insert(origin);
    }

    /// The origin of the message with this hash, if the upstream gave it behind `tip`.
    pub(super) fn answer_origin(&self, tip: Link, mark: ScopedHash) -> Option<Origin> {
        self.answers.get(&(tip, mark))
    }

    /// Whether this process has seen the upstream give the message of this origin.
    pub(super) fn is_from_upstream(&self, origin: Origin) -> bool {
        self.upstream_origins
            .iter()
            .any(|origins| origins.contains(&origin))
    }

    /// Adds an answer to `chain` that may come back as a summary. One conversation may get the same answer
    /// twice; an answer that two conversations got identifies neither.
    pub(super) fn add_reply(&mut self, answer: AnswerHash, chain: &History) {
        let Some(tip) = chain.tip() else {
            // Given to a request that cannot be read, or that has no message: it identifies no conversation.
            return self.insert_reply(answer.text, Some(answer.ending), ReplyChain::Several);
        };
        let mut links = chain.turns().iter().rev().map(|turn| turn.link);
        let before = links.clone().nth(1).unwrap_or_else(|| chain.root());
        let now = ReplyChain::To {
            tip,
            parent: before,
        };
        let now = match self.replies.get(&answer.text).map(|reply| reply.chain) {
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
        self.insert_reply(answer.text, Some(answer.ending), now);
    }

    /// Marks an answer as quoted: a request contains it without continuing the chain that got it.
    pub(super) fn mark_quoted(&mut self, mark: ScopedHash) {
        let ending = self.replies.get(&mark).and_then(|reply| reply.ending);
        self.insert_reply(mark, ending, ReplyChain::Several);
    }

    fn insert_reply(&mut self, mark: ScopedHash, ending: Option<ScopedHash>, chain: ReplyChain) {
        if let Some(ending) = ending {
            self.reply_endings.insert(ending, ());
        }
        self.replies.insert(mark, Reply { chain, ending });
    }

    /// Whether a text with this ending may be one of these answers.
    pub(super) fn has_reply_ending(&self, ending: &ScopedHash) -> bool {
        self.reply_endings.get(ending).is_some()
    }

    pub(super) fn has_reply(&self, mark: &ScopedHash) -> bool {
        self.replies.get(mark).is_some()
    }

    /// Whether this process has seen the witness of a proof in another conversation.
    pub(super) fn is_contested(&self, witness: &Witness) -> bool {
        let message = self.occurrence(&witness.hash);
        let reply = self.replies.get(&witness.hash).map(|reply| reply.chain);
        let reply = match reply {
            None => false,
            Some(ReplyChain::Several) => true,
            Some(ReplyChain::To { tip, .. }) => Origin::for_link(&tip) != witness.origin,
        };
        reply || message.is_some_and(|occurrence| occurrence.is_outside(witness.origin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Pepper, Scope};

    fn hash(text: &str) -> ScopedHash {
        let root = Link::root(&Scope::new(b"alice", None));
        ScopedHash::from_text(&Pepper::NONE, &root, text)
    }

    /// Anybody can send messages with a key that the upstream refuses.
    #[test]
    fn messages_of_strangers_push_out_no_others() {
        let [own, other] = [1, 2].map(|byte| {
            let link = Link::from_slice(&[byte; 32]).expect("32 bytes");
            Origin::for_link(&link)
        });
        let mut index = OriginIndex::default();
        index.add_message(hash("said by two"), other, false);
        for number in 0..GENERATION * 5 / 2 {
            let mark = hash(&format!("stranger {number}"));
            assert!(!index.add_message(mark, other, true), "nothing is cleared");
        }
        let witness = |text: &str| Witness {
            hash: hash(text),
            origin: own,
        };
        assert!(index.is_contested(&witness("said by two")));
        // What a tenant said before it was accepted counts too.
        index.add_message(hash("said before"), other, true);
        index.add_message(hash("said before"), own, false);
        assert!(index.is_contested(&witness("said before")));
        assert!(!index.is_contested(&witness("said by nobody")));
    }

    /// A request with an unknown ending is not compared with replies at all.
    #[test]
    fn the_ending_of_a_reply_is_known_for_as_long_as_the_reply() {
        let body = br#"{"model":"m","messages":[{"role":"user","content":"Sum up."}]}"#;
        let parsed = crate::wire::Request::parse_chat(&body.to_vec().into()).expect("a request");
        let chain = parsed.history(&Scope::new(b"alice", None));
        let answer = |number: usize| AnswerHash {
            text: hash(&format!("answer {number}")),
            ending: hash(&format!("ending {}", number / 3)),
        };
        let mut index = OriginIndex::default();
        for number in 0..GENERATION * 5 / 2 {
            index.add_reply(answer(number), &chain);
            if number.is_multiple_of(1_000) {
                index.mark_quoted(answer(number / 2).text);
            }
        }
        let mut held = 0;
        for number in 0..GENERATION * 5 / 2 {
            let AnswerHash { text, ending } = answer(number);
            if index.has_reply(&text) {
                held += 1;
                assert!(index.has_reply_ending(&ending), "{number}");
            }
        }
        assert!(held >= GENERATION, "{held}");
        assert!(!index.has_reply_ending(&hash("another ending")));
    }
}
