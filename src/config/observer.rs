//! The rules of what the Observer is shown and asked for: attachments, blocks, hints, and what is taken out
//! of messages before it reads them. Called by `memory`.

use regex::RegexBuilder;

use super::problem::Problem;
use super::settings::RawRedact;
use super::valid::{Attachments, Hints, Redact, Secret};
use super::written::{Checked, Choice, OrFalse, Wrong};

/// A pattern that compiles to more is a mistake, or an attack on whoever runs it.
const PATTERN_BYTES: usize = 1 << 20;

/// Less holds no message beside the question.
const LEAST_INPUT: u64 = 1_000;

pub(super) fn hints(choice: &Choice) -> Result<Hints, Wrong> {
    let remedy = "write true, false, or a list of \"current_task\" and \"suggested_response\"";
    let of = |current_task, suggested_response| Hints {
        current_task,
        suggested_response,
    };
    let named = match choice {
        Choice::All(all) => return Ok(of(*all, *all)),
        Choice::Word(word) => std::slice::from_ref(word),
        Choice::Some(named) => named,
    };
    let known = ["current_task", "suggested_response"];
    if let Some(other) = named.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(Wrong::new(format!("there is no hint \"{other}\""), remedy));
    }
    let [task, response] = known.map(|name| named.iter().any(|given| given == name));
    Ok(of(task, response))
}

pub(super) fn attachments(choice: &Choice) -> Result<Attachments, Wrong> {
    let remedy = "write \"auto\", true, false, or a list of media types such as \"image/*\" and \"application/pdf\"";
    let types = match choice {
        Choice::All(true) => return Ok(Attachments::All),
        Choice::All(false) => return Ok(Attachments::Only(Vec::new())),
        Choice::Word(word) if word == "auto" => return Ok(Attachments::Auto),
        Choice::Word(word) => {
            return Err(Wrong::new(format!("\"{word}\" is no choice"), remedy));
        }
        Choice::Some(types) => types,
    };
    let wrong =
        |text: &String| text != "*" && text.split('/').filter(|p| !p.is_empty()).count() != 2;
    match types.iter().find(|text| wrong(text)) {
        Some(other) => Err(Wrong::new(format!("\"{other}\" is no media type"), remedy)),
        None => Ok(Attachments::Only(
            types.iter().map(|text| text.to_ascii_lowercase()).collect(),
        )),
    }
}

pub(super) fn blocks(tags: &[String]) -> Result<Vec<String>, Wrong> {
    let part = |c: char| c.is_alphanumeric() || ['-', '_', '.', ':'].contains(&c);
    match tags
        .iter()
        .find(|tag| tag.is_empty() || !tag.chars().all(part))
    {
        None => Ok(tags.to_vec()),
        Some(other) => Err(Wrong::new(
            format!("\"{other}\" is not the name of a tag"),
            "write the name alone, as it stands between < and >, such as \"environment_details\"",
        )),
    }
}

pub(super) fn input_tokens(number: u64) -> Result<u32, Wrong> {
    match u32::try_from(number) {
        Ok(tokens) if number >= LEAST_INPUT => Ok(tokens),
        _ => Err(Wrong::new(
            format!("{number} tokens are no useful part of a history"),
            format!(
                "write a number from {LEAST_INPUT}; 60000 suits models with a window of 128,000"
            ),
        )),
    }
}

pub(super) fn previous_tokens(number: OrFalse) -> Result<Option<u32>, Wrong> {
    let fits = |number| {
        u32::try_from(number).map_err(|_| {
            Wrong::new(
                format!("{number} tokens are more than any model reads"),
                "write a smaller number, or false for everything",
            )
        })
    };
    number.0.map(fits).transpose()
}

pub(super) fn redact(raw: &RawRedact, problems: &mut Vec<Problem>) -> Checked<Redact> {
    let kinds = raw.kinds.check(problems, |names| {
        names.iter().map(|name| secret(name)).collect()
    });
    let patterns = raw.patterns.check(problems, |patterns| {
        patterns.iter().map(|pattern| compiled(pattern)).collect()
    });
    Ok(Redact {
        kinds: kinds?,
        patterns: patterns?,
    })
}

fn secret(name: &str) -> Result<Secret, Wrong> {
    Ok(match name {
        "api_key" => Secret::ApiKey,
        "token" => Secret::Token,
        "password" => Secret::Password,
        "secret" => Secret::Secret,
        "private_key" => Secret::PrivateKey,
        _ => {
            return Err(Wrong::new(
                format!("there is no kind \"{name}\""),
                "choose from \"api_key\", \"token\", \"password\", \"secret\", \"private_key\"; \
                 for anything else write a pattern",
            ));
        }
    })
}

fn compiled(pattern: &str) -> Result<regex::Regex, Wrong> {
    let compiled = RegexBuilder::new(pattern)
        .size_limit(PATTERN_BYTES)
        .dfa_size_limit(PATTERN_BYTES)
        .build()
        .map_err(|error| {
            // The last line says what is wrong; those before it draw where.
            let error = error.to_string();
            let said = error.lines().last().unwrap_or_default().trim().to_owned();
            Wrong::new(
                format!("{pattern:?} is no regular expression: {said}"),
                "correct it; in TOML, 'single quotes' keep backslashes as they are",
            )
        })?;
    if compiled.is_match("") {
        return Err(Wrong::new(
            format!("{pattern:?} matches the empty text, so it would stand between all characters"),
            "make it match at least one character",
        ));
    }
    Ok(compiled)
}
