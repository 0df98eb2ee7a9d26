//! The rules of the two phases, and the settings of memory that they make.
//!
//! [`OverridableSettings::validate`] turns them into the settings of `jobs`, together with [`CommonSettings`],
//! which no override can change. Called by `memory` for all conversations, and by `overrides` for some.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use secrecy::{ExposeSecret as _, SecretString};

use super::common::{base_url, in_range, non_empty, positive_duration};
use super::costs::MemoryPolicy;
use super::model_settings::{model_settings, models, provider_options};
use super::observer;
use super::parse::{CheckResult, ErrorReported, Invalid, Setting};
use super::problem::Problem;
use super::settings::{RawConfig, RawObservation, RawReflection};
use super::tables::{JsonTable, RawModels};
use super::thresholds::{is_changed, policy, tokens};
use crate::jobs::{ArchivePolicy, CostAware, CostSettings, DailyLimits, Phase, Settings};
use crate::llm::{Endpoint, Models};
use crate::memory::observe::ObserverOptions;
use crate::memory::redact::Redactor;
use crate::memory::{EarlyTriggers, IdleTrigger, Policy};
use crate::model_prices::PriceTable;
use crate::wire::Placement;

/// The settings of memory that no override can change, valid.
#[derive(Debug, Clone)]
pub(super) struct CommonSettings {
    /// The host of the upstream.
    pub(super) upstream: String,
    pub(super) placement: Option<Placement>,
    pub(super) zone: TimeZone,
    pub(super) temporal_markers: bool,
    pub(super) keep_messages: ArchivePolicy,
    pub(super) daily: DailyLimits,
    pub(super) peer_memory_tokens: Option<u32>,
    pub(super) bundles: Option<PathBuf>,
    pub(super) redactor: Redactor,
    pub(super) costs: CommonCosts,
    pub(super) calibrate_tokens: bool,
}

/// What can make costs decide.
#[derive(Debug, Clone)]
pub(super) struct CommonCosts {
    pub(super) policy: MemoryPolicy,
    pub(super) cost: CostSettings,
    pub(super) prices: Arc<PriceTable>,
}

/// The settings of memory that an override can change, as written.
#[derive(Debug, Clone)]
pub(super) struct OverridableSettings {
    pub(super) share_token_budget: Setting<bool>,
    pub(super) read_only: Setting<bool>,
    pub(super) observation: RawObservation,
    pub(super) reflection: RawReflection,
}

impl OverridableSettings {
    pub(super) fn from_raw(raw: &RawConfig) -> Self {
        Self {
            share_token_budget: raw.memory.share_token_budget.clone(),
            read_only: raw.memory.read_only.clone(),
            observation: raw.observation.clone(),
            reflection: raw.reflection.clone(),
        }
    }

    /// The settings of memory, without overrides and for as many jobs at a time as there are model calls.
    pub(super) fn validate(
        &self,
        targets: &PhaseTargets,
        common: CheckResult<&CommonSettings>,
        problems: &mut Vec<Problem>,
    ) -> CheckResult<Settings> {
        let (raw_observation, raw_reflection) = (&self.observation, &self.reflection);
        let policy = policy(
            &self.share_token_budget,
            raw_observation,
            raw_reflection,
            problems,
        );
        let observer = observer_options(raw_observation, problems);
        let observation = RawCallSettings::from(raw_observation).phase(&targets.observer, problems);
        let reflection_hints =
            observer::continuation_hints(&raw_reflection.continuation_hints, problems);
        let reflection = RawCallSettings::from(raw_reflection).phase(&targets.reflector, problems);
        let max_loss = raw_reflection
            .max_loss
            .check(problems, |&n| in_range(n, 0.0, 1.0));
        let (common, observer) = (common?.clone(), observer?);
        let observer = ObserverOptions {
            redactor: common.redactor,
            ..observer
        };
        Ok(Settings {
            cost_aware: cost_aware(policy?, common.costs, self),
            policy: policy?,
            overrides: Vec::new(),
            upstream: common.upstream,
            placement: common.placement,
            zone: common.zone,
            temporal_markers: common.temporal_markers,
            keep_messages: common.keep_messages,
            observation: observation?,
            reflection: reflection?,
            hints: observer.hints.union(reflection_hints?),
            observer: Arc::new(observer),
            max_loss: max_loss?,
            read_only: false,
            daily: common.daily,
            peer_memory_tokens: common.peer_memory_tokens,
            bundles: common.bundles,
            calibrate_tokens: common.calibrate_tokens,
        })
    }
}

