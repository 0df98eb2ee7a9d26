//! How memory is made, and the handle through which a reload replaces it while the process runs.
//!
//! Decides nothing. What these settings say enters chunks and snapshots when those are made and is
//! fixed there: a reload changes not one byte of what is already being sent. Filled in by `app`.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jiff::tz::TimeZone;
use serde_json::{Map, Value};

use crate::llm::{CallSettings, Endpoint, Models};
use crate::memory::observe::{ObserverOptions, RequestedHints};
use crate::memory::{EarlyTriggers, IdleTrigger, PartKind, Pattern, Policy};
use crate::wire::Placement;

/// How one phase calls its model.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Where to; `None` borrows the conversation's own way to the upstream.
    pub endpoint: Option<Endpoint>,
    /// Which model; `None` takes the conversation's own.
    pub model: Option<Models>,
    /// Sampling temperature; dropped for a model that refuses it.
    pub temperature: Option<f64>,
    /// Bound on the answer, in tokens.
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
    /// How a prompt of so many tokens is asked.
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

/// How memory is made for conversations with some models.
#[derive(Clone, Debug)]
pub struct Override {
    /// Which.
    pub model: Pattern,
    /// All of it, with no overrides of its own.
    pub settings: Arc<Settings>,
}

/// How long the words of messages are kept beyond the jobs that carry them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArchivePolicy {
    /// Not at all: a job's words go with the job.
    #[default]
    UntilObserved,
    /// For ever.
    Always,
    /// For so long.
    For(Duration),
}

/// How memory is made.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Thresholds. They and all below are for conversations that none of `overrides` is for.
    pub policy: Policy,
    /// How it is made otherwise for some models, the narrowest first.
    pub overrides: Vec<Override>,
    /// The host of the upstream, which tells how long prompts stay in its cache.
    pub upstream: String,
    /// Where the blocks of new snapshots stand; `None` sends none.
    pub placement: Option<Placement>,
    /// Days and minutes are told in this zone where a client names none.
    pub zone: TimeZone,
    /// Whether the Observer is told of pauses.
    pub temporal_markers: bool,
    /// How long the words of messages are kept.
    pub keep_messages: ArchivePolicy,
    /// The Observer.
    pub observation: Phase,
    /// The Reflector.
    pub reflection: Phase,
    /// What the Observer is shown and asked for.
    pub observer: Arc<ObserverOptions>,
    /// Hints that are sent where a chunk has them: what either phase is asked for.
    pub hints: RequestedHints,
    /// The share of the items of high priority that a reflection may lose, 0 to 1.
    pub max_loss: f64,
    /// Jobs at the same time; with 0 the queue is left alone.
    pub concurrency: usize,
    /// Tokens that model calls may cost a tenant on a UTC day. Calls under way when they are spent
    /// are not cut short.
    pub daily_tokens: Option<u64>,
    /// Tokens that what other conversations of its user know may take in a block; `None` where memory is
    /// each conversation's own.
    pub peer_memory_tokens: Option<u32>,
    /// The folder for model calls that came to nothing; `None` keeps none.
    pub bundles: Option<std::path::PathBuf>,
}

impl Settings {
    /// How memory is made for conversations with `model`.
    #[must_use]
    pub fn for_model(self: &Arc<Self>, model: &str) -> Arc<Self> {
        Arc::clone(self.override_for(model).unwrap_or(self))
    }

    /// The thresholds for conversations with `model`.
    pub fn policy_for(&self, model: &str) -> &Policy {
        self.override_for(model)
            .map_or(&self.policy, |settings| &settings.policy)
    }

    /// The name of the place where the block of a new snapshot stands; `off` where none is sent.
    pub(super) fn placement_name(&self) -> &'static str {
        self.placement.map_or("off", Placement::name)
    }

    /// How the model for `kind` is called.
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
        let override_policies = self.overrides.iter().map(|entry| &entry.settings.policy);
        override_policies.chain([&self.policy])
    }
}

/// What is in force, shared by everybody who works by it.
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

    /// What is in force now. It stays as it is for whoever holds it.
    pub fn current(&self) -> Arc<T> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts `settings` into force in the place of what was.
    pub fn replace(&self, settings: T) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }
}
