//! A map with a bound that forgets what was not set for longest.

use std::collections::HashMap;

/// How many entries each of the two generations of a report holds.
const GENERATION: usize = 65_536;

/// Values by name, of the names that were set lately.
#[derive(Clone, Debug)]
pub(super) struct RecentMap<V> {
    /// How many entries each of the two generations holds. An entry is forgotten after that many others were set since.
    generation: usize,
    recent: HashMap<String, V>,
    older: HashMap<String, V>,
}

impl<V> Default for RecentMap<V> {
    fn default() -> Self {
        Self::with_generation(GENERATION)
    }
}

impl<V> RecentMap<V> {
    /// A map that holds at most twice so many entries.
    pub(super) fn with_generation(generation: usize) -> Self {
        Self {
            generation,
            recent: HashMap::new(),
            older: HashMap::new(),
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&V> {
        self.recent.get(key).or_else(|| self.older.get(key))
    }

    pub(super) fn set(&mut self, key: String, value: V) {
        self.recent.insert(key, value);
        if self.recent.len() >= self.generation {
            self.older = std::mem::take(&mut self.recent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_is_bounded_and_keeps_recent_entries() {
        let mut map = RecentMap::default();
        for number in 0..3 * GENERATION {
            map.set(number.to_string(), number);
        }
        assert!(map.recent.len() + map.older.len() <= 2 * GENERATION);
        let last = 3 * GENERATION - 1;
        assert_eq!(map.get(&last.to_string()), Some(&last));
        assert_eq!(map.get("0"), None);
    }
}
