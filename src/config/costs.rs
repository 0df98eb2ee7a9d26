//! The rules of the section `[memory.cost]`: prices become thousandths of an uncached token. Called by `memory`.

use super::common::{in_range, one_of};
use super::parse::{CheckResult, Invalid};
use super::problem::Problem;
use super::settings::RawConfig;
use super::thresholds::tokens;
use crate::memory::CostRules;

/// The dearest price that is no mistake: answers of the dearest models cost some hundred times as much as prompts
/// of the cheapest.
const MAX_PRICE: f64 = 1_000.0;

/// How costs are weighed; `None` if the policy is the published one. The section is checked in both cases.
pub(super) fn costs(
    raw: &RawConfig,
    problems: &mut Vec<Problem>,
) -> CheckResult<Option<CostRules>> {
    let cost = &raw.cost;
    let weighs = raw.memory.policy.check(problems, |text| {
        one_of(text, &[("published", false), ("cost_aware", true)])
    });
    let price = |&number: &f64| in_range(number, 0.0, MAX_PRICE).map(thousandths);
    let cache_read = cost.cache_read.check_some(problems, |&number| {
        in_range(number, 0.0, 1.0).map(thousandths)
    });
    let cache_write = cost.cache_write.check_some(problems, price);
    let observer_input = cost.observer_input.check(problems, price);
    let observer_output = cost.observer_output.check(problems, price);
    let max_loss = cost.max_loss.check(problems, |&number| {
        in_range(number, 0.0, 10.0).map(thousandths)
    });
    // Whoever uses the published policy may set message_tokens without a look at this section.
    let least = match weighs {
        Ok(true) => tokens(raw.observation.message_tokens.value).unwrap_or(0),
        _ => 0,
    };
    let history_limit = cost
        .history_limit
        .check(problems, |&number| history_limit(number, least));
    let rules = CostRules {
        cache_read: cache_read?,
        cache_write: cache_write?,
        observer_input: observer_input?,
        observer_output: observer_output?,
        max_loss: max_loss?,
        history_limit: history_limit?,
    };
    Ok(weighs?.then_some(rules))
}

/// Below `message_tokens`, the limit would make the published thresholds act before they are reached.
fn history_limit(number: u64, message_tokens: u32) -> Result<u32, Invalid> {
    let limit = tokens(number)?;
    if limit < message_tokens {
        return Err(Invalid::new(
            format!(
                "{limit} tokens are less than memory.observation.message_tokens ({message_tokens})"
            ),
            "write a larger number, or lower memory.observation.message_tokens",
        ));
    }
    Ok(limit)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number was checked to be small and not negative"
)]
fn thousandths(number: f64) -> u32 {
    (number * 1_000.0).round() as u32
}
