//! Aligns a request that begins with a summary which the client asked the model for.
//!
//! Clients that summarise ask the model for a summary and put its answer, word for word, at the
//! beginning of their next request. So an answer that the upstream gave in one conversation only leads
//! to that conversation. But anybody may quote an answer, and a canned answer stands in many
//! conversations. So it counts only in a position where clients put summaries, and only if something
//! else of the conversation agrees.

use std::collections::HashSet;
use std::sync::Arc;

use super::kept_messages::KeptMessages;
use super::known_chains::{KnownChains, NameComparison, PathEntry, SummaryCandidate, Witness};
use super::path_comparison::{KeptTail, runs_before};
use super::result::{Alignment, AlignmentBasis, AlignmentKind, SharedMessages};
use crate::history::align::Run;
use crate::history::{History, MIN_DISTINCTIVE_BYTES, PositionMap, Role, ScopedHash};

/// How many of the first messages of a request may hold a summary; and how many of the last ones before
/// the first answer, since some clients keep the messages of their user in front of the summary.
const SUMMARY_REACH: usize = 3;

/// The indices of the messages of `client` that may hold a summary.
pub fn summary_positions(client: &History) -> impl Iterator<Item = usize> {
    let before_answer = messages_before_answer(client);
    let tail_start = before_answer
        .saturating_sub(SUMMARY_REACH)
        .max(SUMMARY_REACH);
    (0..client.len().min(SUMMARY_REACH)).chain(tail_start..before_answer)
}

/// How many messages stand before the first answer of the model.
pub fn messages_before_answer(client: &History) -> usize {
    let mut messages = client.messages().iter();
    let first = messages.position(|chained| chained.message.role == Role::Assistant);
    first.unwrap_or(client.len())
}

/// How many shared live messages must stand in front of a summary that stands behind the first messages
/// or in the newest one: nothing else distinguishes such a summary from a quote.
const MIN_LIVE_BEFORE: usize = 2;

/// Aligns a request to the conversation that its summary was an answer in.
///
/// The log continues behind the summary. Messages that came before it and were not observed are in the
/// client's own summary, which stays raw where the client put it. If the summary is the newest message,
/// it stands for none of them: the chain continues with it. Messages that the client kept in front of
/// the summary stand where they were said.
///
/// A quote does not count as a summary: the newest message of a person may quote an answer, and so may
/// a message among many. A beginning of a conversation that was recorded with the answer in it is a
/// quote too. But somebody who quotes does not repeat, in order, messages of that conversation in front
/// of the quote.
pub(super) fn align_by_summary(client: &Arc<History>, known: &KnownChains) -> Option<Alignment> {
    let summary = known.summary.as_ref()?;
    let (count, path) = (summary.count, &summary.path);
    // What is recorded was sent without memory of the summarised conversation. So a text of the model that became the system
    // message of many conversations leads nobody to the one in which it was written, once these have begun.
    if known.recorded_count >= count.max(1) {
        return None;
    }
    let names = known.compare_names(path.last().map(|end| end.lineage));
    if !summary.is_unique
        || !known.allows_restoring(names)
        || !is_summary_position(client, count, names)
    {
        return None;
    }
    // The last message of the answered chain is the one that asked for the summary.
    let before = path.get(..path.len().checked_sub(1)?)?;
    let tail = KeptTail::find(client, count, before)?;
    let (tail_start, from) = (tail.path, tail.base_len(before));
    if from == 0 {
        return None;
    }
    let runs = runs_before(client, count, &before[..from])?;
    let newest = client.messages().last().map(|chained| chained.message.role);
    let is_newest_message = count == client.len() && newest == Some(Role::User);
    if (is_newest_message || count > SUMMARY_REACH) && count_live(&runs, before) < MIN_LIVE_BEFORE {
        return None;
    }
    let is_supported =
        summary.same_system || !runs.is_empty() || keeps_distinctive(client, &before[tail_start..]);
    let kept = KeptMessages::new(client, summary, &before[..tail_start])?;
    if !is_supported || kept.lack_user_text() {
        return None;
    }
    // What stands between the summary and that stays raw beside the summary.
    let continues_at = tail.client - usize::from(is_newest_message);
    let basis = AlignmentBasis {
        kind: AlignmentKind::Compacted,
        is_same: true,
        proof: vec![Witness {
            hash: summary.hash,
            origin: summary.origin(),
        }],
        withheld: None,
        client_summary: count.checked_sub(1).zip(summary.start),
        summary_in_front: (count == 0).then_some(summary.hash),
    };
    let positions = PositionMap::from_parts(runs, continues_at, from)?;
    let base = before[..from].iter().collect();
    let shared = SharedMessages::default();
    Alignment::new(client, &base, positions, shared, basis)
}

