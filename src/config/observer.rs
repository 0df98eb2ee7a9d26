//! The rules of what the Observer reads and writes: attachments, blocks, hints, and the redaction of messages.
//! Called by `phases` and `memory`.

use regex::RegexBuilder;

use super::parse::{BoolOrList, CheckResult, Invalid, NumberOrFalse, Setting};
use super::problem::Problem;
use super::settings::RawRedact;
use crate::memory::observe::{AttachmentFilter, RequestedHints};
use crate::memory::redact::{RedactKind, Redactor};

/// A pattern that compiles to more is a mistake, or would slow down every message.
const PATTERN_BYTES: usize = 1 << 20;

/// Smaller calls could not hold one message beside the instructions.
const MIN_INPUT_TOKENS: u64 = 1_000;

pub(super) fn continuation_hints(
    raw: &Setting<BoolOrList>,
    problems: &mut Vec<Problem>,
) -> CheckResult<RequestedHints> {
    let hints = |current_task, suggested_response| RequestedHints {
        current_task,
        suggested_response,
    };
    let chosen = match &raw.value {
        BoolOrList::Bool(all) => return Ok(hints(*all, *all)),
        BoolOrList::Keyword(word) => std::slice::from_ref(word),
        BoolOrList::List(chosen) => chosen,
    };
    let hint_names = ["current_task", "suggested_response"];
    raw.check_each(problems, chosen, |name| {
        if hint_names.contains(&name.as_str()) {
            return Ok(());
        }
        Err(Invalid::new(
            format!("there is no hint \"{name}\""),
            "write true, false, or a list of \"current_task\" and \"suggested_response\"",
        ))
    })?;
    let [task, response] =
        hint_names.map(|name| chosen.iter().any(|chosen_name| chosen_name == name));
    Ok(hints(task, response))
}

pub(super) fn observe_attachments(
    raw: &Setting<BoolOrList>,
    problems: &mut Vec<Problem>,
) -> CheckResult<AttachmentFilter> {
    let (texts, what) = match &raw.value {
        BoolOrList::Bool(true) => return Ok(AttachmentFilter::All),
        BoolOrList::Bool(false) => return Ok(AttachmentFilter::Only(Vec::new())),
        BoolOrList::Keyword(word) if word == "auto" => return Ok(AttachmentFilter::Auto),
        BoolOrList::Keyword(word) => (std::slice::from_ref(word), "a known value"),
        BoolOrList::List(types) => (types.as_slice(), "a media type"),
    };
    let types = raw.check_each(problems, texts, |text| {
        if text == "*" || text.split('/').filter(|part| !part.is_empty()).count() == 2 {
            return Ok(text.to_ascii_lowercase());
        }
        Err(Invalid::new(
            format!("\"{text}\" is not {what}"),
            "write \"auto\", true, false, or a list of media types such as \"image/*\" and \"application/pdf\"",
        ))
    });
    types.map(AttachmentFilter::Only)
}

/// The name of a block that is left out.
pub(super) fn omitted_tag(tag: &str) -> Result<String, Invalid> {
    let part = |c: char| c.is_alphanumeric() || ['-', '_', '.', ':'].contains(&c);
    if !tag.is_empty() && tag.chars().all(part) {
        return Ok(tag.to_owned());
    }
    Err(Invalid::new(
        format!("\"{tag}\" is not the name of a tag"),
        "write the name only, without < and >, such as \"environment_details\"",
    ))
}

pub(super) fn max_input_tokens(number: u64) -> Result<u32, Invalid> {
    match u32::try_from(number) {
        Ok(tokens) if number >= MIN_INPUT_TOKENS => Ok(tokens),
        _ => Err(Invalid::new(
            format!("{number} tokens are out of range"),
            format!(
                "write a number of at least {MIN_INPUT_TOKENS}; 60000 suits models with a window of 128,000"
            ),
        )),
    }
}

pub(super) fn previous_observer_tokens(number: NumberOrFalse) -> Result<Option<u32>, Invalid> {
    let fits = |number| {
        u32::try_from(number).map_err(|_| {
            Invalid::new(
                format!("{number} tokens are out of range"),
                "write a smaller number, or false for no limit",
            )
        })
    };
    number.0.map(fits).transpose()
}

pub(super) fn redact(raw: &RawRedact, problems: &mut Vec<Problem>) -> CheckResult<Redactor> {
    let kinds = raw
        .kinds
        .check_each(problems, &raw.kinds.value, |name| redact_kind(name));
    let patterns = &raw.patterns;
    let patterns = patterns.check_each(problems, &patterns.value, |pattern| compile(pattern));
    Ok(Redactor::new(kinds?, patterns?))
}

fn redact_kind(name: &str) -> Result<RedactKind, Invalid> {
    Ok(match name {
        "api_key" => RedactKind::ApiKey,
        "token" => RedactKind::Token,
        "password" => RedactKind::Password,
        "secret" => RedactKind::Secret,
        "private_key" => RedactKind::PrivateKey,
        _ => {
            return Err(Invalid::new(
                format!("there is no kind \"{name}\""),
                "use \"api_key\", \"token\", \"password\", \"secret\" or \"private_key\"; for \
                 anything else write a pattern",
            ));
        }
    })
}

fn compile(pattern: &str) -> Result<regex::Regex, Invalid> {
    let compiled = RegexBuilder::new(pattern)
        .size_limit(PATTERN_BYTES)
        .dfa_size_limit(PATTERN_BYTES)
        .build()
        .map_err(|error| {
            // The last line has the reason; the lines before it draw the place.
            let error = error.to_string();
            let message = error.lines().last().unwrap_or_default().trim().to_owned();
            Invalid::new(
                format!("{pattern:?} is not a regular expression: {message}"),
                "correct the pattern; in TOML, 'single quotes' keep backslashes as they are",
            )
        })?;
    if compiled.is_match("") {
        return Err(Invalid::new(
            format!("{pattern:?} matches the empty text, so it would match between all characters"),
            "change the pattern so that it matches at least one character",
        ));
    }
    Ok(compiled)
}
