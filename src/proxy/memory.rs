//! What memory requests share, and what one of them is once it was read. Decides nothing; `remember`
//! and its phases work with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::capabilities::{TenantModel, UpstreamCapabilities};
use super::identify::{Identity, IdentityRules, Sources};
use super::mode::{ReadOnly, Rules};
use super::singleflight::Singleflight;
use crate::audit::Audit;
use crate::history::{History, ScopedHash};
use crate::jobs::{Exchange, Jobs, Reloadable};
use crate::memory::alignment::{Alignment, EvidenceLevel};
use crate::memory::{Trim, select};
use crate::store::SentWith;
use crate::store::cache::{Lookup, SnapshotCache};
use crate::wire::chat::ChatRequest;

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
#[derive(Clone, Debug, Default)]
pub struct RequestPolicy {
    /// Who is who.
    pub identity: IdentityRules,
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
    pub policy: Reloadable<RequestPolicy>,
    /// What this process knows of the store.
    pub cache: Arc<SnapshotCache>,
    /// Where finished exchanges go.
    pub jobs: Jobs,
    /// What the upstream was found to accept.
    pub capabilities: UpstreamCapabilities,
    /// Requests that are being observed while their clients wait.
    pub overflow_singleflight: Singleflight,
    /// Where the audit lines go, if anywhere.
    pub audit: Option<Audit>,
    /// Answers under way.
    pub pending_answers: Arc<AtomicUsize>,
}

impl Memory {
    /// Memory for every request that carries a credential, by the defaults in everything else.
    pub fn new(cache: Arc<SnapshotCache>, jobs: Jobs, capabilities: UpstreamCapabilities) -> Self {
        Self {
            enabled: true,
            policy: Reloadable::new(RequestPolicy::default()),
            cache,
            jobs,
            capabilities,
            overflow_singleflight: Singleflight::default(),
            audit: None,
            pending_answers: Arc::default(),
        }
    }

    /// Waits until every answer that has ended is handed over and memory has nothing left to do.
    /// `false` where `within` was not enough. See [`Jobs::quiet`].
    pub async fn wait_idle(&self, within: Duration) -> bool {
        let deadline = tokio::time::Instant::now() + within;
        while self.pending_answers.load(Ordering::SeqCst) > 0 {
            if tokio::time::Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.jobs
            .wait_until_idle(deadline.saturating_duration_since(tokio::time::Instant::now()))
            .await
    }
}

/// Counts an answer that is under way.
#[derive(Debug)]
pub(super) struct PendingAnswer(Arc<AtomicUsize>);

impl PendingAnswer {
    pub(super) fn new(memory: &Memory) -> Self {
        memory.pending_answers.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(&memory.pending_answers))
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What a request is, once it was read: its parsed body and its chain.
#[derive(Clone, Debug)]
pub(super) struct MemoryRequest {
    pub(super) identity: Identity,
    pub(super) parsed: Arc<ChatRequest>,
    /// The chain that memory knows it by.
    pub(super) history: Arc<History>,
    /// How its messages stand on that, where it is not its own chain.
    pub(super) alignment: Option<Arc<Alignment>>,
    /// What was known of it when it came.
    pub(super) lookup: Lookup,
    pub(super) model: String,
    /// What its first leading system message is known by.
    pub(super) system: Option<ScopedHash>,
    /// Whether anything may be remembered of it.
    pub(super) writes: bool,
    /// How it is treated, however the next one is.
    pub(super) policy: Arc<RequestPolicy>,
}

impl MemoryRequest {
    /// The message of the request that stands at `place` of the chain; `None` where it is not sent.
    pub(super) fn message_at(&self, place: usize) -> Option<usize> {
        match &self.alignment {
            None => Some(place),
            Some(alignment) => alignment.positions.request_index(place),
        }
    }

    /// Whether it may go out as `trim` leaves it.
    pub(super) fn allows_trim(&self, trim: &Trim) -> bool {
        trim.still_fits(&self.history) && self.can_omit(trim.to_count, trim.pin)
    }

    /// Whether the first `count` messages of the chain may be left out, as far as that depends on how
    /// this request holds them.
    pub(super) fn can_omit(&self, count: usize, pin: Option<usize>) -> bool {
        let alignment = self.alignment.as_ref();
        alignment.is_none_or(|alignment| select::can_omit(alignment, count, pin))
    }

    /// Whether its conversation and the user's others may be told of each other.
    pub(super) fn shares_memory(&self) -> bool {
        self.identity.shares_memory() && !self.identity.thread.child
    }

    /// Whether it leaves open if its stream reports usage, and may be asked for it.
    pub(super) fn may_ask_usage(&self) -> bool {
        let open = self.parsed.stream() && self.parsed.requested_usage().is_none();
        open && self.policy.ask_usage != AskUsage::Never
    }

    /// Who asks, and which model.
    pub(super) fn tenant_model(&self) -> TenantModel<'_> {
        TenantModel {
            tenant: &self.identity.scope.tenant,
            model: &self.model,
        }
    }
}

impl MemoryRequest {
    /// As it is recorded, answered at once; `way` is the hash of the way it lent.
    pub(super) fn into_exchange(
        self,
        sent_with: SentWith,
        route_hash: Option<[u8; 32]>,
        at_ms: i64,
    ) -> Exchange {
        Exchange {
            zone: self.identity.time_zone(),
            allows_peer_memory: self.identity.shares_memory(),
            scope: self.identity.scope,
            sub_agent: self.identity.thread.child,
            thread_key: self.identity.thread.key,
            parsed: self.parsed,
            history: self.history,
            alignment: self.alignment,
            origins: self.lookup.origins,
            system: self.system,
            answer: None,
            sent_with,
            model: self.model,
            route: route_hash,
            at_ms,
            answered_ms: at_ms,
        }
    }
}
