//! What the upstream accepts: where the block may stand, whether it may be asked for usage, which blocks its
//! content filter refuses, and which tenants sign their requests.
//!
//! Learned from answers, kept in memory and lost with the process: learning it again costs one extra request.
//! One process has one upstream, so model and tenant are the key. If two accounts have learned the same about a
//! model, it holds for all ([`model_capabilities`]). Decides nothing about a single request.

mod blocked_snapshots;
mod cache_addition;
mod model_capabilities;
mod refusal_ttl;

use self::model_capabilities::{Member, TenantHash};
use self::refusal_ttl::is_fresh;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use self::blocked_snapshots::BlockedSnapshots;
pub use self::cache_addition::CacheAddition;
use self::cache_addition::CacheAdditions;
use self::model_capabilities::{CapabilitiesByTenant, ModelCapabilities};
use crate::memory::SnapshotId;
use crate::memory::policy::{documents_cache_breakpoint, documents_cache_key};
use crate::wire::Placement;

/// Models remembered. Clients choose the names, so there must be a bound. The least recently used goes first.
const MAX_MODELS: usize = 1_024;

/// Tenants remembered as signing. The one that was learned first goes first.
const MAX_SIGNING_TENANTS: usize = 1_024;

/// Hosts that document `stream_options.include_usage` for chat completions.
const USAGE_REPORTING_HOSTS: [&str; 8] = [
    "api.openai.com",
    "api.deepseek.com",
    "api.groq.com",
    "api.x.ai",
    "api.together.xyz",
    "api.fireworks.ai",
    "api.mistral.ai",
    "generativelanguage.googleapis.com",
];

/// Hosts that document that every stream has its usage, and that the question for it has no effect.
const ALWAYS_REPORTING_HOSTS: [&str; 1] = ["openrouter.ai"];

/// From the highest that may be configured to the one that every upstream accepts.
const PLACEMENTS: [Placement; 3] = [
    Placement::Segments,
    Placement::SystemMessage,
    Placement::AppendToSystem,
];

/// The placement below `refused`, for a block whose placement is `configured`. `None` if none is left.
pub(super) fn lower_placement(configured: Placement, refused: Placement) -> Option<Placement> {
    placement_after(configured, placement_index(refused)? + 1)
}

/// `configured`, or a lower placement if the first `steps` are refused.
fn placement_after(configured: Placement, steps: usize) -> Option<Placement> {
    PLACEMENTS
        .get(placement_index(configured)?.max(steps))
        .copied()
}

fn placement_index(placement: Placement) -> Option<usize> {
    PLACEMENTS.iter().position(|listed| *listed == placement)
}

/// A tenant, and the model that it asks.
#[derive(Clone, Copy, Debug)]
pub struct TenantModel<'a> {
    pub tenant: &'a TenantHash,
    pub account: &'a TenantHash,
    pub model: &'a str,
}

impl<'a> TenantModel<'a> {
    fn member(self) -> Member<'a> {
        Member {
            tenant: self.tenant,
            account: self.account,
        }
    }
}

/// What is known of one model.
#[derive(Debug, Default)]
struct ModelEntry {
    by_tenant: CapabilitiesByTenant,
    /// Whether the model reported usage, in a stream that Diarist had asked for it.
    reports_usage: bool,
    /// What of Diarist's it accepted for its prompt cache.
    accepted_additions: CacheAdditions,
    /// The number of the lookup that used the entry last.
    last_lookup: u64,
}

#[derive(Debug, Default)]
struct CapabilityState {
    /// The configured placement; `None` is `off`.
    configured_placement: Option<Placement>,
    models: HashMap<String, ModelEntry>,
    lookups: u64,
    /// Whether the upstream's host documents the question for usage.
    documents_usage: bool,
    /// The upstream's host.
    host: String,
    blocked_snapshots: BlockedSnapshots,
    /// Tenants whose requests are signed, as refusals have shown, and since when.
    signing: HashMap<TenantHash, Instant>,
}

impl CapabilityState {
    /// The entry of `model`, if there is one.
    fn find_model(&mut self, model: &str) -> Option<&mut ModelEntry> {
        self.lookups += 1;
        let entry = self.models.get_mut(model)?;
        entry.last_lookup = self.lookups;
        Some(entry)
    }

    /// What was learned about the model and holds for this tenant.
    fn capabilities(&mut self, tenant_model: TenantModel<'_>) -> ModelCapabilities {
        let entry = self.find_model(tenant_model.model);
        entry.map_or_else(ModelCapabilities::default, |entry| {
            entry.by_tenant.for_tenant(tenant_model.tenant)
        })
    }

