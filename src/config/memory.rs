//! The rules of the memory sections: which model is asked where, and how. The numbers are in
//! `thresholds`.

use std::time::Duration;

use jiff::tz::TimeZone;
use secrecy::{ExposeSecret as _, SecretString};

use super::asking::{Table, WrittenModels, model_settings, models, provider_options};
use super::judged::{base_url, lasting};
use super::observer;
use super::overrides::overrides;
use super::problem::Problem;
use super::rules;
use super::settings::{RawConfig, RawObservation, RawReflection};
use super::thresholds::{Numbers, others, tokens};
use super::valid::{
    Endpoint, KeepMessages, Memory, Models, Observation, Overflow, Phase, Reflection,
};
use super::written::{Checked, Reported, Written, Wrong};

pub(super) fn validate(raw: &RawConfig, problems: &mut Vec<Problem>) -> Checked<Memory> {
    let vouched = raw.users.header.value.is_some();
    let shares = raw
        .memory
        .scope
        .check(problems, |text| scope(text, vouched));
    let timezone = raw.memory.timezone.check(problems, |text| timezone(text));
    let (observer, reflector) = phases(raw, problems);
    let numbers = Numbers::of(raw);
    let thresholds = numbers.validate(problems);
    let overrides = overrides(
        &raw.memory.overrides,
        &numbers,
        thresholds.is_ok(),
        problems,
    );
    let observation = observation(&raw.observation, observer, problems);
    let reflection = reflection(&raw.reflection, reflector, problems);
    let against = thresholds
        .as_ref()
        .map_or(u32::MAX, |t| t.observation_tokens);
    let others = raw
        .memory
        .other_conversations
        .check(problems, |&n| others(n, against));
    let daily_tokens = raw.memory.daily_tokens.check_some(problems, |&n| daily(n));
    let bundles = raw.memory.bundles.check_some(problems, |text| said(text));
    let redact = observer::redact(&raw.redact, problems);
    let rules = rules::rules(&raw.memory.rules, problems);
    let overflow = raw.memory.overflow.check(problems, |text| overflow(text));
    let overflow_timeout = raw.memory.overflow_timeout.check(problems, lasting);
    let keep_messages = raw.memory.keep_messages.check(problems, |kept| match kept {
        KeepMessages::For(time) => lasting(time).map(KeepMessages::For),
        kept => Ok(*kept),
    });
    let (shares, others) = (shares?, others?);
    Ok(Memory {
        enabled: raw.memory.enabled.value,
        timezone: timezone?,
        temporal_markers: raw.memory.temporal_markers.value,
        keep_messages: keep_messages?,
        daily_tokens: daily_tokens?,
        others: shares.then_some(others),
        bundles: bundles?.map(std::path::PathBuf::from),
        thresholds: thresholds?,
        overrides: overrides?,
        read_only: raw.memory.read_only.value,
        rules: rules?,
        overflow: overflow?,
        overflow_timeout: overflow_timeout?,
        observation: observation?,
        reflection: reflection?,
        redact: redact?,
    })
}

/// Whether the conversations of one user share what they learned.
fn scope(text: &str, vouched: bool) -> Result<bool, Wrong> {
    match text {
        "thread" => Ok(false),
        "resource" if !vouched => Err(Wrong::new(
            "nobody vouches for who the user is",
            "name the header that says so in identity.resource, and who sets it",
        )),
        "resource" => Ok(true),
        _ => Err(Wrong::new(
            format!("\"{text}\" is not a scope"),
            "write \"thread\" or \"resource\"",
        )),
    }
}

fn timezone(text: &str) -> Result<TimeZone, Wrong> {
    match text {
        // A machine that cannot tell its zone lives by UTC: most of them are containers.
        "system" => Ok(TimeZone::try_system().unwrap_or(TimeZone::UTC)),
        name => TimeZone::get(name).map_err(|_| {
            Wrong::new(
                format!("\"{name}\" is not a time zone"),
                "write an IANA name such as \"Europe/Oslo\", \"UTC\", or \"system\"",
            )
        }),
    }
}

fn overflow(text: &str) -> Result<Overflow, Wrong> {
    match text {
        "pass" => Ok(Overflow::Pass),
        "observe" => Ok(Overflow::Observe),
        "trim" => Ok(Overflow::Trim),
        _ => Err(Wrong::new(
            format!("\"{text}\" is nothing that can be done"),
            "write \"pass\", \"observe\" or \"trim\"",
        )),
    }
}

/// Where a phase asks, and for which model.
#[derive(Debug, Clone)]
struct Asked {
    model: Option<Models>,
    endpoint: Option<Endpoint>,
}

/// The model: the common one, else the phase's own, else the other phase's where both ask at the
/// same place (a name means nothing elsewhere), else the conversation's. The place: the phase's own,
/// else the common one, else the conversation's.
fn phases(raw: &RawConfig, problems: &mut Vec<Problem>) -> (Checked<Asked>, Checked<Asked>) {
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

fn said(text: &str) -> Result<String, Wrong> {
    match text.trim() {
        "" => Err(Wrong::new(
            "it is empty",
            "write something, or remove the key",
        )),
        text => Ok(text.to_owned()),
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

fn observation(
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
        observe_system: raw.observe_system.value,
        thread_title: raw.thread_title.value,
    })
}

fn reflection(
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

fn daily(number: u64) -> Result<u64, Wrong> {
    if number > 0 {
        return Ok(number);
    }
    Err(Wrong::new(
        "with 0 tokens a day nothing would ever be observed",
        "write a number above 0, or memory.enabled = false for no memory at all",
    ))
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
