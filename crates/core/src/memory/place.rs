//! Which chain a request belongs to: its own, or one that it is a view of.
//!
//! Decides by evidence alone: the links of the request, a run of messages that cannot be chance, or
//! an answer of the model that the client put in the place of what it answered. A key, a system
//! prompt or a first message is none. Pure: the same evidence gives the same place on every replica.
//! Called by `store::recall` with what this process or the store knows.

mod compaction;
mod evidence;
mod origin;
mod sides;

use std::sync::Arc;

use self::compaction::compacted;
use self::evidence::Names;
pub use self::evidence::{
    Answered, Evidence, EvidenceLevel, LineageName, Step, StoredView, Witness,
};
pub use self::origin::{Origin, origin_of_answer, origins};
use self::sides::{Sides, first_changed, observed};
use crate::history::align::Run;
use crate::history::{History, Role, Stand, View};

/// How many of a request's first messages may hold an answer of the model in the place of what it
/// summarises; and how many of the last ones before the model says anything, where a client keeps in front
/// of it what its user said.
const OPENING: usize = 3;

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
    /// Whose conversation it continues; `None` where nothing proves that it is the same one.
    pub lineage: Option<i64>,
    /// What proves that it may be told what it does not hold; empty where it is told nothing else.
    pub proof: Vec<Witness>,
    /// From where on nothing of the chain is told, for the time being.
    pub held: Option<Held>,
}

impl Sighting {
    fn of(
        client: &Arc<History>,
        path: &[Step],
        view: View,
        agreed: Agreed,
        found: Found,
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
            how: found.how,
            lineage: path.last().map(|step| step.lineage).filter(|_| found.same),
            proof: found.proof,
            held: found.held,
        })
    }
}

/// By what a request was found to be a view.
struct Found {
    how: How,
    /// Whether it is proven to be the same conversation.
    same: bool,
    proof: Vec<Witness>,
    held: Option<Held>,
}

/// A client dropped so little that it may have taken it back. Nothing from there on is told, until it drops
/// more, as a client does that saves room; or until it has gone on for so long that it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The first place of the chain that is not told.
    pub from: usize,
    /// How many messages the client sent when it began.
    pub since: usize,
}

/// How many messages a client sends after it dropped a few, if it drops no more of them.
const HELD_FOR: usize = 8;

/// Where a request and a path agree.
#[derive(Clone, Debug, Default)]
pub struct Agreed {
    /// Messages of the request that were said before, on whatever chain.
    pub runs: Vec<Run>,
    /// Those of them (indices in the request) that were said while somebody watched.
    live: Vec<usize>,
    /// Up to here on the path the request holds everything.
    held: usize,
}

