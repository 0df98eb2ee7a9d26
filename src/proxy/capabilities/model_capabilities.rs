//! What each tenant has learned about one model, and what two tenants agree on.
//!
//! A refusal moves the block, or stops the question for usage, only for the tenant that was refused: one oddly
//! refused request costs no other tenant its prompt cache. Once a tenant of a second account has learned the same about
//! the model, it holds for all: a client can make itself many tenants, but not many accounts. A placement that no refusal
//! has named is never shared. The question for usage, and what is added for the prompt cache, are shared however they were
//! learned. Used only by [`super::UpstreamCapabilities`].

use std::time::Instant;

use super::cache_addition::{CacheAddition, CacheAdditions};
use super::refusal_ttl::is_fresh;

/// The hash of a tenant's credentials, or of its account's.
pub(super) type TenantHash = [u8; 32];

/// A tenant, and the account that it belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    pub tenant: &'a TenantHash,
    pub account: &'a TenantHash,
}

/// Tenants remembered for one model. The least recently used goes first: learning again costs one extra request.
const MAX_TENANTS: usize = 64;

/// Changed requests that are refused in a row without a reason, while the original is accepted, until something is
/// learned. The first one may be a failure that was over before the original was sent.
const UNEXPLAINED_LIMIT: u32 = 2;

/// What was learned about a model.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ModelCapabilities {
    /// How many placements were refused, and when the last of them was.
    pub(super) refused_placements: Option<(usize, Instant)>,
    /// Whether the upstream accepts the question for usage. Once refused, it stays refused.
    pub(super) accepts_usage: Option<bool>,
    /// What the upstream refused of Diarist's for its prompt cache. Once refused, it stays refused.
    pub(super) refused_additions: CacheAdditions,
}

/// What one tenant has learned.
#[derive(Debug)]
struct TenantEntry {
    tenant: TenantHash,
    account: TenantHash,
    capabilities: ModelCapabilities,
    /// How many placements were refused in words that name them.
    named_refusals: usize,
    /// Changed requests that were refused without a reason since one was accepted.
    unexplained_refusals: u32,
    /// The number of the lookup that used the entry last.
    last_lookup: u64,
}

/// What all tenants have learned about one model.
#[derive(Debug, Default)]
pub(super) struct CapabilitiesByTenant {
    /// What two tenants agree on.
    shared: ModelCapabilities,
    tenants: Vec<TenantEntry>,
    lookups: u64,
}

impl CapabilitiesByTenant {
    /// What holds for `tenant`: of its own lessons and the shared ones, whichever refuses more.
    pub(super) fn for_tenant(&mut self, tenant: &TenantHash) -> ModelCapabilities {
        self.lookups += 1;
        let (looks, shared) = (self.lookups, self.shared);
        let entry = self.tenants.iter_mut().find(|it| it.tenant == *tenant);
        let individual = entry.map(|entry| {
            entry.last_lookup = looks;
            entry.capabilities
        });
        let individual = individual.unwrap_or_default();
        ModelCapabilities {
            refused_placements: individual.refused_placements.max(shared.refused_placements),
            // What two tenants were refused is refused for all, even if it was accepted from one before.
            accepts_usage: match shared.accepts_usage {
                Some(false) => Some(false),
                shared => individual.accepts_usage.or(shared),
            },
            refused_additions: individual.refused_additions.union(shared.refused_additions),
        }
    }

    /// `steps` placements were refused to `member`; `named` if the refusal says so.
    pub(super) fn record_refused_placements(
        &mut self,
        member: Member<'_>,
        (steps, named): (usize, bool),
        now: Instant,
    ) {
        let entry = self.entry_mut(member);
        entry.capabilities.refused_placements = entry
            .capabilities
            .refused_placements
            .max(Some((steps, now)));
        entry.unexplained_refusals = 0;
        if !named {
            return;
        }
        entry.named_refusals = entry.named_refusals.max(steps);
        let agreed = (1..=steps)
            .rev()
            .find(|steps| self.is_agreed(|entry| entry.named_refusals >= *steps));
        if let Some(agreed) = agreed {
            self.shared.refused_placements =
                self.shared.refused_placements.max(Some((agreed, now)));
        }
    }

    /// Whether tenants of two accounts have learned it.
    fn is_agreed(&self, learned: impl Fn(&TenantEntry) -> bool) -> bool {
        let mut accounts = self.tenants.iter().filter(|entry| learned(entry));
        let first = accounts.next().map(|entry| entry.account);
        first.is_some_and(|first| accounts.any(|entry| entry.account != first))
    }

