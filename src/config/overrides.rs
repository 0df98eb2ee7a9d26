//! `[[memory.overrides]]`: settings of memory for some models or upstreams.
//!
//! An override is the sections `memory.observation` and `memory.reflection` with a few values replaced. It is
//! checked as a whole, since a replaced value can be invalid together with an inherited one. Every error names
//! the override by its number. Called by `memory`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use config::ValueKind;

use super::model_settings::models;
use super::nearest::nearest;
use super::parse::{
    CheckResult, ErrorReported, FromToml, Section as _, Setting, SettingVisitor, found,
};
use super::phases::{CommonSettings, ModelTarget, OverridableSettings, PhaseTargets};
use super::problem::Problem;
use super::settings::SECTIONS;
use super::tables::{JsonTable, RawModels, TableList};
use super::valid::Override;
use crate::llm::Models;

/// The keys that say which conversations an override is for.
const TARGET_KEYS: [&str; 2] = ["model", "upstream"];

/// Keys of `[memory]` that an override can replace.
const MEMORY_KEYS: [&str; 2] = ["share_token_budget", "read_only"];

/// The phases, of which an override can replace every key but these.
const PHASES: [&str; 2] = ["observation.", "reflection."];
const ENDPOINT_KEYS: [&str; 2] = ["base_url", "api_key"];

/// The keys that an override can replace, as it writes them.
fn replaceable_keys() -> impl Iterator<Item = &'static str> + Clone {
    let of_phases = SECTIONS.keys().filter_map(|key| {
        let path = override_path(key.path)?;
        let in_phase = PHASES.iter().any(|phase| path.starts_with(phase));
        // An override is part of a list, which is no place for secrets.
        (in_phase && !ENDPOINT_KEYS.contains(&key.name)).then_some(path)
    });
    MEMORY_KEYS.into_iter().chain(of_phases)
}

/// `memory.observation.model` is `observation.model` in an override.
fn override_path(path: &'static str) -> Option<&'static str> {
    path.strip_prefix("memory.")
}

/// The settings that overrides change.
pub(super) struct Base {
    pub(super) section: OverridableSettings,
    pub(super) targets: PhaseTargets,
    pub(super) common: CheckResult<CommonSettings>,
    /// Whether `section` and `targets` are valid. Otherwise only the override's own values are checked.
    pub(super) valid: bool,
}

/// The overrides, the narrowest first, unless one of them is invalid.
pub(super) fn overrides(
    raw: &Setting<TableList>,
    base: &Base,
    problems: &mut Vec<Problem>,
) -> CheckResult<Vec<Override>> {
    let before = problems.len();
    let mut valid: Vec<Override> = Vec::new();
    for (at, table) in raw.value.0.iter().enumerate() {
        let reader = OverrideReader {
            name: format!("{}[{}]", raw.key, at + 1),
            origin: raw.origin.clone(),
            values: flatten(table),
        };
        let Ok(read) = reader.read(base, problems) else {
            continue;
        };
        if let Some(same) = valid.iter().position(|other| other.same_target(&read)) {
            problems.push(reader.problem(
                "",
                format!("it has the same model and upstream as number {}", same + 1),
                "write both as one override",
            ));
        }
        valid.push(read);
    }
    if problems.len() > before || !base.valid {
        return Err(ErrorReported);
    }
    // The sort is stable: of two equally narrow overrides the first one counts.
    valid.sort_by_key(|entry| Reverse(entry.specificity()));
    Ok(valid)
}

/// Writes `observation = { model = .. }` as `observation.model = ..`.
fn flatten(table: &BTreeMap<String, ValueKind>) -> BTreeMap<String, ValueKind> {
    let mut values = BTreeMap::new();
    for (name, kind) in table {
        match kind {
            ValueKind::Table(inner) if matches!(name.as_str(), "observation" | "reflection") => {
                let inner = inner.iter();
                values.extend(
                    inner.map(|(key, value)| (format!("{name}.{key}"), value.kind.clone())),
                );
            }
            kind => drop(values.insert(name.clone(), kind.clone())),
        }
    }
    values
}

/// One override, as written.
struct OverrideReader {
    name: String,
    origin: Option<String>,
    values: BTreeMap<String, ValueKind>,
}

/// Puts the values of an override into the section that it changes.
struct Replacer<'a> {
    reader: &'a OverrideReader,
    problems: &'a mut Vec<Problem>,
}

impl SettingVisitor for Replacer<'_> {
    fn visit<T: FromToml>(&mut self, path: &'static str, setting: &mut Setting<T>) {
        if let Some(key) = override_path(path).filter(|key| replaceable_keys().any(|it| it == *key))
        {
            self.reader.replace(key, setting, self.problems);
        }
    }
}

