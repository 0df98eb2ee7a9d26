//! The rules of the two phases: which model is asked where, and how, and what each is told. They are
//! judged once as they stand, and once more as each override changes them. Called by `memory` and
//! `overrides`.

use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};

use super::common::{base_url, non_empty, positive_duration};
use super::model_settings::{JsonTable, RawModels, model_settings, models, provider_options};
use super::observer;
use super::parse::{CheckResult, ErrorReported, Invalid, Setting};
use super::problem::Problem;
use super::settings::{RawConfig, RawObservation, RawReflection};
use super::thresholds::{RawThresholds, tokens};
use super::valid::{
    Endpoint, Models, ObservationSettings, PhaseSettings, ReflectionSettings, Thresholds,
};

/// What is written about how memory is made, where it may be otherwise for some models.
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

    pub(super) fn thresholds(&self, problems: &mut Vec<Problem>) -> CheckResult<Thresholds> {
        RawThresholds::from_raw(
            &self.share_token_budget,
            &self.observation,
            &self.reflection,
        )
        .validate(problems)
    }
}

/// Where a phase asks, and for which model.
#[derive(Debug, Clone)]
pub(super) struct ModelTarget {
    pub(super) model: Option<Models>,
    pub(super) endpoint: Option<Endpoint>,
}

/// The model: the common one, else the phase's own, else the other phase's where both ask at the
/// same place (a name means nothing elsewhere), else the conversation's. The place: the phase's own,
/// else the common one, else the conversation's.
pub(super) fn model_targets(
    raw: &RawConfig,
    problems: &mut Vec<Problem>,
) -> (CheckResult<ModelTarget>, CheckResult<ModelTarget>) {
    let (memory, observation, reflection) = (&raw.memory, &raw.observation, &raw.reflection);

    let common_model = models(&memory.model, problems);
    let mut phase_model = |model: &Setting<Option<RawModels>>| {
        if memory.model.value.is_some() && model.value.is_some() {
            problems.push(model.problem(
                "memory.model is set as well, and says the same for both phases",
                format!("keep one of the two: remove {} or memory.model", model.key),
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
    (
        target(observer.clone(), reflector.clone(), observer_endpoint),
        target(reflector, observer, reflector_endpoint),
    )
}

/// A place to ask at: its URL and its key together, or neither.
fn endpoint(
    url: &Setting<Option<String>>,
    key: &Setting<Option<SecretString>>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Option<Endpoint>> {
    let missing_partner = |set: &str, missing: &str| {
        (
            format!("it is set without {missing}"),
            format!("set {missing} as well, or remove {set} to use the conversation's own way"),
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
        (Some(base_url), Some(api_key)) => Ok(Some(Endpoint { base_url, api_key })),
        (None, None) => Ok(None),
        _ => Err(ErrorReported),
    }
}

fn header_safe(key: &SecretString) -> Result<SecretString, Invalid> {
    let visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    match key.expose_secret() {
        "" => Err(Invalid::new(
            "it is empty",
            "write the key, or remove it with its base_url",
        )),
        text if visible(text) => Ok(key.clone()),
        _ => Err(Invalid::new(
            "it holds a blank, a line break or another character that no key holds",
            "copy the key again, without what stands around it",
        )),
    }
}

pub(super) fn observation(
    raw: &RawObservation,
    target: CheckResult<ModelTarget>,
    problems: &mut Vec<Problem>,
) -> CheckResult<ObservationSettings> {
    let instruction = raw.instruction.check_some(problems, |text| non_empty(text));
    let max_input_tokens = raw
        .max_input_tokens
        .check(problems, |&n| observer::max_input_tokens(n));
    let previous_observer_tokens = raw
        .previous_observer_tokens
        .check(problems, |&n| observer::previous_observer_tokens(n));
    let continuation_hints = raw
        .continuation_hints
        .check(problems, observer::continuation_hints);
    let observe_attachments = raw
        .observe_attachments
        .check(problems, observer::observe_attachments);
    let omit_blocks = raw
        .omit_blocks
        .check(problems, |tags| observer::omit_blocks(tags));
    let phase = RawCallSettings {
        temperature: &raw.temperature,
        max_output_tokens: Some(&raw.max_output_tokens),
        model_settings: &raw.model_settings,
        provider_options: &raw.provider_options,
        timeout: &raw.timeout,
    }
    .phase(target, problems);
    Ok(ObservationSettings {
        phase: phase?,
        instruction: instruction?,
        max_input_tokens: max_input_tokens?,
        previous_observer_tokens: previous_observer_tokens?,
        continuation_hints: continuation_hints?,
        observe_attachments: observe_attachments?,
        omit_blocks: omit_blocks?,
        observe_system: raw.observe_system.value,
        thread_title: raw.thread_title.value,
    })
}

pub(super) fn reflection(
    raw: &RawReflection,
    target: CheckResult<ModelTarget>,
    problems: &mut Vec<Problem>,
) -> CheckResult<ReflectionSettings> {
    let instruction = raw.instruction.check_some(problems, |text| non_empty(text));
    let continuation_hints = raw
        .continuation_hints
        .check(problems, observer::continuation_hints);
    let phase = RawCallSettings {
        temperature: &raw.temperature,
        max_output_tokens: None,
        model_settings: &raw.model_settings,
        provider_options: &raw.provider_options,
        timeout: &raw.timeout,
    }
    .phase(target, problems);
    let max_loss = raw.max_loss.check(problems, |&n| fraction(n));
    Ok(ReflectionSettings {
        phase: phase?,
        instruction: instruction?,
        continuation_hints: continuation_hints?,
        max_loss: max_loss?,
    })
}

/// The keys about calls, as both phases have them.
struct RawCallSettings<'a> {
    temperature: &'a Setting<f64>,
    max_output_tokens: Option<&'a Setting<Option<u64>>>,
    model_settings: &'a Setting<Option<JsonTable>>,
    provider_options: &'a Setting<Option<JsonTable>>,
    timeout: &'a Setting<Duration>,
}

impl RawCallSettings<'_> {
    fn phase(
        &self,
        target: CheckResult<ModelTarget>,
        problems: &mut Vec<Problem>,
    ) -> CheckResult<PhaseSettings> {
        let own_temperature = self.temperature.check(problems, |&n| temperature(n));
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
                    format!("{key} is set as well, and says the same"),
                    format!("keep one of the two: remove {key} or its entry here"),
                ));
            }
        }
        let ModelTarget { model, endpoint } = target?;
        Ok(PhaseSettings {
            model,
            endpoint,
            temperature: settings.temperature.unwrap_or(own_temperature?),
            max_output_tokens: settings.max_output_tokens.or(own_limit?),
            parameters: settings.parameters,
            options: options?,
            timeout: timeout?,
        })
    }
}

fn temperature(number: f64) -> Result<f64, Invalid> {
    if (0.0..=2.0).contains(&number) {
        return Ok(number);
    }
    Err(Invalid::new(
        format!("{number} is no temperature"),
        "write a number from 0 to 2",
    ))
}

fn fraction(number: f64) -> Result<f64, Invalid> {
    if (0.0..=1.0).contains(&number) {
        return Ok(number);
    }
    Err(Invalid::new(
        format!("{number} is no share"),
        "write a number from 0 to 1",
    ))
}
