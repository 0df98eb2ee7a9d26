//! Finds the chain that a request belongs to: its own chain, or another one that it is aligned to.
//!
//! Three kinds of evidence count: the links of the request, a run of messages that cannot agree by
//! chance, and an answer of the model that the client put in place of what it summarises. A thread key,
//! a system prompt or a first message proves nothing. Pure: the same known chains give the same result on
//! every replica. Called by `lookup` with what this process or the store knows.

mod client_summary;
mod kept_messages;
mod known_chains;
mod origin;
mod path_comparison;
mod result;

use std::sync::Arc;

use self::client_summary::align_by_summary;
pub use self::client_summary::{messages_before_answer, summary_positions};
use self::known_chains::NameComparison;
pub use self::known_chains::{
    BaseChain, EvidenceLevel, KnownChains, LineageName, Origin, PathEntry, StoredAlignment,
    SummaryCandidate, SummaryStart, Withheld, Witness,
};
pub use self::origin::{origin_of_answer, origins};
use self::path_comparison::{PathComparison, first_changed, observed_count};
use self::result::AlignmentBasis;
pub use self::result::{Alignment, AlignmentKind, SharedMessages};
use crate::history::align::Run;
use crate::history::{History, PositionMap, Role};

/// A request that belongs to a recorded conversation has at most so many answers behind what is recorded and what this
/// process has seen: the newest one, after a restart. Other ones were given in another conversation, which got an answer of
/// this one too and is not in the store: it was deleted, or recorded in another database.
const MAX_NEW_ANSWERS: usize = 1;

/// A withheld range is released when the client has sent this many messages more without dropping more.
const WITHHOLD_MESSAGES: usize = 8;

/// Aligns `client` to a known chain; `None` if the request is a chain of its own.
pub fn find_alignment(client: &Arc<History>, known: &KnownChains) -> Option<Alignment> {
    let stored_count = known.stored.as_ref().map_or(0, |(view, _)| view.count);
    if stored_count == client.len() {
        // This very request went out as an aligned one, so it does so again (INV-SAME). Its own
        // chain may have been recorded since then, by a process that could not read the stored
        // alignment.
        let repeated = align_by_stored(client, known);
        if repeated.is_some() {
            return repeated;
        }
    }
    let by_runs = align_by_runs(client, known, stored_count.max(known.recorded_count));
    let is_proven = by_runs
        .as_ref()
        .is_some_and(|alignment| alignment.lineage.is_some());
    let by_runs_if = |proven: bool| by_runs.clone().filter(|_| proven == is_proven);
    by_runs_if(true)
        .or_else(|| align_by_stored(client, known))
        .or_else(|| align_by_summary(client, known))
        .or_else(|| by_runs_if(false))
}

/// The messages of `client` that are also on the path of `known`, and whether path and request are
/// proven to be one conversation. For a request that is a chain of its own.
pub fn shared_messages(client: &History, known: &KnownChains) -> Option<(SharedMessages, bool)> {
    let path = &known.path;
    let comparison = PathComparison::new(client, path)?;
    let names = known.compare_names(path.last().map(|end| end.lineage));
    let is_client_summary = |at: usize| known.is_client_summary(client, path, at);
    let aligned = comparison.align(names == NameComparison::Same, is_client_summary)?;
    let is_same = !aligned.proof.is_empty()
        && names != NameComparison::Different
        && new_answers(client, &aligned.runs, known) <= MAX_NEW_ANSWERS;
    Some((
        SharedMessages::new(aligned.runs, path, aligned.missing),
        is_same,
    ))
}

