//! Aliases: an operator can declare that one tenant is served as another, so that a rotated key keeps its
//! memory.
//!
//! Decides which tenant a request is served as, and which new alias is refused. Holds no secret, only
//! hashes. `proxy::identify` calls it for every request, so it reads a table in memory and never the store.
//! `app` replaces that table regularly; if the store does not answer, the table stays as it is.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// One alias: requests of `name` belong to `tenant`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// The tenant that a request presents.
    pub name: [u8; 32],
    /// The tenant it is served as, unless that has an alias of its own.
    pub tenant: [u8; 32],
    /// When it was added, in milliseconds since 1970.
    pub at_ms: i64,
}

/// The result of adding an alias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddAliasOutcome {
    /// It is stored.
    Added,
    /// It was stored before.
    Unchanged,
    /// Both tenants are the same.
    SameTenant,
    /// The second tenant is served as the first; the alias would close a circle.
    Cycle,
    /// The name has an alias for this other tenant.
    NameInUse([u8; 32]),
}

/// A tenant with memory, for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantRow {
    /// The hash of the tenant.
    pub tenant: [u8; 32],
    /// Conversations.
    pub conversations: u64,
    /// Requests of all of them.
    pub requests: u64,
    /// When the last request came, in milliseconds since 1970.
    pub last_ms: i64,
}

/// The tenant that `tenant` is served as, at the end of its chain of aliases. No verb stores a circle; in one
/// that was written by hand, each tenant is served as itself.
pub fn resolve(aliases: &[Alias], tenant: [u8; 32]) -> [u8; 32] {
    let mut at = tenant;
    for _ in 0..=aliases.len() {
        match aliases.iter().find(|alias| alias.name == at) {
            Some(alias) => at = alias.tenant,
            None => return at,
        }
    }
    tenant
}

/// The result that adding this alias would have.
pub(super) fn check_alias(aliases: &[Alias], name: [u8; 32], tenant: [u8; 32]) -> AddAliasOutcome {
    if name == tenant {
        return AddAliasOutcome::SameTenant;
    }
    if let Some(existing) = aliases.iter().find(|alias| alias.name == name) {
        return if existing.tenant == tenant {
            AddAliasOutcome::Unchanged
        } else {
            AddAliasOutcome::NameInUse(existing.tenant)
        };
    }
    if resolve(aliases, tenant) == name {
        return AddAliasOutcome::Cycle;
    }
    AddAliasOutcome::Added
}

/// The aliases in force. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Aliases(Arc<RwLock<HashMap<[u8; 32], [u8; 32]>>>);

impl Aliases {
    /// The tenant that `tenant` is served as: itself, unless it has an alias.
    pub fn resolve(&self, tenant: [u8; 32]) -> [u8; 32] {
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner);
        held.get(&tenant).copied().unwrap_or(tenant)
    }

    /// Replaces all aliases; returns whether anything changed.
    pub fn replace(&self, aliases: &[Alias]) -> bool {
        let ends = aliases
            .iter()
            .map(|alias| (alias.name, resolve(aliases, alias.name)));
        let ends: HashMap<_, _> = ends.collect();
        let mut held = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let differs = *held != ends;
        *held = ends;
        differs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alias(name: u8, tenant: u8) -> Alias {
        Alias {
            name: [name; 32],
            tenant: [tenant; 32],
            at_ms: 0,
        }
    }

    #[test]
    fn a_chain_of_rotations_leads_to_the_first_key() {
        let aliases = Aliases::default();
        assert_eq!(aliases.resolve([3; 32]), [3; 32]);
        assert!(aliases.replace(&[alias(3, 2), alias(2, 1), alias(9, 8)]));
        for tenant in [1, 2, 3] {
            assert_eq!(aliases.resolve([tenant; 32]), [1; 32], "{tenant}");
        }
        assert_eq!(aliases.resolve([8; 32]), [8; 32]);
        assert_eq!(aliases.resolve([7; 32]), [7; 32]);
        assert!(!aliases.replace(&[alias(2, 1), alias(3, 2), alias(9, 8)]));
        assert!(aliases.replace(&[alias(3, 2)]));
        assert_eq!(aliases.resolve([3; 32]), [2; 32]);
    }

    #[test]
    fn an_invalid_alias_is_refused_with_its_reason() {
        let held = [alias(2, 1), alias(3, 2)];
        let check = |name: u8, tenant: u8| check_alias(&held, [name; 32], [tenant; 32]);
        assert_eq!(check(4, 4), AddAliasOutcome::SameTenant);
        assert_eq!(check(1, 3), AddAliasOutcome::Cycle);
        assert_eq!(check(1, 2), AddAliasOutcome::Cycle);
        assert_eq!(check(2, 1), AddAliasOutcome::Unchanged);
        assert_eq!(check(2, 4), AddAliasOutcome::NameInUse([1; 32]));
        assert_eq!(check(4, 3), AddAliasOutcome::Added);
        assert_eq!(check(1, 4), AddAliasOutcome::Added);
    }

    /// No verb stores a circle; a table that was edited by hand may have one.
    #[test]
    fn aliases_in_a_cycle_are_ignored() {
        let aliases = Aliases::default();
        aliases.replace(&[alias(1, 2), alias(2, 3), alias(3, 1), alias(4, 1)]);
        for tenant in 1..=4 {
            assert_eq!(aliases.resolve([tenant; 32]), [tenant; 32]);
        }
    }
}
