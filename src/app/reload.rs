//! Applies a new configuration while the process runs.
//!
//! It changes nothing that is already being sent: chunks and snapshots keep the settings that they were made
//! with, so a reload shows from the next activation on. Which requests have memory, and what is done for one that
//! does not fit, changes with the next request. Changes that need a restart are logged by their keys. Called by
//! `cli::serve` at SIGHUP.

use std::sync::Arc;

use crate::audit::Audit;
use crate::config::{Config, ConfigValues, Loaded};
use crate::history::Pepper;
use crate::jobs::Reloadable;
use crate::model_prices::NamedPrice;
use crate::proxy::{Proxy, RequestPolicy};
use crate::store::Aliases;

/// Applies configurations to one running process.
#[derive(Debug)]
pub struct Reloader {
    pub(super) start_values: ConfigValues,
    pub(super) current_values: ConfigValues,
    pub(super) anonymous: bool,
    pub(super) pepper: Pepper,
    pub(super) settings: Reloadable,
    /// The operator's prices, for the metrics of costs.
    pub(super) prices: Reloadable<Vec<NamedPrice>>,
    pub(super) proxy: Arc<Proxy>,
    pub(super) audit: Option<Audit>,
}

impl Reloader {
    /// Opens the audit file again: whoever rotates it has moved the old one.
    pub fn reopen_audit(&self) {
        if let Some(audit) = &self.audit {
            audit.reopen();
        }
    }

    /// Applies every key of `loaded` that does not need a restart.
    pub fn apply(&mut self, loaded: Loaded) {
        let Loaded {
            config,
            values,
            warnings,
        } = loaded;
        // Keys that need a restart are compared with those of the start: they are named until then.
        let (_, needs_restart) = values.changes(&self.start_values);
        let (applied, _) = values.changes(&self.current_values);
        self.settings.replace(config.memory.clone());
        self.prices.replace(config.audit_prices.clone());
        if let Some(memory) = self.proxy.memory() {
            memory.capabilities.set_placement(config.memory.placement);
            let aliases = memory.policy.current().identity.aliases.clone();
            let policy = request_policy(&config, self.anonymous, aliases, self.pepper);
            memory.policy.replace(policy);
            memory.jobs.settings_changed();
        }
        for text in warnings {
            tracing::warn!("{text}");
        }
        for key in needs_restart {
            tracing::warn!(key, "this key has changed, but only a restart applies it");
        }
        tracing::info!(
            changed = applied.join(" "),
            "the configuration was reloaded; it applies from the next request on. Observations and snapshots that exist stay as they are"
        );
        self.current_values = values;
    }
}

/// How requests are treated. The listener, the aliases and the pepper are not the configuration's to change while
/// the process runs.
pub(super) fn request_policy(
    config: &Config,
    anonymous: bool,
    aliases: Aliases,
    pepper: Pepper,
) -> RequestPolicy {
    let mut policy = config.requests.clone();
    policy.identity.anonymous = anonymous;
    policy.identity.aliases = aliases;
    policy.identity.pepper = pepper;
    policy
}
