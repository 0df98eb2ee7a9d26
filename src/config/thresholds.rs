//! The rules of the thresholds: fractions, multiples and numbers of tokens all become tokens here.
//!
//! They are checked together, since most are relative to another one. Called by `phases` for what all
//! conversations have, and once more for each override.

use super::parse::{CheckResult, Invalid, Setting};
use super::problem::Problem;
use super::settings::{RawObservation, RawReflection};
use crate::memory::{EarlyTriggers, IdleTrigger, Policy, render};

/// From here on `buffer_activation` is a number of tokens. A value between 1 and this is a mistake.
const MIN_ABSOLUTE_FLOOR: f64 = 1_000.0;

/// From here on `block_after` is a number of tokens; below, it is a multiple.
const MIN_ABSOLUTE_BLOCK: f64 = 100.0;

/// Whether the operator changed a threshold that decides nothing where costs do. To write a default changes nothing.
pub(super) fn is_changed(share_token_budget: &Setting<bool>, observation: &RawObservation) -> bool {
    /// The defaults in the table of settings.
    const DEFAULTS: (u64, f64) = (30_000, 1.2);
    let found = (
        observation.message_tokens.value,
        observation.block_after.value,
    );
    share_token_budget.value || found != DEFAULTS
}

/// The thresholds of both phases.
pub(super) fn policy(
    share_token_budget: &Setting<bool>,
    observation: &RawObservation,
    reflection: &RawReflection,
    problems: &mut Vec<Problem>,
) -> CheckResult<Policy> {
    let message_tokens = observation.message_tokens.check(problems, |&n| tokens(n));
    // An invalid threshold is replaced by the largest one, so that the others can still be checked.
    let message_threshold = message_tokens.unwrap_or(u32::MAX);
    let share_token_budget = share_token_budget.value;
    let max_raw_tokens = match tokens(reflection.observation_tokens.value) {
        Ok(observation_tokens) if share_token_budget => {
            message_threshold.saturating_add(observation_tokens)
        }
        _ => message_threshold,
    };
    let buffer_tokens = observation
        .buffer_tokens
        .check(problems, |&n| buffer_tokens(n, message_threshold));
    let retention_floor = observation.buffer_activation.check(problems, |&n| {
        retention_floor(n, message_threshold, max_raw_tokens)
    });
    let message_limit = observation.block_after.check(problems, |&n| {
        block_after(n, message_tokens.ok(), "message_tokens")
    });
    let observation_tokens = reflection
        .observation_tokens
        .check(problems, |&n| tokens(n));
    let observation_threshold = observation_tokens.unwrap_or(u32::MAX);
    let reflect_from = reflection
        .buffer_activation
        .check(problems, |&n| reflect_from(n, observation_threshold));
    let observation_limit = reflection.block_after.check(problems, |&n| {
        block_after(n, observation_tokens.ok(), "observation_tokens")
    });
    Ok(Policy {
        message_tokens: message_tokens?,
        buffer_tokens: buffer_tokens?,
        buffer_on_idle: observation.buffer_on_idle.value,
        retention_floor: retention_floor?,
        block_after: message_limit?,
        observation_tokens: observation_tokens?,
        reflect_from: reflect_from?,
        observation_limit: observation_limit?,
        share_token_budget,
        block_overhead: render::preamble_tokens(render::PREAMBLE_VERSION),
        early_activation: early(
            &observation.activate_after_idle,
            &observation.activate_on_model_change,
        ),
        early_reflection: early(
            &reflection.activate_after_idle,
            &reflection.activate_on_model_change,
        ),
        costs: None,
    })
}

fn early(idle: &Setting<Option<IdleTrigger>>, model_change: &Setting<bool>) -> EarlyTriggers {
    EarlyTriggers {
        idle: idle.value.unwrap_or(IdleTrigger::Never),
        model_change: model_change.value,
    }
}

pub(super) fn tokens(number: u64) -> Result<u32, Invalid> {
    match u32::try_from(number) {
        Ok(0) => Err(Invalid::new(
            "the number of tokens must be greater than 0",
            "write a number above 0",
        )),
        Ok(number) => Ok(number),
        Err(_) => Err(Invalid::new(
            format!("{number} tokens are out of range"),
            "write a smaller number",
        )),
    }
}

fn buffer_tokens(number: f64, message_tokens: u32) -> Result<u32, Invalid> {
    let remedy =
        "write a fraction between 0 and 1, or a whole number of tokens below message_tokens";
    let tokens = if 0.0 < number && number < 1.0 {
        share(message_tokens, number)
    } else {
        whole(number, remedy)?
    };
    if tokens == 0 || tokens >= message_tokens {
        let what = format!(
            "{number} makes {tokens} tokens, but it must be above 0 and below message_tokens ({message_tokens})"
        );
        return Err(Invalid::new(what, remedy));
    }
    Ok(tokens)
}

/// The tokens that other conversations may take in a block.
pub(super) fn other_conversations(number: f64, observation_tokens: u32) -> Result<u32, Invalid> {
    let remedy =
        "write a fraction between 0 and 1, or a whole number of tokens, at most observation_tokens";
    let tokens = if 0.0 < number && number < 1.0 {
        share(observation_tokens, number)
    } else {
        whole(number, remedy)?
    };
    if tokens == 0 || tokens > observation_tokens {
        let what = format!(
            "{number} makes {tokens} tokens, but it must be above 0 and at most observation_tokens \
             ({observation_tokens})"
        );
        return Err(Invalid::new(what, remedy));
    }
    Ok(tokens)
}

