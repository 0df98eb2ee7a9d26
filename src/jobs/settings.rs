//! The settings of this module, and the handle by which a reload replaces them while the process
//! runs.
//!
//! Decides nothing. The settings are applied when a chunk or snapshot is made, and stay fixed in
//! it: a reload changes no byte of what is already being sent. Filled in by `app`.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jiff::tz::TimeZone;
use serde_json::{Map, Value};

use super::cost_settings::CostAware;
use crate::llm::{CallSettings, Endpoint, Models};
use crate::memory::observe::{ObserverOptions, RequestedHints};
use crate::memory::{EarlyTriggers, IdleTrigger, PartKind, Pattern, Policy};
use crate::store::DailyLimits;
use crate::wire::Placement;

/// How the Observer or the Reflector calls its model.
#[derive(Clone, Debug)]
pub struct Phase {
    /// `None` borrows the conversation's own route to the upstream.
    pub endpoint: Option<Endpoint>,
    /// `None` takes the conversation's own model.
    pub model: Option<Models>,
    /// Sampling temperature. Left out for a model that refuses it.
    pub temperature: Option<f64>,
    /// The most tokens of an answer.
    pub max_output_tokens: Option<u32>,
    /// Further parameters of the call.
    pub parameters: Map<String, Value>,
    /// Fields of the body as the operator wrote them.
    pub options: Map<String, Value>,
    /// How long one call may take.
    pub deadline: Duration,
    /// The operator's addition to the prompt.
    pub instruction: Option<String>,
}

impl Phase {
    /// The parameters of a call with a prompt of `prompt_tokens`.
    pub(super) fn settings(&self, conversation_model: &str, prompt_tokens: u32) -> CallSettings {
        let configured = self.model.as_ref().map(|models| models.pick(prompt_tokens));
        CallSettings {
            model: configured.unwrap_or(conversation_model).to_owned(),
            temperature: self.temperature,
            max_output_tokens: self.max_output_tokens,
            parameters: self.parameters.clone(),
            options: self.options.clone(),
            deadline: self.deadline,
        }
    }
}

/// Other settings for conversations with some models.
#[derive(Clone, Debug)]
pub struct Override {
    /// The models.
    pub model: Pattern,
    /// Complete settings, without overrides of their own.
    pub settings: Arc<Settings>,
}

/// How long the text of a message is kept after its observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArchivePolicy {
    /// Not at all: the text is deleted with its job.
    #[default]
    UntilObserved,
    /// For ever.
    Always,
    /// For this time.
    For(Duration),
}

/// The settings of this module.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The published thresholds. This and all fields below apply to conversations that no override matches.
    pub policy: Policy,
    /// What applies instead of `policy` where costs decide.
    pub cost_aware: Option<CostAware>,
    /// Settings for some models, the narrowest pattern first.
    pub overrides: Vec<Override>,
    /// The host of the upstream. It tells how long prompts stay in the provider's cache.
    pub upstream: String,
    /// Where the block of a new snapshot stands; `None` sends no block.
    pub placement: Option<Placement>,
    /// The time zone of dates and times, if the client names none.
    pub zone: TimeZone,
    /// Whether transcripts show pauses to the Observer.
    pub temporal_markers: bool,
    /// How long the texts of messages are kept.
    pub keep_messages: ArchivePolicy,
    /// The Observer.
    pub observation: Phase,
    /// The Reflector.
    pub reflection: Phase,
    /// What the Observer reads and what it must answer.
    pub observer: Arc<ObserverOptions>,
    /// Which hints are sent, if a chunk has them: those that either phase asks for.
    pub hints: RequestedHints,
    /// The share of high-priority items that a reflection may lose, 0 to 1.
    pub max_loss: f64,
    /// Whether memory is only read, for all models: no job is done, and nothing is deleted.
    pub read_only: bool,
    /// The most tokens of model calls per UTC day. Calls that run when a budget is reached are finished.
    pub daily: DailyLimits,
    /// The most tokens that peer memory may take in a block; `None` shares no memory between
    /// conversations.
    pub peer_memory_tokens: Option<u32>,
    /// The folder for failed model calls; `None` keeps none.
    pub bundles: Option<std::path::PathBuf>,
    /// Whether thresholds follow the provider's count of tokens.
    pub calibrate_tokens: bool,
}

impl Settings {
    /// The settings for conversations with `model`.
    #[must_use]
    pub fn for_model(self: &Arc<Self>, model: &str) -> Arc<Self> {
        Arc::clone(self.override_for(model).unwrap_or(self))
    }

    /// What decides about memory of conversations with `model`: thresholds, or prices.
    pub fn policy_for(&self, model: &str) -> Policy {
        let settings = self.override_for(model).map_or(self, |other| &**other);
        let phases = [&settings.observation, &settings.reflection];
        let memory_models = phases.map(|phase| phase.model.as_ref());
        let cost_aware = settings.cost_aware.as_ref();
        cost_aware
            .and_then(|costs| costs.policy_for(&self.upstream, model, memory_models))
            .unwrap_or(settings.policy)
    }

    /// A model of memory without a price, if costs could decide with one.
    pub fn unpriced_model(&self) -> Option<&str> {
        let costs = self.cost_aware.as_ref()?;
        let phases = [&self.observation, &self.reflection].into_iter();
        let mut models = phases.filter_map(|phase| phase.model.as_ref());
        models.find_map(|models| costs.unpriced(models))
    }

    /// The name of the placement of new blocks; `off` if none is sent.
    pub(super) fn placement_name(&self) -> &'static str {
        self.placement.map_or("off", Placement::name)
    }

    /// How the model for parts of `kind` is called.
    pub(super) fn phase(&self, kind: PartKind) -> &Phase {
        match kind {
            PartKind::Chunk => &self.observation,
            PartKind::Reflection => &self.reflection,
        }
    }

    fn override_for(&self, model: &str) -> Option<&Arc<Self>> {
        let mut overrides = self.overrides.iter();
        let matching = overrides.find(|entry| entry.model.matches(model))?;
        Some(&matching.settings)
    }

    /// Whether any conversation may be activated when it is idle.
    pub(super) fn uses_idle_timers(&self) -> bool {
        let is_timed = |early: EarlyTriggers| early.idle != IdleTrigger::Never;
        self.policies()
            .any(|policy| is_timed(policy.early_activation) || is_timed(policy.early_reflection))
    }

    fn policies(&self) -> impl Iterator<Item = &Policy> {
        let overrides = self.overrides.iter().map(|entry| &*entry.settings);
        overrides.chain([self]).flat_map(|settings| {
            let cost_aware = settings.cost_aware.as_ref().map(|costs| &costs.policy);
            cost_aware.into_iter().chain([&settings.policy])
        })
    }
}

/// The settings in force, shared by all who read them.
#[derive(Debug)]
pub struct Reloadable<T = Settings>(Arc<RwLock<Arc<T>>>);

impl<T> Clone for Reloadable<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Reloadable<T> {
    /// Puts `settings` into force.
    pub fn new(settings: T) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(settings))))
    }

    /// The settings in force. A holder keeps the same ones through a reload.
    pub fn current(&self) -> Arc<T> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the settings in force.
    pub fn replace(&self, settings: T) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }
}
