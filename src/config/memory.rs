//! The rules of the section `[memory]`. Those of its two phases are in `phases`, the numbers in
//! `thresholds`. Called by `validate`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;

use super::common::{non_empty, one_of, positive_duration};
use super::costs::costs;
use super::observer;
use super::overrides::{Base, overrides};
use super::parse::{CheckResult, Invalid, Setting};
use super::phases::{CommonCosts, CommonSettings, OverridableSettings, model_targets};
use super::problem::Problem;
use super::settings::RawConfig;
use super::thresholds::{other_conversations, tokens};
use super::valid::Override;
use crate::jobs::{ArchivePolicy, DailyLimits, Settings};
use crate::model_prices::PriceTable;
use crate::proxy::Overflow;
use crate::wire::Placement;

/// How memory is made: for all conversations, and differently for some.
pub(super) struct MemorySettings {
    pub(super) common: Settings,
    pub(super) overrides: Vec<Override>,
}

/// `host` is that of the upstream, `prices` are those of models.
pub(super) fn settings(
    raw: &RawConfig,
    host: &str,
    placement: CheckResult<Option<Placement>>,
    prices: CheckResult<Arc<PriceTable>>,
    problems: &mut Vec<Problem>,
) -> CheckResult<MemorySettings> {
    let common = common(raw, host, placement, prices, problems);
    let targets = model_targets(raw, problems);
    let section = OverridableSettings::from_raw(raw);
    let before = problems.len();
    let settings = section.validate(
        &targets,
        common.as_ref().map_err(|reported| *reported),
        problems,
    );
    let base = Base {
        valid: problems.len() == before && targets.observer.is_ok() && targets.reflector.is_ok(),
        section,
        targets,
        common,
    };
    let overrides = overrides(&raw.memory.overrides, &base, problems);
    Ok(MemorySettings {
        common: settings?,
        overrides: overrides?,
    })
}

/// What no override can change.
fn common(
    raw: &RawConfig,
    host: &str,
    placement: CheckResult<Option<Placement>>,
    prices: CheckResult<Arc<PriceTable>>,
    problems: &mut Vec<Problem>,
) -> CheckResult<CommonSettings> {
    let memory = &raw.memory;
    let has_users = raw.resource.header.value.is_some();
    let shares_memory = memory
        .scope
        .check(problems, |text| shares_memory(text, has_users));
    let observation_tokens = tokens(raw.reflection.observation_tokens.value).unwrap_or(u32::MAX);
    let other_conversations = memory
        .other_conversations
        .check(problems, |&n| other_conversations(n, observation_tokens));
    let zone = memory.timezone.check(problems, |text| timezone(text));
    let keep_messages = memory.keep_messages.check(problems, |keep| match keep {
        ArchivePolicy::For(time) => positive_duration(time).map(ArchivePolicy::For),
        keep => Ok(*keep),
    });
    let daily_tokens = memory.daily_tokens.check_some(problems, |&n| daily(n));
    let daily_tokens_total = memory
        .daily_tokens_total
        .check_some(problems, |&n| daily(n));
    let bundles = memory.bundles.check_some(problems, |text| non_empty(text));
    let redactor = observer::redact(&raw.redact, problems);
    let costs = costs(raw, problems);
    let (shares_memory, other_conversations) = (shares_memory?, other_conversations?);
    let (policy, cost) = costs?;
    Ok(CommonSettings {
        upstream: host.to_owned(),
        placement: placement?,
        zone: zone?,
        temporal_markers: memory.temporal_markers.value,
        keep_messages: keep_messages?,
        daily: DailyLimits {
            account: daily_tokens?,
            all: daily_tokens_total?,
        },
        peer_memory_tokens: shares_memory.then_some(other_conversations),
        bundles: bundles?.map(PathBuf::from),
        redactor: redactor?,
        costs: CommonCosts {
            policy,
            cost,
            prices: prices?,
        },
        calibrate_tokens: memory.calibrate_tokens.value,
    })
}

/// Whether the conversations of one user share what they learned.
fn shares_memory(scope: &str, has_users: bool) -> Result<bool, Invalid> {
    let shares = one_of(scope, &[("thread", false), ("resource", true)])?;
    if shares && !has_users {
        return Err(Invalid::new(
            "\"resource\" needs to know which user is talking, but identity.resource is not set",
            "set header and set_by in [identity.resource]",
        ));
    }
    Ok(shares)
}

fn timezone(text: &str) -> Result<TimeZone, Invalid> {
    match text {
        // Most machines without a zone are containers, which run in UTC.
        "system" => Ok(TimeZone::try_system().unwrap_or(TimeZone::UTC)),
        name => TimeZone::get(name).map_err(|_| {
            Invalid::new(
                format!("\"{name}\" is not a known time zone"),
                "write an IANA name such as \"Europe/Oslo\", \"UTC\", or \"system\"",
            )
        }),
    }
}

/// What is done for a request that does not fit its model.
pub(super) fn overflow(
    overflow: &Setting<String>,
    timeout: &Setting<Duration>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Overflow> {
    // Replaced by the timeout below, which is checked even if it is not used.
    let observe = Overflow::Observe(Duration::ZERO);
    let overflow = overflow.check(problems, |text| {
        one_of(
            text,
            &[
                ("pass", Overflow::Pass),
                ("observe", observe),
                ("trim", Overflow::Trim),
            ],
        )
    });
    let timeout = timeout.check(problems, positive_duration);
    Ok(match (overflow?, timeout?) {
        (Overflow::Observe(_), timeout) => Overflow::Observe(timeout),
        (other, _) => other,
    })
}

fn daily(number: u64) -> Result<u64, Invalid> {
    if number > 0 {
        return Ok(number);
    }
    Err(Invalid::new(
        "with 0 tokens a day nothing could be observed",
        "write a number above 0; to turn memory off, set memory.enabled = false",
    ))
}
