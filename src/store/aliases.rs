//! Tenants that the operator says are others: a rotated key goes on as the one before it.
//!
//! Decides which tenant a request's own one is served as, and which new alias would make no sense. Holds
//! no secret, only hashes. Called by `proxy::identify` for every request, so it asks nobody; the table is
//! replaced from beside, and stays as it was while the store cannot be asked.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// One word of the operator's: requests of `name` belong to `tenant`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// The tenant that a request presents.
    pub name: [u8; 32],
    /// The tenant it is served as, unless that has an alias of its own.
    pub tenant: [u8; 32],
    /// When that was said, in milliseconds since 1970.
    pub at_ms: i64,
}

/// What became of a new alias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddAliasOutcome {
    /// It holds.
    Added,
    /// It held already.
    Unchanged,
    /// The two are one.
    SameTenant,
    /// The second is served as the first already.
    Cycle,
    /// The name is served as another one.
    NameInUse([u8; 32]),
}

/// A tenant with memory, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantRow {
    /// Whose.
    pub tenant: [u8; 32],
    /// Conversations.
    pub conversations: u64,
    /// Requests of all of them.
    pub requests: u64,
    /// When the last came, in milliseconds since 1970.
    pub last_ms: i64,
}

/// Whom `tenant` is served as. Chains are followed to their end; in a circle, which no verb writes, each
/// is itself.
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

/// What would become of one more alias.
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
    /// Whom `tenant` is served as: itself, unless the operator said otherwise.
    pub fn resolve(&self, tenant: [u8; 32]) -> [u8; 32] {
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner);
        held.get(&tenant).copied().unwrap_or(tenant)
    }

    /// Puts `aliases` in the place of all that held; whether anything is different now.
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
    fn what_makes_no_sense_is_refused() {
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

    /// No verb writes one; a table that was edited by hand may hold it.
    #[test]
    fn in_a_circle_everybody_is_themselves() {
        let aliases = Aliases::default();
        aliases.replace(&[alias(1, 2), alias(2, 3), alias(3, 1), alias(4, 1)]);
        for tenant in 1..=4 {
            assert_eq!(aliases.resolve([tenant; 32]), [tenant; 32]);
        }
    }
}