/// The policy where costs decide, if they can. Then a cold cache is a chance to activate unless the operator has said
/// otherwise.
fn cost_aware(
    thresholds: Policy,
    costs: CommonCosts,
    section: &OverridableSettings,
) -> Option<CostAware> {
    let assumes_prices = match costs.policy {
        MemoryPolicy::Published => return None,
        MemoryPolicy::Auto if is_changed(&section.share_token_budget, &section.observation) => {
            return None;
        }
        MemoryPolicy::Auto => false,
        MemoryPolicy::CostAware => true,
    };
    let idle = |setting: &Setting<Option<IdleTrigger>>| setting.value.unwrap_or(IdleTrigger::Auto);
    let (observation, reflection) = (&section.observation, &section.reflection);
    Some(CostAware {
        policy: Policy {
            early_activation: EarlyTriggers {
                idle: idle(&observation.activate_after_idle),
                ..thresholds.early_activation
            },
            early_reflection: EarlyTriggers {
                idle: idle(&reflection.activate_after_idle),
                ..thresholds.early_reflection
            },
            ..thresholds
        },
        assumes_prices,
        cost: costs.cost,
        prices: costs.prices,
    })
}

/// Where a phase sends its calls, and for which model.
#[derive(Debug, Clone)]
pub(super) struct ModelTarget {
    pub(super) model: Option<Models>,
    pub(super) endpoint: Option<Endpoint>,
}

/// The targets of both phases.
pub(super) struct PhaseTargets {
    pub(super) observer: CheckResult<ModelTarget>,
    pub(super) reflector: CheckResult<ModelTarget>,
}

/// The model is the common one, else the phase's own, else the other phase's, else the conversation's. The other
/// phase's is used only if both phases call the same endpoint: elsewhere its name may not exist. The endpoint
/// is the phase's own, else the common one, else the conversation's.
pub(super) fn model_targets(raw: &RawConfig, problems: &mut Vec<Problem>) -> PhaseTargets {
    let (memory, observation, reflection) = (&raw.memory, &raw.observation, &raw.reflection);

    let common_model = models(&memory.model, problems);
    let mut phase_model = |model: &Setting<Option<RawModels>>| {
        if memory.model.value.is_some() && model.value.is_some() {
            problems.push(model.problem(
                "memory.model is also set, and it is for both phases",
                format!("remove {} or memory.model", model.key),
            ));
        }
        models(model, problems)
    };
    let (observer, reflector) = (
        phase_model(&observation.model),
        phase_model(&reflection.model),
    );

    let common_endpoint = endpoint(&memory.base_url, &memory.api_key, problems);
    let observer_endpoint = endpoint(&observation.base_url, &observation.api_key, problems);
    let reflector_endpoint = endpoint(&reflection.base_url, &reflection.api_key, problems);
    let same_endpoint = matches!(
        (&observer_endpoint, &reflector_endpoint),
        (Ok(None), Ok(None))
    );

    let target = |phase_model: CheckResult<Option<Models>>,
                  other_phase_model: CheckResult<Option<Models>>,
                  endpoint: CheckResult<Option<Endpoint>>| {
        let other_model = other_phase_model?.filter(|_| same_endpoint);
        Ok(ModelTarget {
            model: common_model.clone()?.or(phase_model?).or(other_model),
            endpoint: endpoint?.or(common_endpoint.clone()?),
        })
    };
    PhaseTargets {
        observer: target(observer.clone(), reflector.clone(), observer_endpoint),
        reflector: target(reflector, observer, reflector_endpoint),
    }
}

