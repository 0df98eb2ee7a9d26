//! Taking over a configuration that was read anew while the process runs.
//!
//! Nothing that is already being sent changes: what is configured enters chunks and snapshots when
//! they are made and is fixed there, so a reload shows from the next activation on. Which requests have
//! memory, and what is done for one that does not fit, changes with the next request. What only a start
//! can change is said by its key. Called by whoever hears the signal.

use std::sync::Arc;

use super::{memory_settings, placement, request_policy, tenants};
use crate::audit::Audit;
use crate::config::Config;
use crate::jobs::Reloadable;
use crate::proxy::Proxy;

/// The way to another configuration.
#[derive(Debug)]
pub struct Reloader {
    pub(super) start_config: Config,
    pub(super) current_config: Config,
    pub(super) settings: Reloadable,
    pub(super) proxy: Arc<Proxy>,
    pub(super) audit: Option<Audit>,
}

impl Reloader {
    /// Puts into force what of `config` can be, and opens the audit's file anew.
    pub async fn apply(&mut self, config: Config) {
        let (needs_restart, applied) = (
            config.changes(&self.start_config).1,
            config.changes(&self.current_config).0,
        );
        self.settings.replace(memory_settings(&config));
        if let Some(memory) = self.proxy.memory() {
            memory.capabilities.set_placement(placement(&config));
            // Where it listens is as at the start; who is served as whom is the store's to say.
            let aliases = memory.policy.current().identity.aliases.clone();
            let owners = tenants::from_config(&config, self.start_config.server.listen, aliases);
            memory.policy.replace(request_policy(&config, owners));
        }
        if let Some(audit) = &self.audit {
            audit.reopen().await;
        }
        for key in needs_restart {
            tracing::warn!(key, "changed, but only read at the start: restart for it");
        }
        tracing::info!(
            changed = applied.join(" "),
            "the configuration was read anew; what was prepared before stays as it is"
        );
        self.current_config = config;
    }
}
