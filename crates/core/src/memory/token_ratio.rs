//! How many tokens a provider counts where Diarist counts one: a running figure for one model.
//!
//! Diarist counts with one tokenizer, and every model has its own. The figure compares how much the provider's count of
//! a prompt grew with the count of the messages that were added. So tools, system messages and the block, which are
//! not counted here, stay out of it.

use super::Policy;

/// Counted tokens from which on the figure is known.
const ENOUGH: u64 = 2_000;

/// Counted tokens of which a figure consists at most. Beyond that, older ones count half.
const MOST: u64 = 400_000;

/// A shorter addition says little: the provider may round.
const SHORTEST: u64 = 20;

/// An addition outside of this is no matter of tokenizers: an image, or a gateway that counts otherwise.
const PLAUSIBLE: std::ops::RangeInclusive<f64> = 0.25..=4.0;

/// What thresholds follow at most.
const FOLLOWED: (f64, f64) = (0.5, 2.0);

/// The messages that a prompt grew by, and the growth of the provider's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptGrowth {
    /// How many messages at the end of the request are new.
    pub messages: usize,
    /// The tokens that the provider counted for them.
    pub tokens: u64,
}

/// The running figure of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenRatio {
    counted: u64,
    reported: u64,
}

impl TokenRatio {
    /// Adds messages of `counted` tokens for which the provider reported `reported`. Returns whether they are used.
    pub fn add(&mut self, counted: u64, reported: u64) -> bool {
        let plausible = PLAUSIBLE.contains(&quotient(reported, counted));
        if counted < SHORTEST || !plausible {
            return false;
        }
        *self = self.plus(Self { counted, reported });
        true
    }

    /// The figure with these sums of counted and of reported tokens, as [`TokenRatio::sums`] gave them.
    #[must_use]
    pub fn from_sums(counted: u64, reported: u64) -> Self {
        let plausible = counted <= MOST && PLAUSIBLE.contains(&quotient(reported, counted));
        if plausible {
            Self { counted, reported }
        } else {
            Self::default()
        }
    }

    /// The sums of counted and of reported tokens.
    #[must_use]
    pub fn sums(&self) -> (u64, u64) {
        (self.counted, self.reported)
    }

    /// The figure of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            counted: self.counted + other.counted,
            reported: self.reported + other.reported,
        }
        .bounded()
    }

    fn bounded(mut self) -> Self {
        if self.counted > MOST {
            self.counted /= 2;
            self.reported /= 2;
        }
        self
    }

    /// Reported tokens for one counted token, in hundredths; `None` as long as too few were compared.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        let hundredths = (quotient(self.reported, self.counted) * 100.0).round();
        (self.counted >= ENOUGH).then_some(hundredths / 100.0)
    }
}

fn quotient(reported: u64, counted: u64) -> f64 {
    reported as f64 / counted.max(1) as f64
}

impl Policy {
    /// The thresholds for a model whose provider counts `ratio` tokens where Diarist counts one: in Diarist's tokens,
    /// at the sizes that the provider counts. The size of a chunk stays as it is, so that all processes observe the
    /// same ranges. In steps of a twentieth, so that thresholds do not move with every request.
    #[must_use]
    pub fn for_token_ratio(self, ratio: f64) -> Self {
        let ratio = ((ratio * 20.0).round() / 20.0).clamp(FOLLOWED.0, FOLLOWED.1);
        let scaled = |tokens: u32| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "positive, and `as` saturates"
            )]
            let tokens = (f64::from(tokens) / ratio).round() as u32;
            tokens
        };
        // An activation needs more than one chunk of raw history.
        let least = self.buffer_tokens.saturating_add(1);
        Self {
            message_tokens: scaled(self.message_tokens).max(least),
            retention_floor: scaled(self.retention_floor),
            block_after: scaled(self.block_after).max(least),
            observation_tokens: scaled(self.observation_tokens),
            reflect_from: scaled(self.reflect_from),
            observation_limit: scaled(self.observation_limit),
            costs: self.costs.map(|costs| super::CostRules {
                history_limit: scaled(costs.history_limit),
                ..costs
            }),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::EarlyTriggers;

    #[test]
    fn the_token_ratio_needs_enough_data_and_follows_the_newest_reports() {
        let mut ratio = TokenRatio::default();
        assert!(ratio.add(1_900, 2_280));
        assert_eq!(ratio.value(), None);
        assert!(ratio.add(100, 120));
        assert_eq!(ratio.value(), Some(1.2));
        for _ in 0..2_000 {
            ratio.add(1_000, 900);
        }
        assert_eq!(ratio.value(), Some(0.9));
        assert!(ratio.counted <= MOST);
    }

    #[test]
    fn implausible_token_reports_do_not_change_the_ratio() {
        let mut ratio = TokenRatio::default();
        for (counted, reported) in [(19, 19), (1_000, 249), (1_000, 4_001), (0, 500)] {
            assert!(!ratio.add(counted, reported), "{counted} {reported}");
        }
        assert_eq!(ratio, TokenRatio::default());
    }

    fn policy() -> Policy {
        Policy {
            message_tokens: 30_000,
            buffer_tokens: 6_000,
            buffer_on_idle: false,
            retention_floor: 6_000,
            block_after: 36_000,
            observation_tokens: 40_000,
            reflect_from: 20_000,
            observation_limit: 48_000,
            share_token_budget: false,
            block_overhead: 300,
            early_activation: EarlyTriggers::NEVER,
            early_reflection: EarlyTriggers::NEVER,
            costs: None,
        }
    }

    #[test]
    fn the_token_ratio_scales_thresholds_but_not_the_buffer_size() {
        let sizes = |policy: Policy| {
            [
                policy.message_tokens,
                policy.retention_floor,
                policy.block_after,
                policy.observation_tokens,
                policy.reflect_from,
                policy.observation_limit,
            ]
        };
        let larger = policy().for_token_ratio(1.26);
        assert_eq!(
            sizes(larger),
            [24_000, 4_800, 28_800, 32_000, 16_000, 38_400]
        );
        assert_eq!(larger.buffer_tokens, 6_000);
        assert_eq!(policy().for_token_ratio(1.02), policy());
        assert_eq!(
            policy().for_token_ratio(3.0),
            policy().for_token_ratio(2.0),
            "no further than a half"
        );
        let smaller = policy().for_token_ratio(0.5);
        assert_eq!(
            (smaller.message_tokens, smaller.block_after),
            (60_000, 72_000)
        );
        let tight = Policy {
            buffer_tokens: 29_000,
            ..policy()
        };
        assert_eq!(tight.for_token_ratio(2.0).message_tokens, 29_001);
    }
}
