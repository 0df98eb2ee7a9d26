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

/// The rules, unless one of them is invalid.
pub(super) fn rules(
    raw: &Setting<TableList>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Vec<Rule>> {
    check_each(raw, "rule", problems, |table| {
        let unknown = unknown_keys(table, "rule", &RULE_FIELDS);
        if unknown.is_empty() {
            rule(table).map_err(|error| vec![error])
        } else {
            Err(unknown)
        }
    })
}

fn rule(table: &Table) -> Result<Rule, TableError> {
    let wrong = |what: String, remedy: &str| Err((what, remedy.to_owned()));
    let mut texts = BTreeMap::new();
    for (name, value) in table {
        match value {
            ValueKind::String(text) if !text.trim().is_empty() => {
                texts.insert(name.as_str(), text.trim().to_owned());
            }
            _ => {
                return wrong(
                    format!("{name} is not a text"),
                    "write a text in double quotes",
                );
            }
        }
    }
    let mode = match texts.remove("memory").as_deref() {
        Some("off") => Mode::Off,
        Some("read") => Mode::Read,
        Some("on") => Mode::On,
        found => {
            let what = found.map_or("memory is missing".to_owned(), |found| {
                format!("\"{found}\" is not a known value of memory")
            });
            return wrong(what, "write memory = \"off\", \"read\" or \"on\"");
        }
    };
    let header = match texts.remove("header") {
        None => None,
        Some(name) => {
            let Ok(header) = name.parse::<http::HeaderName>() else {
                let what = format!("\"{name}\" is not a header name");
                return wrong(what, "write the name only; write its value into value");
            };
            Some(header)
        }
    };
    let value = texts.remove("value");
    if value.is_some() && header.is_none() {
        return wrong(
            "value is set without header".to_owned(),
            "add the name of the header",
        );
    }
    let (path, model) = (texts.remove("path"), texts.remove("model"));
    if path.is_none() && model.is_none() && header.is_none() {
        return wrong(
            "it has neither path, model nor header".to_owned(),
            "add one of them; for all requests use memory.enabled or memory.read_only",
        );
    }
    if path
        .as_ref()
        .is_some_and(|path| !path.starts_with(['/', '*']))
    {
        return wrong(
            "path does not begin with a slash".to_owned(),
            "write the path that clients request, such as \"/v1/chat/*\"",
        );
    }
    let glob = |text: Option<String>| text.as_deref().map(Glob::new);
    Ok(Rule {
        path: glob(path),
        model: glob(model),
        header: header.map(|name| (name, glob(value))),
        mode,
    })
}
