//! Which chain a request belongs to: its own, or one that it is a view of.
//!
//! Decides by evidence alone: the links of the request, a run of messages that cannot be chance, or
//! an answer of the model that the client put in the place of what it answered. A key, a system
//! prompt or a first message is none. Pure: the same evidence gives the same place on every replica.
//! Called by `store::recall` with what this process or the store knows.

mod evidence;
mod sides;

use std::sync::Arc;

pub use self::evidence::{Evidence, Step, StoredView};

use self::sides::{Sides, first_changed, in_front, kept_from, observed};
use crate::history::align::{Aligned, Run};
use crate::history::{History, Role, Stand, View};

/// How many of a request's first messages may hold an answer of the model in the place of what it
/// summarises; and how many of the last ones before the model says anything, where a client keeps in front
/// of it what its user said.
const OPENING: usize = 3;

/// How many messages that were said while somebody watched, and that the summary tells of, have to stand in
/// front of it where nothing else speaks for it: behind the first messages, and in what is said now.
const IN_FRONT: usize = 2;

/// The messages of `client` that may hold an answer of the model in the place of what it summarises.
pub fn opening(client: &History) -> impl Iterator<Item = usize> {
    let unanswered = unanswered(client);
    let behind = unanswered.saturating_sub(OPENING).max(OPENING);
    (0..client.len().min(OPENING)).chain(behind..unanswered)
}

/// How many messages stand before the first that the model said.
pub fn unanswered(client: &History) -> usize {
    let mut turns = client.turns().iter();
    let first = turns.position(|turn| turn.message.role == Role::Assistant);
    first.unwrap_or(client.len())
}

/// By what evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It continues a request that had its place.
    Continued,
    /// A run of messages cannot be chance.
    Aligned,
    /// An answer of the model stands in the place of what it summarises.
    Compacted,
}

/// A request that is a view of another chain.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// The chain of what the client sent.
    pub client: Arc<History>,
    /// The chain it is a view of, gone on with what is new in it.
    pub history: Arc<History>,
    /// Which message stands where.
    pub view: View,
    /// Where it says again what was said before.
    pub agreed: Agreed,
    /// By what evidence.
    pub how: How,
    /// Whose conversation it continues.
    pub lineage: Option<i64>,
}

impl Sighting {
    fn of(
        client: &Arc<History>,
        path: &[Step],
        view: View,
        agreed: Agreed,
        how: How,
    ) -> Option<Self> {
        let messages: Vec<_> = client.turns().iter().map(|t| t.message.clone()).collect();
        if !view.parts_no_round(&messages) {
            return None;
        }
        let stands: Vec<Stand> = path.iter().map(|step| step.stand).collect();
        let history = History::seen_through(&view, &stands, client)?;
        // Seen whole it is no view.
        let own = history.tip() == client.tip();
        (!own && !history.is_empty()).then(|| Self {
            client: Arc::clone(client),
            history: Arc::new(history),
            view,
            agreed,
            how,
            lineage: path.last().map(|step| step.lineage),
        })
    }
}

/// Where a request and a path agree.
#[derive(Clone, Debug, Default)]
pub struct Agreed {
    /// Messages of the request that were said before, on whatever chain.
    pub runs: Vec<Run>,
    /// Those of them (indices in the request) that were said while somebody watched.
    live: Vec<usize>,
}

impl Agreed {
    fn of(runs: Vec<Run>, path: &[Step]) -> Self {
        let said_live = |run: &Run| {
            let (client, path_at) = (run.client, run.path);
            (0..run.len)
                .filter(move |at| path[path_at + at].live)
                .map(move |at| client + at)
        };
        let live = runs.iter().flat_map(said_live).collect();
        Self { runs, live }
    }

    /// Whether the message `sent` of the request was said while somebody watched; `None` where it was
    /// not said before.
    pub fn said_live(&self, sent: usize) -> Option<bool> {
        let mut runs = self.runs.iter();
        runs.any(|run| (run.client..run.client + run.len).contains(&sent))
            .then(|| self.live.binary_search(&sent).is_ok())
    }
}

