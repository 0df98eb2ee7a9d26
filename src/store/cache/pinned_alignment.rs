//! What is known of a request that comes again: whether it stands on a chain of its own or is a view of
//! another. Decides nothing; [`super::Recall`] asks before it looks for evidence.

use crate::memory::alignment::Alignment;

/// Where a request stands that may have gone out before.
#[derive(Clone, Debug)]
pub(super) enum PinnedAlignment {
    /// On a chain of its own.
    OwnChain,
    /// As the view it was.
    Aligned(Box<Alignment>),
    /// That is to be decided.
    Undecided,
}

impl PinnedAlignment {
    /// The view it is, where it is one; `decide` says it where nothing is settled.
    pub(super) fn or_align(self, align: impl FnOnce() -> Option<Alignment>) -> Option<Alignment> {
        match self {
            Self::OwnChain => None,
            Self::Aligned(alignment) => Some(*alignment),
            Self::Undecided => align(),
        }
    }
}
