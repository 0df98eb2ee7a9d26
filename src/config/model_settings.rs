//! How a phase asks its model: which one for which prompt, and with what beside the prompt.
//!
//! `model` is a name, or a table of names by the size of the prompt. `model_settings` holds the
//! parameters the field shares, `provider_options` whatever one provider understands. Every mistake in
//! a table is a problem of its own. Called by `memory`.

use config::ValueKind;
use serde_json::{Map, Number, Value};

use super::common::non_empty;
use super::parse::{CheckResult, ErrorReported, FromToml, Invalid, Setting};
use super::problem::Problem;
use super::valid::Models;

/// A model as it was written: a name, or names by the most tokens their prompts may have.
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

/// A table as it was written; from the environment as a JSON object.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonTable(pub(super) Map<String, Value>);

impl FromToml for JsonTable {
    const EXPECTED: &'static str = "a table";
    const EXAMPLE: &'static str =
        "a table such as { top_p = 0.9 }, in the environment an object such as {\"top_p\": 0.9}";

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

/// What TOML says as JSON says it; keys in their alphabetical order, since the source's is lost.
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

/// The models of a key, `None` where it is unset.
pub(super) fn models(
    raw: &Setting<Option<RawModels>>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Option<Models>> {
    match &raw.value {
        None => Ok(None),
        Some(RawModels::One(name)) => raw
            .check(problems, |_| non_empty(name))
            .map(|name| Some(Models::One(name))),
        Some(RawModels::Tiers(raw_tiers)) => {
            let mut tiers = check_entries(raw, problems, raw_tiers, tier)?;
            tiers.sort_by_key(|(up_to, _)| *up_to);
            if tiers.is_empty() || tiers.windows(2).any(|pair| pair[0].0 == pair[1].0) {
                problems.push(raw.problem(
                    "the table names no model, or two for one bound",
                    "write the most tokens of a prompt and its model, for each model once",
                ));
                return Err(ErrorReported);
            }
            Ok(Some(Models::Tiers(tiers)))
        }
    }
}

fn tier(bound: &str, model: &Value) -> Result<(u32, String), Invalid> {
    let up_to = bound.replace('_', "").parse::<u32>().unwrap_or(0);
    if up_to == 0 {
        return Err(Invalid::new(
            format!("\"{bound}\" is not a number of tokens"),
            "write the most tokens of a prompt that this model is for, above 0",
        ));
    }
    let name = model.as_str().map(non_empty).and_then(Result::ok);
    let name = name.ok_or_else(|| {
        Invalid::new(
            format!("the model for prompts up to {bound} tokens is not a name"),
            "write the model's name in double quotes",
        )
    })?;
    Ok((up_to, name))
}

/// Judges every entry of a table; each wrong one is a problem.
fn check_entries<T, U>(
    raw: &Setting<T>,
    problems: &mut Vec<Problem>,
    table: &Map<String, Value>,
    check: impl Fn(&str, &Value) -> Result<U, Invalid>,
) -> CheckResult<Vec<U>> {
    let mut good = Vec::with_capacity(table.len());
    let before = problems.len();
    for (key, value) in table {
        if let Ok(entry) = raw.check(problems, |_| check(key, value)) {
            good.push(entry);
        }
    }
    if problems.len() > before {
        return Err(ErrorReported);
    }
    Ok(good)
}

/// `model_settings`, sorted by what becomes of them.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelSettings {
    pub(super) temperature: Option<f64>,
    pub(super) max_output_tokens: Option<u32>,
    /// The others, under the names chat completions has for them.
    pub(super) parameters: Map<String, Value>,
}

pub(super) fn model_settings(
    raw: &Setting<Option<JsonTable>>,
    problems: &mut Vec<Problem>,
) -> CheckResult<ModelSettings> {
    let empty = Map::new();
    let table = raw.value.as_ref().map_or(&empty, |JsonTable(table)| table);
    let entries = check_entries(raw, problems, table, |key, value| {
        setting(key, value).map(|value| (key.to_owned(), value))
    })?;
    let mut settings = ModelSettings::default();
    for (key, value) in entries {
        match key.as_str() {
            "temperature" => settings.temperature = value.as_f64(),
            "max_output_tokens" => {
                settings.max_output_tokens = value.as_u64().and_then(|n| u32::try_from(n).ok());
            }
            _ => {
                settings.parameters.insert(key, value);
            }
        }
    }
    Ok(settings)
}

/// Judges one setting by its range, where the field agrees on one.
fn setting(key: &str, value: &Value) -> Result<Value, Invalid> {
    let number = |least: f64, most: f64| {
        value
            .as_f64()
            .is_some_and(|number| (least..=most).contains(&number))
    };
    let (good, remedy) = match key {
        "temperature" => (number(0.0, 2.0), "write a number from 0 to 2"),
        "top_p" | "min_p" => (number(0.0, 1.0), "write a number from 0 to 1"),
        "presence_penalty" | "frequency_penalty" => {
            (number(-2.0, 2.0), "write a number from -2 to 2")
        }
        "max_output_tokens" => (
            value.is_u64() && number(1.0, f64::from(u32::MAX)),
            "write a whole number of tokens above 0",
        ),
        "top_k" | "seed" => (value.is_i64() || value.is_u64(), "write a whole number"),
        "stop" => (
            value.is_string() || value.is_array(),
            "write a text or a list of texts",
        ),
        "reasoning_effort" | "verbosity" | "service_tier" => {
            (value.is_string(), "write one of the provider's words")
        }
        _ => {
            return Err(Invalid::new(
                format!("\"{key}\" is no setting that models share"),
                "write it into provider_options if your provider knows it",
            ));
        }
    };
    if good {
        return Ok(value.clone());
    }
    Err(Invalid::new(format!("{key} = {value} cannot be"), remedy))
}

/// Fields of the body that are Diarist's own: with others nothing would be observed.
const RESERVED_FIELDS: [&str; 3] = ["model", "messages", "stream"];

pub(super) fn provider_options(
    raw: &Setting<Option<JsonTable>>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Map<String, Value>> {
    let empty = Map::new();
    let table = raw.value.as_ref().map_or(&empty, |JsonTable(table)| table);
    let entries = check_entries(raw, problems, table, |key, value| {
        if RESERVED_FIELDS.contains(&key) {
            return Err(Invalid::new(
                format!("\"{key}\" is Diarist's to write"),
                "remove it; the model has a key of its own",
            ));
        }
        Ok((key.to_owned(), value.clone()))
    })?;
    Ok(entries.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_is_read_as_json_in_an_order_that_does_not_change() {
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

    #[test]
    fn settings_are_judged_by_their_ranges() {
        let json = |text| serde_json::from_str::<Value>(text).unwrap();
        for (key, good, wrong) in [
            ("temperature", "0.5", "2.1"),
            ("top_p", "1", "1.1"),
            ("frequency_penalty", "-2", "\"a\""),
            ("max_output_tokens", "1", "0"),
            ("max_output_tokens", "4000", "0.5"),
            ("seed", "-7", "1.5"),
            ("stop", "[\"x\"]", "1"),
            ("reasoning_effort", "\"low\"", "3"),
        ] {
            assert!(setting(key, &json(good)).is_ok(), "{key} = {good}");
            assert!(setting(key, &json(wrong)).is_err(), "{key} = {wrong}");
        }
        assert!(setting("thinking_budget", &json("215")).is_err());
    }
}