/// Whether `client` has a message of the `tail` that is not said by chance.
fn keeps_distinctive(client: &History, tail: &[PathEntry]) -> bool {
    let sent: HashSet<ScopedHash> = (0..client.len())
        .map(|at| client.message_key(at).content)
        .collect();
    let mut keys = tail.iter().filter_map(|entry| entry.message_key);
    keys.any(|key| key.distinctive_bytes >= MIN_DISTINCTIVE_BYTES && sent.contains(&key.content))
}

/// How many messages of `runs` Diarist saw when they were new.
fn count_live(runs: &[Run], path: &[PathEntry]) -> usize {
    let places = runs.iter().flat_map(|run| run.path..run.path + run.len);
    places.filter(|place| path[*place].live).count()
}

/// Whether the message that ends at `count` stands where clients put summaries: as a user or system
/// message, or as the very first message. Any answer can stand behind a user message, so there the
/// thread key must say that it is the same conversation.
fn is_summary_position(client: &History, count: usize, names: NameComparison) -> bool {
    let Some(at) = count.checked_sub(1) else {
        return true;
    };
    let Some(chained) = client.messages().get(at) else {
        return false;
    };
    match chained.message.role {
        Role::User | Role::System => true,
        Role::Assistant => at == 0 || names == NameComparison::Same,
        Role::Tool => false,
    }
}

impl KnownChains {
    /// Whether the client itself put the message at `at` in front of what it kept of the
    /// conversation of `path`: its summary, or a short message beside the summary.
    pub(super) fn is_client_summary(
        &self,
        client: &History,
        path: &[PathEntry],
        at: usize,
    ) -> bool {
        let Some(summary) = &self.summary else {
            return false;
        };
        let Some(summary_index) = summary.count.checked_sub(1) else {
            return false;
        };
        let is_brief = client.messages()[at].message.distinctive_bytes < MIN_DISTINCTIVE_BYTES;
        let is_near_summary = at == summary_index || (at <= summary_index + 1 && is_brief);
        is_near_summary && self.is_summary_of(client, summary, path)
    }

    /// Whether the answer was given in the conversation of `path`, or in one with the same thread
    /// key.
    fn is_summary_of(
        &self,
        client: &History,
        summary: &SummaryCandidate,
        path: &[PathEntry],
    ) -> bool {
        let lineage = |path: &[PathEntry]| path.last().map(|end| end.lineage);
        let (path_lineage, summary_lineage) = (lineage(path), lineage(&summary.path));
        let names = self.compare_names(summary_lineage);
        let same_key = |first: i64, second: i64| {
            let key = |lineage: i64| self.lineage_names.get(&lineage)?.key.as_ref();
            key(first).is_some() && key(first) == key(second)
        };
        let same_conversation = path_lineage
            .zip(summary_lineage)
            .is_some_and(|(a, b)| a == b || same_key(a, b));
        let in_summary_position = is_summary_position(client, summary.count, names)
            || (self.key.is_some() && names != NameComparison::Different);
        summary.is_unique
            && same_conversation
            && in_summary_position
            && names != NameComparison::Different
    }
}
