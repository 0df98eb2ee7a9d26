//! Values that are tables or lists of tables: models by prompt size, model settings, rules, overrides.
//!
//! Reads how they are spelled. `model_settings`, `rules`, `cache_rules` and `overrides` check what they mean.

use std::collections::BTreeMap;

use config::{File, FileFormat, Source as _, ValueKind};
use serde_json::{Map, Number, Value};

use super::nearest::nearest;
use super::parse::{CheckResult, ErrorReported, FromToml, Setting};
use super::problem::Problem;

/// A model as written: one name, or one name for each size of prompt.
#[derive(Clone, Debug)]
pub(super) enum RawModels {
    One(String),
    Tiers(Map<String, Value>),
}

impl FromToml for RawModels {
    const EXPECTED: &'static str = "a model's name, or a table of names by tokens";
    const EXAMPLE: &'static str =
        "\"gpt-5-nano\", or { \"20000\" = \"gpt-5-nano\", \"200000\" = \"gpt-5-mini\" }";

    fn from_toml(kind: &ValueKind) -> Option<Self> {
        match kind {
            ValueKind::String(text) if !text.trim_start().starts_with('{') => {
                Some(Self::One(text.clone()))
            }
            kind => JsonTable::from_toml(kind).map(|JsonTable(tiers)| Self::Tiers(tiers)),
        }
    }
}

/// A table as written. The environment holds it as a JSON object.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonTable(pub(super) Map<String, Value>);

impl FromToml for JsonTable {
    const EXPECTED: &'static str = "a table";
    const EXAMPLE: &'static str =
        "a table such as { top_p = 0.9 }, in the environment an object such as {\"top_p\": 0.9}";
    // `provider_options` may have a key of the provider in it.
    const PRINTABLE: bool = false;

    fn from_toml(kind: &ValueKind) -> Option<Self> {
        let value = match kind {
            ValueKind::String(text) => serde_json::from_str(text).ok()?,
            kind => to_json(kind)?,
        };
        match value {
            Value::Object(table) => Some(Self(table)),
            _ => None,
        }
    }
}

/// A TOML value as JSON. Keys are in alphabetical order, since the parser does not keep their order.
fn to_json(kind: &ValueKind) -> Option<Value> {
    Some(match kind {
        ValueKind::Nil => Value::Null,
        ValueKind::Boolean(value) => Value::Bool(*value),
        ValueKind::I64(number) => Value::from(*number),
        ValueKind::I128(number) => Value::from(i64::try_from(*number).ok()?),
        ValueKind::U64(number) => Value::from(*number),
        ValueKind::U128(number) => Value::from(u64::try_from(*number).ok()?),
        ValueKind::Float(number) => Value::Number(Number::from_f64(*number)?),
        ValueKind::String(text) => Value::String(text.clone()),
        ValueKind::Array(values) => {
            let values = values.iter().map(|value| to_json(&value.kind));
            Value::Array(values.collect::<Option<_>>()?)
        }
        ValueKind::Table(table) => {
            let mut keys: Vec<_> = table.keys().collect();
            keys.sort_unstable();
            let entries = keys
                .into_iter()
                .map(|key| Some((key.clone(), to_json(&table.get(key)?.kind)?)));
            Value::Object(entries.collect::<Option<_>>()?)
        }
    })
}

/// A JSON object as a table. `None` if it holds what TOML has no value for.
fn from_json(object: Map<String, Value>) -> Option<Table> {
    fn kind(value: Value) -> Option<ValueKind> {
        Some(match value {
            Value::Null => return None,
            Value::Bool(value) => ValueKind::Boolean(value),
            Value::Number(number) => match number.as_i64() {
                Some(number) => ValueKind::I64(number),
                None => ValueKind::Float(number.as_f64()?),
            },
            Value::String(text) => ValueKind::String(text),
            Value::Array(values) => {
                let values = values.into_iter().map(|value| Some(kind(value)?.into()));
                ValueKind::Array(values.collect::<Option<_>>()?)
            }
            Value::Object(object) => {
                let entries = object.into_iter();
                let entries = entries.map(|(key, value)| Some((key, kind(value)?.into())));
                ValueKind::Table(entries.collect::<Option<_>>()?)
            }
        })
    }
    let entries = object.into_iter();
    let entries = entries.map(|(key, value)| Some((key, kind(value)?)));
    entries.collect()
}

/// One table of a list, as written.
pub(super) type Table = BTreeMap<String, ValueKind>;

/// A list of tables, as written.
#[derive(Debug, Clone, Default)]
pub(super) struct TableList(pub(super) Vec<Table>);

/// What is wrong with a table, and what to do.
pub(super) type TableError = (String, String);

/// Reads each table of a list with `read`, which says all that is wrong. A problem names the table as `noun` with its
/// number. One invalid table does not hide the next.
pub(super) fn check_each<T>(
    raw: &Setting<TableList>,
    noun: &str,
    problems: &mut Vec<Problem>,
    read: impl Fn(&Table) -> Result<T, Vec<TableError>>,
) -> CheckResult<Vec<T>> {
    let mut valid = Vec::with_capacity(raw.value.0.len());
    for (index, table) in raw.value.0.iter().enumerate() {
        match read(table) {
            Ok(value) => valid.push(value),
            Err(errors) => problems.extend(errors.into_iter().map(|(what, remedy)| {
                let what = format!("{noun} {}: {what}", index + 1);
                raw.problem(what, remedy)
            })),
        }
    }
    if valid.len() == raw.value.0.len() {
        Ok(valid)
    } else {
        Err(ErrorReported)
    }
}

/// An error for each key of `table` that is not in `known`.
pub(super) fn unknown_keys(table: &Table, noun: &str, known: &[&'static str]) -> Vec<TableError> {
    let unknown = table.keys().filter(|name| !known.contains(&name.as_str()));
    let errors = unknown.map(|unknown| {
        let remedy = nearest(unknown, known.iter().copied()).map_or_else(
            || format!("the keys of a {noun} are {}", known.join(", ")),
            |name| format!("did you mean {name}?"),
        );
        (format!("there is no key \"{unknown}\" in a {noun}"), remedy)
    });
    errors.collect()
}

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
            // The environment has text only. Whoever writes tables there as JSON writes lists so too.
            ValueKind::String(text) => {
                if let Ok(tables) = serde_json::from_str::<Vec<Map<String, Value>>>(text) {
                    let tables = tables.into_iter().map(from_json);
                    return tables.collect::<Option<_>>().map(Self);
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toml_table_is_read_as_json_with_sorted_keys() {
        let text = "t = { z = [1, 2.5, \"x\", true], A_b = { \"x.y\" = -1 } }";
        let file = config::File::from_str(text, config::FileFormat::Toml);
        let table = config::Source::collect(&file).unwrap();
        let Some(JsonTable(table)) = JsonTable::from_toml(&table["t"].kind) else {
            panic!("a table");
        };
        assert_eq!(
            serde_json::to_string(&table).unwrap(),
            r#"{"A_b":{"x.y":-1},"z":[1,2.5,"x",true]}"#
        );
        let text = ValueKind::String(r#"{"b": {"c": null}}"#.to_owned());
        assert_eq!(
            Value::Object(JsonTable::from_toml(&text).unwrap().0),
            serde_json::json!({"b": {"c": null}})
        );
        for wrong in ["[1]", "x", "{"] {
            assert!(JsonTable::from_toml(&ValueKind::String(wrong.to_owned())).is_none());
        }
    }
}
