//! [`Memory`]: the state that all chat completions share. [`MemoryRequest`]: one that memory may change.
//!
//! Decides nothing; `chat_completions` and its phases work with both.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, HeaderValue};

use super::accepted_tenants::AcceptedTenants;
use super::capabilities::{CacheAddition, TenantModel, UpstreamCapabilities};
use super::holdout;
use super::identify::{self, Identity, IdentityRules, Sources, identify_owner};
use super::mode::{ReadOnly, Rules};
use super::parsed_prefixes::ParsedPrefixes;
use super::sent_prompts::SentPrompts;
use super::singleflight::Singleflight;
use crate::audit::Audit;
use crate::history::{HashPurpose, History, Pepper, Scope, ScopedHash};
use crate::jobs::{Exchange, Jobs, Reloadable};
use crate::lookup::{Lookup, SnapshotCache};
use crate::memory::alignment::{Alignment, EvidenceLevel};
use crate::memory::prompt_cache::CacheRulesOverride;
use crate::memory::{Trim, select};
use crate::store::{SentWith, Tombstones};
use crate::tasks::ComputePool;
use crate::wire;
use crate::wire::chat::ParsedPrefix;

static CACHE_KEY: HashPurpose = HashPurpose::new("diarist 2026-11 prompt cache key");

/// What happens if a request is too long for its model with everything observed applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// Nothing: the client gets the refusal.
    #[default]
    Pass,
    /// The rest is observed while the client waits, at most this long.
    Observe(Duration),
    /// The oldest raw rounds are left out, with a note.
    Trim,
}

/// Whether Diarist asks for usage in a stream whose client did not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AskUsage {
    /// If the upstream is known to accept the question.
    #[default]
    Auto,
    /// Never.
    Never,
    /// Always, until the upstream refuses it.
    Always,
}

/// Whether Diarist adds something beside a block for the provider's prompt cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddForCache {
    /// If the upstream documents it.
    #[default]
    Auto,
    /// Never.
    Never,
    /// Always, until the upstream refuses it.
    Always,
}

/// The header by which a provider routes a conversation to where its prompt is cached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SessionAffinity {
    /// The one that the upstream documents, if any.
    #[default]
    Documented,
    /// None.
    Never,
    /// This one.
    Header(HeaderName),
}

/// How requests are treated. A reload replaces it. Each request reads it once.
#[derive(Clone, Debug, Default)]
pub struct RequestPolicy {
    /// How tenants and users are told apart.
    pub identity: IdentityRules,
    /// Where clients write the name of a conversation.
    pub sources: Sources,
    /// The models for which memory is sent but not made.
    pub read_only: ReadOnly,
    /// Which requests have memory at all.
    pub rules: Rules,
    /// What happens if a request is too long for its model with everything observed applied.
    pub overflow: Overflow,
    /// The evidence that an aligned request needs to get memory of text it does not hold.
    pub evidence: EvidenceLevel,
    /// Whether Diarist asks for usage in a stream whose client did not say.
    pub ask_usage: AskUsage,
    /// Whether the block takes over a cache mark of the client, if the cut removes them.
    pub cache_marks: bool,
    /// Whether Diarist adds `prompt_cache_key` beside a block.
    pub add_cache_key: AddForCache,
    /// Whether the block has a breakpoint for the prompt cache, if the client set no mark.
    pub add_cache_breakpoint: AddForCache,
    /// Which header tells the provider's conversations apart.
    pub session_affinity: SessionAffinity,
    /// The share of conversations that go without memory.
    pub holdout: holdout::Share,
    /// What the operator says about the providers' prompt caches. The first one for a model counts.
    pub cache_rules: Vec<CacheRulesOverride>,
}

