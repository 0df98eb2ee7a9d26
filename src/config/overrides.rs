//! `[[memory.overrides]]`: other numbers and models for some models or upstreams. Each is what `memory`
//! says with a few values replaced, and is judged whole: an override that makes a combination unsafe is
//! as wrong as one that is unsafe by itself. Every wrong one is named by its number.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use config::ValueKind;

use super::asking::models;
use super::nearest::nearest;
use super::problem::Problem;
use super::rules::Tables;
use super::thresholds::Numbers;
use super::valid::Override;
use super::written::{Checked, Lexical, Reported, Written, spelled};

/// What an override may say beside whom it is for.
const FIELDS: [&str; 15] = [
    "share_token_budget",
    "observation.model",
    "observation.message_tokens",
    "observation.buffer_tokens",
    "observation.buffer_on_idle",
    "observation.buffer_activation",
    "observation.block_after",
    "observation.activate_after_idle",
    "observation.activate_on_model_change",
    "reflection.model",
    "reflection.observation_tokens",
    "reflection.buffer_activation",
    "reflection.block_after",
    "reflection.activate_after_idle",
    "reflection.activate_on_model_change",
];

/// The overrides, the narrowest first, unless one of them is wrong. `base` is what they change; where
/// that is not valid itself (`sound`), only what they say is judged.
pub(super) fn overrides(
    raw: &Written<Tables>,
    base: &Numbers,
    sound: bool,
    problems: &mut Vec<Problem>,
) -> Checked<Vec<Override>> {
    let before = problems.len();
    let mut valid: Vec<Override> = Vec::new();
    for (at, table) in raw.value.0.iter().enumerate() {
        let reader = Reader {
            name: format!("{}[{}]", raw.key, at + 1),
            origin: raw.origin.clone(),
            said: flat(table),
        };
        let Ok(read) = reader.read(base, sound, problems) else {
            continue;
        };
        if let Some(same) = valid.iter().position(|other| other.is_for(&read)) {
            problems.push(reader.problem(
                "",
                format!("it is for the same as number {}", same + 1),
                "make one of the two",
            ));
        }
        valid.push(read);
    }
    if problems.len() > before || !sound {
        return Err(Reported);
    }
    // A stable sort: of two that are equally narrow the first one counts.
    valid.sort_by_key(|known| Reverse(known.narrowness()));
    Ok(valid)
}

/// `observation = { model = .. }` and `observation.model = ..` are one.
fn flat(table: &BTreeMap<String, ValueKind>) -> BTreeMap<String, ValueKind> {
    let mut said = BTreeMap::new();
    for (name, kind) in table {
        match kind {
            ValueKind::Table(inner) if matches!(name.as_str(), "observation" | "reflection") => {
                let inner = inner.iter();
                said.extend(
                    inner.map(|(key, value)| (format!("{name}.{key}"), value.kind.clone())),
                );
            }
            kind => drop(said.insert(name.clone(), kind.clone())),
        }
    }
    said
}

/// One override, as written.
struct Reader {
    name: String,
    origin: Option<String>,
    said: BTreeMap<String, ValueKind>,
}

impl Reader {
    fn problem(&self, key: &str, what: impl Into<String>, remedy: impl Into<String>) -> Problem {
        let dot = if key.is_empty() { "" } else { "." };
        Problem {
            key: format!("{}{dot}{key}", self.name),
            origin: self.origin.clone(),
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    fn read(&self, base: &Numbers, sound: bool, problems: &mut Vec<Problem>) -> Checked<Override> {
        let before = problems.len();
        let whom = ["model", "upstream"];
        for key in self.said.keys().map(String::as_str) {
            if !FIELDS.contains(&key) && !whom.contains(&key) {
                let near = nearest(key, FIELDS.into_iter().chain(whom));
                let remedy = near.map_or_else(
                    || format!("an override has model, upstream, {}", FIELDS.join(", ")),
                    |near| format!("did you mean {near}?"),
                );
                problems.push(self.problem(key, "there is no such key", remedy));
            }
        }
        let [model, upstream] = whom.map(|key| self.pattern(key, problems));
        if !whom.iter().any(|key| self.said.contains_key(*key)) {
            problems.push(self.problem(
                "",
                "it names neither a model nor an upstream",
                "name one of them; numbers for all stand in memory.observation and memory.reflection",
            ));
        }
        let numbers = self.numbers(base, problems);
        let [observer, reflector] = ["observation.model", "reflection.model"].map(|key| {
            let mut written = Written {
                key: String::new().into(),
                origin: None,
                value: None,
            };
            self.set(key, &mut written, problems);
            models(&written, problems)
        });
        // What is inherited was judged before; here it is judged with what is not.
        if !sound || problems.len() > before {
            return Err(Reported);
        }
        Ok(Override {
            model: model?,
            upstream: upstream?,
            thresholds: numbers.validate(problems)?,
            observer: observer?,
            reflector: reflector?,
        })
    }

    fn pattern(&self, key: &str, problems: &mut Vec<Problem>) -> Checked<Option<String>> {
        match self.said.get(key) {
            None => Ok(None),
            Some(ValueKind::String(text)) if !text.trim().is_empty() => {
                Ok(Some(text.trim().to_owned()))
            }
            Some(_) => {
                let remedy = "write text in double quotes, such as \"gpt-5*\"";
                problems.push(self.problem(key, "this is no pattern", remedy));
                Err(Reported)
            }
        }
    }

    fn numbers(&self, base: &Numbers, problems: &mut Vec<Problem>) -> Numbers {
        let mut numbers = base.clone();
        let n = &mut numbers;
        self.set("share_token_budget", &mut n.share_token_budget, problems);
        self.set(
            "observation.message_tokens",
            &mut n.message_tokens,
            problems,
        );
        self.set("observation.buffer_tokens", &mut n.buffer_tokens, problems);
        self.set(
            "observation.buffer_on_idle",
            &mut n.buffer_on_idle,
            problems,
        );
        self.set(
            "reflection.observation_tokens",
            &mut n.observation_tokens,
            problems,
        );
        for (name, phase) in [
            ("observation", &mut n.observation),
            ("reflection", &mut n.reflection),
        ] {
            let key = |leaf: &str| format!("{name}.{leaf}");
            self.set(
                &key("buffer_activation"),
                &mut phase.buffer_activation,
                problems,
            );
            self.set(&key("block_after"), &mut phase.block_after, problems);
            self.set(
                &key("activate_after_idle"),
                &mut phase.activate_after_idle,
                problems,
            );
            let change = &mut phase.activate_on_model_change;
            self.set(&key("activate_on_model_change"), change, problems);
        }
        numbers
    }

    /// Replaces what this override says; what it inherits is marked so.
    fn set<T: Lexical>(&self, key: &str, value: &mut Written<T>, problems: &mut Vec<Problem>) {
        let Some(kind) = self.said.get(key) else {
            value.key = format!("{}, with {}", self.name, value.key).into();
            return;
        };
        match T::read(kind) {
            Some(read) => {
                *value = Written {
                    key: format!("{}.{key}", self.name).into(),
                    origin: self.origin.clone(),
                    value: read,
                };
            }
            None => problems.push(self.problem(
                key,
                format!("found {}, expected {}", spelled(kind), T::EXPECTED),
                format!("write {}", T::EXAMPLE),
            )),
        }
    }
}
