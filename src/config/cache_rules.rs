//! `[[audit.cache_rules]]`: rules of prompt caches that Diarist does not know, or knows otherwise.
//!
//! Checks each entry by itself, and names all that is invalid by the number of its entry. `memory::prompt_cache` applies
//! them. Called by `validate`.

use std::time::Duration;

use config::ValueKind;

use super::parse::{CheckResult, FromToml, Setting};
use super::problem::Problem;
use super::tables::{Table, TableError, TableList, check_each, unknown_keys};
use crate::memory::Pattern;
use crate::memory::prompt_cache::CacheRulesOverride;

const KEYS: [&str; 5] = [
    "model",
    "minimum_tokens",
    "step_tokens",
    "lifetime",
    "look_back",
];

/// The entries, unless one of them is invalid.
pub(super) fn cache_rules(
    raw: &Setting<TableList>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Vec<CacheRulesOverride>> {
    check_each(raw, "cache rule", problems, cache_rule)
}

/// A warning for each entry that never counts, because an earlier one matches every model that it matches.
pub(super) fn unreachable_warnings(rules: &[CacheRulesOverride]) -> Vec<String> {
    let warning = |(index, rule): (usize, &CacheRulesOverride)| {
        let earlier = rules[..index].iter();
        let mut numbered = earlier.zip(1..);
        let (_, number) = numbered.find(|(earlier, _)| earlier.model.covers(&rule.model))?;
        Some(format!(
            "audit.cache_rules: cache rule {} never counts: cache rule {number} stands before it and matches the same \
             models. Put it before that one, or remove it.",
            index + 1
        ))
    };
    rules.iter().enumerate().filter_map(warning).collect()
}

fn cache_rule(table: &Table) -> Result<CacheRulesOverride, Vec<TableError>> {
    let mut errors = unknown_keys(table, "cache rule", &KEYS);
    let has_unknown = !errors.is_empty();
    let mut error = |what: &str, remedy: &str| errors.push((what.to_owned(), remedy.to_owned()));
    let model = match table.get("model") {
        Some(ValueKind::String(text)) if !text.trim().is_empty() => text.trim(),
        Some(_) => {
            error(
                "model is not a text",
                "write a text in double quotes, such as \"qwen*\"",
            );
            ""
        }
        None => {
            error("model is missing", "add it; \"*\" stands for all models");
            ""
        }
    };
    if !has_unknown && !KEYS[1..].iter().any(|key| table.contains_key(*key)) {
        error(
            "it changes nothing",
            "add minimum_tokens, step_tokens, lifetime or look_back",
        );
    }
    let rule = CacheRulesOverride {
        model: Pattern::new(model),
        minimum_tokens: value(table, "minimum_tokens", &mut errors),
        step_tokens: value(table, "step_tokens", &mut errors),
        lifetime: value::<Duration>(table, "lifetime", &mut errors),
        look_back: value::<u64>(table, "look_back", &mut errors)
            .map(|blocks| u32::try_from(blocks).unwrap_or(u32::MAX)),
    };
    let mut error = |what: &str, remedy: &str| errors.push((what.to_owned(), remedy.to_owned()));
    if rule.step_tokens == Some(0) {
        error("step_tokens is 0", "write 1 if hits come in single tokens");
    }
    if rule.look_back == Some(0) {
        error(
            "look_back is 0",
            "write how many blocks back a mark finds what was stored, such as 20",
        );
    }
    if rule.lifetime == Some(Duration::ZERO) {
        error(
            "lifetime is 0",
            "write how long a prompt stays after its last use, such as \"5m\"",
        );
    }
    if errors.is_empty() {
        Ok(rule)
    } else {
        Err(errors)
    }
}

/// The value of `key`, if it is there.
fn value<T: FromToml>(table: &Table, key: &str, errors: &mut Vec<TableError>) -> Option<T> {
    let value = T::from_toml(table.get(key)?);
    if value.is_none() {
        errors.push((
            format!("{key} is not {}", T::EXPECTED),
            format!("write {}", T::EXAMPLE),
        ));
    }
    value
}
