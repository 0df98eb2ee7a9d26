//! The rules of the three memory sections: which model is asked where, and by which numbers.
//!
//! The published options give a threshold as a fraction, a multiple or a number of tokens; here they
//! all become tokens, so that no other room interprets them again.

use std::time::Duration;

use jiff::tz::TimeZone;
use secrecy::{ExposeSecret as _, SecretString};

use super::asking::{Table, WrittenModels, model_settings, models, provider_options};
use super::observer;
use super::problem::Problem;
use super::settings::{RawConfig, RawObservation, RawReflection};
use super::valid::{Endpoint, Memory, Models, Observation, Phase, Reflection};
use super::validate::{base_url, lasting};
use super::written::{Checked, Reported, Written, Wrong};

/// From here on `buffer_activation` is a number of tokens; below, above 1, it is a slip of the pen.
const LEAST_ABSOLUTE_FLOOR: f64 = 1_000.0;

/// From here on `block_after` is a number of tokens, below it a multiple.
const LEAST_ABSOLUTE_BLOCK: f64 = 100.0;

pub(super) fn validate(raw: &RawConfig, problems: &mut Vec<Problem>) -> Checked<Memory> {
    let scope = raw.memory.scope.check(problems, |text| scope(text));
    let timezone = raw.memory.timezone.check(problems, |text| timezone(text));
    let (observer, reflector) = phases(raw, problems);
    let observation = observation(&raw.observation, observer, problems);
    let reflection = reflection(&raw.reflection, reflector, problems);
    let daily_tokens = raw.memory.daily_tokens.check_some(problems, |&n| daily(n));
    let redact = observer::redact(&raw.redact, problems);
    scope?;
    Ok(Memory {
        enabled: raw.memory.enabled.value,
        timezone: timezone?,
        temporal_markers: raw.memory.temporal_markers.value,
        daily_tokens: daily_tokens?,
        observation: observation?,
        reflection: reflection?,
        redact: redact?,
    })
}

