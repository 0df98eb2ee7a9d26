//! Accounts: who pays for a tenant. Shares of the recorder and budgets are for an account.
//!
//! An account is the tenant of the one credential that the upstream checks. A client makes many tenants of it by adding
//! headers that the upstream ignores, so an account may begin only so many tenants in an hour. Decides that from a
//! table in memory: no request waits for the store. `proxy` asks before a request gets memory, `jobs` stores what is new,
//! `app` loads what earlier processes stored.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const HOUR_MS: i64 = 60 * 60 * 1_000;

/// A tenant, and the account that pays for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantAccount {
    pub tenant: [u8; 32],
    pub account: [u8; 32],
}

#[derive(Debug)]
struct Known {
    account: [u8; 32],
    stored: bool,
}

#[derive(Debug, Default)]
struct State {
    /// Tenants that have or had another account than themselves.
    tenants: HashMap<[u8; 32], Known>,
    /// Whether `tenants` holds those of earlier processes. Before, none is refused.
    loaded: bool,
    /// The hour of `new_tenants`, since 1970.
    hour: i64,
    /// How many tenants each account has begun in this hour.
    new_tenants: HashMap<[u8; 32], u32>,
}

impl State {
    fn has_room(&mut self, member: TenantAccount, limit: Option<u32>, now_ms: i64) -> bool {
        let Some(limit) = limit else { return true };
        if !self.loaded
            || member.tenant == member.account
            || self.tenants.contains_key(&member.tenant)
        {
            return true;
        }
        let hour = now_ms.div_euclid(HOUR_MS);
        if self.hour != hour {
            self.hour = hour;
            self.new_tenants.clear();
        }
        self.new_tenants.get(&member.account).copied().unwrap_or(0) < limit
    }
}

/// The accounts of tenants. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct TenantAccounts(Arc<Mutex<State>>);

impl TenantAccounts {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what the store holds. From now on, unknown tenants count as new.
    pub fn load(&self, stored: &[TenantAccount]) {
        let mut state = self.lock();
        for member in stored {
            // What a request has said meanwhile is newer.
            state.tenants.entry(member.tenant).or_insert(Known {
                account: member.account,
                stored: true,
            });
        }
        state.loaded = true;
    }

    /// The account that pays for `tenant`.
    pub fn account_of(&self, tenant: &[u8; 32]) -> [u8; 32] {
        let state = self.lock();
        state
            .tenants
            .get(tenant)
            .map_or(*tenant, |known| known.account)
    }

    /// Whether the tenant is known, or its account may begin one more in this hour.
    pub fn has_room(&self, member: TenantAccount, limit: Option<u32>, now_ms: i64) -> bool {
        self.lock().has_room(member, limit, now_ms)
    }

    /// Counts a tenant whose request was accepted. Returns `false` if its account may not begin one more: between
    /// [`Self::has_room`] and this, others may have begun.
    pub fn join(&self, member: TenantAccount, limit: Option<u32>, now_ms: i64) -> bool {
        let mut state = self.lock();
        if !state.has_room(member, limit, now_ms) {
            return false;
        }
        let TenantAccount { tenant, account } = member;
        let Some(known) = state.tenants.get_mut(&tenant) else {
            if tenant != account {
                let stored = false;
                state.tenants.insert(tenant, Known { account, stored });
                *state.new_tenants.entry(account).or_default() += 1;
            }
            return true;
        };
        if known.account != account {
            (known.account, known.stored) = (account, false);
        }
        true
    }

    /// The account of `tenant`, if the store does not know it yet.
    pub fn unstored(&self, tenant: &[u8; 32]) -> Option<TenantAccount> {
        let state = self.lock();
        let known = state.tenants.get(tenant).filter(|known| !known.stored)?;
        Some(TenantAccount {
            tenant: *tenant,
            account: known.account,
        })
    }

    /// The store knows the account of this tenant.
    pub fn mark_stored(&self, member: TenantAccount) {
        if let Some(known) = self.lock().tenants.get_mut(&member.tenant) {
            // Another account may have been named while this one was being written.
            known.stored = known.account == member.account;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCOUNT: [u8; 32] = [1; 32];
    const LIMIT: Option<u32> = Some(2);

    fn member(tenant: u8) -> TenantAccount {
        TenantAccount {
            tenant: [tenant; 32],
            account: ACCOUNT,
        }
    }

    #[test]
    fn an_account_gets_a_bounded_number_of_new_tenants_per_hour() {
        let accounts = TenantAccounts::default();
        accounts.load(&[member(9)]);
        assert!(accounts.join(member(2), LIMIT, 0) && accounts.join(member(3), LIMIT, 0));
        for known in [1, 2, 3, 9] {
            assert!(accounts.join(member(known), LIMIT, 1), "{known} is known");
        }
        assert!(!accounts.has_room(member(4), LIMIT, 1) && !accounts.join(member(4), LIMIT, 1));
        let other = TenantAccount {
            tenant: [6; 32],
            account: [5; 32],
        };
        assert!(accounts.join(other, LIMIT, 1), "another account");
        assert!(accounts.join(member(4), None, 1), "no bound");
        assert!(accounts.join(member(5), LIMIT, HOUR_MS), "the next hour");
    }

    #[test]
    fn every_tenant_is_accepted_until_the_store_is_loaded() {
        let accounts = TenantAccounts::default();
        for tenant in 2..9 {
            assert!(accounts.join(member(tenant), LIMIT, 0));
        }
        accounts.load(&[]);
        assert!(!accounts.join(member(9), LIMIT, 0));
    }

    #[test]
    fn a_new_account_of_a_tenant_is_stored_once() {
        let accounts = TenantAccounts::default();
        let own = |tenant: u8| TenantAccount {
            tenant: [tenant; 32],
            account: [tenant; 32],
        };
        accounts.load(&[own(2)]);
        assert_eq!(accounts.account_of(&[2; 32]), [2; 32]);
        assert!(accounts.join(member(2), LIMIT, 0));
        assert_eq!(accounts.account_of(&[2; 32]), ACCOUNT);
        assert_eq!(accounts.unstored(&[2; 32]), Some(member(2)));
        accounts.mark_stored(member(2));
        assert_eq!(accounts.unstored(&[2; 32]), None);
        assert!(accounts.join(own(7), LIMIT, 0));
        assert_eq!(
            accounts.unstored(&[7; 32]),
            None,
            "its own account needs no row"
        );
    }
}