impl OverrideReader {
    fn problem(&self, key: &str, what: impl Into<String>, remedy: impl Into<String>) -> Problem {
        let dot = if key.is_empty() { "" } else { "." };
        Problem {
            key: format!("{}{dot}{key}", self.name),
            origin: self.origin.clone(),
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    fn read(&self, base: &Base, problems: &mut Vec<Problem>) -> CheckResult<Override> {
        let before = problems.len();
        for key in self.values.keys().map(String::as_str) {
            let known = replaceable_keys().chain(TARGET_KEYS);
            if !known.clone().any(|known| known == key) {
                let is_endpoint = ENDPOINT_KEYS.iter().any(|name| key.ends_with(name));
                let remedy = match nearest(key, known) {
                    _ if is_endpoint => "remove it: an override uses the endpoint and the key of memory.observation and \
                                         memory.reflection"
                        .to_owned(),
                    Some(near) => format!("did you mean {near}?"),
                    None => format!(
                        "write model, upstream, {}, or a key of [memory.observation] or [memory.reflection] as \
                         observation.KEY or reflection.KEY",
                        MEMORY_KEYS.join(", ")
                    ),
                };
                problems.push(self.problem(key, "there is no such key", remedy));
            }
        }
        let [model, upstream] = TARGET_KEYS.map(|key| self.pattern(key, problems));
        if !TARGET_KEYS.iter().any(|key| self.values.contains_key(*key)) {
            problems.push(self.problem(
                "",
                "it has neither model nor upstream",
                "add one of them; values for all conversations belong into memory.observation and \
                 memory.reflection",
            ));
        }
        let section = self.section(base, problems);
        let observer =
            self.override_models("observation.model", &section.observation.model, problems);
        let reflector =
            self.override_models("reflection.model", &section.reflection.model, problems);
        // Combinations with inherited values are checked only if both sides are valid by themselves.
        if !base.valid || problems.len() > before {
            return Err(ErrorReported);
        }
        let or_base = |models: Option<Models>, base: &CheckResult<ModelTarget>| {
            let base = base.clone()?;
            Ok(ModelTarget {
                model: models.or(base.model),
                ..base
            })
        };
        let targets = PhaseTargets {
            observer: or_base(observer?, &base.targets.observer),
            reflector: or_base(reflector?, &base.targets.reflector),
        };
        let common = base.common.as_ref().map_err(|reported| *reported);
        let settings = section.validate(&targets, common, problems);
        Ok(Override {
            model: model?,
            upstream: upstream?,
            read_only: section.read_only.value,
            settings: Arc::new(settings?),
        })
    }

    /// The settings with the values of this override in place of those that all conversations have.
    fn section(&self, base: &Base, problems: &mut Vec<Problem>) -> OverridableSettings {
        let mut section = base.section.clone();
        let [share_token_budget, read_only] = MEMORY_KEYS;
        self.replace(
            share_token_budget,
            &mut section.share_token_budget,
            problems,
        );
        self.replace(read_only, &mut section.read_only, problems);
        let mut replacer = Replacer {
            reader: self,
            problems,
        };
        section.observation.visit(&mut replacer);
        section.reflection.visit(&mut replacer);
        self.drop_superseded(&mut section);
        section
    }

    /// The models of this override; `None` if it inherits them.
    fn override_models(
        &self,
        key: &str,
        raw: &Setting<Option<RawModels>>,
        problems: &mut Vec<Problem>,
    ) -> CheckResult<Option<Models>> {
        if !self.values.contains_key(key) {
            return Ok(None);
        }
        models(raw, problems)
    }

    /// The temperature and the output limit can each be written under two names, and a configuration may use only
    /// one of them. A value of the override replaces the inherited one, even if that has the other name.
    fn drop_superseded(&self, section: &mut OverridableSettings) {
        let (observation, reflection) = (&mut section.observation, &mut section.reflection);
        for (phase, temperature, settings) in [
            (
                "observation",
                &mut observation.temperature,
                &mut observation.model_settings,
            ),
            (
                "reflection",
                &mut reflection.temperature,
                &mut reflection.model_settings,
            ),
        ] {
            let has = |name: &str| self.values.contains_key(&format!("{phase}.{name}"));
            match (has("temperature"), has("model_settings")) {
                (true, false) => remove_setting(settings, "temperature"),
                (false, true) => temperature.origin = None,
                _ => {}
            }
        }
        let limit = &mut observation.max_output_tokens;
        let has = |name: &str| self.values.contains_key(name);
        match (
            has("observation.max_output_tokens"),
            has("observation.model_settings"),
        ) {
            (true, false) => remove_setting(&mut observation.model_settings, "max_output_tokens"),
            (false, true) if has_setting(&observation.model_settings, "max_output_tokens") => {
                limit.value = None;
            }
            _ => {}
        }
    }

    fn pattern(&self, key: &str, problems: &mut Vec<Problem>) -> CheckResult<Option<String>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(ValueKind::String(text)) if !text.trim().is_empty() => {
                Ok(Some(text.trim().to_owned()))
            }
            Some(_) => {
                let remedy = "write a text in double quotes, such as \"gpt-5*\"";
                problems.push(self.problem(key, "this is not a pattern", remedy));
                Err(ErrorReported)
            }
        }
    }

    /// Puts this override's value into `value`. Marks an inherited value, so that an error names both.
    fn replace<T: FromToml>(&self, key: &str, value: &mut Setting<T>, problems: &mut Vec<Problem>) {
        let Some(kind) = self.values.get(key) else {
            value.key = format!("{}, with {}", self.name, value.key).into();
            return;
        };
        match T::from_toml(kind) {
            Some(read) => {
                *value = Setting {
                    key: format!("{}.{key}", self.name).into(),
                    origin: self.origin.clone(),
                    value: read,
                };
            }
            None => problems.push(self.problem(
                key,
                format!("found {}, expected {}", found::<T>(kind), T::EXPECTED),
                format!("write {}", T::EXAMPLE),
            )),
        }
    }
}

fn has_setting(settings: &Setting<Option<JsonTable>>, name: &str) -> bool {
    let table = settings.value.as_ref();
    table.is_some_and(|JsonTable(table)| table.contains_key(name))
}

fn remove_setting(settings: &mut Setting<Option<JsonTable>>, name: &str) {
    if let Some(JsonTable(table)) = &mut settings.value {
        table.remove(name);
    }
}
