//! What an alignment is: the chain that a request is aligned to, and where its messages stand on it.
//!
//! `Alignment::new` is the only way to make one. It refuses positions that would split a tool round, and a
//! request whose messages are all on the chain already. Decides nothing about evidence. Made by
//! [`super::find_alignment`] and [`super::client_summary`].

use std::sync::Arc;

use super::evidence::{Evidence, PathEntry, Withheld, Witness};
use crate::history::align::Run;
use crate::history::{History, PathMessage, PositionMap};

/// By what evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlignmentKind {
    /// It continues a request that had its place.
    Continued,
    /// A run of messages cannot be chance.
    Aligned,
    /// An answer of the model stands in the place of what it summarises.
    Compacted,
}

/// A request that is a view of another chain.
#[derive(Clone, Debug)]
pub struct Alignment {
    /// The chain of what the client sent.
    pub client: Arc<History>,
    /// The chain it is a view of, gone on with what is new in it.
    pub history: Arc<History>,
    /// Which message stands where.
    pub positions: PositionMap,
    /// Where it says again what was said before.
    pub shared: SharedMessages,
    /// By what evidence.
    pub kind: AlignmentKind,
    /// Whose conversation it continues; `None` where nothing proves that it is the same one.
    pub lineage: Option<i64>,
    /// What proves that it may be told what it does not hold; empty where it is told nothing else.
    pub proof: Vec<Witness>,
    /// From where on nothing of the chain is told, for the time being.
    pub withheld: Option<Withheld>,
}

impl Alignment {
    pub(super) fn new(
        client: &Arc<History>,
        path: &[PathEntry],
        positions: PositionMap,
        shared: SharedMessages,
        basis: AlignmentBasis,
    ) -> Option<Self> {
        let messages: Vec<_> = client.turns().iter().map(|t| t.message.clone()).collect();
        if !positions.keeps_rounds_whole(&messages) {
            return None;
        }
        let heads: Vec<PathMessage> = path.iter().map(|step| step.message).collect();
        let history = History::aligned(&positions, &heads, client)?;
        // Seen whole it is no view.
        let is_own_chain = history.tip() == client.tip();
        (!is_own_chain && !history.is_empty()).then(|| Self {
            client: Arc::clone(client),
            history: Arc::new(history),
            positions,
            shared,
            kind: basis.kind,
            lineage: path
                .last()
                .map(|step| step.lineage)
                .filter(|_| basis.is_same),
            proof: basis.proof,
            withheld: basis.withheld,
        })
    }
}

/// By what a request was found to be a view.
pub(super) struct AlignmentBasis {
    pub(super) kind: AlignmentKind,
    /// Whether it is proven to be the same conversation.
    pub(super) is_same: bool,
    pub(super) proof: Vec<Witness>,
    pub(super) withheld: Option<Withheld>,
}

/// Where a request and a path agree.
#[derive(Clone, Debug, Default)]
pub struct SharedMessages {
    /// Messages of the request that were said before, on whatever chain.
    pub runs: Vec<Run>,
    /// Those of them (indices in the request) that were said while somebody watched.
    live: Vec<usize>,
    /// Up to here on the path the request holds everything.
    pub(super) complete_until: usize,
}

impl SharedMessages {
    pub(super) fn new(mut runs: Vec<Run>, path: &[PathEntry], complete_until: usize) -> Self {
        // What the upstream has just given was not said before: this request is the first to carry it.
        let recorded = path.iter().take_while(|step| !step.pending).count();
        for run in &mut runs {
            run.len = run.len.min(recorded.saturating_sub(run.path));
        }
        runs.retain(|run| run.len > 0);
        let live_places = |run: &Run| {
            let (client, path_at) = (run.client, run.path);
            (0..run.len)
                .filter(move |at| path[path_at + at].live)
                .map(move |at| client + at)
        };
        let live = runs.iter().flat_map(live_places).collect();
        Self {
            runs,
            live,
            complete_until,
        }
    }

    /// Whether the message `sent` of the request was said while somebody watched; `None` where it was
    /// not said before.
    pub fn was_live(&self, index: usize) -> Option<bool> {
        let mut runs = self.runs.iter();
        runs.any(|run| (run.client..run.client + run.len).contains(&index))
            .then(|| self.live.binary_search(&index).is_ok())
    }
}

impl Evidence {
    /// Whether there is something that the request may belong to, and it is not told all of that.
    pub fn is_withheld(&self, alignment: Option<&Alignment>) -> bool {
        let is_something = !self.path.is_empty()
            || self
                .stored
                .as_ref()
                .is_some_and(|(view, _)| !view.proof.is_empty());
        let is_restored = alignment
            .is_some_and(|alignment| alignment.lineage.is_some() && alignment.withheld.is_none());
        is_something && !is_restored
    }
}
