//! The rules of the thresholds: fractions, multiples and numbers of tokens all become tokens here, so
//! that no other room interprets them again.
//!
//! They are judged together, since each is measured by another: what `memory` sets, and once more as
//! each override changes it.

use super::parse::{CheckResult, Invalid, RawActivateAfterIdle, Setting};
use super::problem::Problem;
use super::settings::{RawObservation, RawReflection};
use super::valid::{ActivateAfterIdle, EarlyActivation, Thresholds};

/// From here on `buffer_activation` is a number of tokens; below, above 1, it is a slip of the pen.
const MIN_ABSOLUTE_FLOOR: f64 = 1_000.0;

/// From here on `block_after` is a number of tokens, below it a multiple.
const MIN_ABSOLUTE_BLOCK: f64 = 100.0;

/// Everything that is written about thresholds.
#[derive(Debug, Clone)]
pub(super) struct RawThresholds {
    pub(super) share_token_budget: Setting<bool>,
    pub(super) observation: RawPhaseThresholds,
    pub(super) message_tokens: Setting<u64>,
    pub(super) buffer_tokens: Setting<f64>,
    pub(super) buffer_on_idle: Setting<bool>,
    pub(super) reflection: RawPhaseThresholds,
    pub(super) observation_tokens: Setting<u64>,
}

/// What is written about the thresholds of either phase, under the same names.
#[derive(Debug, Clone)]
pub(super) struct RawPhaseThresholds {
    pub(super) buffer_activation: Setting<f64>,
    pub(super) block_after: Setting<f64>,
    pub(super) activate_after_idle: Setting<RawActivateAfterIdle>,
    pub(super) activate_on_model_change: Setting<bool>,
}

impl RawThresholds {
    pub(super) fn from_raw(
        share_token_budget: &Setting<bool>,
        observation: &RawObservation,
        reflection: &RawReflection,
    ) -> Self {
        Self {
            share_token_budget: share_token_budget.clone(),
            observation: RawPhaseThresholds {
                buffer_activation: observation.buffer_activation.clone(),
                block_after: observation.block_after.clone(),
                activate_after_idle: observation.activate_after_idle.clone(),
                activate_on_model_change: observation.activate_on_model_change.clone(),
            },
            message_tokens: observation.message_tokens.clone(),
            buffer_tokens: observation.buffer_tokens.clone(),
            buffer_on_idle: observation.buffer_on_idle.clone(),
            reflection: RawPhaseThresholds {
                buffer_activation: reflection.buffer_activation.clone(),
                block_after: reflection.block_after.clone(),
                activate_after_idle: reflection.activate_after_idle.clone(),
                activate_on_model_change: reflection.activate_on_model_change.clone(),
            },
            observation_tokens: reflection.observation_tokens.clone(),
        }
    }

    pub(super) fn validate(&self, problems: &mut Vec<Problem>) -> CheckResult<Thresholds> {
        let (observation, reflection) = (&self.observation, &self.reflection);
        let message_tokens = self.message_tokens.check(problems, |&n| tokens(n));
        // Without a threshold there is nothing to measure the others by.
        let message_threshold = message_tokens.unwrap_or(u32::MAX);
        let share_token_budget = self.share_token_budget.value;
        let max_raw_tokens = match tokens(self.observation_tokens.value) {
            Ok(observation_tokens) if share_token_budget => {
                message_threshold.saturating_add(observation_tokens)
            }
            _ => message_threshold,
        };
        let buffer_tokens = self
            .buffer_tokens
            .check(problems, |&n| buffer_tokens(n, message_threshold));
        let retention_floor = observation.buffer_activation.check(problems, |&n| {
            retention_floor(n, message_threshold, max_raw_tokens)
        });
        let message_limit = observation.block_after.check(problems, |&n| {
            block_after(n, message_tokens.ok(), "message_tokens")
        });
        let observation_tokens = self.observation_tokens.check(problems, |&n| tokens(n));
        let observation_threshold = observation_tokens.unwrap_or(u32::MAX);
        let reflect_from = reflection
            .buffer_activation
            .check(problems, |&n| reflect_from(n, observation_threshold));
        let observation_limit = reflection.block_after.check(problems, |&n| {
            block_after(n, observation_tokens.ok(), "observation_tokens")
        });
        Ok(Thresholds {
            message_tokens: message_tokens?,
            buffer_tokens: buffer_tokens?,
            buffer_on_idle: self.buffer_on_idle.value,
            retention_floor: retention_floor?,
            message_limit: message_limit?,
            observation_tokens: observation_tokens?,
            reflect_from: reflect_from?,
            observation_limit: observation_limit?,
            share_token_budget,
            early_activation: early_activation(observation),
            early_reflection: early_activation(reflection),
        })
    }
}

