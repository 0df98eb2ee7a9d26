//! `[[audit.cache_rules]]`: rules of prompt caches that Diarist does not know, or knows otherwise.
//!
//! Checks each entry by itself and names every invalid one by its number. `memory::prompt_cache` applies them.
//! Called by `validate`.

use std::time::Duration;

use config::ValueKind;

use super::parse::{CheckResult, FromToml, Setting};
use super::problem::Problem;
use super::tables::{Table, TableList, check_each, only_known_keys};
use crate::memory::Pattern;
use crate::memory::prompt_cache::CacheRulesOverride;

const KEYS: [&str; 4] = ["model", "minimum_tokens", "step_tokens", "lifetime"];

/// The entries, unless one of them is invalid.
pub(super) fn cache_rules(
    raw: &Setting<TableList>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Vec<CacheRulesOverride>> {
    check_each(raw, "cache rule", problems, cache_rule)
}

fn cache_rule(table: &Table) -> Result<CacheRulesOverride, (String, String)> {
    only_known_keys(table, "cache rule", &KEYS)?;
    let model = match table.get("model") {
        Some(ValueKind::String(text)) if !text.trim().is_empty() => Pattern::new(text.trim()),
        Some(_) => {
            let remedy = "write a text in double quotes, such as \"qwen*\"";
            return Err(("model is not a text".to_owned(), remedy.to_owned()));
        }
        None => {
            let remedy = "add it; \"*\" stands for all models";
            return Err(("model is missing".to_owned(), remedy.to_owned()));
        }
    };
    let step_tokens: Option<u64> = value(table, "step_tokens")?;
    if step_tokens == Some(0) {
        let remedy = "write 1 if hits come in single tokens";
        return Err(("step_tokens is 0".to_owned(), remedy.to_owned()));
    }
    let rule = CacheRulesOverride {
        model,
        minimum_tokens: value(table, "minimum_tokens")?,
        step_tokens,
        lifetime: value::<Duration>(table, "lifetime")?,
    };
    if (rule.minimum_tokens, rule.step_tokens, rule.lifetime) == (None, None, None) {
        let remedy = "add minimum_tokens, step_tokens or lifetime";
        return Err(("it changes nothing".to_owned(), remedy.to_owned()));
    }
    Ok(rule)
}

/// The value of `key`, if it is there.
fn value<T: FromToml>(table: &Table, key: &str) -> Result<Option<T>, (String, String)> {
    let Some(kind) = table.get(key) else {
        return Ok(None);
    };
    match T::from_toml(kind) {
        Some(value) => Ok(Some(value)),
        None => Err((
            format!("{key} is not {}", T::EXPECTED),
            format!("write {}", T::EXAMPLE),
        )),
    }
}
