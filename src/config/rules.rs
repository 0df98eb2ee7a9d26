//! `[[memory.rules]]`: which requests have memory.
//!
//! Checks each rule by itself and names every invalid one by its number. `proxy::mode` applies the rules.
//! Called by `memory`.

use std::collections::BTreeMap;

use config::ValueKind;

use super::parse::{CheckResult, Setting};
use super::problem::Problem;
use super::tables::{Table, TableError, TableList, check_each, unknown_keys};
use crate::proxy::mode::{Glob, Mode, Rule};

/// The keys of a rule.
const RULE_FIELDS: [&str; 5] = ["path", "model", "header", "value", "memory"];

const MEMORY_REMEDY: &str = "write memory = \"off\", \"read\" or \"on\"";

/// The rules, unless one of them is invalid.
pub(super) fn rules(
    raw: &Setting<TableList>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Vec<Rule>> {
    check_each(raw, "rule", problems, rule)
}

fn rule(table: &Table) -> Result<Rule, Vec<TableError>> {
    let mut errors = unknown_keys(table, "rule", &RULE_FIELDS);
    // What is missing may be there under another name.
    let has_unknown = !errors.is_empty();
    let mut wrong = |what: String, remedy: &str| errors.push((what, remedy.to_owned()));
    let mut texts = BTreeMap::new();
    for (name, value) in table {
        match value {
            ValueKind::String(text) if !text.trim().is_empty() => {
                texts.insert(name.as_str(), text.trim());
            }
            _ if RULE_FIELDS.contains(&name.as_str()) => {
                wrong(
                    format!("{name} is not a text"),
                    "write a text in double quotes",
                );
            }
            _ => {}
        }
    }
    let mode = match texts.get("memory").copied() {
        Some("off") => Some(Mode::Off),
        Some("read") => Some(Mode::Read),
        Some("on") => Some(Mode::On),
        Some(found) => {
            wrong(
                format!("\"{found}\" is not a known value of memory"),
                MEMORY_REMEDY,
            );
            None
        }
        None => {
            if !has_unknown && !table.contains_key("memory") {
                wrong("memory is missing".to_owned(), MEMORY_REMEDY);
            }
            None
        }
    };
    let header = texts.get("header").and_then(|name| {
        let header = name.parse::<http::HeaderName>().ok();
        if header.is_none() {
            wrong(
                format!("\"{name}\" is not a header name"),
                "write the name only; write its value into value",
            );
        }
        header
    });
    if !has_unknown && table.contains_key("value") && !table.contains_key("header") {
        wrong(
            "value is set without header".to_owned(),
            "add the name of the header",
        );
    }
    if !has_unknown
        && !["path", "model", "header", "value"]
            .iter()
            .any(|key| table.contains_key(*key))
    {
        wrong(
            "it has neither path, model nor header".to_owned(),
            "add one of them; for all requests use memory.enabled or memory.read_only",
        );
    }
    let path = texts.get("path");
    if path.is_some_and(|path| !path.starts_with(['/', '*'])) {
        wrong(
            "path does not begin with a slash".to_owned(),
            "write the path that clients request, such as \"/v1/chat/*\"",
        );
    }
    let glob = |key| texts.get(key).map(|text| Glob::new(text));
    match mode {
        Some(mode) if errors.is_empty() => Ok(Rule {
            path: glob("path"),
            model: glob("model"),
            header: header.map(|name| (name, glob("value"))),
            mode,
        }),
        _ => Err(errors),
    }
}