fn early_activation(phase: &RawPhaseThresholds) -> EarlyActivation {
    EarlyActivation {
        idle: match phase.activate_after_idle.value {
            RawActivateAfterIdle::Never => ActivateAfterIdle::Never,
            RawActivateAfterIdle::After(time) => ActivateAfterIdle::After(time),
            RawActivateAfterIdle::Auto => ActivateAfterIdle::Auto,
        },
        model_change: phase.activate_on_model_change.value,
    }
}

pub(super) fn tokens(number: u64) -> Result<u32, Invalid> {
    match u32::try_from(number) {
        Ok(0) => Err(Invalid::new(
            "0 tokens hold nothing",
            "write a number above 0",
        )),
        Ok(number) => Ok(number),
        Err(_) => Err(Invalid::new(
            format!("{number} tokens are more than any model reads"),
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
        let what = format!("{number} makes {tokens} tokens, of {message_tokens} message_tokens");
        return Err(Invalid::new(what, remedy));
    }
    Ok(tokens)
}

/// What a block may tell of other conversations.
pub(super) fn other_conversations(number: f64, observation_tokens: u32) -> Result<u32, Invalid> {
    let remedy =
        "write a fraction between 0 and 1, or a whole number of tokens, at most observation_tokens";
    let tokens = if 0.0 < number && number < 1.0 {
        share(observation_tokens, number)
    } else {
        whole(number, remedy)?
    };
    if tokens == 0 || tokens > observation_tokens {
        let what =
            format!("{number} makes {tokens} tokens, of {observation_tokens} observation_tokens");
        return Err(Invalid::new(what, remedy));
    }
    Ok(tokens)
}

/// `most` is what raw history can grow to: `message_tokens`, or both budgets where they are shared.
fn retention_floor(number: f64, message_tokens: u32, max_raw_tokens: u32) -> Result<u32, Invalid> {
    let remedy =
        "write the fraction to clear, above 0 and up to 1, or the tokens to keep, from 1000";
    if 0.0 < number && number <= 1.0 {
        let tokens = max_raw_tokens - share(max_raw_tokens, number);
        if tokens >= message_tokens && message_tokens < max_raw_tokens {
            let what = format!(
                "clearing {number} of the shared {max_raw_tokens} tokens keeps {tokens}: nothing is cleared \
                 once observations have left raw messages no more than {message_tokens}"
            );
            return Err(Invalid::new(what, "clear a larger fraction"));
        }
        return Ok(tokens);
    }
    if number < MIN_ABSOLUTE_FLOOR {
        let what =
            format!("{number} is neither a fraction to clear nor a number of tokens to keep");
        return Err(Invalid::new(what, remedy));
    }
    let tokens = whole(number, remedy)?;
    if tokens >= message_tokens {
        let what = format!("keeping {tokens} of {message_tokens} message_tokens clears nothing");
        return Err(Invalid::new(what, "keep fewer tokens than message_tokens"));
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
        0 => Err(Invalid::new(format!("{number} makes 0 tokens"), remedy)),
        tokens => Ok(tokens),
    }
}

fn block_after(number: f64, threshold: Option<u32>, name: &str) -> Result<u32, Invalid> {
    let remedy = format!(
        "write a multiple from 1 to below 100, or a whole number of tokens not below {name}"
    );
    if number < 1.0 {
        return Err(Invalid::new(format!("{number} lies below {name}"), remedy));
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
        let what = format!("{tokens} tokens lie below {name}, {threshold}");
        return Err(Invalid::new(what, remedy));
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
fn whole(number: f64, remedy: &str) -> Result<u32, Invalid> {
    if number >= 0.0 && number <= f64::from(u32::MAX) && number.fract() == 0.0 {
        return Ok(number as u32);
    }
    Err(Invalid::new(
        format!("{number} is not a number of tokens"),
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
    fn buffer_activation_is_what_to_clear_or_what_to_keep() {
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
    fn reflection_starts_from_a_fraction() {
        assert_eq!(reflect_from(0.5, 40_000).unwrap(), 20_000);
        assert_eq!(reflect_from(1.0, 40_000).unwrap(), 40_000);
        for wrong in [0.0, 1.1, -0.5, 1_000.0] {
            assert!(reflect_from(wrong, 40_000).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_shared_budget_is_what_is_cleared_a_fraction_of() {
        assert_eq!(retention_floor(0.8, 30_000, 70_000).unwrap(), 14_000);
        assert_eq!(retention_floor(5_000.0, 30_000, 70_000).unwrap(), 5_000);
        assert_eq!(retention_floor(0.572, 30_000, 70_000).unwrap(), 29_960);
        // Once observations have grown, keeping 30,000 of 30,000 would clear nothing.
        assert!(retention_floor(0.57, 30_000, 70_000).is_err());
        assert!(retention_floor(40_000.0, 30_000, 70_000).is_err());
    }
}