impl Agreed {
    fn of(mut runs: Vec<Run>, path: &[Step], held: usize) -> Self {
        // What the upstream has just given was not said before: this request is the first to carry it.
        let recorded = path.iter().take_while(|step| !step.pending).count();
        for run in &mut runs {
            run.len = run.len.min(recorded.saturating_sub(run.path));
        }
        runs.retain(|run| run.len > 0);
        let said_live = |run: &Run| {
            let (client, path_at) = (run.client, run.path);
            (0..run.len)
                .filter(move |at| path[path_at + at].live)
                .map(move |at| client + at)
        };
        let live = runs.iter().flat_map(said_live).collect();
        Self { runs, live, held }
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
    let aligned = aligned(client, evidence, known.max(evidence.depth));
    let is_proven = aligned.as_ref().is_some_and(|seen| seen.lineage.is_some());
    let aligned = |proven: bool| aligned.clone().filter(|_| proven == is_proven);
    aligned(true)
        .or_else(|| continued(client, evidence))
        .or_else(|| compacted(client, evidence))
        .or_else(|| aligned(false))
}

/// Where `client`, which is a chain of its own, says again what the path of `evidence` holds, and
/// whether that is the same conversation.
pub fn agreed(client: &History, evidence: &Evidence) -> Option<(Agreed, bool)> {
    let path = &evidence.path;
    let sides = Sides::of(client, path)?;
    let names = evidence.names(path);
    let put_there = |at: usize| evidence.puts_there(client, path, at);
    let aligned = sides.align(names == Names::Same, put_there)?;
    let same = !aligned.proof.is_empty() && names != Names::Different;
    Some((Agreed::of(aligned.runs, path, aligned.missing), same))
}

fn aligned(client: &Arc<History>, evidence: &Evidence, known: usize) -> Option<Sighting> {
    let path = &evidence.path;
    let sides = Sides::of(client, path)?;
    if evidence.belongs_elsewhere(client) {
        return None;
    }
    let names = evidence.names(path);
    let put_there = |at: usize| evidence.puts_there(client, path, at);
    let aligned = sides.align(names == Names::Same, put_there)?;
    let runs = &aligned.runs;
    // What is known for certain is not given up for less.
    if runs.iter().map(|run| run.len).sum::<usize>() <= known {
        return None;
    }
    let same = !aligned.proof.is_empty() && names != Names::Different;
    let told = same && evidence.admits(names);
    let reach = if told {
        aligned.rewritten
    } else {
        aligned.missing
    };
    let end = runs.last().map_or(0, |run| run.path + run.len);
    let goes_on = same || aligned.missing == end || replaces_few(runs);
    // What another conversation may have said as well is of use only where it is told of.
    if !goes_on && observed(&path[..reach]) == 0 {
        return None;
    }
    let (view, kept) = View::of(runs, sides.remembered(runs, reach))?;
    let kept = kept.min(first_changed(&view, &sides.known[..kept], &sides.sent));
    let tells_missing = aligned.missing < view.open().1;
    let found = Found {
        how: How::Aligned,
        same,
        proof: if tells_missing {
            witnesses(path, &aligned.proof)
        } else {
            Vec::new()
        },
        held: (told && aligned.doubtful < view.open().1).then_some(Held {
            from: aligned.doubtful,
            since: client.len(),
        }),
    };
    let agreed = Agreed::of(aligned.runs, path, aligned.missing);
    Sighting::of(client, &path[..kept], view, agreed, found)
}

/// Whether the request says a few messages in other words, each in its place, and everything else as it
/// was: a clock in the first one, or files that are edited. They stay raw, and the chain goes on without
/// them; else each of its requests would be another chain.
fn replaces_few(runs: &[Run]) -> bool {
    let (mut client, mut path, mut own, mut said) = (0, 0, 0, 0);
    for run in runs {
        let (put_in, lost) = (run.client - client, run.path - path);
        if lost > put_in {
            return false;
        }
        own += put_in;
        said += run.len;
        (client, path) = (run.client + run.len, run.path + run.len);
    }
    2 * own <= said + 1
}

/// What the messages of `path` at `places` are known by.
fn witnesses(path: &[Step], places: &[usize]) -> Vec<Witness> {
    let witness = |place: &usize| {
        let step = path.get(*place)?;
        Some(Witness {
            mark: step.witness()?,
            origin: step.origin,
        })
    };
    places.iter().filter_map(witness).collect()
}

fn continued(client: &Arc<History>, evidence: &Evidence) -> Option<Sighting> {
    let (stored, base) = evidence.view.as_ref()?;
    let (from, path) = stored.view.open();
    let whole = stored.count >= from && base.len() == path + (stored.count - from);
    let again = stored.count == client.len();
    if !whole || (stored.count <= evidence.depth && !again) {
        return None;
    }
    // Another conversation may have said since what proved it, or may send the very same request.
    let holds = evidence.view_holds && evidence.admits(evidence.names(base));
    if !stored.proof.is_empty() && !holds {
        return None;
    }
    let has_ended = |held: &Held| client.len() >= held.since + HELD_FOR;
    if stored.held.as_ref().is_some_and(has_ended) {
        return None;
    }
    let found = Found {
        how: How::Continued,
        same: true,
        proof: stored.proof.clone(),
        held: stored.held,
    };
    let view = stored.view.clone();
    Sighting::of(client, base, view, Agreed::default(), found)
}

#[cfg(test)]
mod tests;
