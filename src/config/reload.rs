//! What of a configuration can change while the process runs, and what cannot.
//!
//! Every key is in one of two lists, and a test sees to it that a new one is put into one: what is
//! read anew takes effect with what is made from then on; the rest is said and waits for the next
//! start. Called by `app`.

use std::collections::BTreeMap;
use std::fmt;

use config::ValueKind;

use super::layers::Layers;
use super::settings;
use super::valid::Config;

/// Keys, or sections with a dot behind, that only a start reads: ports are taken, files opened and
/// pools filled by them.
const START_ONLY: &[&str] = &[
    "server.",
    "upstream.base_url",
    "store.",
    "audit.path",
    "memory.enabled",
];

/// The value in force for every key. Never printed: there are secrets among them.
#[derive(Clone, Default, PartialEq)]
pub(super) struct ConfigValues(BTreeMap<&'static str, ValueKind>);

impl fmt::Debug for ConfigValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Values").field(&self.0.len()).finish()
    }
}

impl ConfigValues {
    pub(super) fn from_layers(layers: &Layers) -> Self {
        let keys = settings::keys().map(|key| (key.path, layers.value(key.path)));
        Self(keys.collect())
    }

    fn differing(&self, other: &Self) -> impl Iterator<Item = &'static str> {
        let differs = |key: &&str| self.0.get(*key) != other.0.get(*key);
        self.0
            .keys()
            .copied()
            .filter(differs)
            .collect::<Vec<_>>()
            .into_iter()
    }
}

impl Config {
    /// The keys whose values differ from those of `before`: those that are taken over now, and those
    /// that wait for the next start.
    #[must_use]
    pub fn changes(&self, before: &Self) -> (Vec<&'static str>, Vec<&'static str>) {
        self.values
            .differing(&before.values)
            .partition(|key| !listed(key, START_ONLY))
    }
}

fn listed(key: &str, list: &[&str]) -> bool {
    list.iter()
        .any(|entry| key == *entry || entry.ends_with('.') && key.starts_with(entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys, or sections, that a reload takes over.
    const RELOADABLE: &[&str] = &[
        "upstream.placement",
        "audit.ask_usage",
        "identity.",
        "memory.read_only",
        "memory.rules",
        "memory.overflow",
        "memory.overflow_timeout",
        "memory.evidence",
        "memory.scope",
        "memory.other_conversations",
        "memory.timezone",
        "memory.temporal_markers",
        "memory.keep_messages",
        "memory.model",
        "memory.base_url",
        "memory.api_key",
        "memory.observation.",
        "memory.reflection.",
        "memory.redact.",
        "memory.daily_tokens",
        "memory.bundles",
        "memory.overrides",
        "memory.share_token_budget",
    ];

    #[test]
    fn every_key_is_read_anew_or_waits_for_a_start() {
        for key in settings::keys() {
            let lists = [listed(key.path, START_ONLY), listed(key.path, RELOADABLE)];
            assert_ne!(
                lists[0], lists[1],
                "{} belongs into one of the two lists",
                key.path
            );
        }
    }
}
