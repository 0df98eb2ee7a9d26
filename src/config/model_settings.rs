//! How a phase calls its model: which model for which prompt, and which parameters.
//!
//! `model` is a name, or a table of names by the size of the prompt. `model_settings` holds parameters that
//! most providers know, `provider_options` anything that one provider knows. Every invalid entry of a table is a
//! problem of its own. Called by `phases` and `overrides`.

use serde_json::{Map, Value};

use super::common::non_empty;
use super::parse::{CheckResult, ErrorReported, Invalid, Setting};
use super::problem::Problem;
use super::tables::{JsonTable, RawModels};
use crate::llm::Models;

/// The models of a key; `None` if it is unset.
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
            let mut tiers =
                raw.check_each(problems, raw_tiers, |(bound, model)| tier(bound, model))?;
            tiers.sort_by_key(|(up_to, _)| *up_to);
            if tiers.is_empty() || tiers.windows(2).any(|pair| pair[0].0 == pair[1].0) {
                problems.push(raw.problem(
                    "the table has no model, or two models for the same number of tokens",
                    "write one line for each model: the largest prompt in tokens, and the model",
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
            "write the largest prompt for this model in tokens, a whole number above 0",
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

/// `model_settings`, sorted by how they are used.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelSettings {
    pub(super) temperature: Option<f64>,
    pub(super) max_output_tokens: Option<u32>,
    /// All others, under their names in chat completions.
    pub(super) parameters: Map<String, Value>,
}

pub(super) fn model_settings(
    raw: &Setting<Option<JsonTable>>,
    problems: &mut Vec<Problem>,
) -> CheckResult<ModelSettings> {
    let empty = Map::new();
    let table = raw.value.as_ref().map_or(&empty, |JsonTable(table)| table);
    let entries = raw.check_each(problems, table, |(key, value)| {
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

/// Checks one setting by its range, if providers agree on a range.
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
            (value.is_string(), "write a text that the provider knows")
        }
        _ => {
            return Err(Invalid::new(
                format!("\"{key}\" is not a common setting of models"),
                "if your provider knows it, write it into provider_options",
            ));
        }
    };
    if good {
        return Ok(value.clone());
    }
    Err(Invalid::new(
        format!("{key} = {value} is out of range or not of the right kind"),
        remedy,
    ))
}

/// Fields of the body that Diarist writes itself. With other values nothing could be observed.
const RESERVED_FIELDS: [&str; 3] = ["model", "messages", "stream"];

pub(super) fn provider_options(
    raw: &Setting<Option<JsonTable>>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Map<String, Value>> {
    let empty = Map::new();
    let table = raw.value.as_ref().map_or(&empty, |JsonTable(table)| table);
    let entries = raw.check_each(problems, table, |(key, value)| {
        if RESERVED_FIELDS.contains(&key.as_str()) {
            return Err(Invalid::new(
                format!("Diarist writes the field \"{key}\" itself"),
                "remove it; to choose a model use the key model",
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
    fn a_model_setting_outside_its_range_is_refused() {
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