/// The place of `client`; `None` where it is its own chain.
pub fn decide(client: &Arc<History>, evidence: &Evidence) -> Option<Sighting> {
    let known = evidence.view.as_ref().map_or(0, |(view, _)| view.count);
    if known == client.len() {
        // This very request went out as a view (INV-SAME). Its own chain may be recorded as well since, by
        // a process that could not read the view when the conversation went on.
        let again = continued(client, evidence);
        if again.is_some() {
            return again;
        }
    }
    aligned(client, evidence, known.max(evidence.depth))
        .or_else(|| continued(client, evidence))
        .or_else(|| compacted(client, evidence))
}

/// Where `client`, which is a chain of its own, says again what `path` holds, and whether that is the
/// same conversation.
pub fn agreed(client: &History, path: &[Step]) -> Option<(Agreed, bool)> {
    let Aligned { runs, same } = Sides::of(client, path)?.align()?;
    Some((Agreed::of(runs, path), same))
}

fn aligned(client: &Arc<History>, evidence: &Evidence, known: usize) -> Option<Sighting> {
    let path = &evidence.path;
    let sides = Sides::of(client, path)?;
    if evidence.belongs_elsewhere(client) {
        return None;
    }
    let Aligned { runs, same } = sides.align()?;
    // What is known for certain is not given up for less.
    if runs.iter().map(|run| run.len).sum::<usize>() <= known {
        return None;
    }
    let end = runs.last().map_or(0, |run| run.path + run.len);
    let reach = if same { end } else { sent_alike(&runs) };
    let (view, kept) = View::of(&runs, sides.remembered(&runs, reach))?;
    let kept = kept.min(first_changed(&view, &sides.known[..kept], &sides.sent));
    let agreed = Agreed::of(runs, path);
    Sighting::of(client, &path[..kept], view, agreed, How::Aligned)
}

/// How much of the path's beginning the request holds without a gap. A template proves no more than
/// that the same was said: nothing that the request does not hold is told of for it.
fn sent_alike(runs: &[Run]) -> usize {
    runs.iter()
        .fold(0, |to, run| if run.path == to { to + run.len } else { to })
}

fn continued(client: &Arc<History>, evidence: &Evidence) -> Option<Sighting> {
    let (stored, base) = evidence.view.as_ref()?;
    let (from, path) = stored.view.open();
    let whole = stored.count >= from && base.len() == path + (stored.count - from);
    let again = stored.count == client.len();
    if !whole || (stored.count <= evidence.depth && !again) {
        return None;
    }
    Sighting::of(
        client,
        base,
        stored.view.clone(),
        Agreed::default(),
        How::Continued,
    )
}

/// The log goes on behind the answer. What stood before it and was not observed is in the client's
/// own summary, which stays raw where the client put it; but where it is what is said now, it is what the
/// chain goes on with. What the client kept in front of it stands where it was said.
///
/// What a person says now may quote an answer, and so may one of many messages; what was recorded as the
/// beginning of a conversation is one: none of them stands for what it was an answer to. But who quotes does
/// not say again before it, in order, what was said in that conversation.
fn compacted(client: &Arc<History>, evidence: &Evidence) -> Option<Sighting> {
    let (place, path) = evidence.answered.as_ref()?;
    let newest = client.turns().last().map(|turn| turn.message.role);
    let is_said_now = *place == client.len() && newest == Some(Role::User);
    if evidence.depth >= (*place).max(1) {
        return None;
    }
    // The last message of the chain that was answered asked for the summary.
    let before = path.get(..path.len().checked_sub(1)?)?;
    let observed = observed(before);
    if observed == 0 {
        return None;
    }
    let from = kept_from(client, *place, before)?.min(observed);
    let runs = in_front(client, *place, &before[..from])?;
    let is_live = |run: &Run| {
        (run.path..run.path + run.len)
            .filter(|at| before[*at].live)
            .count()
    };
    let proven = runs.iter().map(is_live).sum::<usize>() >= IN_FRONT;
    if (is_said_now || *place > OPENING) && !proven {
        return None;
    }
    let goes_on = *place - usize::from(is_said_now);
    Sighting::of(
        client,
        &before[..from],
        View::from_parts(runs, goes_on, from)?,
        Agreed::default(),
        How::Compacted,
    )
}

#[cfg(test)]
mod tests;
