//! What memory requests share, and what one of them is once it was read. Decides nothing; `remember`
//! and its phases work with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::identify::{Identity, Owners, Sources};
use super::manners::{Asker, Manners};
use super::mode::{ReadOnly, Rules};
use super::turns::Turns;
use crate::audit::Audit;
use crate::history::{History, Mark};
use crate::jobs::{Exchange, InForce, Jobs};
use crate::memory::place::{EvidenceLevel, Sighting};
use crate::memory::{Trim, select};
use crate::store::Used;
use crate::store::recall::{Lookup, Recall};
use crate::wire::chat::Parsed;

/// What is done for a request that does not fit its model, once all that is observed was applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// Nothing: the refusal is the client's.
    #[default]
    Pass,
    /// What is left is observed while the client waits, no longer than this.
    Observe(Duration),
    /// The oldest raw rounds are left out, with a note.
    Trim,
}

/// Whether a stream whose client left it open is asked for its usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AskUsage {
    /// Where the upstream is known to take the question.
    #[default]
    Auto,
    /// Not on the client's behalf.
    Never,
    /// Everywhere, until it is refused.
    Always,
}

/// How requests are treated. A reload replaces it; each request takes one look, when it is read.
#[derive(Debug, Default)]
pub struct Treatment {
    /// Who is who.
    pub owners: Owners,
    /// Where clients write what they call a conversation.
    pub sources: Sources,
    /// For which models memory is sent and never made.
    pub read_only: ReadOnly,
    /// Which requests have memory at all.
    pub rules: Rules,
    /// What is done for a request that does not fit its model, beyond what is free.
    pub overflow: Overflow,
    /// Which evidence lets a request be told what it does not hold.
    pub evidence: EvidenceLevel,
    /// Whether a stream whose client left it open is asked for its usage.
    pub ask_usage: AskUsage,
}

/// What memory requests share.
#[derive(Debug)]
pub struct Memory {
    /// `[memory] enabled`.
    pub enabled: bool,
    /// How requests are treated now.
    pub treats: InForce<Treatment>,
    /// What this process knows of the store.
    pub recall: Arc<Recall>,
    /// Where finished exchanges go.
    pub jobs: Jobs,
    /// What the upstream was found to accept.
    pub manners: Manners,
    /// Requests that are being observed while their clients wait.
    pub rescuing: Turns,
    /// Where the audit lines go, if anywhere.
    pub audit: Option<Audit>,
    /// Answers under way.
    pub unfinished: Arc<AtomicUsize>,
}

impl Memory {
    /// Memory for every request that carries a credential, by the defaults in everything else.
    pub fn new(recall: Arc<Recall>, jobs: Jobs, manners: Manners) -> Self {
        Self {
            enabled: true,
            treats: InForce::new(Treatment::default()),
            recall,
            jobs,
            manners,
            rescuing: Turns::default(),
            audit: None,
            unfinished: Arc::default(),
        }
    }

    /// Waits until every answer that has ended is handed over and memory has nothing left to do.
    /// `false` where `within` was not enough. See [`Jobs::quiet`].
    pub async fn quiet(&self, within: Duration) -> bool {
        let deadline = tokio::time::Instant::now() + within;
        while self.unfinished.load(Ordering::SeqCst) > 0 {
            if tokio::time::Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.jobs
            .quiet(deadline.saturating_duration_since(tokio::time::Instant::now()))
            .await
    }
}

/// Counts an answer that is under way.
#[derive(Debug)]
pub(super) struct Unfinished(Arc<AtomicUsize>);

impl Unfinished {
    pub(super) fn of(memory: &Memory) -> Self {
        memory.unfinished.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(&memory.unfinished))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What a request is, once it was read: its parsed body and its chain.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) identity: Identity,
    pub(super) parsed: Arc<Parsed>,
    /// The chain that memory knows it by.
    pub(super) history: Arc<History>,
    /// How its messages stand on that, where it is not its own chain.
    pub(super) seen: Option<Arc<Sighting>>,
    /// What was known of it when it came.
    pub(super) lookup: Lookup,
    pub(super) model: String,
    /// What its first leading system message is known by.
    pub(super) system: Option<Mark>,
    /// Whether anything may be remembered of it.
    pub(super) writes: bool,
    /// How it is treated, however the next one is.
    pub(super) treatment: Arc<Treatment>,
}

impl Asked {
    /// The message of the request that stands at `place` of the chain; `None` where it is not sent.
    pub(super) fn sent(&self, place: usize) -> Option<usize> {
        match &self.seen {
            None => Some(place),
            Some(seen) => seen.view.sent(place),
        }
    }

    /// Whether it may go out as `trim` leaves it.
    pub(super) fn fits(&self, trim: &Trim) -> bool {
        trim.fits(&self.history) && self.may_go(trim.to_count, trim.pin)
    }

    /// Whether the first `count` messages of the chain may be left out, as far as that depends on how
    /// this request holds them.
    pub(super) fn may_go(&self, count: usize, pin: Option<usize>) -> bool {
        let seen = self.seen.as_ref();
        seen.is_none_or(|seen| select::may_go(seen, count, pin))
    }

    /// Whether its conversation and the user's others may be told of each other.
    pub(super) fn shares(&self) -> bool {
        self.identity.shares() && !self.identity.thread.child
    }

    /// Whether it leaves open if its stream reports usage, and may be asked for it.
    pub(super) fn may_ask_usage(&self) -> bool {
        let open = self.parsed.stream() && self.parsed.usage_asked().is_none();
        open && self.treatment.ask_usage != AskUsage::Never
    }

    /// Who asks, and which model.
    pub(super) fn asker(&self) -> Asker<'_> {
        Asker {
            tenant: &self.identity.scope.tenant,
            model: &self.model,
        }
    }
}

impl Asked {
    /// As it is recorded, answered at once; `way` is the hash of the way it lent.
    pub(super) fn exchange(self, used: Used, way: Option<[u8; 32]>, at_ms: i64) -> Exchange {
        Exchange {
            zone: self.identity.zone(),
            shared: self.identity.shares(),
            scope: self.identity.scope,
            child: self.identity.thread.child,
            thread_key: self.identity.thread.key,
            parsed: self.parsed,
            history: self.history,
            seen: self.seen,
            origins: self.lookup.origins,
            system: self.system,
            answer: None,
            used,
            model: self.model,
            way,
            at_ms,
            answered_ms: at_ms,
        }
    }
}