    /// A question for usage of `tenant` was refused, or answered.
    pub(super) fn record_usage(&mut self, member: Member<'_>, accepted: bool) {
        if accepted && self.shared.accepts_usage.is_some() {
            // Nothing new, so no other tenant has to be forgotten for it.
            return;
        }
        let entry = self.entry_mut(member);
        if accepted {
            entry.capabilities.accepts_usage.get_or_insert(true);
        } else {
            entry.capabilities.accepts_usage = Some(false);
            entry.unexplained_refusals = 0;
        }
        let same = |it: &TenantEntry| it.capabilities.accepts_usage == Some(accepted);
        if self.is_agreed(same) && self.shared.accepts_usage != Some(false) {
            self.shared.accepts_usage = Some(accepted);
        }
    }

    /// `addition` was refused to `member`.
    pub(super) fn record_addition_refused(&mut self, addition: CacheAddition, member: Member<'_>) {
        let entry = self.entry_mut(member);
        entry.capabilities.refused_additions.insert(addition);
        entry.unexplained_refusals = 0;
        if self.is_agreed(|entry| entry.capabilities.refused_additions.has(addition)) {
            self.shared.refused_additions.insert(addition);
        }
    }

    /// A changed request of `tenant` was refused without a reason, and the original accepted. Returns whether
    /// something is learned from it.
    pub(super) fn record_unexplained_refusal(&mut self, member: Member<'_>) -> bool {
        let entry = self.entry_mut(member);
        entry.unexplained_refusals += 1;
        entry.unexplained_refusals >= UNEXPLAINED_LIMIT
    }

    /// A changed request of `tenant` was accepted.
    pub(super) fn record_accepted_change(&mut self, tenant: &TenantHash) {
        if let Some(entry) = self.tenants.iter_mut().find(|it| it.tenant == *tenant) {
            entry.unexplained_refusals = 0;
        }
    }

    /// Forgets refused placements that are old enough to be tried again.
    pub(super) fn expire(&mut self, now: Instant) {
        let is_fresh = |it: &(usize, Instant)| is_fresh(it.1, now);
        self.shared.refused_placements = self.shared.refused_placements.filter(is_fresh);
        for entry in &mut self.tenants {
            entry.capabilities.refused_placements =
                entry.capabilities.refused_placements.filter(is_fresh);
            if entry.capabilities.refused_placements.is_none() {
                entry.named_refusals = 0;
            }
        }
    }

    /// The entry of `member`, made if there is none.
    fn entry_mut(&mut self, member: Member<'_>) -> &mut TenantEntry {
        self.lookups += 1;
        let mut entries = self.tenants.iter();
        let found = entries.position(|it| it.tenant == *member.tenant);
        let at = found.unwrap_or_else(|| {
            if self.tenants.len() >= MAX_TENANTS {
                let ages = self.tenants.iter().enumerate();
                let oldest = ages.min_by_key(|(_, it)| it.last_lookup).map(|(at, _)| at);
                self.tenants.swap_remove(oldest.unwrap_or_default());
            }
            self.tenants.push(TenantEntry {
                tenant: *member.tenant,
                account: *member.account,
                capabilities: ModelCapabilities::default(),
                named_refusals: 0,
                unexplained_refusals: 0,
                last_lookup: 0,
            });
            self.tenants.len() - 1
        });
        let entry = &mut self.tenants[at];
        entry.last_lookup = self.lookups;
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantHash = [1; 32];
    const B: TenantHash = [2; 32];
    const C: TenantHash = [3; 32];

    /// A tenant with an account of its own.
    fn alone(tenant: &TenantHash) -> Member<'_> {
        Member {
            tenant,
            account: tenant,
        }
    }

    fn steps(model: &mut CapabilitiesByTenant, tenant: &TenantHash) -> usize {
        model
            .for_tenant(tenant)
            .refused_placements
            .map_or(0, |(steps, _)| steps)
    }

    #[test]
    fn a_placement_refused_for_two_tenants_is_avoided_for_all() {
        let (mut model, now) = (CapabilitiesByTenant::default(), Instant::now());
        model.record_refused_placements(alone(&A), (1, true), now);
        assert_eq!([&A, &B].map(|it| steps(&mut model, it)), [1, 0]);
        model.record_refused_placements(alone(&A), (2, true), now);
        assert_eq!(
            steps(&mut model, &B),
            0,
            "the same tenant again is no second one"
        );
        model.record_refused_placements(alone(&B), (1, true), now);
        assert_eq!([&A, &B, &C].map(|it| steps(&mut model, it)), [2, 1, 1]);
        model.record_refused_placements(alone(&C), (2, true), now);
        assert_eq!(steps(&mut model, &B), 2);
    }

