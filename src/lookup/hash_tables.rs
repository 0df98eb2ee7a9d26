//! Tables whose keys are hashes, or consist of hashes: the first bytes of each are enough to find it. Such tables are
//! asked for every message of a request. Used by this module, `jobs` and `proxy`.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::{FoldHasher, RandomState};

/// A map from hashes.
pub type HashKeyMap<K, V> = std::collections::HashMap<K, V, HashKeyState>;

/// A set of hashes.
pub type HashKeySet<K> = std::collections::HashSet<K, HashKeyState>;

/// Begins a [`HashKeyHasher`]. Each table has a secret of its own.
#[derive(Clone, Debug, Default)]
pub struct HashKeyState(RandomState);

impl BuildHasher for HashKeyState {
    type Hasher = HashKeyHasher;

    fn build_hasher(&self) -> HashKeyHasher {
        HashKeyHasher(self.0.build_hasher())
    }
}

/// Reads the first eight bytes of each hash in a key, and numbers whole. No key may hold a text: those that begin alike
/// would stand in one place of the table.
#[derive(Clone)]
pub struct HashKeyHasher(FoldHasher<'static>);

impl std::fmt::Debug for HashKeyHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HashKeyHasher").finish_non_exhaustive()
    }
}

impl Hasher for HashKeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        match bytes.first_chunk() {
            Some(beginning) => self.0.write_u64(u64::from_le_bytes(*beginning)),
            None => self.0.write(bytes),
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0.write_u64(number);
    }

    /// The length of a hash, which is the same for all keys of a table.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_whose_hashes_begin_alike_are_told_apart() {
        let mut map = HashKeyMap::default();
        let key = |tenant: u8, end: u8| {
            let mut hash = [7; 32];
            hash[31] = end;
            ([tenant; 32], hash, i64::from(end))
        };
        let keys = [key(1, 0), key(1, 1), key(2, 0), key(2, 1)];
        map.extend(keys.iter().zip(0..));
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(map.get(key), Some(&number));
        }
        assert_eq!(map.get(&key(3, 0)), None);
    }

    #[test]
    fn each_part_of_a_key_counts_for_its_place() {
        let state = HashKeyState::default();
        let key = ([1_u8; 32], [2_u8; 16], 3_i64);
        let hash = state.hash_one(key);
        assert_eq!(hash, state.hash_one(key));
        for other in [
            ([9; 32], key.1, key.2),
            (key.0, [9; 16], key.2),
            (key.0, key.1, 9),
        ] {
            assert_ne!(hash, state.hash_one(other));
        }
    }
}
