//! What an alignment is: the chain that a request is aligned to, and where its messages stand on it.
//!
//! [`Alignment::new`] is the only way to make one. It refuses positions that would split a tool round,
//! and requests that are the chain itself. It does not judge evidence. Called by
//! [`super::find_alignment`] and [`super::client_summary`].

use std::sync::Arc;

use super::known_chains::{
    BaseChain, KnownChains, Origin, PathEntry, SummaryStart, Withheld, Witness,
};
use crate::history::align::Run;
use crate::history::{ChainedMessage, History, PathMessage, PositionMap, ScopedHash};

/// The kind of evidence that an alignment rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlignmentKind {
    /// The request continues an earlier request that was aligned.
    Continued,
    /// Request and chain share a run of messages that cannot agree by chance.
    Aligned,
    /// The request holds an answer of the model in place of what that answer summarises.
    Compacted,
}

/// A request that is aligned to another chain than its own.
#[derive(Clone, Debug)]
pub struct Alignment {
    /// The messages as the client sent them.
    pub client: Arc<History>,
    /// The chain that the request is aligned to, followed by the new messages of the request.
    pub history: Arc<History>,
    /// Which message of the request stands where on the chain.
    pub positions: PositionMap,
    /// The messages that request and chain share.
    pub shared: SharedMessages,
    /// How many messages at the beginning of `history` are recorded on this very chain.
    pub recorded_count: usize,
    /// The evidence.
    pub kind: AlignmentKind,
    /// The lineage that the request continues; `None` if it is not proven to be the same
    /// conversation.
    pub lineage: Option<i64>,
    /// The messages that prove that the request may get memory of text it does not hold. Empty if
    /// it gets no such memory.
    pub proof: Vec<Witness>,
    /// The part of the chain that is not sent for the time being.
    pub withheld: Option<Withheld>,
    /// The index in the request of the client's summary that led to the chain, and what stands in front of it.
    pub client_summary: Option<(usize, SummaryStart)>,
    /// The summary that proves it, if it stands in the leading system messages. These are in no link, so an equal history
    /// without the summary is not aligned.
    pub summary_in_front: Option<ScopedHash>,
    /// Where each message of `client` was first said; empty until that is known. It is found in the chains that were known
    /// when this alignment was made. When the request is repeated, they may be gone.
    pub origins: Vec<Origin>,
}

impl Alignment {
    pub(super) fn new(
        client: &Arc<History>,
        base: &BaseChain,
        positions: PositionMap,
        shared: SharedMessages,
        basis: AlignmentBasis,
    ) -> Option<Self> {
        if !positions.keeps_rounds_whole(client.messages().iter().map(|chained| &chained.message)) {
            return None;
        }
        let history = History::aligned(&positions, base.messages(), client)?;
        // If every message is already on the chain, the request is not aligned: it is that
        // chain.
        let is_own_chain = history.tip() == client.tip();
        let is_same =
            |(message, chained): &(&PathMessage, &ChainedMessage)| message.link == chained.link;
        let recorded = base.recorded_messages().iter().zip(history.messages());
        let recorded_count = recorded.take_while(is_same).count();
        (!is_own_chain && !history.is_empty()).then(|| Self {
            client: Arc::clone(client),
            history: Arc::new(history),
            positions,
            shared,
            recorded_count,
            kind: basis.kind,
            lineage: base.lineage().filter(|_| basis.is_same),
            proof: basis.proof,
            withheld: basis.withheld,
            client_summary: basis.client_summary,
            summary_in_front: basis.summary_in_front,
            origins: Vec::new(),
        })
    }
}

/// What an alignment is based on.
pub(super) struct AlignmentBasis {
    pub(super) kind: AlignmentKind,
    /// Whether request and chain are proven to be the same conversation.
    pub(super) is_same: bool,
    pub(super) proof: Vec<Witness>,
    pub(super) withheld: Option<Withheld>,
    pub(super) client_summary: Option<(usize, SummaryStart)>,
    pub(super) summary_in_front: Option<ScopedHash>,
}

/// The messages that a request and a path have in common.
#[derive(Clone, Debug, Default)]
pub struct SharedMessages {
    /// Messages of the request that an earlier request held, on whichever chain.
    pub runs: Vec<Run>,
    /// Indices in the request of those that Diarist saw when they were new.
    live: Vec<usize>,
    /// The request holds the path completely up to this place.
    pub(super) complete_until: usize,
}

impl SharedMessages {
    pub(super) fn new(mut runs: Vec<Run>, path: &[PathEntry], complete_until: usize) -> Self {
        // An answer that no request has carried yet is not shared: this request is the first to
        // carry it.
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

    /// Whether Diarist saw the message at `index` of the request when it was new; `None` if no
    /// earlier request held it.
    pub fn was_live(&self, index: usize) -> Option<bool> {
        let mut runs = self.runs.iter();
        runs.any(|run| (run.client..run.client + run.len).contains(&index))
            .then(|| self.live.binary_search(&index).is_ok())
    }
}

impl KnownChains {
    /// Whether the evidence names a chain, but the request does not get all memory of it.
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