fn scope(text: &str) -> Result<(), Wrong> {
    match text {
        "thread" => Ok(()),
        "resource" => Err(Wrong::new(
            "\"resource\" is not available yet",
            "write \"thread\", which keeps memory to one conversation",
        )),
        _ => Err(Wrong::new(
            format!("\"{text}\" is not a scope"),
            "write \"thread\"",
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
        let (what, remedy) = alone(url.key, key.key);
        problems.push(url.problem(what, remedy));
    }
    if key.value.is_some() && url.value.is_none() {
        let (what, remedy) = alone(key.key, url.key);
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
    let message_tokens = raw.message_tokens.check(problems, |&n| tokens(n));
    // Without a threshold there is nothing to measure the others by.
    let against = message_tokens.unwrap_or(u32::MAX);
    let buffer_tokens = raw.buffer_tokens.check(problems, |&n| buffer(n, against));
    let retention_floor = raw
        .buffer_activation
        .check(problems, |&n| floor(n, against));
    let block_after_tokens = raw.block_after.check(problems, |&n| {
        block_after(n, message_tokens.ok(), "message_tokens")
    });
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
        message_tokens: message_tokens?,
        buffer_tokens: buffer_tokens?,
        retention_floor: retention_floor?,
        block_after_tokens: block_after_tokens?,
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
    let observation_tokens = raw.observation_tokens.check(problems, |&n| tokens(n));
    let against = observation_tokens.unwrap_or(u32::MAX);
    let reflect_from_tokens = raw
        .buffer_activation
        .check(problems, |&n| reflect_from(n, against));
    let block_after_tokens = raw.block_after.check(problems, |&n| {
        block_after(n, observation_tokens.ok(), "observation_tokens")
    });
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
        observation_tokens: observation_tokens?,
        reflect_from_tokens: reflect_from_tokens?,
        block_after_tokens: block_after_tokens?,
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
                self.temperature.key,
                settings.temperature.is_some() && self.temperature.origin.is_some(),
            ),
            (
                limit.map_or("", |written| written.key),
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

fn tokens(number: u64) -> Result<u32, Wrong> {
    match u32::try_from(number) {
        Ok(0) => Err(Wrong::new(
            "0 tokens hold nothing",
            "write a number above 0",
        )),
        Ok(number) => Ok(number),
        Err(_) => Err(Wrong::new(
            format!("{number} tokens are more than any model reads"),
            "write a smaller number",
        )),
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

fn buffer(number: f64, message_tokens: u32) -> Result<u32, Wrong> {
    let remedy =
        "write a fraction between 0 and 1, or a whole number of tokens below message_tokens";
    let tokens = if 0.0 < number && number < 1.0 {
        share(message_tokens, number)
    } else {
        whole(number, remedy)?
    };
    if tokens == 0 || tokens >= message_tokens {
        let what = format!("{number} makes {tokens} tokens, of {message_tokens} message_tokens");
        return Err(Wrong::new(what, remedy));
    }
    Ok(tokens)
}

fn floor(number: f64, message_tokens: u32) -> Result<u32, Wrong> {
    let remedy =
        "write the fraction to clear, above 0 and up to 1, or the tokens to keep, from 1000";
    if 0.0 < number && number <= 1.0 {
        return Ok(message_tokens - share(message_tokens, number));
    }
    if number < LEAST_ABSOLUTE_FLOOR {
        let what =
            format!("{number} is neither a fraction to clear nor a number of tokens to keep");
        return Err(Wrong::new(what, remedy));
    }
    let tokens = whole(number, remedy)?;
    if tokens >= message_tokens {
        let what = format!("keeping {tokens} of {message_tokens} message_tokens clears nothing");
        return Err(Wrong::new(what, "keep fewer tokens than message_tokens"));
    }
    Ok(tokens)
}

fn reflect_from(number: f64, observation_tokens: u32) -> Result<u32, Wrong> {
    let remedy = "write a fraction above 0 and up to 1";
    if !(0.0 < number && number <= 1.0) {
        let what = format!("{number} is not a fraction of observation_tokens");
        return Err(Wrong::new(what, remedy));
    }
    match share(observation_tokens, number) {
        0 => Err(Wrong::new(format!("{number} makes 0 tokens"), remedy)),
        tokens => Ok(tokens),
    }
}

fn block_after(number: f64, threshold: Option<u32>, name: &str) -> Result<u32, Wrong> {
    let remedy = format!(
        "write a multiple from 1 to below 100, or a whole number of tokens not below {name}"
    );
    if number < 1.0 {
        return Err(Wrong::new(format!("{number} lies below {name}"), remedy));
    }
    let Some(threshold) = threshold else {
        return Ok(u32::MAX);
    };
    let tokens = if number < LEAST_ABSOLUTE_BLOCK {
        share(threshold, number)
    } else {
        whole(number, &remedy)?
    };
    if tokens < threshold {
        let what = format!("{tokens} tokens lie below {name}, {threshold}");
        return Err(Wrong::new(what, remedy));
    }
    Ok(tokens)
}

/// `number` times `tokens`, rounded: 0.8 of 30,000 is 24,000 and not 24,000.000000000004.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the factor is positive, and `as` saturates where a multiple is beyond any number of tokens"
)]
fn share(tokens: u32, number: f64) -> u32 {
    (f64::from(tokens) * number).round() as u32
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked in the line above"
)]
fn whole(number: f64, remedy: &str) -> Result<u32, Wrong> {
    if number >= 0.0 && number <= f64::from(u32::MAX) && number.fract() == 0.0 {
        return Ok(number as u32);
    }
    Err(Wrong::new(
        format!("{number} is not a number of tokens"),
        remedy,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_tokens_below_one_is_a_fraction() {
        assert_eq!(buffer(0.2, 30_000).unwrap(), 6_000);
        assert_eq!(buffer(0.999, 30_000).unwrap(), 29_970);
        assert_eq!(buffer(1.0, 30_000).unwrap(), 1);
        assert_eq!(buffer(5_000.0, 30_000).unwrap(), 5_000);
        for wrong in [0.0, -0.1, 1.5, 30_000.0, 30_001.0, 0.000_001, 5e9] {
            assert!(buffer(wrong, 30_000).is_err(), "{wrong}");
        }
    }

    #[test]
    fn buffer_activation_is_what_to_clear_or_what_to_keep() {
        assert_eq!(floor(0.8, 30_000).unwrap(), 6_000);
        assert_eq!(floor(1.0, 30_000).unwrap(), 0);
        assert_eq!(floor(1_000.0, 30_000).unwrap(), 1_000);
        assert_eq!(floor(29_999.0, 30_000).unwrap(), 29_999);
        for wrong in [0.0, -1.0, 1.000_1, 2.0, 999.0, 1_000.5, 30_000.0] {
            assert!(floor(wrong, 30_000).is_err(), "{wrong}");
        }
    }

    #[test]
    fn block_after_below_a_hundred_is_a_multiple() {
        let after = |number| block_after(number, Some(30_000), "message_tokens");
        assert_eq!(after(1.2).unwrap(), 36_000);
        assert_eq!(after(1.0).unwrap(), 30_000);
        assert_eq!(after(99.0).unwrap(), 2_970_000);
        assert_eq!(after(30_000.0).unwrap(), 30_000);
        for wrong in [0.0, 0.99, 100.0, 29_999.0, 40_000.5] {
            assert!(after(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reflection_starts_from_a_fraction() {
        assert_eq!(reflect_from(0.5, 40_000).unwrap(), 20_000);
        assert_eq!(reflect_from(1.0, 40_000).unwrap(), 40_000);
        for wrong in [0.0, 1.1, -0.5, 1_000.0] {
            assert!(reflect_from(wrong, 40_000).is_err(), "{wrong}");
        }
    }
}
