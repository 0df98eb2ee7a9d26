//! What an upstream was found to accept: where the block may stand, whether usage may be asked, which
//! blocks its content filter refuses, and whose requests are signed.
//!
//! Learned from answers, kept in memory, forgotten with the process: what it costs to learn again is
//! one extra request. One process has one upstream, so model and tenant are the key; what two tenants
//! have learned of a model holds for all ([`lessons`]).

mod blocked_snapshots;
mod model_capabilities;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::blocked_snapshots::BlockedSnapshots;
use self::model_capabilities::{CapabilitiesByTenant, ModelCapabilities};
use crate::memory::SnapshotId;
use crate::wire::Placement;

/// How long a refused placement or block, or a change of what is signed, is not tried again. Long enough that the extra request does not
/// matter, short enough that an upgraded upstream is found out the same day.
const REFUSAL_TTL: Duration = Duration::from_hours(1);

/// Models remembered; clients choose the names, so there must be a bound. The one that was not asked
/// for the longest goes first.
const MAX_MODELS: usize = 1_024;

/// Tenants remembered that sign their requests. The one that was learned of first goes first.
const MAX_SIGNING_TENANTS: usize = 1_024;

/// Hosts that document `stream_options.include_usage` for chat completions.
const USAGE_REPORTING_HOSTS: [&str; 9] = [
    "api.openai.com",
    "openrouter.ai",
    "api.deepseek.com",
    "api.groq.com",
    "api.x.ai",
    "api.together.xyz",
    "api.fireworks.ai",
    "api.mistral.ai",
    "generativelanguage.googleapis.com",
];

/// From the first that may be configured to the one that every upstream takes.
const PLACEMENTS: [Placement; 3] = [
    Placement::Segments,
    Placement::SystemMessage,
    Placement::AppendToSystem,
];

/// Where a block stands that was to stand at `first`, once `refused` and what comes before it are
/// refused; `None` where nothing is left.
pub(super) fn lower_placement(configured: Placement, refused: Placement) -> Option<Placement> {
    placement_after(configured, placement_index(refused)? + 1)
}

/// `first`, or what is left of the ladder after so many steps.
fn placement_after(configured: Placement, steps: usize) -> Option<Placement> {
    PLACEMENTS
        .get(placement_index(configured)?.max(steps))
        .copied()
}

fn placement_index(placement: Placement) -> Option<usize> {
    PLACEMENTS.iter().position(|listed| *listed == placement)
}

/// Whose credential, hashed.
pub(super) type TenantHash = [u8; 32];

/// Who asks, and which model.
#[derive(Clone, Copy, Debug)]
pub struct TenantModel<'a> {
    pub tenant: &'a TenantHash,
    pub model: &'a str,
}

/// What is known of one model.
#[derive(Debug, Default)]
struct ModelEntry {
    by_tenant: CapabilitiesByTenant,
    /// It answered a stream that was asked for its usage on the client's behalf.
    reports_usage: bool,
    /// When it was last looked at, in looks.
    last_lookup: u64,
}

#[derive(Debug, Default)]
struct CapabilityState {
    /// What is configured now; `None` is `off`.
    configured_placement: Option<Placement>,
    models: HashMap<String, ModelEntry>,
    lookups: u64,
    /// The upstream's host documents the question for usage.
    documents_usage: bool,
    blocked_snapshots: BlockedSnapshots,
    /// Who signs its requests, as far as refusals tell, and since when.
    signing: HashMap<TenantHash, Instant>,
}

impl CapabilityState {
    /// What is known of `model`, if anything.
    fn find_model(&mut self, model: &str) -> Option<&mut ModelEntry> {
        self.lookups += 1;
        let entry = self.models.get_mut(model)?;
        entry.last_lookup = self.lookups;
        Some(entry)
    }

    /// What was learned of `asker`'s model, as far as it holds for its tenant.
    fn capabilities(&mut self, tenant_model: TenantModel<'_>) -> ModelCapabilities {
        let entry = self.find_model(tenant_model.model);
        entry.map_or_else(ModelCapabilities::default, |entry| {
            entry.by_tenant.for_tenant(tenant_model.tenant)
        })
    }

    /// The same, with room made for what is to be learned.
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

/// What is known of the upstream.
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
                ..CapabilityState::default()
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, CapabilityState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another placement is configured now.
    pub fn set_placement(&self, configured: Option<Placement>) {
        self.lock().configured_placement = configured;
    }

    /// Where a block that is made now stands for `asker`; `None` where no placement is left.
    pub fn placement(&self, tenant_model: TenantModel<'_>) -> Option<Placement> {
        let first = self.lock().configured_placement?;
        self.allowed_placement(tenant_model, first)
    }

    /// Where the block of a snapshot stands for `asker`, which was made when `own` was configured
    /// ([`crate::memory::SnapshotMeta::placement`]).
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

