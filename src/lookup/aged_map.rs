//! A map that knows the order in which its entries were put in and how many bytes they hold, for tables in memory that
//! drop their oldest entries when they have no more room. The owner of an entry says how large it is. Used by this
//! module's cache, by the proxy's table of sent prompts, and by the recorder's tracks.

use std::collections::BTreeMap;
use std::hash::Hash;

use foldhash::HashMap;

/// See the module. An entry that is put in again becomes the youngest.
#[derive(Debug)]
pub struct AgedMap<K, V> {
    entries: HashMap<K, Entry<V>>,
    /// The keys by the numbers of their entries: the oldest first.
    by_age: BTreeMap<u64, K>,
    next: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Entry<V> {
    number: u64,
    bytes: usize,
    value: V,
}

impl<K, V> Default for AgedMap<K, V> {
    fn default() -> Self {
        Self {
            entries: HashMap::default(),
            by_age: BTreeMap::new(),
            next: 0,
            bytes: 0,
        }
    }
}

impl<K: Clone + Eq + Hash, V> AgedMap<K, V> {
    /// Puts in a value of `bytes` as the youngest, in the place of an earlier one with the same key.
    pub fn insert(&mut self, key: K, bytes: usize, value: V) {
        self.remove(&key);
        let number = self.next;
        self.next += 1;
        self.bytes += bytes;
        self.by_age.insert(number, key.clone());
        let entry = Entry {
            number,
            bytes,
            value,
        };
        self.entries.insert(key, entry);
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.remove(key)?;
        self.by_age.remove(&entry.number);
        self.bytes -= entry.bytes;
        Some(entry.value)
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    /// As [`AgedMap::get`], with a number that is smaller for an older entry.
    pub fn get_with_age(&self, key: &K) -> Option<(u64, &V)> {
        let entry = self.entries.get(key)?;
        Some((entry.number, &entry.value))
    }

    #[cfg(feature = "testing")]
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.values_mut().map(|entry| &mut entry.value)
    }

    pub fn contains_key(&self, key: &K) -> bool {
        self.entries.contains_key(key)
    }

    /// The keys, the oldest first.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.by_age.values()
    }

    /// The bytes of all entries.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Drops the oldest entries, but those that are needed, until all hold at most `most` bytes. Returns the values that it
    /// dropped.
    pub fn shrink(&mut self, most: usize, is_needed: impl Fn(&K, &V) -> bool) -> Vec<(K, V)> {
        let mut dropped = Vec::new();
        let mut from = 0;
        while self.bytes > most
            && let Some((number, key)) = self.by_age.range(from..).next()
        {
            from = number + 1;
            let key = key.clone();
            let is_needed = |value| is_needed(&key, value);
            if !self.get(&key).is_some_and(is_needed) {
                let value = self.remove(&key);
                dropped.extend(value.map(|value| (key, value)));
            }
        }
        dropped
    }

    /// Keeps the entries for which `is_kept` holds.
    pub fn retain(&mut self, is_kept: impl Fn(&K, &V) -> bool) {
        self.entries.retain(|key, entry| {
            let is_kept = is_kept(key, &entry.value);
            if !is_kept {
                self.by_age.remove(&entry.number);
                self.bytes -= entry.bytes;
            }
            is_kept
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(keys: impl IntoIterator<Item = usize>) -> AgedMap<usize, ()> {
        let mut map = AgedMap::default();
        for key in keys {
            map.insert(key, 10, ());
        }
        map
    }

    fn left(map: &AgedMap<usize, ()>) -> (Vec<usize>, usize) {
        assert_eq!(map.by_age.len(), map.entries.len());
        (map.keys().copied().collect(), map.bytes())
    }

    #[test]
    fn shrinking_drops_the_oldest_entries_and_keeps_needed_ones() {
        let mut map = map(0..10);
        let dropped = map.shrink(40, |key, ()| [0, 2].contains(key));
        let dropped: Vec<usize> = dropped.into_iter().map(|(key, ())| key).collect();
        assert_eq!(dropped, [1, 3, 4, 5, 6, 7]);
        assert_eq!(left(&map), (vec![0, 2, 8, 9], 40));
        // All are needed: none goes, and the search ends.
        map.shrink(0, |_, ()| true);
        assert_eq!(left(&map), (vec![0, 2, 8, 9], 40));
        map.retain(|key, ()| *key == 9);
        assert_eq!(left(&map), (vec![9], 10));
        map.shrink(9, |_, ()| false);
        assert_eq!(left(&map), (vec![], 0));
    }

    #[test]
    fn a_repeated_entry_becomes_the_youngest_and_counts_once() {
        let mut map = map([1, 2, 1, 3]);
        assert_eq!(left(&map), (vec![2, 1, 3], 30));
        map.insert(2, 5, ());
        assert_eq!(left(&map), (vec![1, 3, 2], 25));
        assert!(map.remove(&3).is_some() && map.remove(&3).is_none());
        assert_eq!(left(&map), (vec![1, 2], 15));
    }
}
