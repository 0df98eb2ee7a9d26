//! Names that turned out to name no conversation: more go under them than a client could mean. Kept as
//! hashes, and only until the process ends; the recorder finds them out again.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use crate::history::Scope;

/// Names held; with one more all are dropped, and found out again.
const MAX_KEYS: usize = 4_096;

#[derive(Debug, Default)]
pub(super) struct SharedThreadKeys(Mutex<HashSet<[u8; 32]>>);

impl SharedThreadKeys {
    /// Remembers it; whether that is news.
    pub(super) fn add(&self, scope: &Scope, key: &str) -> bool {
        let mut hashes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if hashes.len() >= MAX_KEYS {
            hashes.clear();
        }
        hashes.insert(key_hash(scope, key))
    }

    pub(super) fn contains(&self, scope: &Scope, key: &str) -> bool {
        let hashes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !hashes.is_empty() && hashes.contains(&key_hash(scope, key))
    }
}

fn key_hash(scope: &Scope, key: &str) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("diarist 2026-11 crowd");
    hasher.update(&scope.tenant);
    hasher.update(&scope.resource.unwrap_or_default());
    hasher.update(key.as_bytes());
    *hasher.finalize().as_bytes()
}
