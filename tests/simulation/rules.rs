//! What a run is judged by: the laws about what goes out, and those about how it comes about.

use crate::properties::laws::{Broken, Law};

/// What was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// One of the laws about what goes out.
    Sent(Law),
    /// One job is held by one worker, and only by who holds it is it finished.
    Lease,
    /// What was committed is not asked for again, and not committed again (INV-DUR).
    Once,
    /// Coverage has no gap: parts follow each other from the first message on, all on one chain.
    Contiguous,
    /// A snapshot is for requests longer than any that went out without it.
    Eligible,
    /// The Observer is shown the words of its range.
    Words,
    /// Hints are those of the end of what is covered, and none is of what a chunk behind it says is done.
    Hints,
    /// A snapshot that was left is not come back to.
    OnceActive,
    /// No activation passes the hard limit of the log, unless code has left out what it could; but what was
    /// observed while a client waited may, once.
    Limit,
    /// Observations that are sent weigh no more than they count for, relations of dates included.
    Counted,
    /// Every job ends.
    Stuck,
    /// A committed part says something.
    Empty,
    /// Nothing is kept of the line in which an answer was cut, and nothing stands on half an answer alone.
    Whole,
    /// Nothing is stored of a request that no upstream has accepted (INV-OWN).
    Accepted,
    /// A timer rings for a conversation that has been idle for so long, and for no other.
    Idle,
    /// A job uses the route of its own conversation, where that is held and free, and no other.
    Route,
    /// A timer that was acted on does not ring again, and one process acts at a time.
    Rings,
}

/// A rule that was broken, and how.
#[derive(Clone, Debug)]
pub struct Breach {
    pub rule: Rule,
    pub how: String,
}

impl From<Broken> for Breach {
    fn from(broken: Broken) -> Self {
        Self {
            rule: Rule::Sent(broken.law),
            how: broken.how,
        }
    }
}
