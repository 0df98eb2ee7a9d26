//! Alignment: where a request that continues no known chain stands on a path that is known.
//!
//! Clients drop their oldest messages, replace old tool results, move what they insert, or put a
//! clock into their first message. Then the chain is another one. [`align`] finds the runs of messages
//! that both hold, says whether they prove that it is the same conversation ([`proof`]), and what the
//! client left out or changed ([`changed`]). What may be chance is `None`: the request goes out as a
//! conversation of its own. Pure, and about linear in both. Called on the request path through
//! `memory::place`.

mod changes;
mod matcher;
mod proof;

use self::changes::Changes;
use self::matcher::Matcher;
pub use self::matcher::Run;
pub use self::proof::{AlignmentContext, MessageOrigin};
use super::message_key::MessageKey;

/// Where a request stands on a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathAlignment {
    /// Runs in order. The messages of the last one cannot agree by chance.
    pub runs: Vec<Run>,
    /// The places on the path that prove that this is the same conversation. Empty where nothing
    /// proves it: then another conversation may say the same, and may be told nothing that its own
    /// request does not hold.
    pub proof: Vec<usize>,
    /// The first place on the path whose words the request does not hold; the end of the runs where
    /// it holds all of them.
    pub missing: usize,
    /// The first place on the path that the client rewrote, or took out, while it kept what follows;
    /// the end of the runs where there is none.
    pub rewritten: usize,
    /// The first place on the path of so few messages that the client may have dropped them to save room,
    /// or taken them back; the end of the runs where there is none.
    pub doubtful: usize,
}

/// Where `client` stands on `path`; `None` where the agreement may be chance.
///
/// Between and in front of runs the request may hold messages that the path does not know, and the
/// path messages that the request no longer holds. What follows the last run in the request is new.
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

/// What `client` says again of `path`, in order, whatever that proves; without short words.
pub fn common_runs(path: &[MessageKey], client: &[MessageKey]) -> Vec<Run> {
    let sides = Matcher::new(path, client, |_| false);
    let mut runs = sides.find_runs();
    runs.retain(|run| sides.has_evidence(*run));
    runs
}

#[cfg(test)]
mod tests;
