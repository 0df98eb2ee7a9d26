//! The rules of the two phases: which model is asked where, and how, and what each is told. They are
//! judged once as they stand, and once more as each override changes them. Called by `memory` and
//! `overrides`.

use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};

use super::asking::{Table, WrittenModels, model_settings, models, provider_options};
use super::judged::{base_url, lasting, said};
use super::observer;
use super::problem::Problem;
use super::settings::{RawConfig, RawObservation, RawReflection};
use super::thresholds::{Numbers, tokens};
use super::valid::{Endpoint, Models, Observation, Phase, Reflection, Thresholds};
use super::written::{Checked, Reported, Written, Wrong};

/// What is written about how memory is made, where it may be otherwise for some models.
#[derive(Debug, Clone)]
pub(super) struct Section {
    pub(super) share_token_budget: Written<bool>,
    pub(super) read_only: Written<bool>,
    pub(super) observation: RawObservation,
    pub(super) reflection: RawReflection,
}

impl Section {
    pub(super) fn of(raw: &RawConfig) -> Self {
        Self {
            share_token_budget: raw.memory.share_token_budget.clone(),
            read_only: raw.memory.read_only.clone(),
            observation: raw.observation.clone(),
            reflection: raw.reflection.clone(),
        }
    }

    pub(super) fn thresholds(&self, problems: &mut Vec<Problem>) -> Checked<Thresholds> {
        Numbers::of(
            &self.share_token_budget,
            &self.observation,
            &self.reflection,
        )
        .validate(problems)
    }
}

/// Where a phase asks, and for which model.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) model: Option<Models>,
    pub(super) endpoint: Option<Endpoint>,
}

/// The model: the common one, else the phase's own, else the other phase's where both ask at the
/// same place (a name means nothing elsewhere), else the conversation's. The place: the phase's own,
/// else the common one, else the conversation's.
pub(super) fn phases(
    raw: &RawConfig,
    problems: &mut Vec<Problem>,
) -> (Checked<Asked>, Checked<Asked>) {
    let (memory, observation, reflection) = (&raw.memory, &raw.observation, &raw.reflection);

    let common = models(&memory.model, problems);
    let mut own = |model: &Written<Option<WrittenModels>>| {
        if memory.model.value.is_some() && model.value.is_some() {
            problems.push(model.problem(
                "memory.model is set as well, and says the same for both phases",
                format!("keep one of the two: remove {} or memory.model", model.key),
            ));
        }
        models(model, problems)
    };
    let (observer, reflector) = (own(&observation.model), own(&reflection.model));

    let shared = endpoint(&memory.base_url, &memory.api_key, problems);
    let observer_at = endpoint(&observation.base_url, &observation.api_key, problems);
    let reflector_at = endpoint(&reflection.base_url, &reflection.api_key, problems);
    let one_place = matches!((&observer_at, &reflector_at), (Ok(None), Ok(None)));

    let asked = |own: Checked<Option<Models>>,
                 other: Checked<Option<Models>>,
                 at: Checked<Option<Endpoint>>| {
        let lent = other?.filter(|_| one_place);
        Ok(Asked {
            model: common.clone()?.or(own?).or(lent),
            endpoint: at?.or(shared.clone()?),
        })
    };
    (
        asked(observer.clone(), reflector.clone(), observer_at),
        asked(reflector, observer, reflector_at),
    )
}

/// A place to ask at: its URL and its key together, or neither.
fn endpoint(
    url: &Written<Option<String>>,
    key: &Written<Option<SecretString>>,
    problems: &mut Vec<Problem>,
) -> Checked<Option<Endpoint>> {
    let alone = |set: &str, missing: &str| {
        (
            format!("it is set without {missing}"),
            format!("set {missing} as well, or remove {set} to use the conversation's own way"),
        )
    };
    if url.value.is_some() && key.value.is_none() {
        let (what, remedy) = alone(&url.key, &key.key);
        problems.push(url.problem(what, remedy));
    }
    if key.value.is_some() && url.value.is_none() {
        let (what, remedy) = alone(&key.key, &url.key);
        problems.push(key.problem(what, remedy));
    }
    let base_url = url.check_some(problems, |text| base_url(text));
    let api_key = key.check_some(problems, header_safe);
    match (base_url?, api_key?) {
        (Some(base_url), Some(api_key)) => Ok(Some(Endpoint { base_url, api_key })),
        (None, None) => Ok(None),
        _ => Err(Reported),
    }
}