    /// A request of `asker` was refused with the block at `placement` and accepted without, or with the
    /// block elsewhere.
    pub fn record_refused_placement(&self, tenant_model: TenantModel<'_>, placement: Placement) {
        let Some(at) = placement_index(placement) else {
            return;
        };
        let mut state = self.lock();
        let by_tenant = &mut state.ensure_model(tenant_model.model).by_tenant;
        by_tenant.record_refused_placements(tenant_model.tenant, at + 1, Instant::now());
    }

    /// A changed request of `asker` was refused without a reason, and the original was accepted. Whether
    /// that is enough to learn from: it is from the second in a row on.
    pub fn record_unexplained_refusal(&self, tenant_model: TenantModel<'_>) -> bool {
        let mut state = self.lock();
        state
            .ensure_model(tenant_model.model)
            .by_tenant
            .record_unexplained_refusal(tenant_model.tenant)
    }

    /// A changed request of `asker` was accepted.
    pub fn record_accepted_change(&self, tenant_model: TenantModel<'_>) {
        if let Some(entry) = self.lock().find_model(tenant_model.model) {
            entry.by_tenant.record_accepted_change(tenant_model.tenant);
        }
    }

    /// A changed request of `tenant` was refused for its credential, and the original was accepted: the
    /// credential signs what is sent.
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

    /// Whether requests of `tenant` go out as they came, since they are signed.
    pub fn is_signing(&self, tenant: &TenantHash) -> bool {
        self.lock().signing.contains_key(tenant)
    }

    /// A content filter of `model` refused a request with the words of `snapshot`, and the client's own
    /// were accepted.
    pub fn record_filtered_snapshot(&self, model: &str, snapshot: SnapshotId) {
        let now = Instant::now();
        self.lock()
            .blocked_snapshots
            .record_refused(model, snapshot, now);
    }

    /// `model` accepted a request with the words of `snapshot`.
    pub fn record_accepted_snapshot(&self, model: &str, snapshot: SnapshotId) {
        self.lock()
            .blocked_snapshots
            .record_accepted(model, snapshot);
    }

    /// Whether requests for `model` go out without `snapshot`, since its words were refused twice in a row.
    pub fn is_blocked(&self, model: &str, snapshot: SnapshotId) -> bool {
        self.lock().blocked_snapshots.is_blocked(model, snapshot)
    }

    /// Forgets refusals that are old enough at `now` to be tried again. Called from time to time by
    /// a task of `app`, since no request may decide by the clock (INV-FREE).
    pub fn expire(&self, now: Instant) {
        let mut state = self.lock();
        state.blocked_snapshots.expire(now);
        state.signing.retain(|_, at| is_fresh(*at, now));
        for entry in state.models.values_mut() {
            entry.by_tenant.expire(now);
        }
    }

    /// Whether a stream of `asker` may be asked for its usage on its behalf: the upstream is known to
    /// take that, and has not refused it.
    pub fn may_ask_usage(&self, tenant_model: TenantModel<'_>) -> bool {
        let mut state = self.lock();
        let usage = state.capabilities(tenant_model).accepts_usage;
        usage.unwrap_or(state.documents_usage)
    }

    /// Whether our own question was refused.
    pub fn refuses_usage(&self, tenant_model: TenantModel<'_>) -> bool {
        self.lock().capabilities(tenant_model).accepts_usage == Some(false)
    }

    /// `model` answered a stream that was asked for its usage on the client's behalf.
    pub fn record_usage_reported(&self, model: &str) {
        self.lock().ensure_model(model).reports_usage = true;
    }

    /// Whether it did: then a refusal that names no reason is not about that question.
    pub fn reports_usage(&self, model: &str) -> bool {
        let mut state = self.lock();
        state
            .find_model(model)
            .is_some_and(|entry| entry.reports_usage)
    }

    /// `asker`'s client asked for usage itself and was answered.
    pub fn record_usage_accepted(&self, tenant_model: TenantModel<'_>) {
        let mut state = self.lock();
        let by_tenant = &mut state.ensure_model(tenant_model.model).by_tenant;
        by_tenant.record_usage(tenant_model.tenant, true);
    }

    /// Our own question was refused: never again.
    pub fn record_usage_refused(&self, tenant_model: TenantModel<'_>) {
        let mut state = self.lock();
        let by_tenant = &mut state.ensure_model(tenant_model.model).by_tenant;
        by_tenant.record_usage(tenant_model.tenant, false);
    }
}

