//! Finds where a request that continues no known chain stands on a known path.
//!
//! Clients drop their oldest messages, replace old tool results, move what they insert, or put a clock
//! into their first message. That makes another chain. [`align`] finds the runs of messages that both
//! share, says whether they prove the same conversation ([`proof`]), and what the client left out or
//! changed ([`changes`]). If the agreement may be chance, the result is `None` and the request is a
//! conversation of its own. Pure, and about linear in both. Called on the request path through
//! `memory::alignment`.

mod changes;
mod matcher;
mod proof;

use self::changes::Changes;
pub use self::changes::{MIN_DROPPED, NOTICE_MARGIN};
use self::matcher::Matcher;
pub use self::matcher::Run;
pub use self::proof::{AlignmentContext, MessageOrigin};
use super::message_key::MessageKey;

/// Where a request stands on a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathAlignment {
    /// Runs in order. The messages of the last one cannot agree by chance.
    pub runs: Vec<Run>,
    /// The places on the path that prove that it is the same conversation. Empty without proof:
    /// then another conversation may say the same, and may get memory only of text that its own
    /// request holds.
    pub proof: Vec<usize>,
    /// The first place on the path whose text the request does not hold; the end of the runs if it
    /// holds all.
    pub missing: usize,
    /// The first place on the path that the client rewrote or took out while it kept what follows;
    /// the end of the runs if there is none.
    pub rewritten: usize,
    /// The first place of a gap so small that the client may have dropped it to save room or taken
    /// it back; the end of the runs if there is none.
    pub doubtful: usize,
}

/// Aligns `client` to `path`; `None` if the agreement may be chance.
///
/// Between and before the runs, the request may hold messages that the path does not have, and the path
/// messages that the request no longer holds. Messages behind the last run in the request are new.
pub fn align<S, P>(
    path: &[MessageKey],
    context: &AlignmentContext<S, P>,
    client: &[MessageKey],
) -> Option<PathAlignment>
where
    S: Fn(usize) -> MessageOrigin,
    P: Fn(usize) -> bool,
{
    let sides = Matcher::new(path, client, |place| (context.origin)(place).unshared);
    let mut runs = sides.find_runs();
    runs.retain(|run| run.is_at_start() || sides.has_evidence(*run));
    while let Some(last) = runs.last() {
        let proof = sides.find_proof(&runs, context);
        if sides.evidence(*last).is_conclusive() || !proof.is_empty() {
            let missing = sides.first_missing(&runs);
            let Changes {
                rewritten,
                doubtful,
            } = sides.changes(&runs, &context.is_client_summary);
            return Some(PathAlignment {
                runs,
                proof,
                missing,
                rewritten,
                doubtful,
            });
        }
        runs.pop();
    }
    None
}

/// The runs of `path` that `client` repeats in order, whatever they prove; runs of short words are left
/// out.
pub fn common_runs(path: &[MessageKey], client: &[MessageKey]) -> Vec<Run> {
    let sides = Matcher::new(path, client, |_| false);
    let mut runs = sides.find_runs();
    runs.retain(|run| sides.has_evidence(*run));
    runs
}

#[cfg(test)]
mod tests;