fn header_safe(key: &SecretString) -> Result<SecretString, Wrong> {
    let visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    match key.expose_secret() {
        "" => Err(Wrong::new(
            "it is empty",
            "write the key, or remove it with its base_url",
        )),
        text if visible(text) => Ok(key.clone()),
        _ => Err(Wrong::new(
            "it holds a blank, a line break or another character that no key holds",
            "copy the key again, without what stands around it",
        )),
    }
}

pub(super) fn observation(
    raw: &RawObservation,
    asked: Checked<Asked>,
    problems: &mut Vec<Problem>,
) -> Checked<Observation> {
    let instruction = raw.instruction.check_some(problems, |text| said(text));
    let max_input_tokens = raw
        .max_input_tokens
        .check(problems, |&n| observer::input_tokens(n));
    let previous_observer_tokens = raw
        .previous_observer_tokens
        .check(problems, |&n| observer::previous_tokens(n));
    let continuation_hints = raw.continuation_hints.check(problems, observer::hints);
    let observe_attachments = raw
        .observe_attachments
        .check(problems, observer::attachments);
    let omit_blocks = raw
        .omit_blocks
        .check(problems, |tags| observer::blocks(tags));
    let phase = Calls {
        temperature: &raw.temperature,
        max_output_tokens: Some(&raw.max_output_tokens),
        model_settings: &raw.model_settings,
        provider_options: &raw.provider_options,
        timeout: &raw.timeout,
    }
    .phase(asked, problems);
    Ok(Observation {
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
    asked: Checked<Asked>,
    problems: &mut Vec<Problem>,
) -> Checked<Reflection> {
    let instruction = raw.instruction.check_some(problems, |text| said(text));
    let continuation_hints = raw.continuation_hints.check(problems, observer::hints);
    let phase = Calls {
        temperature: &raw.temperature,
        max_output_tokens: None,
        model_settings: &raw.model_settings,
        provider_options: &raw.provider_options,
        timeout: &raw.timeout,
    }
    .phase(asked, problems);
    let max_loss = raw.max_loss.check(problems, |&n| portion(n));
    Ok(Reflection {
        phase: phase?,
        instruction: instruction?,
        continuation_hints: continuation_hints?,
        max_loss: max_loss?,
    })
}

/// The keys about calls, as both phases have them.
struct Calls<'a> {
    temperature: &'a Written<f64>,
    max_output_tokens: Option<&'a Written<Option<u64>>>,
    model_settings: &'a Written<Option<Table>>,
    provider_options: &'a Written<Option<Table>>,
    timeout: &'a Written<Duration>,
}

impl Calls<'_> {
    fn phase(&self, asked: Checked<Asked>, problems: &mut Vec<Problem>) -> Checked<Phase> {
        let own_temperature = self.temperature.check(problems, |&n| temperature(n));
        let own_limit = self.max_output_tokens.map_or(Ok(None), |written| {
            written.check_some(problems, |&n| tokens(n))
        });
        let timeout = self.timeout.check(problems, lasting);
        let options = provider_options(self.provider_options, problems);
        let settings = model_settings(self.model_settings, problems)?;
        let limit = self.max_output_tokens.filter(|at| at.value.is_some());
        for (key, twice) in [
            (
                &*self.temperature.key,
                settings.temperature.is_some() && self.temperature.origin.is_some(),
            ),
            (
                limit.map_or("", |written| &*written.key),
                settings.max_output_tokens.is_some() && limit.is_some(),
            ),
        ] {
            if twice {
                problems.push(self.model_settings.problem(
                    format!("{key} is set as well, and says the same"),
                    format!("keep one of the two: remove {key} or its entry here"),
                ));
            }
        }
        let Asked { model, endpoint } = asked?;
        Ok(Phase {
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

fn temperature(number: f64) -> Result<f64, Wrong> {
    if (0.0..=2.0).contains(&number) {
        return Ok(number);
    }
    Err(Wrong::new(
        format!("{number} is no temperature"),
        "write a number from 0 to 2",
    ))
}

fn portion(number: f64) -> Result<f64, Wrong> {
    if (0.0..=1.0).contains(&number) {
        return Ok(number);
    }
    Err(Wrong::new(
        format!("{number} is no share"),
        "write a number from 0 to 1",
    ))
}
