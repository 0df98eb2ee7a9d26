//! Tenants that are no strangers: the upstream has accepted a request of theirs since this process started. Kept in
//! memory only. Asked before a body is read, so it must not depend on what is in one.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most tenants that are known. With one more, all others are forgotten; their next request makes them known again.
const MAX_TENANTS: usize = 65_536;

/// See the file's comment.
#[derive(Debug, Default)]
pub struct AcceptedTenants(Mutex<HashSet<[u8; 32]>>);

impl AcceptedTenants {
    fn lock(&self) -> MutexGuard<'_, HashSet<[u8; 32]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn contains(&self, tenant: &[u8; 32]) -> bool {
        self.lock().contains(tenant)
    }

    /// The upstream has accepted a request of `tenant`.
    pub(super) fn insert(&self, tenant: [u8; 32]) {
        let mut tenants = self.lock();
        if tenants.len() >= MAX_TENANTS && !tenants.contains(&tenant) {
            tenants.clear();
        }
        tenants.insert(tenant);
    }
}
