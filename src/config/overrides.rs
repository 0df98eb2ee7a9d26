//! `[[memory.overrides]]`: memory made otherwise for some models or upstreams. Each is what `memory` says
//! of its phases with a few values replaced, and is judged whole: an override that makes a combination
//! unsafe is as wrong as one that is unsafe by itself. Every wrong one is named by its number.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use config::ValueKind;

use super::model_settings::{JsonTable, RawModels, models};
use super::nearest::nearest;
use super::parse::{CheckResult, ErrorReported, FromToml, Setting, to_toml};
use super::phases::{ModelTarget, OverridableSettings, observation, reflection};
use super::problem::Problem;
use super::rules::TableList;
use super::valid::{Models, Override};

/// Names what an override may say beside whom it is for, and where that is written.
macro_rules! fields {
    ($($section:ident: $($name:ident)+;)+) => {
        const FIELDS: &[&str] = &[
            "share_token_budget",
            "read_only",
            $($(concat!(stringify!($section), ".", stringify!($name)),)+)+
        ];

        impl OverrideReader {
            /// Puts what this override says into the place of what `section` does.
            fn replace(&self, section: &mut OverridableSettings, problems: &mut Vec<Problem>) {
                self.set("share_token_budget", &mut section.share_token_budget, problems);
                self.set("read_only", &mut section.read_only, problems);
                $($(self.set(
                    concat!(stringify!($section), ".", stringify!($name)),
                    &mut section.$section.$name,
                    problems,
                );)+)+
            }
        }
    };
}

// All that a phase has but where it asks: a key of its own has no place in a list.
fields! {
    observation: model message_tokens buffer_tokens buffer_on_idle buffer_activation block_after
        activate_after_idle activate_on_model_change temperature max_output_tokens model_settings
        provider_options timeout instruction max_input_tokens previous_observer_tokens
        continuation_hints observe_attachments omit_blocks observe_system thread_title;
    reflection: model observation_tokens buffer_activation block_after max_loss activate_after_idle
        activate_on_model_change temperature model_settings provider_options timeout instruction
        continuation_hints;
}

/// What the overrides change.
pub(super) struct Base {
    pub(super) section: OverridableSettings,
    pub(super) observer: CheckResult<ModelTarget>,
    pub(super) reflector: CheckResult<ModelTarget>,
    /// Whether all of it is valid; else only what an override says is judged.
    pub(super) valid: bool,
}

/// The overrides, the narrowest first, unless one of them is wrong.
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
                format!("it is for the same as number {}", same + 1),
                "make one of the two",
            ));
        }
        valid.push(read);
    }
    if problems.len() > before || !base.valid {
        return Err(ErrorReported);
    }
    // A stable sort: of two that are equally narrow the first one counts.
    valid.sort_by_key(|entry| Reverse(entry.specificity()));
    Ok(valid)
}

/// `observation = { model = .. }` and `observation.model = ..` are one.
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
        let target_keys = ["model", "upstream"];
        for key in self.values.keys().map(String::as_str) {
            if !FIELDS.contains(&key) && !target_keys.contains(&key) {
                let near = nearest(key, FIELDS.iter().copied().chain(target_keys));
                let remedy = near.map_or_else(
                    || format!("an override has model, upstream, {}", FIELDS.join(", ")),
                    |near| format!("did you mean {near}?"),
                );
                problems.push(self.problem(key, "there is no such key", remedy));
            }
        }
        let [model, upstream] = target_keys.map(|key| self.pattern(key, problems));
        if !target_keys.iter().any(|key| self.values.contains_key(*key)) {
            problems.push(self.problem(
                "",
                "it names neither a model nor an upstream",
                "name one of them; numbers for all stand in memory.observation and memory.reflection",
            ));
        }
        let mut section = base.section.clone();
        self.replace(&mut section, problems);
        self.drop_superseded(&mut section);
        let observer =
            self.override_models("observation.model", &section.observation.model, problems);
        let reflector =
            self.override_models("reflection.model", &section.reflection.model, problems);
        // What is inherited was judged before; here it is judged with what is not.
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
        let observer = or_base(observer?, &base.observer);
        let reflector = or_base(reflector?, &base.reflector);
        let thresholds = section.thresholds(problems);
        let observation = observation(&section.observation, observer, problems);
        let reflection = reflection(&section.reflection, reflector, problems);
        Ok(Override {
            model: model?,
            upstream: upstream?,
            read_only: section.read_only.value,
            thresholds: thresholds?,
            observation: observation?,
            reflection: reflection?,
        })
    }

    /// The model it names, if it names one.
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

    /// A temperature and a limit have two spellings, and one configuration says each once: what the override
    /// says goes before what it inherits, under either name.
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
                let remedy = "write text in double quotes, such as \"gpt-5*\"";
                problems.push(self.problem(key, "this is no pattern", remedy));
                Err(ErrorReported)
            }
        }
    }

    /// Replaces what this override says; what it inherits is marked so.
    fn set<T: FromToml>(&self, key: &str, value: &mut Setting<T>, problems: &mut Vec<Problem>) {
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
                format!("found {}, expected {}", to_toml(kind), T::EXPECTED),
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
