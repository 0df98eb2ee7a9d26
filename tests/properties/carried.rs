//! Which chains accepted requests carried, and which of them a longer one carried again.

use std::collections::HashMap;

use super::seen::Seen;
use super::talk::{Digest, Request, Run};

/// A chain that an accepted request carried, by its last message.
#[derive(Debug)]
pub struct Carried {
    /// Length of the first request that carried it.
    first: usize,
    /// Length of the longest one.
    longest: usize,
    pub tokens: usize,
    /// What the message says, and how often it was said up to here.
    pub content: (Digest, usize),
}

impl Carried {
    pub fn confirmed(&self) -> bool {
        self.longest > self.first
    }
}

/// Every chain an accepted request carried.
#[derive(Debug, Default)]
pub struct Chains(HashMap<Run, Carried>);

impl Chains {
    pub fn get(&self, run: &Run) -> Option<&Carried> {
        self.0.get(run)
    }

    pub fn values(&self) -> impl Iterator<Item = &Carried> {
        self.0.values()
    }

    pub fn carry(&mut self, request: &Request, prefixes: &[Run]) {
        let length = request.turns.len();
        let mut said: HashMap<Digest, usize> = HashMap::new();
        for (turn, run) in request.turns.iter().zip(&prefixes[1..]) {
            let times = said.entry(turn.digest).or_default();
            *times += 1;
            let carried = self.0.entry(*run).or_insert(Carried {
                first: length,
                longest: length,
                tokens: turn.tokens,
                content: (turn.digest, *times),
            });
            carried.longest = carried.longest.max(length);
        }
    }

    /// The same for the chain that memory knows it by, where that is not its own.
    pub fn carry_elsewhere(&mut self, request: &Request, seen: &Seen) {
        if seen.own {
            return;
        }
        let length = seen.path.len();
        let mut run = Run::default();
        let mut said: HashMap<Digest, usize> = HashMap::new();
        for (digest, sent) in seen.path.iter().zip(&seen.sent) {
            run = run.with(*digest);
            let times = said.entry(*digest).or_default();
            *times += 1;
            let Some(sent) = sent else { continue };
            let carried = self.0.entry(run).or_insert(Carried {
                first: length,
                longest: length,
                tokens: request.turns[*sent].tokens,
                content: (*digest, *times),
            });
            carried.longest = carried.longest.max(length);
        }
    }
}
