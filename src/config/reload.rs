//! Which keys can change while the process runs, and which need a restart.
//!
//! Every key is in one of two lists, and a test fails for a new key that is in neither. A reload applies the
//! keys of one list to everything made from then on. Changes to the others are logged and wait for the next
//! start. Called by `app::reload`.

use std::collections::BTreeMap;
use std::fmt;

use config::ValueKind;

use super::layers::Layers;
use super::spec::Sections;

/// Keys, or sections with a dot at the end, that only a start reads: with them it takes ports, opens files and
/// fills pools.
const START_ONLY: &[&str] = &[
    "server.",
    "upstream.base_url",
    "store.",
    "audit.path",
    "audit.max_file_bytes",
    "audit.max_file_age",
    "audit.keep_files",
    "audit.store_retention",
    "otlp.",
    "memory.enabled",
];

/// The value in force for every key. Never printed, since some are secrets.
#[derive(Clone, Default, PartialEq)]
pub struct ConfigValues(BTreeMap<&'static str, ValueKind>);

impl fmt::Debug for ConfigValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConfigValues").field(&self.0.len()).finish()
    }
}

impl ConfigValues {
    pub(super) fn from_layers(sections: Sections, layers: &Layers) -> Self {
        let keys = sections
            .keys()
            .map(|key| (key.path, layers.value(key.path)));
        Self(keys.collect())
    }

    /// The keys whose values differ from those of `before`: first those that a reload applies, then those that
    /// need a restart.
    #[must_use]
    pub fn changes(&self, before: &Self) -> (Vec<&'static str>, Vec<&'static str>) {
        let differs = |key: &&str| self.0.get(*key) != before.0.get(*key);
        self.0
            .keys()
            .copied()
            .filter(differs)
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
    use crate::config::settings::SECTIONS;

    /// Keys, or sections with a dot at the end, that a reload applies.
    const RELOADABLE: &[&str] = &[
        "upstream.placement",
        "upstream.cache_marks",
        "upstream.prompt_cache_key",
        "upstream.cache_breakpoint",
        "upstream.session_affinity",
        "audit.ask_usage",
        "audit.holdout",
        "audit.cache_rules",
        "audit.prices",
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
        "memory.policy",
        "memory.cost.",
        "memory.daily_tokens",
        "memory.daily_tokens_total",
        "memory.bundles",
        "memory.overrides",
        "memory.share_token_budget",
        "memory.calibrate_tokens",
    ];

    #[test]
    fn every_setting_is_either_reloadable_or_start_only() {
        for key in SECTIONS.keys() {
            let lists = [listed(key.path, START_ONLY), listed(key.path, RELOADABLE)];
            assert_ne!(
                lists[0], lists[1],
                "{} must be in one of the two lists",
                key.path
            );
        }
    }
}
