//! What memory's own model calls cost. Values only.

use crate::memory::PartKind;

/// What one model call of memory cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// For what.
    pub kind: PartKind,
    /// Tokens of the prompt.
    pub sent: u64,
    /// Of these, how many came from the provider's cache.
    pub cached: u64,
    /// Tokens of the answer.
    pub written: u64,
    /// Of the prompt's and the answer's, how many were counted here, since the endpoint reported none.
    pub guessed: u64,
}

impl Cost {
    /// Together with another one of the same kind.
    pub fn merge(&mut self, other: &Self) {
        let sums = [
            (&mut self.sent, other.sent),
            (&mut self.cached, other.cached),
            (&mut self.written, other.written),
            (&mut self.guessed, other.guessed),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
    }
}

/// What model calls of one kind cost a lineage. See [`Cost`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// How many calls.
    pub calls: u64,
    /// See [`Cost::sent`].
    pub sent: u64,
    /// See [`Cost::cached`].
    pub cached: u64,
    /// See [`Cost::written`].
    pub written: u64,
    /// See [`Cost::guessed`].
    pub guessed: u64,
}

/// What memory's own model calls cost a lineage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// The Observer's.
    pub observing: Spent,
    /// The Reflector's.
    pub reflecting: Spent,
}
