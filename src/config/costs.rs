//! The rules of `memory.policy` and of the section `[memory.cost]`: prices become thousandths of an uncached token.
//! Called by `memory`.

use super::common::{in_range, one_of};
use super::parse::{CheckResult, Invalid};
use super::problem::Problem;
use super::settings::RawConfig;
use super::thresholds::{is_changed, tokens};
use crate::jobs::CostSettings;

/// The dearest price that is no mistake: answers of the dearest models cost some hundred times as much as prompts
/// of the cheapest.
const MAX_PRICE: f64 = 1_000.0;

/// The values of `memory.policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryPolicy {
    /// Costs decide where the prices are known and no threshold is changed.
    Auto,
    /// Thresholds decide.
    Published,
    /// Costs decide.
    CostAware,
}

/// The policy, and the section that `Published` does not use. It is checked all the same.
pub(super) fn costs(
    raw: &RawConfig,
    problems: &mut Vec<Problem>,
) -> CheckResult<(MemoryPolicy, CostSettings)> {
    let cost = &raw.cost;
    let policy = raw.memory.policy.check(problems, |text| {
        one_of(
            text,
            &[
                ("auto", MemoryPolicy::Auto),
                ("published", MemoryPolicy::Published),
                ("cost_aware", MemoryPolicy::CostAware),
            ],
        )
    });
    let price = |&number: &f64| in_range(number, 0.0, MAX_PRICE).map(thousandths);
    let cache_read = cost.cache_read.check_some(problems, |&number| {
        in_range(number, 0.0, 1.0).map(thousandths)
    });
    let cache_write = cost.cache_write.check_some(problems, price);
    let observer_input = cost.observer_input.check_some(problems, price);
    let observer_output = cost.observer_output.check_some(problems, price);
    let max_loss = cost.max_loss.check(problems, |&number| {
        in_range(number, 0.0, 10.0).map(thousandths)
    });
    // Where thresholds decide, message_tokens may be set without a look at this section.
    let is_changed = is_changed(&raw.memory.share_token_budget, &raw.observation);
    let least = match policy {
        Ok(MemoryPolicy::Auto) if is_changed => 0,
        Ok(MemoryPolicy::Auto | MemoryPolicy::CostAware) => {
            tokens(raw.observation.message_tokens.value).unwrap_or(0)
        }
        Ok(MemoryPolicy::Published) | Err(_) => 0,
    };
    let history_limit = cost
        .history_limit
        .check(problems, |&number| history_limit(number, least));
    let settings = CostSettings {
        cache_read: cache_read?,
        cache_write: cache_write?,
        observer_input: observer_input?,
        observer_output: observer_output?,
        max_loss: max_loss?,
        history_limit: history_limit?,
    };
    Ok((policy?, settings))
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