fn align_by_runs(
    client: &Arc<History>,
    known: &KnownChains,
    known_count: usize,
) -> Option<Alignment> {
    let path = &known.path;
    let comparison = PathComparison::new(client, path)?;
    if known.belongs_to_other_chain(client) {
        return None;
    }
    let names = known.compare_names(path.last().map(|end| end.lineage));
    let is_client_summary = |at: usize| known.is_client_summary(client, path, at);
    let aligned = comparison.align(names == NameComparison::Same, is_client_summary)?;
    let runs = &aligned.runs;
    // A certain match is not given up for one that explains fewer messages.
    if runs.iter().map(|run| run.len).sum::<usize>() <= known_count {
        return None;
    }
    let is_same = !aligned.proof.is_empty()
        && names != NameComparison::Different
        && new_answers(client, runs, known) <= MAX_NEW_ANSWERS;
    let may_restore = is_same && known.allows_restoring(names);
    let reach = if may_restore {
        aligned.rewritten
    } else {
        aligned.missing
    };
    let end = runs.last().map_or(0, |run| run.path + run.len);
    let continues_chain = is_same || aligned.missing == end || rewrites_few(runs);
    // Without proof, the chain is useful only if observations of it can be sent.
    if !continues_chain && observed_count(&path[..reach]) == 0 {
        return None;
    }
    let (positions, kept_count) =
        PositionMap::from_runs(runs, comparison.restorable_count(runs, reach))?;
    let kept_count = kept_count.min(first_changed(
        &positions,
        &comparison.path_keys[..kept_count],
        &comparison.request_keys,
    ));
    let restores_missing = aligned.missing < positions.open_start().1;
    let basis = AlignmentBasis {
        kind: AlignmentKind::Aligned,
        is_same,
        proof: if restores_missing {
            witnesses(path, &aligned.proof)
        } else {
            Vec::new()
        },
        summary_in_front: None,
        withheld: (may_restore && aligned.doubtful < positions.open_start().1).then_some(
            Withheld {
                from: aligned.doubtful,
                client_len: client.len(),
            },
        ),
        client_summary: None,
    };
    let shared = SharedMessages::new(aligned.runs, path, aligned.missing);
    let base = path[..kept_count].iter().collect();
    Alignment::new(client, &base, positions, shared, basis)
}

/// How many answers of the model stand behind the last of `runs` that this process has not seen the upstream give there.
/// Messages of the model in a row are one answer: some clients send its text and its calls as messages of their own.
fn new_answers(client: &History, runs: &[Run], known: &KnownChains) -> usize {
    let end = runs.last().map_or(0, Run::client_end).max(known.seen_count);
    let is_model = |at: usize| client.messages()[at].message.role == Role::Assistant;
    let begins_answer = |at: &usize| is_model(*at) && (*at == end || !is_model(*at - 1));
    (end..client.len()).filter(begins_answer).count()
}

/// Whether the request only rewrites a few messages in place and repeats all others, as with a clock in
/// the first message or files that are edited. The rewritten messages stay raw and the chain continues
/// without them; otherwise each request would start another chain.
fn rewrites_few(runs: &[Run]) -> bool {
    let (mut client, mut path, mut rewritten, mut repeated) = (0, 0, 0, 0);
    for run in runs {
        let (inserted, lost) = (run.client - client, run.path - path);
        if lost > inserted {
            return false;
        }
        rewritten += inserted;
        repeated += run.len;
        (client, path) = (run.client + run.len, run.path + run.len);
    }
    2 * rewritten <= repeated + 1
}

/// The witnesses among the messages of `path` at `places`.
fn witnesses(path: &[PathEntry], places: &[usize]) -> Vec<Witness> {
    let witness = |place: &usize| {
        let step = path.get(*place)?;
        Some(Witness {
            hash: step.witness()?,
            origin: step.origin,
        })
    };
    places.iter().filter_map(witness).collect()
}

fn align_by_stored(client: &Arc<History>, known: &KnownChains) -> Option<Alignment> {
    let (stored, base) = known.stored.as_ref()?;
    let (from, path_len) = stored.positions.open_start();
    let base_len = base.messages().len();
    let is_whole = stored.count >= from && base_len == path_len + (stored.count - from);
    let is_repeated = stored.count == client.len();
    let is_own_chain = stored.count <= known.recorded_count && !known.own_chain_may_be_anothers();
    if !is_whole || (is_own_chain && !is_repeated) {
        return None;
    }
    // Another conversation may hold the witnesses by now, or may send the very same request.
    let still_holds =
        known.stored_holds && known.allows_restoring(known.compare_names(base.lineage()));
    if !stored.proof.is_empty() && !still_holds {
        return None;
    }
    let has_expired = |held: &Withheld| client.len() >= held.client_len + WITHHOLD_MESSAGES;
    if stored.withheld.as_ref().is_some_and(has_expired) {
        return None;
    }
    let basis = AlignmentBasis {
        kind: AlignmentKind::Continued,
        is_same: true,
        proof: stored.proof.clone(),
        withheld: stored.withheld,
        client_summary: None,
        summary_in_front: known.stored_summary_in_front,
    };
    let positions = stored.positions.clone();
    let shared = SharedMessages::default();
    Alignment::new(client, base, positions, shared, basis)
}

#[cfg(test)]
mod tests;