/// Whether what was learned `at` that moment still holds.
fn is_fresh(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < REFUSAL_TTL
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everybody here is one tenant: what two of them agree on is tested with the lessons.
    fn for_model(model: &str) -> TenantModel<'_> {
        TenantModel {
            tenant: &[7; 32],
            model,
        }
    }

    #[test]
    fn steps_down_one_placement_at_a_time_for_one_model() {
        let capabilities = UpstreamCapabilities::new(Some(Placement::SystemMessage), "localhost");
        assert_eq!(
            capabilities.placement(for_model("a")),
            Some(Placement::SystemMessage)
        );
        capabilities.record_refused_placement(for_model("a"), Placement::SystemMessage);
        assert_eq!(
            capabilities.placement(for_model("a")),
            Some(Placement::AppendToSystem)
        );
        assert_eq!(
            capabilities.placement(for_model("b")),
            Some(Placement::SystemMessage)
        );
        capabilities.record_refused_placement(for_model("a"), Placement::AppendToSystem);
        assert_eq!(capabilities.placement(for_model("a")), None);
    }

    #[test]
    fn a_refusal_is_forgiven_after_an_hour() {
        let capabilities = UpstreamCapabilities::new(Some(Placement::SystemMessage), "localhost");
        capabilities.record_refused_placement(for_model("a"), Placement::SystemMessage);
        capabilities.expire(Instant::now() + REFUSAL_TTL / 2);
        assert_eq!(
            capabilities.placement(for_model("a")),
            Some(Placement::AppendToSystem)
        );
        capabilities.expire(Instant::now() + REFUSAL_TTL * 2);
        assert_eq!(
            capabilities.placement(for_model("a")),
            Some(Placement::SystemMessage)
        );
    }

    #[test]
    fn a_snapshot_stands_where_it_was_made_to_stand_unless_that_is_refused() {
        let capabilities = UpstreamCapabilities::new(Some(Placement::SystemMessage), "localhost");
        capabilities.set_placement(Some(Placement::Segments));
        assert_eq!(
            capabilities.placement(for_model("a")),
            Some(Placement::Segments)
        );
        let placement = |configured| capabilities.placement_for(for_model("a"), configured);
        assert_eq!(placement("system_message"), Some(Placement::SystemMessage));
        assert_eq!(
            placement("append_to_system"),
            Some(Placement::AppendToSystem)
        );
        assert_eq!(placement("off"), None);
        assert_eq!(placement(""), Some(Placement::Segments));
        capabilities.record_refused_placement(for_model("a"), Placement::SystemMessage);
        for configured in ["segments", "system_message", "append_to_system", ""] {
            assert_eq!(
                capabilities.placement_for(for_model("a"), configured),
                Some(Placement::AppendToSystem)
            );
            assert_ne!(
                capabilities.placement_for(for_model("a"), configured),
                capabilities.placement_for(for_model("b"), "segments")
            );
        }
    }

    #[test]
    fn the_model_that_was_not_asked_for_the_longest_is_forgotten() {
        let capabilities = UpstreamCapabilities::new(Some(Placement::SystemMessage), "localhost");
        for number in 0..MAX_MODELS {
            capabilities.record_refused_placement(
                for_model(&format!("m{number}")),
                Placement::SystemMessage,
            );
        }
        // Looked at again, so the second is the oldest now.
        capabilities.placement(for_model("m0"));
        capabilities.record_refused_placement(for_model("one more"), Placement::SystemMessage);
        let stepped_down =
            |name: &str| capabilities.placement(for_model(name)) == Some(Placement::AppendToSystem);
        assert!(stepped_down("m0") && stepped_down("one more") && stepped_down("m2"));
        assert!(!stepped_down("m1"));
        assert_eq!(capabilities.lock().models.len(), MAX_MODELS);
    }

    #[test]
    fn off_stays_off() {
        assert_eq!(
            UpstreamCapabilities::new(None, "localhost").placement(for_model("a")),
            None
        );
    }

    #[test]
    fn usage_is_asked_where_known_or_seen_accepted_and_never_after_a_refusal() {
        assert!(UpstreamCapabilities::new(None, "api.openai.com").may_ask_usage(for_model("a")));
        let capabilities = UpstreamCapabilities::new(None, "localhost");
        assert!(!capabilities.may_ask_usage(for_model("a")));
        capabilities.record_usage_accepted(for_model("a"));
        assert!(capabilities.may_ask_usage(for_model("a")));
        capabilities.record_usage_refused(for_model("a"));
        capabilities.record_usage_accepted(for_model("a"));
        assert!(!capabilities.may_ask_usage(for_model("a")));
    }

    #[test]
    fn whoever_signs_is_known_for_an_hour_and_no_more_of_them_than_fit() {
        let capabilities = UpstreamCapabilities::new(None, "localhost");
        let tenant = |number: usize| {
            let mut tenant = [0; 32];
            tenant[..8].copy_from_slice(&number.to_le_bytes());
            tenant
        };
        for number in 0..=MAX_SIGNING_TENANTS {
            capabilities.record_signing(&tenant(number));
        }
        assert_eq!(capabilities.lock().signing.len(), MAX_SIGNING_TENANTS);
        assert!(
            capabilities.is_signing(&tenant(MAX_SIGNING_TENANTS))
                && !capabilities.is_signing(&[9; 32])
        );
        capabilities.expire(Instant::now() + REFUSAL_TTL / 2);
        assert!(capabilities.is_signing(&tenant(MAX_SIGNING_TENANTS)));
        capabilities.expire(Instant::now() + REFUSAL_TTL * 2);
        assert!(!capabilities.is_signing(&tenant(MAX_SIGNING_TENANTS)));
    }
}