/// The tokens of recent messages that an activation keeps. `max_raw_tokens` is the most that raw history can
/// have: `message_tokens`, or the sum of both budgets if they are shared.
fn retention_floor(number: f64, message_tokens: u32, max_raw_tokens: u32) -> Result<u32, Invalid> {
    let remedy =
        "write the fraction to clear, above 0 and up to 1, or the tokens to keep, from 1000";
    if 0.0 < number && number <= 1.0 {
        let tokens = max_raw_tokens - share(max_raw_tokens, number);
        if tokens >= message_tokens && message_tokens < max_raw_tokens {
            let what = format!(
                "clearing {number} of the shared {max_raw_tokens} tokens keeps {tokens}: nothing would be \
                 cleared when observations leave raw messages only {message_tokens}"
            );
            return Err(Invalid::new(what, "write a larger fraction"));
        }
        return Ok(tokens);
    }
    if number < MIN_ABSOLUTE_FLOOR {
        let what =
            format!("{number} is neither a fraction (up to 1) nor a number of tokens (from 1000)");
        return Err(Invalid::new(what, remedy));
    }
    let tokens = whole(number, remedy)?;
    if tokens >= message_tokens {
        let what = format!(
            "keeping {tokens} tokens would clear nothing: message_tokens is {message_tokens}"
        );
        return Err(Invalid::new(what, "write a number below message_tokens"));
    }
    Ok(tokens)
}

fn reflect_from(number: f64, observation_tokens: u32) -> Result<u32, Invalid> {
    let remedy = "write a fraction above 0 and up to 1";
    if !(0.0 < number && number <= 1.0) {
        let what = format!("{number} is not a fraction of observation_tokens");
        return Err(Invalid::new(what, remedy));
    }
    match share(observation_tokens, number) {
        0 => Err(Invalid::new(
            format!("{number} of observation_tokens is 0 tokens"),
            remedy,
        )),
        tokens => Ok(tokens),
    }
}

fn block_after(number: f64, threshold: Option<u32>, name: &str) -> Result<u32, Invalid> {
    let remedy = format!(
        "write a multiple from 1 to below 100, or a whole number of tokens of at least {name}"
    );
    if number < 1.0 {
        return Err(Invalid::new(
            format!("{number} is below 1 and would lie below {name}"),
            remedy,
        ));
    }
    let Some(threshold) = threshold else {
        return Ok(u32::MAX);
    };
    let tokens = if number < MIN_ABSOLUTE_BLOCK {
        share(threshold, number)
    } else {
        whole(number, &remedy)?
    };
    if tokens < threshold {
        let what = format!("{tokens} tokens are less than {name} ({threshold})");
        return Err(Invalid::new(what, remedy));
    }
    Ok(tokens)
}

/// `number` times `tokens`, rounded: as a product of doubles, 0.8 of 30,000 is 24,000.000000000004.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the factor is positive, and `as` saturates if the product is too large"
)]
fn share(tokens: u32, number: f64) -> u32 {
    (f64::from(tokens) * number).round() as u32
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked in the line above"
)]
fn whole(number: f64, remedy: &str) -> Result<u32, Invalid> {
    if number >= 0.0 && number <= f64::from(u32::MAX) && number.fract() == 0.0 {
        return Ok(number as u32);
    }
    Err(Invalid::new(
        format!("{number} is not a whole number of tokens"),
        remedy,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_tokens_below_one_is_a_fraction() {
        assert_eq!(buffer_tokens(0.2, 30_000).unwrap(), 6_000);
        assert_eq!(buffer_tokens(0.999, 30_000).unwrap(), 29_970);
        assert_eq!(buffer_tokens(1.0, 30_000).unwrap(), 1);
        assert_eq!(buffer_tokens(5_000.0, 30_000).unwrap(), 5_000);
        for wrong in [0.0, -0.1, 1.5, 30_000.0, 30_001.0, 0.000_001, 5e9] {
            assert!(buffer_tokens(wrong, 30_000).is_err(), "{wrong}");
        }
    }

    #[test]
    fn buffer_activation_is_a_fraction_to_clear_or_tokens_to_keep() {
        assert_eq!(retention_floor(0.8, 30_000, 30_000).unwrap(), 6_000);
        assert_eq!(retention_floor(1.0, 30_000, 30_000).unwrap(), 0);
        assert_eq!(retention_floor(1_000.0, 30_000, 30_000).unwrap(), 1_000);
        assert_eq!(retention_floor(29_999.0, 30_000, 30_000).unwrap(), 29_999);
        for wrong in [0.0, -1.0, 1.000_1, 2.0, 999.0, 1_000.5, 30_000.0] {
            assert!(retention_floor(wrong, 30_000, 30_000).is_err(), "{wrong}");
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
    fn the_start_of_a_reflection_must_be_a_fraction() {
        assert_eq!(reflect_from(0.5, 40_000).unwrap(), 20_000);
        assert_eq!(reflect_from(1.0, 40_000).unwrap(), 40_000);
        for wrong in [0.0, 1.1, -0.5, 1_000.0] {
            assert!(reflect_from(wrong, 40_000).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_fraction_to_clear_refers_to_the_shared_budget() {
        assert_eq!(retention_floor(0.8, 30_000, 70_000).unwrap(), 14_000);
        assert_eq!(retention_floor(5_000.0, 30_000, 70_000).unwrap(), 5_000);
        assert_eq!(retention_floor(0.572, 30_000, 70_000).unwrap(), 29_960);
        // Once observations have grown, keeping 30,000 of 30,000 would clear nothing.
        assert!(retention_floor(0.57, 30_000, 70_000).is_err());
        assert!(retention_floor(40_000.0, 30_000, 70_000).is_err());
    }
}
