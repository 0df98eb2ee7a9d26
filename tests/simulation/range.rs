//! Ranges of messages as their clients meant them.

use std::fmt;

use diarist::memory::PartKind;

use crate::properties::conversation::{Digest, Run};
use crate::properties::scripted_observer::Mark;

/// A range of messages with what its client meant by them.
#[derive(Clone)]
pub struct Range {
    pub owner: String,
    pub kind: PartKind,
    pub to_count: usize,
    /// Digests of the whole chain up to the end of the range.
    pub chain: Vec<Digest>,
    pub from: usize,
    pub words: Vec<String>,
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}..{} of {}",
            self.kind.name(),
            self.from,
            self.to_count,
            self.owner
        )
    }
}

impl Range {
    /// What an observation of exactly this range says.
    pub fn mark(&self) -> Mark {
        Mark {
            reflection: self.kind == PartKind::Reflection,
            run: Run::from_digests(&self.chain[self.from..]),
            owner: self.owner.clone(),
        }
    }

    /// The messages `from..to` of it, which begins with the first.
    pub fn piece(&self, from: usize, to: usize) -> Self {
        Self {
            owner: self.owner.clone(),
            kind: PartKind::Chunk,
            to_count: to,
            chain: self.chain[..to].to_vec(),
            from,
            words: self.words[from..to].to_vec(),
        }
    }

    /// What the message at `place` is, where the range begins with the first.
    pub fn digest(&self, place: usize) -> Digest {
        self.chain[place]
    }

    /// The whole chain up to the end of the range.
    pub fn whole(&self) -> Run {
        Run::from_digests(&self.chain)
    }
}