/// The state that all chat completions share.
#[derive(Debug)]
pub struct Memory {
    /// `[memory] enabled`.
    pub enabled: bool,
    /// How requests are treated now.
    pub policy: Reloadable<RequestPolicy>,
    /// The cache of the store.
    pub cache: Arc<SnapshotCache>,
    /// Tenants whose credential the upstream has accepted.
    pub accepted_tenants: AcceptedTenants,
    /// Where large bodies are parsed.
    pub parse_pool: ComputePool,
    /// What was read of the beginnings of bodies.
    pub parsed_prefixes: Arc<ParsedPrefixes>,
    /// What an operator had forgotten.
    pub tombstones: Tombstones,
    /// Where finished exchanges go.
    pub jobs: Jobs,
    /// What was learned about the upstream.
    pub capabilities: UpstreamCapabilities,
    /// Requests that are observed while their clients wait.
    pub overflow_singleflight: Singleflight,
    /// The newest prompt of each conversation, as it was sent.
    pub sent_prompts: Arc<SentPrompts>,
    /// Where the audit entries go, if anywhere.
    pub audit: Option<Audit>,
    /// The number of answers that have not ended.
    pub pending_answers: Arc<AtomicUsize>,
}

impl Memory {
    /// The pepper of the database. It is the same for as long as the process runs.
    pub(super) fn pepper(&self) -> Pepper {
        self.policy.current().identity.pepper
    }

    /// Memory for every request with a credential; everything else has its default.
    pub fn new(cache: Arc<SnapshotCache>, jobs: Jobs, capabilities: UpstreamCapabilities) -> Self {
        Self {
            enabled: true,
            policy: Reloadable::new(RequestPolicy::default()),
            cache,
            accepted_tenants: AcceptedTenants::default(),
            parse_pool: ComputePool::default(),
            parsed_prefixes: Arc::default(),
            tombstones: Tombstones::default(),
            jobs,
            capabilities,
            overflow_singleflight: Singleflight::default(),
            sent_prompts: Arc::new(SentPrompts::new("")),
            audit: None,
            pending_answers: Arc::default(),
        }
    }

    /// Whose request this is; `None` if that is not known.
    pub(super) fn owner(&self, parts: &Parts) -> Option<Scope> {
        let policy = self.policy.current();
        let owner = identify_owner(&parts.headers, parts.uri.query(), &policy.identity);
        owner.ok().map(|owner| owner.scope)
    }

    /// The hash of all credentials of the request. It is cheap, since no token is verified; so it does not say which tenant
    /// sends it.
    pub(super) fn credential_hash(&self, parts: &Parts) -> [u8; 32] {
        let policy = self.policy.current();
        identify::hash_credentials(&parts.headers, parts.uri.query(), &policy.identity)
    }

    /// Whether the tenant is known, or its account may begin one more in this hour.
    pub(super) fn has_room_for_tenant(&self, identity: &Identity, policy: &RequestPolicy) -> bool {
        let limit = policy.identity.new_tenants_per_hour;
        let accounts = self.jobs.accounts();
        accounts.has_room(identity.tenant_account(), limit, self.jobs.now_ms())
    }

    /// The same, and counts the tenant: its request was accepted.
    pub(super) fn join_account(&self, identity: &Identity, policy: &RequestPolicy) -> bool {
        let limit = policy.identity.new_tenants_per_hour;
        let accounts = self.jobs.accounts();
        accounts.join(identity.tenant_account(), limit, self.jobs.now_ms())
    }

    /// Waits until every exchange that has ended is recorded and memory has nothing left to do. `false` if that
    /// takes longer than `within`. See [`Jobs::wait_until_idle`].
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

/// Counts one answer until it has ended.
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

/// A request that was read: its parsed body, its chain, and what is known of its conversation.
#[derive(Clone, Debug)]
pub(super) struct MemoryRequest {
    pub(super) identity: Identity,
    pub(super) parsed: Arc<wire::Request>,
    /// The chain that memory knows it by. For an aligned request, that is not its own.
    pub(super) history: Arc<History>,
    /// How its messages stand on that chain; `None` if the chain is its own.
    pub(super) alignment: Option<Arc<Alignment>>,
    /// What was known of it when it came.
    pub(super) lookup: Lookup,
    pub(super) model: String,
    /// The hash of its first leading system message.
    pub(super) system: Option<ScopedHash>,
    /// Whether anything of it may be recorded.
    pub(super) writes: bool,
    /// Whether its conversation goes without memory, for comparison.
    pub(super) held_out: bool,
    /// The header that tells the provider which conversation it is, if the client leaves that open.
    pub(super) affinity_header: Option<HeaderName>,
    /// The policy at the moment it was read.
    pub(super) policy: Arc<RequestPolicy>,
}

impl MemoryRequest {
    /// The index of the message that stands at `place` of the chain. `None` if the request does not hold it.
    pub(super) fn message_at(&self, place: usize) -> Option<usize> {
        match &self.alignment {
            None => Some(place),
            Some(alignment) => alignment.positions.request_index(place),
        }
    }

