//! `[[memory.rules]]`: which requests have memory. Reads the tables and judges each by itself; every
//! wrong rule is named by its number. `proxy::mode` says what a rule means.

use std::collections::BTreeMap;

use config::{File, FileFormat, Source as _, ValueKind};

use super::nearest::nearest;
use super::parse::{CheckResult, ErrorReported, FromToml, Setting};
use super::problem::Problem;
use super::valid::{MemoryMode, Rule};

/// What a rule may say.
const RULE_FIELDS: [&str; 5] = ["path", "model", "header", "value", "memory"];

/// A list of tables, as written.
#[derive(Debug, Clone, Default)]
pub(super) struct TableList(pub(super) Vec<BTreeMap<String, ValueKind>>);

impl FromToml for TableList {
    const EXPECTED: &'static str = "a list of tables";
    const EXAMPLE: &'static str =
        "a section in double brackets for each, or [{ model = \"*-embed\", ... }, ...]";

    fn from_toml(kind: &ValueKind) -> Option<Self> {
        match kind {
            ValueKind::Array(items) => {
                let tables = items.iter().map(|item| match &item.kind {
                    ValueKind::Table(table) => Some(
                        table
                            .iter()
                            .map(|(name, value)| (name.clone(), value.kind.clone()))
                            .collect(),
                    ),
                    _ => None,
                });
                tables.collect::<Option<Vec<_>>>().map(Self)
            }
            // The environment has text only.
            ValueKind::String(text) => {
                let file = File::from_str(&format!("list = {text}"), FileFormat::Toml);
                match file.collect().ok()?.remove("list")?.kind {
                    kind @ ValueKind::Array(_) => Self::from_toml(&kind),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// The rules, unless one of them is wrong.
pub(super) fn rules(
    raw: &Setting<TableList>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Vec<Rule>> {
    let rules = raw.value.0.iter().enumerate().map(|(index, table)| {
        rule(table).map_err(|(what, remedy)| {
            let what = format!("rule {}: {what}", index + 1);
            problems.push(raw.problem(what, remedy));
        })
    });
    // All of them, so that one wrong rule does not hide the next.
    let rules: Vec<Result<Rule, ()>> = rules.collect();
    rules
        .into_iter()
        .collect::<Result<_, ()>>()
        .map_err(|()| ErrorReported)
}

fn rule(table: &BTreeMap<String, ValueKind>) -> Result<Rule, (String, String)> {
    let wrong = |what: String, remedy: &str| Err((what, remedy.to_owned()));
    if let Some(unknown) = table
        .keys()
        .find(|name| !RULE_FIELDS.contains(&name.as_str()))
    {
        let remedy = nearest(unknown, RULE_FIELDS.into_iter()).map_or_else(
            || format!("a rule has {}", RULE_FIELDS.join(", ")),
            |name| format!("did you mean {name}?"),
        );
        return Err((format!("there is no \"{unknown}\" in a rule"), remedy));
    }
    let mut texts = BTreeMap::new();
    for (name, value) in table {
        match value {
            ValueKind::String(text) if !text.trim().is_empty() => {
                texts.insert(name.as_str(), text.trim().to_owned());
            }
            _ => return wrong(format!("{name} is not text"), "write text in double quotes"),
        }
    }
    let memory = match texts.remove("memory").as_deref() {
        Some("off") => MemoryMode::Off,
        Some("read") => MemoryMode::Read,
        Some("on") => MemoryMode::On,
        found => {
            let what = found.map_or("memory is missing".to_owned(), |found| {
                format!("memory cannot be \"{found}\"")
            });
            return wrong(what, "write memory = \"off\", \"read\" or \"on\"");
        }
    };
    let header = match texts.remove("header") {
        None => None,
        Some(name) => {
            let Ok(header) = name.parse::<http::HeaderName>() else {
                let what = format!("\"{name}\" is no name of a header");
                return wrong(what, "write the name alone; its value belongs into value");
            };
            Some(header)
        }
    };
    let value = texts.remove("value");
    if value.is_some() && header.is_none() {
        return wrong("value stands without header".to_owned(), "name the header");
    }
    let (path, model) = (texts.remove("path"), texts.remove("model"));
    if path.is_none() && model.is_none() && header.is_none() {
        return wrong(
            "it names neither path, model nor header".to_owned(),
            "name one of them; for every request there are memory.enabled and memory.read_only",
        );
    }
    if path
        .as_ref()
        .is_some_and(|path| !path.starts_with(['/', '*']))
    {
        return wrong(
            "path does not begin with a slash".to_owned(),
            "write the path of the request on the data port, such as \"/v1/chat/*\"",
        );
    }
    Ok(Rule {
        path,
        model,
        header,
        value,
        memory,
    })
}