    #[test]
    fn refusals_of_one_account_or_without_reason_do_not_affect_other_tenants() {
        let (mut model, now) = (CapabilitiesByTenant::default(), Instant::now());
        let of_a = |tenant| Member {
            tenant,
            account: &A,
        };
        model.record_refused_placements(of_a(&A), (2, true), now);
        model.record_refused_placements(of_a(&B), (2, true), now);
        let [key, _] = CacheAddition::ALL;
        model.record_addition_refused(key, of_a(&A));
        model.record_addition_refused(key, of_a(&B));
        model.record_usage(of_a(&A), false);
        model.record_usage(of_a(&B), false);
        let other = model.for_tenant(&C);
        assert_eq!(
            (other.refused_placements, other.accepts_usage),
            (None, None)
        );
        assert!(!other.refused_additions.has(key));
        let mut model = CapabilitiesByTenant::default();
        model.record_refused_placements(alone(&A), (2, false), now);
        model.record_refused_placements(alone(&B), (1, false), now);
        assert_eq!([&A, &B, &C].map(|it| steps(&mut model, it)), [2, 1, 0]);
        model.record_refused_placements(alone(&A), (1, true), now);
        assert_eq!(steps(&mut model, &C), 0);
        model.record_refused_placements(alone(&B), (2, true), now);
        assert_eq!(steps(&mut model, &C), 1, "what both have learned");
    }

    #[test]
    fn usage_support_applies_to_all_after_two_tenants_and_refusals_persist() {
        let mut model = CapabilitiesByTenant::default();
        model.record_usage(alone(&A), true);
        assert_eq!(
            [&A, &B].map(|it| model.for_tenant(it).accepts_usage),
            [Some(true), None]
        );
        model.record_usage(alone(&B), true);
        assert_eq!(model.for_tenant(&C).accepts_usage, Some(true));
        model.record_usage(alone(&A), false);
        model.record_usage(alone(&A), true);
        assert_eq!(
            [&A, &C].map(|it| model.for_tenant(it).accepts_usage),
            [Some(false), Some(true)]
        );
        assert_eq!(model.for_tenant(&B).accepts_usage, Some(true));
        model.record_usage(alone(&C), false);
        assert_eq!(
            [&B, &[4; 32]].map(|it| model.for_tenant(it).accepts_usage),
            [Some(false); 2],
            "also for whom it was taken before"
        );
    }

    #[test]
    fn a_cache_addition_refused_for_two_tenants_is_added_for_none() {
        let mut model = CapabilitiesByTenant::default();
        let refuses = |model: &mut CapabilitiesByTenant, addition| {
            [A, B, C].map(|it| model.for_tenant(&it).refused_additions.has(addition))
        };
        let [key, breakpoint] = CacheAddition::ALL;
        model.record_addition_refused(key, alone(&A));
        model.record_addition_refused(key, alone(&A));
        assert_eq!(refuses(&mut model, key), [true, false, false]);
        model.record_addition_refused(key, alone(&B));
        assert_eq!(refuses(&mut model, key), [true; 3]);
        assert_eq!(refuses(&mut model, breakpoint), [false; 3]);
    }

    #[test]
    fn a_refusal_shared_by_tenants_expires_like_a_single_one() {
        let (mut model, now) = (CapabilitiesByTenant::default(), Instant::now());
        model.record_refused_placements(alone(&A), (1, true), now);
        model.record_refused_placements(alone(&B), (1, true), now);
        model.expire(now + super::super::refusal_ttl::REFUSAL_TTL * 2);
        assert_eq!([&A, &C].map(|it| steps(&mut model, it)), [0, 0]);
    }

    #[test]
    fn only_the_second_unexplained_refusal_in_a_row_counts() {
        let mut model = CapabilitiesByTenant::default();
        assert!(!model.record_unexplained_refusal(alone(&A)));
        assert!(
            !model.record_unexplained_refusal(alone(&B)),
            "each tenant counts its own"
        );
        model.record_accepted_change(&A);
        assert!(!model.record_unexplained_refusal(alone(&A)));
        assert!(model.record_unexplained_refusal(alone(&A)));
        model.record_refused_placements(alone(&A), (1, true), Instant::now());
        assert!(
            !model.record_unexplained_refusal(alone(&A)),
            "the next placement has its own two"
        );
    }

    #[test]
    fn the_number_of_tenants_is_bounded_and_recent_ones_are_kept() {
        let (mut model, now) = (CapabilitiesByTenant::default(), Instant::now());
        model.record_refused_placements(alone(&A), (2, true), now);
        for number in 0..=u8::try_from(MAX_TENANTS).expect("few") {
            model.for_tenant(&A);
            model.record_refused_placements(alone(&[number + 100; 32]), (1, true), now);
        }
        assert_eq!(model.tenants.len(), MAX_TENANTS);
        assert_eq!(steps(&mut model, &A), 2, "it was looked at");
    }
}