    /// What was read of the first `most` bytes of its body.
    pub(super) fn prefix(&self, most: usize) -> Option<ParsedPrefix> {
        let aligned = self.alignment.as_ref();
        let history = aligned.map_or(&self.history, |alignment| &alignment.client);
        Some(self.parsed.prefix(most)?.with_chain_of(history))
    }

    /// Whether it may be sent with `trim`.
    pub(super) fn allows_trim(&self, trim: &Trim) -> bool {
        trim.still_fits(&self.history) && self.can_omit(trim.to_count, trim.pin)
    }

    /// Whether the first `count` messages of the chain may be left out, as far as that depends on the alignment.
    pub(super) fn can_omit(&self, count: usize, pin: Option<usize>) -> bool {
        let alignment = self.alignment.as_ref();
        alignment.is_none_or(|alignment| select::can_omit(alignment, count, pin))
    }

    /// Whether its conversation and the user's other ones may share memory.
    pub(super) fn shares_memory(&self) -> bool {
        self.identity.shares_memory() && !self.identity.thread.child
    }

    /// Whether its stream may be asked for usage: the client did not say, and the operator allows it.
    pub(super) fn may_ask_usage(&self) -> bool {
        let open = self.parsed.stream() && self.parsed.requested_usage().is_none();
        open && self.policy.ask_usage != AskUsage::Never
    }

    /// When Diarist gives it `addition`.
    pub(super) fn add_for_cache(&self, addition: CacheAddition) -> AddForCache {
        match addition {
            CacheAddition::Key => self.policy.add_cache_key,
            CacheAddition::Breakpoint => self.policy.add_cache_breakpoint,
        }
    }

    /// Whether Diarist may give it `addition`: the client leaves it open, and the operator allows it.
    pub(super) fn may_add(&self, addition: CacheAddition) -> bool {
        let takes = match addition {
            CacheAddition::Key => self.parsed.takes_cache_key(),
            CacheAddition::Breakpoint => self.parsed.takes_cache_breakpoint(),
        };
        takes && self.add_for_cache(addition) != AddForCache::Never
    }

    /// The id of its conversation for the provider, in `prompt_cache_key` and the header: the same for ever (INV-SAME), and nobody can tell the name, the
    /// credential or the text from it. Conversations that begin alike have different ones if their names differ.
    pub(super) fn cache_key(&self) -> String {
        let pepper = &self.policy.identity.pepper;
        let mut hasher = pepper.hasher(&CACHE_KEY);
        let first = self.history.messages().first().map(|chained| chained.link);
        hasher.update(first.unwrap_or_else(|| self.history.root()).as_bytes());
        // Also a name that too many conversations have: by then, some requests have gone out with it.
        hasher.update(
            self.identity
                .thread
                .sent_key()
                .unwrap_or_default()
                .as_bytes(),
        );
        format!("diarist-{}", &hasher.finalize().to_hex()[..32])
    }

    /// The header that tells the provider which conversation it is.
    pub(super) fn affinity(&self) -> Option<(HeaderName, HeaderValue)> {
        let header = self.affinity_header.clone()?;
        Some((header, HeaderValue::from_str(&self.cache_key()).ok()?))
    }

    /// Its tenant and model.
    pub(super) fn tenant_model(&self) -> TenantModel<'_> {
        TenantModel {
            tenant: &self.identity.scope.tenant,
            account: &self.identity.account,
            model: &self.model,
        }
    }
}

impl MemoryRequest {
    /// The exchange to record, with no answer yet. `route_hash` is the hash of the route that jobs may borrow.
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
            account: self.identity.account,
            sub_agent: self.identity.thread.child,
            held_out: self.held_out,
            thread_key: self.identity.thread.key,
            parsed: self.parsed,
            history: self.history,
            alignment: self.alignment,
            origins: self.lookup.origins,
            system: self.system,
            answer: None,
            answers_in_progress: None,
            sent_with,
            model: self.model,
            growth: None,
            route: route_hash,
            at_ms,
            answered_ms: at_ms,
        }
    }
}
