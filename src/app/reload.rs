//! Taking over a configuration that was read anew while the process runs.
//!
//! Nothing that is already being sent changes: what is configured enters chunks and snapshots when
//! they are made and is fixed there, so a reload shows from the next activation on. Which requests have
//! memory, and what is done for one that does not fit, changes with the next request. What only a start
//! can change is said by its key. Called by whoever hears the signal.

use std::sync::Arc;

use super::{memory_settings, owners, placement, treatment};
use crate::audit::Audit;
use crate::config::Config;
use crate::jobs::InForce;
use crate::proxy::Proxy;

/// The way to another configuration.
#[derive(Debug)]
pub struct Reload {
    pub(super) started: Config,
    pub(super) in_force: Config,
    pub(super) settings: InForce,
    pub(super) proxy: Arc<Proxy>,
    pub(super) audit: Option<Audit>,
}

impl Reload {
    /// Puts into force what of `config` can be, and opens the audit's file anew.
    pub async fn apply(&mut self, config: Config) {
        let (waiting, anew) = (
            config.changes(&self.started).1,
            config.changes(&self.in_force).0,
        );
        self.settings.replace(memory_settings(&config));
        if let Some(memory) = self.proxy.memory() {
            memory.manners.prefer(placement(&config));
            // Where it listens is as at the start; who is served as whom is the store's to say.
            let aliases = memory.treats.now().owners.aliases.clone();
            let owners = owners::of(&config, self.started.server.listen, aliases);
            memory.treats.replace(treatment(&config, owners));
        }
        if let Some(audit) = &self.audit {
            audit.reopen().await;
        }
        for key in waiting {
            tracing::warn!(key, "changed, but only read at the start: restart for it");
        }
        tracing::info!(
            changed = anew.join(" "),
            "the configuration was read anew; what was prepared before stays as it is"
        );
        self.in_force = config;
    }
}