    /// The entry of `model`, made if there is none.
    fn ensure_model(&mut self, model: &str) -> &mut ModelEntry {
        if self.models.len() >= MAX_MODELS && !self.models.contains_key(model) {
            let oldest = self
                .models
                .iter()
                .min_by_key(|(_, entry)| entry.last_lookup);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                self.models.remove(&oldest);
            }
        }
        self.lookups += 1;
        let entry = self.models.entry(model.to_owned()).or_default();
        entry.last_lookup = self.lookups;
        entry
    }
}

/// What was learned about the upstream.
#[derive(Debug)]
pub struct UpstreamCapabilities {
    state: Mutex<CapabilityState>,
}

impl UpstreamCapabilities {
    /// Starts from the configured placement (`None` is `off`) and the upstream's host.
    pub fn new(configured: Option<Placement>, host: &str) -> Self {
        Self {
            state: Mutex::new(CapabilityState {
                configured_placement: configured,
                documents_usage: USAGE_REPORTING_HOSTS.contains(&host),
                host: host.to_owned(),
                ..CapabilityState::default()
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, CapabilityState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reload has configured another placement.
    pub fn set_placement(&self, configured: Option<Placement>) {
        self.lock().configured_placement = configured;
    }

    /// Where a new block stands for this tenant and model. `None` if no placement is left.
    pub fn placement(&self, tenant_model: TenantModel<'_>) -> Option<Placement> {
        let first = self.lock().configured_placement?;
        self.allowed_placement(tenant_model, first)
    }

    /// Where the block of a snapshot stands for this tenant and model. `configured` is the placement that was
    /// configured when the snapshot was made ([`crate::memory::SnapshotMeta::placement`]).
    pub fn placement_for(
        &self,
        tenant_model: TenantModel<'_>,
        configured: &str,
    ) -> Option<Placement> {
        match configured {
            "" => self.placement(tenant_model),
            name => self.allowed_placement(tenant_model, Placement::from_name(name)?),
        }
    }

    fn allowed_placement(
        &self,
        tenant_model: TenantModel<'_>,
        configured: Placement,
    ) -> Option<Placement> {
        let refused = self.lock().capabilities(tenant_model).refused_placements;
        placement_after(configured, refused.map_or(0, |(steps, _)| steps))
    }

    /// A request was refused with the block at `placement`, and accepted without the block or with the block
    /// elsewhere; `named` if the refusal names the placement.
    pub fn record_refused_placement(
        &self,
        tenant_model: TenantModel<'_>,
        placement: Placement,
        named: bool,
    ) {
        let Some(at) = placement_index(placement) else {
            return;
        };
        let mut state = self.lock();
        let by_tenant = &mut state.ensure_model(tenant_model.model).by_tenant;
        let refused = (at + 1, named);
        by_tenant.record_refused_placements(tenant_model.member(), refused, Instant::now());
    }

    /// A changed request was refused without a reason, and the original was accepted. Returns whether something is
    /// learned from it: from the second one in a row on.
    pub fn record_unexplained_refusal(&self, tenant_model: TenantModel<'_>) -> bool {
        let mut state = self.lock();
        state
            .ensure_model(tenant_model.model)
            .by_tenant
            .record_unexplained_refusal(tenant_model.member())
    }

    /// A changed request was accepted.
    pub fn record_accepted_change(&self, tenant_model: TenantModel<'_>) {
        if let Some(entry) = self.lock().find_model(tenant_model.model) {
            entry.by_tenant.record_accepted_change(tenant_model.tenant);
        }
    }

    /// A changed request of `tenant` was refused for its credential, and the original was accepted: so the
    /// credential signs the request.
    pub fn record_signing(&self, tenant: &TenantHash) {
        let mut state = self.lock();
        if state.signing.len() >= MAX_SIGNING_TENANTS && !state.signing.contains_key(tenant) {
            let oldest = state.signing.iter().min_by_key(|(_, at)| **at);
            if let Some(oldest) = oldest.map(|(tenant, _)| *tenant) {
                state.signing.remove(&oldest);
            }
        }
        state.signing.insert(*tenant, Instant::now());
    }

    /// Whether requests of `tenant` must not be changed, because they are signed.
    pub fn is_signing(&self, tenant: &TenantHash) -> bool {
        self.lock().signing.contains_key(tenant)
    }

    /// A content filter of `model` refused a request with the text of `snapshot`, and accepted it without.
    pub fn record_filtered_snapshot(&self, model: &str, snapshot: SnapshotId) {
        let now = Instant::now();
        self.lock()
            .blocked_snapshots
            .record_refused(model, snapshot, now);
    }

    /// `model` accepted a request with the text of `snapshot`.
    pub fn record_accepted_snapshot(&self, model: &str, snapshot: SnapshotId) {
        self.lock()
            .blocked_snapshots
            .record_accepted(model, snapshot);
    }

    /// Whether requests for `model` go out without `snapshot`: its text was refused twice in a row.
    pub fn is_blocked(&self, model: &str, snapshot: SnapshotId) -> bool {
        self.lock().blocked_snapshots.is_blocked(model, snapshot)
    }

    /// Forgets refusals that are older than an hour at `now`. A task of `app` calls this regularly, because no
    /// request may decide by a clock (INV-FREE).
    pub fn expire(&self, now: Instant) {
        let mut state = self.lock();
        state.blocked_snapshots.expire(now);
        state.signing.retain(|_, at| is_fresh(*at, now));
        for entry in state.models.values_mut() {
            entry.by_tenant.expire(now);
        }
    }

    /// Whether Diarist may ask for usage in a stream of this tenant and model: the upstream is known to accept
    /// that and has not refused it, or the operator `always` wants it. Not where the client gets it anyway: what Diarist
    /// asks for, it also removes.
    pub fn may_ask_usage(&self, tenant_model: TenantModel<'_>, always: bool) -> bool {
        let mut state = self.lock();
        if ALWAYS_REPORTING_HOSTS.contains(&state.host.as_str()) {
            return false;
        }
        let usage = state.capabilities(tenant_model).accepts_usage;
        always || usage.unwrap_or(state.documents_usage)
    }

    /// Whether the upstream refused Diarist's question for usage.
    pub fn refuses_usage(&self, tenant_model: TenantModel<'_>) -> bool {
        self.lock().capabilities(tenant_model).accepts_usage == Some(false)
    }

    /// `model` reported usage in a stream that Diarist had asked for it.
    pub fn record_usage_reported(&self, model: &str) {
        self.lock().ensure_model(model).reports_usage = true;
    }

    /// Whether `model` ever reported usage in a stream. If so, a refusal without a reason is not about the question for it.
    pub fn reports_usage(&self, model: &str) -> bool {
        let mut state = self.lock();
        state
            .find_model(model)
            .is_some_and(|entry| entry.reports_usage)
    }

    /// Whether the upstream documents `addition` for `model`.
    pub fn documents(&self, addition: CacheAddition, model: &str) -> bool {
        let host = &self.lock().host;
        match addition {
            CacheAddition::Key => documents_cache_key(host),
            CacheAddition::Breakpoint => documents_cache_breakpoint(host, model),
        }
    }

    /// Whether the upstream refused `addition`.
    pub fn refuses(&self, addition: CacheAddition, tenant_model: TenantModel<'_>) -> bool {
        let capabilities = self.lock().capabilities(tenant_model);
        capabilities.refused_additions.has(addition)
    }

    /// The upstream refused `addition`. It is not added any more.
    pub fn record_addition_refused(&self, addition: CacheAddition, tenant_model: TenantModel<'_>) {
        let mut state = self.lock();
        let by_tenant = &mut state.ensure_model(tenant_model.model).by_tenant;
        by_tenant.record_addition_refused(addition, tenant_model.member());
    }

    /// `model` accepted a request with `addition`.
    pub fn record_addition_accepted(&self, addition: CacheAddition, model: &str) {
        let mut state = self.lock();
        state
            .ensure_model(model)
            .accepted_additions
            .insert(addition);
    }

    /// Whether `model` ever accepted `addition`. If so, a refusal without a reason is not about it.
    pub fn accepts(&self, addition: CacheAddition, model: &str) -> bool {
        let mut state = self.lock();
        state
            .find_model(model)
            .is_some_and(|entry| entry.accepted_additions.has(addition))
    }

    /// The client itself asked for usage, and the upstream reported it.
    pub fn record_usage_accepted(&self, tenant_model: TenantModel<'_>) {
        let mut state = self.lock();
        let by_tenant = &mut state.ensure_model(tenant_model.model).by_tenant;
        by_tenant.record_usage(tenant_model.member(), true);
    }

    /// The upstream refused Diarist's question for usage, or compressed the stream in which it was to report usage.
    /// This tenant's streams of this model do not ask any more.
    pub fn record_usage_refused(&self, tenant_model: TenantModel<'_>) {
        let mut state = self.lock();
        let by_tenant = &mut state.ensure_model(tenant_model.model).by_tenant;
        by_tenant.record_usage(tenant_model.member(), false);
    }
}

#[cfg(test)]
mod tests;
