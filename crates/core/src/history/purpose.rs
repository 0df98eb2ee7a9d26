//! What a hash is for. The hashes of one input for two purposes have nothing in common. Used by
//! everything that is found by a hash: chains, fingerprints, tenants, users and routes.

use std::sync::OnceLock;

use blake3::Hasher;
use blake3::hazmat::{ContextKey, HasherExt as _, hash_derive_key_context};

/// A purpose of hashes. A `static` for each: its key is a hash of the name, and is computed once.
#[derive(Debug)]
pub struct HashPurpose {
    /// The context of BLAKE3's `derive_key`. Stored hashes depend on it, so it never changes.
    name: &'static str,
    key: OnceLock<ContextKey>,
}

impl HashPurpose {
    /// The purpose of this `name`, which nothing else may have.
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            key: OnceLock::new(),
        }
    }

    /// Computes hashes for this purpose, without a pepper.
    pub fn hasher(&self) -> Hasher {
        Hasher::new_from_context_key(self.key())
    }

    pub(super) fn key(&self) -> &ContextKey {
        self.key.get_or_init(|| hash_derive_key_context(self.name))
    }
}
