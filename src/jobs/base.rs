//! What almost every part of this module needs: the store and its cache, the settings in force, the
//! clock, the token counter, the event log, the tasks, and how memory's own work goes.
//!
//! Decides nothing and holds no state of its own: a clone is a second handle to the same things.
//! Built once by [`super::Jobs`].

use std::sync::Arc;

use super::calibration::Calibration;
use super::clock::Clock;
use super::events::Events;
use super::model_health::ModelHealth;
use super::settings::{Reloadable, Settings};
use crate::lookup::SnapshotCache;
use crate::memory::{Policy, render};
use crate::store::{Job, Store, TenantAccounts};
use crate::tasks::{ComputePool, Losses, Tasks};
use crate::tokens::TokenCounter;

/// Handles that the parts of this module share.
#[derive(Clone)]
pub(super) struct Base {
    pub(super) store: Arc<dyn Store>,
    pub(super) cache: Arc<SnapshotCache>,
    pub(super) counter: Arc<dyn TokenCounter>,
    pub(super) settings: Reloadable,
    pub(super) clock: Clock,
    pub(super) events: Events,
    pub(super) tasks: Tasks,
    /// For what workers compute.
    pub(super) compute_pool: ComputePool,
    /// Who pays for a tenant.
    pub(super) accounts: TenantAccounts,
    /// Exchanges that were not recorded.
    pub(super) recording: Losses,
    /// Whether the Observer and the Reflector work.
    pub(super) health: ModelHealth,
    /// How providers count tokens.
    pub(super) calibration: Calibration,
}

impl Base {
    /// The time in milliseconds since 1970.
    pub(super) fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    /// The settings in force. A job takes them once, so that a reload cannot mix two configurations
    /// in it.
    pub(super) fn settings(&self) -> Arc<Settings> {
        self.settings.current()
    }

    /// The thresholds for conversations with `model`, in Diarist's tokens. `settings` are those in force.
    pub(super) fn policy_for(&self, settings: &Settings, model: &str) -> Policy {
        let policy = settings.policy_for(model);
        if settings.calibrate_tokens {
            self.calibration.apply(policy, model)
        } else {
            policy
        }
    }

    /// Whether the model calls of `job` are made with the credential of its conversation.
    pub(super) fn borrows_credential(&self, job: &Job) -> bool {
        let settings = self.settings().for_model(&job.spec.model);
        settings.phase(job.spec.kind).endpoint.is_none()
    }

    /// Tokens of `text`.
    pub(super) async fn count_tokens(&self, text: &str) -> u32 {
        self.count_off_runtime(text, |text, counter| counter.count(text))
            .await
    }

    /// The most tokens that `text`, a part of the observation log, can have inside a block.
    pub(super) async fn count_part_tokens(&self, text: &str) -> u32 {
        let count =
            |text: &str, counter: &dyn TokenCounter| render::max_tokens(text, |t| counter.count(t));
        self.count_off_runtime(text, count).await
    }

    /// Counts in the pool: a long text would hold up a worker of the runtime.
    async fn count_off_runtime(
        &self,
        text: &str,
        count: fn(&str, &dyn TokenCounter) -> u32,
    ) -> u32 {
        let counter = Arc::clone(&self.counter);
        let text = text.to_owned();
        let bytes = text.len();
        self.compute_pool
            .run(bytes, move || count(&text, &*counter))
            .await
            // The counter catches its own failures. If the computation panicked all the same, four bytes
            // are taken for one token.
            .unwrap_or_else(|| u32::try_from(bytes / 4).unwrap_or(u32::MAX))
    }
}
