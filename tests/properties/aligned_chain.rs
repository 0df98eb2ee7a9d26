//! The chain that memory aligns a request with: its own, or another one that it is a view of.

use super::conversation::{Digest, Request, Run};

/// A chain, and which message of a request stands at each place of it.
#[derive(Clone, Debug)]
pub struct AlignedChain {
    pub path: Vec<Digest>,
    pub sent: Vec<Option<usize>>,
    /// Whether it is the request's own chain.
    pub own: bool,
}

impl AlignedChain {
    /// The request as it stands.
    pub fn own(request: &Request) -> Self {
        Self {
            path: request.turns.iter().map(|turn| turn.digest).collect(),
            sent: (0..request.turns.len()).map(Some).collect(),
            own: true,
        }
    }

    /// Where the raw tail begins when the first `covered` messages of the chain are covered.
    pub fn cut(&self, covered: usize) -> usize {
        let behind = self.sent.iter().skip(covered).flatten().next();
        let before = self.sent.iter().take(covered).flatten().last();
        behind.copied().unwrap_or(before.map_or(0, |last| last + 1))
    }

    /// Messages of the request before `cut` that stand nowhere on the chain.
    pub fn front(&self, cut: usize) -> Vec<usize> {
        let known = |turn: &usize| self.sent.contains(&Some(*turn));
        (0..cut).filter(|turn| !known(turn)).collect()
    }

    /// Digests of the first 0, 1, 2, ... messages of the chain.
    pub fn prefixes(&self) -> Vec<Run> {
        let mut run = Run::default();
        let mut all = vec![run];
        for digest in &self.path {
            run = run.with(*digest);
            all.push(run);
        }
        all
    }
}
