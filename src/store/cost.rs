//! What memory's own model calls cost. Values only.

use crate::memory::PartKind;

/// What one model call of memory cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// For what.
    pub kind: PartKind,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Of these, how many came from the provider's cache.
    pub cached_tokens: u64,
    /// Tokens of the answer.
    pub completion_tokens: u64,
    /// Of the prompt's and the answer's, how many were counted here, since the endpoint reported none.
    pub estimated_tokens: u64,
}

impl Cost {
    /// Together with another one of the same kind.
    pub fn merge(&mut self, other: &Self) {
        let sums = [
            (&mut self.prompt_tokens, other.prompt_tokens),
            (&mut self.cached_tokens, other.cached_tokens),
            (&mut self.completion_tokens, other.completion_tokens),
            (&mut self.estimated_tokens, other.estimated_tokens),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
    }
}

/// What model calls of one kind cost a lineage. See [`Cost`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTotals {
    /// How many calls.
    pub calls: u64,
    /// See [`Cost::sent`].
    pub prompt_tokens: u64,
    /// See [`Cost::cached`].
    pub cached_tokens: u64,
    /// See [`Cost::written`].
    pub completion_tokens: u64,
    /// See [`Cost::guessed`].
    pub estimated_tokens: u64,
}

/// What memory's own model calls cost a lineage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineageCosts {
    /// The Observer's.
    pub observer: CallTotals,
    /// The Reflector's.
    pub reflector: CallTotals,
}
