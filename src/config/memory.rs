//! The rules of the section `memory`. Those of its two phases are in `phases`, the numbers in
//! `thresholds`.

use jiff::tz::TimeZone;

use super::common::{non_empty, positive_duration};
use super::observer;
use super::overrides::{Base, overrides};
use super::parse::{CheckResult, Invalid};
use super::phases::{OverridableSettings, model_targets, observation, reflection};
use super::problem::Problem;
use super::rules;
use super::settings::RawConfig;
use super::thresholds::other_conversations;
use super::valid::{EvidenceLevel, KeepMessages, MemorySettings, Overflow};

pub(super) fn validate(
    raw: &RawConfig,
    problems: &mut Vec<Problem>,
) -> CheckResult<MemorySettings> {
    let has_resource = raw.resource.header.value.is_some();
    let resource_scope = raw
        .memory
        .scope
        .check(problems, |text| scope(text, has_resource));
    let timezone = raw.memory.timezone.check(problems, |text| timezone(text));
    let (observer, reflector) = model_targets(raw, problems);
    let section = OverridableSettings::from_raw(raw);
    let thresholds = section.thresholds(problems);
    let observation = observation(&section.observation, observer.clone(), problems);
    let reflection = reflection(&section.reflection, reflector.clone(), problems);
    let base = Base {
        valid: thresholds.is_ok() && observation.is_ok() && reflection.is_ok(),
        section,
        observer,
        reflector,
    };
    let overrides = overrides(&raw.memory.overrides, &base, problems);
    let observation_tokens = thresholds
        .as_ref()
        .map_or(u32::MAX, |t| t.observation_tokens);
    let other_conversations = raw
        .memory
        .other_conversations
        .check(problems, |&n| other_conversations(n, observation_tokens));
    let daily_tokens = raw.memory.daily_tokens.check_some(problems, |&n| daily(n));
    let bundles = raw
        .memory
        .bundles
        .check_some(problems, |text| non_empty(text));
    let redact = observer::redact(&raw.redact, problems);
    let rules = rules::rules(&raw.memory.rules, problems);
    let overflow = raw.memory.overflow.check(problems, |text| overflow(text));
    let overflow_timeout = raw
        .memory
        .overflow_timeout
        .check(problems, positive_duration);
    let evidence = raw.memory.evidence.check(problems, |text| evidence(text));
    let keep_messages = raw.memory.keep_messages.check(problems, |keep| match keep {
        KeepMessages::For(time) => positive_duration(time).map(KeepMessages::For),
        keep => Ok(*keep),
    });
    let (resource_scope, other_conversations) = (resource_scope?, other_conversations?);
    Ok(MemorySettings {
        enabled: raw.memory.enabled.value,
        timezone: timezone?,
        temporal_markers: raw.memory.temporal_markers.value,
        keep_messages: keep_messages?,
        daily_tokens: daily_tokens?,
        other_conversations: resource_scope.then_some(other_conversations),
        bundles: bundles?.map(std::path::PathBuf::from),
        thresholds: thresholds?,
        overrides: overrides?,
        read_only: raw.memory.read_only.value,
        rules: rules?,
        overflow: overflow?,
        overflow_timeout: overflow_timeout?,
        evidence: evidence?,
        observation: observation?,
        reflection: reflection?,
        redact: redact?,
    })
}

/// Whether the conversations of one user share what they learned.
fn scope(text: &str, has_resource: bool) -> Result<bool, Invalid> {
    match text {
        "thread" => Ok(false),
        "resource" if !has_resource => Err(Invalid::new(
            "nobody vouches for who the user is",
            "name the header that says so in identity.resource, and who sets it",
        )),
        "resource" => Ok(true),
        _ => Err(Invalid::new(
            format!("\"{text}\" is not a scope"),
            "write \"thread\" or \"resource\"",
        )),
    }
}

fn timezone(text: &str) -> Result<TimeZone, Invalid> {
    match text {
        // A machine that cannot tell its zone lives by UTC: most of them are containers.
        "system" => Ok(TimeZone::try_system().unwrap_or(TimeZone::UTC)),
        name => TimeZone::get(name).map_err(|_| {
            Invalid::new(
                format!("\"{name}\" is not a time zone"),
                "write an IANA name such as \"Europe/Oslo\", \"UTC\", or \"system\"",
            )
        }),
    }
}

fn overflow(text: &str) -> Result<Overflow, Invalid> {
    match text {
        "pass" => Ok(Overflow::Pass),
        "observe" => Ok(Overflow::Observe),
        "trim" => Ok(Overflow::Trim),
        _ => Err(Invalid::new(
            format!("\"{text}\" is nothing that can be done"),
            "write \"pass\", \"observe\" or \"trim\"",
        )),
    }
}

fn evidence(text: &str) -> Result<EvidenceLevel, Invalid> {
    match text {
        "strict" => Ok(EvidenceLevel::Strict),
        "names" => Ok(EvidenceLevel::Names),
        "content" => Ok(EvidenceLevel::Content),
        _ => Err(Invalid::new(
            format!("\"{text}\" is no kind of evidence"),
            "write \"strict\", \"names\" or \"content\"",
        )),
    }
}

fn daily(number: u64) -> Result<u64, Invalid> {
    if number > 0 {
        return Ok(number);
    }
    Err(Invalid::new(
        "with 0 tokens a day nothing would ever be observed",
        "write a number above 0, or memory.enabled = false for no memory at all",
    ))
}