/// An endpoint: its URL and its key together, or neither.
fn endpoint(
    url: &Setting<Option<String>>,
    key: &Setting<Option<SecretString>>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Option<Endpoint>> {
    let missing_partner = |set: &str, missing: &str| {
        (
            format!("{missing} is missing"),
            format!(
                "set {missing} too, or remove {set} to use the conversation's own endpoint and key"
            ),
        )
    };
    if url.value.is_some() && key.value.is_none() {
        let (what, remedy) = missing_partner(&url.key, &key.key);
        problems.push(url.problem(what, remedy));
    }
    if key.value.is_some() && url.value.is_none() {
        let (what, remedy) = missing_partner(&key.key, &url.key);
        problems.push(key.problem(what, remedy));
    }
    let base_url = url.check_some(problems, |text| base_url(text));
    let api_key = key.check_some(problems, header_safe);
    match (base_url?, api_key?) {
        (Some(base_url), Some(api_key)) => Ok(Some(Endpoint::Configured { base_url, api_key })),
        (None, None) => Ok(None),
        _ => Err(ErrorReported),
    }
}

fn header_safe(key: &SecretString) -> Result<SecretString, Invalid> {
    let visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    match key.expose_secret() {
        "" => Err(Invalid::new(
            "the key is empty",
            "write a key, or remove api_key and its base_url",
        )),
        text if visible(text) => Ok(key.clone()),
        _ => Err(Invalid::new(
            "the key contains a blank, a line break or another character that keys do not have",
            "copy the key again, without the characters around it",
        )),
    }
}

/// What the Observer reads and writes. The redactor is the default one: `[memory.redact]` has its own section.
fn observer_options(
    raw: &RawObservation,
    problems: &mut Vec<Problem>,
) -> CheckResult<ObserverOptions> {
    let max_input_tokens = raw
        .max_input_tokens
        .check(problems, |&n| observer::max_input_tokens(n));
    let previous_tokens = raw
        .previous_observer_tokens
        .check(problems, |&n| observer::previous_observer_tokens(n));
    let hints = observer::continuation_hints(&raw.continuation_hints, problems);
    let attachments = observer::observe_attachments(&raw.observe_attachments, problems);
    let tags = &raw.omit_blocks;
    let omit_blocks = tags.check_each(problems, &tags.value, |tag| observer::omitted_tag(tag));
    Ok(ObserverOptions {
        redactor: Redactor::default(),
        omit_blocks: omit_blocks?,
        max_input_tokens: max_input_tokens?,
        previous_tokens: previous_tokens?,
        hints: hints?,
        title: raw.thread_title.value,
        application: raw.observe_system.value,
        attachments: attachments?,
    })
}

/// The keys about model calls that both phases have.
struct RawCallSettings<'a> {
    instruction: &'a Setting<Option<String>>,
    temperature: &'a Setting<f64>,
    max_output_tokens: Option<&'a Setting<Option<u64>>>,
    model_settings: &'a Setting<Option<JsonTable>>,
    provider_options: &'a Setting<Option<JsonTable>>,
    timeout: &'a Setting<Duration>,
}

impl<'a> From<&'a RawObservation> for RawCallSettings<'a> {
    fn from(raw: &'a RawObservation) -> Self {
        Self {
            instruction: &raw.instruction,
            temperature: &raw.temperature,
            max_output_tokens: Some(&raw.max_output_tokens),
            model_settings: &raw.model_settings,
            provider_options: &raw.provider_options,
            timeout: &raw.timeout,
        }
    }
}

impl<'a> From<&'a RawReflection> for RawCallSettings<'a> {
    fn from(raw: &'a RawReflection) -> Self {
        Self {
            instruction: &raw.instruction,
            temperature: &raw.temperature,
            // The Reflector has this limit in its model_settings only.
            max_output_tokens: None,
            model_settings: &raw.model_settings,
            provider_options: &raw.provider_options,
            timeout: &raw.timeout,
        }
    }
}

impl RawCallSettings<'_> {
    fn phase(
        &self,
        target: &CheckResult<ModelTarget>,
        problems: &mut Vec<Problem>,
    ) -> CheckResult<Phase> {
        let instruction = self
            .instruction
            .check_some(problems, |text| non_empty(text));
        let own_temperature = self.temperature.check(problems, |&n| in_range(n, 0.0, 2.0));
        let own_limit = self
            .max_output_tokens
            .map_or(Ok(None), |limit| limit.check_some(problems, |&n| tokens(n)));
        let timeout = self.timeout.check(problems, positive_duration);
        let options = provider_options(self.provider_options, problems);
        let settings = model_settings(self.model_settings, problems)?;
        let limit = self.max_output_tokens.filter(|at| at.value.is_some());
        for (key, duplicate) in [
            (
                &*self.temperature.key,
                settings.temperature.is_some() && self.temperature.origin.is_some(),
            ),
            (
                limit.map_or("", |limit| &*limit.key),
                settings.max_output_tokens.is_some() && limit.is_some(),
            ),
        ] {
            if duplicate {
                problems.push(self.model_settings.problem(
                    format!(
                        "{key} is also set, and has the same meaning as an entry of this table"
                    ),
                    format!("remove {key} or the entry of this table"),
                ));
            }
        }
        let ModelTarget { model, endpoint } = target.clone()?;
        Ok(Phase {
            model,
            endpoint,
            instruction: instruction?,
            temperature: Some(settings.temperature.unwrap_or(own_temperature?)),
            max_output_tokens: settings.max_output_tokens.or(own_limit?),
            parameters: settings.parameters,
            options: options?,
            deadline: timeout?,
        })
    }
}
