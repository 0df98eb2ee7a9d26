//! The rules of the section `memory`. Those of its two phases are in `phases`, the numbers in
//! `thresholds`.

use jiff::tz::TimeZone;

use super::judged::{lasting, said};
use super::observer;
use super::overrides::{Base, overrides};
use super::phases::{Section, observation, phases, reflection};
use super::problem::Problem;
use super::rules;
use super::settings::RawConfig;
use super::thresholds::others;
use super::valid::{Evidence, KeepMessages, Memory, Overflow};
use super::written::{Checked, Wrong};

pub(super) fn validate(raw: &RawConfig, problems: &mut Vec<Problem>) -> Checked<Memory> {
    let vouched = raw.users.header.value.is_some();
    let shares = raw
        .memory
        .scope
        .check(problems, |text| scope(text, vouched));
    let timezone = raw.memory.timezone.check(problems, |text| timezone(text));
    let (observer, reflector) = phases(raw, problems);
    let section = Section::of(raw);
    let thresholds = section.thresholds(problems);
    let observation = observation(&section.observation, observer.clone(), problems);
    let reflection = reflection(&section.reflection, reflector.clone(), problems);
    let base = Base {
        sound: thresholds.is_ok() && observation.is_ok() && reflection.is_ok(),
        section,
        observer,
        reflector,
    };
    let overrides = overrides(&raw.memory.overrides, &base, problems);
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
    let evidence = raw.memory.evidence.check(problems, |text| evidence(text));
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
        evidence: evidence?,
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

fn evidence(text: &str) -> Result<Evidence, Wrong> {
    match text {
        "strict" => Ok(Evidence::Strict),
        "names" => Ok(Evidence::Names),
        "content" => Ok(Evidence::Content),
        _ => Err(Wrong::new(
            format!("\"{text}\" is no kind of evidence"),
            "write \"strict\", \"names\" or \"content\"",
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
