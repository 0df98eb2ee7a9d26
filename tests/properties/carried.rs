//! Which chains accepted requests carried, and which of them a longer one carried again.

use std::collections::HashMap;

use super::aligned_chain::AlignedChain;
use super::conversation::{Digest, MessageContent, Msg, Request, Run};

/// A chain that an accepted request carried, by its last message.
#[derive(Debug)]
pub struct Carried {
    /// Length of the shortest request that carried it: two processes may record them in either order.
    shortest: usize,
    /// Length of the longest one.
    longest: usize,
    pub tokens: usize,
    /// What the message says, and how often it was said up to here.
    pub content: (Digest, usize),
}

impl Carried {
    pub fn confirmed(&self) -> bool {
        self.longest > self.shortest
    }
}

/// Every chain an accepted request carried.
#[derive(Debug, Default)]
pub struct Chains {
    by_tip: HashMap<Run, Carried>,
    /// The number of the first request that contained a message, on whatever chain.
    first_requests: HashMap<Digest, usize>,
    /// The same for the results of calls, by their ids: a placeholder is the same result.
    results: HashMap<String, usize>,
    /// The first request that said two things, one after the other.
    pairs: HashMap<(String, String), usize>,
    requests: usize,
}

impl Chains {
    pub fn get(&self, run: &Run) -> Option<&Carried> {
        self.by_tip.get(run)
    }

    pub fn values(&self) -> impl Iterator<Item = &Carried> {
        self.by_tip.values()
    }

    /// `elsewhere`: what an earlier request said on another chain is said again here. Where memory looks
    /// for the conversation that a request belongs to, it counts so: up to the last two neighbours that
    /// were neighbours before, since a run that proves has two messages at least, and never the newest.
    /// Which of the earlier requests memory compares is not judged: that depends on which were recorded,
    /// and the latest anchor that is known wins.
    pub fn carry(&mut self, request: &Request, prefixes: &[Run], elsewhere: bool) {
        let length = request.turns.len();
        self.requests += 1;
        let mut occurrences: HashMap<Digest, usize> = HashMap::new();
        let proven = if elsewhere { self.proven(request) } else { 0 };
        for (place, (turn, run)) in request.turns.iter().zip(&prefixes[1..]).enumerate() {
            let times = occurrences.entry(turn.digest).or_default();
            *times += 1;
            let again = place < proven && self.came_before(turn);
            self.first_requests
                .entry(turn.digest)
                .or_insert(self.requests);
            if let MessageContent::Result { id, .. } = &*turn.content {
                self.results.entry(id.clone()).or_insert(self.requests);
            }
            let carried = self.by_tip.entry(*run).or_insert(Carried {
                shortest: if again { 0 } else { length },
                longest: length,
                tokens: turn.tokens,
                content: (turn.digest, *times),
            });
            carried.shortest = carried.shortest.min(length);
            carried.longest = carried.longest.max(length);
        }
    }

    /// How many messages of `request` may count as said again; its neighbours are noted.
    fn proven(&mut self, request: &Request) -> usize {
        let mut proven = 0;
        for (place, pair) in request.turns.windows(2).enumerate() {
            let pair = (name(&pair[0]), name(&pair[1]));
            let first = *self.pairs.entry(pair).or_insert(self.requests);
            if first < self.requests {
                proven = place + 2;
            }
        }
        proven.min(request.turns.len() - 1)
    }

    /// Whether an earlier request contained the message, or brought the same result.
    fn came_before(&self, turn: &Msg) -> bool {
        let before = |at: Option<&usize>| at.is_some_and(|at| *at < self.requests);
        let result = match &*turn.content {
            MessageContent::Result { id, .. } => before(self.results.get(id)),
            _ => false,
        };
        result || before(self.first_requests.get(&turn.digest))
    }

    /// The same for the chain that memory knows it by, where that is not its own, behind
    /// [`Chains::carry`]. What an earlier request said on another chain is said again here.
    pub fn carry_elsewhere(&mut self, request: &Request, aligned_chain: &AlignedChain) {
        if aligned_chain.own {
            return;
        }
        let length = aligned_chain.path.len();
        let proven = self.proven(request);
        let mut run = Run::default();
        let mut occurrences: HashMap<Digest, usize> = HashMap::new();
        for (digest, sent) in aligned_chain.path.iter().zip(&aligned_chain.sent) {
            run = run.with(*digest);
            let times = occurrences.entry(*digest).or_default();
            *times += 1;
            let Some(sent) = sent else { continue };
            let turn = &request.turns[*sent];
            let known = self
                .first_requests
                .get(digest)
                .is_some_and(|at| *at < self.requests);
            let again = *sent < proven && (known || self.came_before(turn));
            let carried = self.by_tip.entry(run).or_insert(Carried {
                shortest: if again { 0 } else { length },
                longest: length,
                tokens: turn.tokens,
                content: (*digest, *times),
            });
            carried.shortest = carried.shortest.min(length);
            carried.longest = carried.longest.max(length);
        }
    }
}

/// What a message is known by: the result of a call by its id.
fn name(turn: &Msg) -> String {
    match &*turn.content {
        MessageContent::Result { id, .. } => id.clone(),
        _ => turn.digest.to_string(),
    }
}
