//! What is known of a request that comes again: whether it stands on a chain of its own or is a view of
//! another. Decides nothing; [`super::Recall`] asks before it looks for evidence.

use crate::memory::place::Sighting;

/// Where a request stands that may have gone out before.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// On a chain of its own.
    Own,
    /// As the view it was.
    View(Box<Sighting>),
    /// That is to be decided.
    Open,
}

impl Place {
    /// The view it is, where it is one; `decide` says it where nothing is settled.
    pub(super) fn or_decide(self, decide: impl FnOnce() -> Option<Sighting>) -> Option<Sighting> {
        match self {
            Self::Own => None,
            Self::View(seen) => Some(*seen),
            Self::Open => decide(),
        }
    }
}
