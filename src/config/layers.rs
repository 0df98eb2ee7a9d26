//! The four sources and their order: defaults < file < environment < flags.
//!
//! Each source becomes a flat layer of known keys. An unknown key is reported as a problem and left out. The
//! `config` crate merges the layers. This file remembers which source a value came from, for messages; it
//! does not check values.

use std::collections::BTreeMap;
use std::path::Path;

use config::{File, FileFormat, Map, Source, Value, ValueKind};

use super::environment::{ENVIRONMENT_PREFIX, variable};
use super::nearest::nearest;
use super::parse::{FromToml, Setting, found};
use super::problem::Problem;
use super::spec::{SampleValue, Sections};

/// Values from the command line. Each wins over every other source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--listen`: `server.listen`.
    pub listen: Option<String>,
    /// `--admin`: `server.admin`.
    pub admin: Option<String>,
    /// `--upstream`: `upstream.base_url`.
    pub upstream: Option<String>,
    /// `--database`: `store.url`.
    pub database: Option<String>,
    /// `--audit`: `audit.path`.
    pub audit: Option<String>,
}

impl Flags {
    fn set_flags(&self) -> impl Iterator<Item = (&'static str, &'static str, &String)> {
        [
            ("--listen", "server.listen", &self.listen),
            ("--admin", "server.admin", &self.admin),
            ("--upstream", "upstream.base_url", &self.upstream),
            ("--database", "store.url", &self.database),
            ("--audit", "audit.path", &self.audit),
        ]
        .into_iter()
        .filter_map(|(flag, key, value)| Some((flag, key, value.as_ref()?)))
    }
}

/// One source: for each key its value, and the name of the source as messages show it.
#[derive(Debug, Clone, Default)]
struct Layer(BTreeMap<String, (String, ValueKind)>);

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, config::ConfigError> {
        let values = self.0.iter();
        Ok(values
            .map(|(key, (origin, kind))| (key.clone(), Value::new(Some(origin), kind.clone())))
            .collect())
    }
}

/// All sources, merged.
#[derive(Debug)]
pub(super) struct Layers {
    defaults: Layer,
    /// From the weakest to the strongest.
    sources: [Layer; 3],
    merged: config::Config,
}

impl Layers {
    /// Reads every source. Unreadable sources and keys that are not in `sections` are added to `problems`.
    pub(super) fn collect(
        sections: Sections,
        flags: &Flags,
        env: &BTreeMap<String, String>,
        file: Option<&Path>,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let defaults = parse(sections, &defaults_text(sections), "the defaults", problems);
        let sources = [
            file.map_or_else(Layer::default, |path| from_file(sections, path, problems)),
            from_environment(sections, env, problems),
            from_flags(flags),
        ];
        let [file, environment, flags] = sources.clone();
        let builder = config::Config::builder()
            .add_source(defaults.clone())
            .add_source(file)
            .add_source(environment)
            .add_source(flags);
        let merged = builder.build().unwrap_or_else(|error| {
            // Cannot happen: only known keys are in the layers, and their paths parse.
            problems.push(Problem {
                key: "configuration".to_owned(),
                origin: None,
                what: format!("the sources cannot be merged: {error}"),
                remedy: "compare your file with the output of `diarist config`".to_owned(),
            });
            config::Config::default()
        });
        Self {
            defaults,
            sources,
            merged,
        }
    }

    /// The value in force for `key`; [`ValueKind::Nil`] if there is none.
    pub(super) fn value(&self, key: &str) -> ValueKind {
        self.merged
            .get::<Value>(key)
            .map_or(ValueKind::Nil, |value| value.kind)
    }

    /// The source of the value in force; `None` if it is the default, or if there is no value.
    pub(super) fn origin(&self, key: &str) -> Option<&str> {
        let mut layers = self.sources.iter().rev();
        layers.find_map(|layer| layer.0.get(key).map(|(origin, _)| origin.as_str()))
    }

    /// The value in force for `key`, read as its kind. A value of another kind is added to `problems`, and
    /// the default is returned instead.
    #[expect(clippy::expect_used, reason = "a test reads every default as its kind")]
    pub(super) fn read<T: FromToml>(
        &self,
        key: &'static str,
        problems: &mut Vec<Problem>,
    ) -> Setting<T> {
        let origin = self.origin(key).map(str::to_owned);
        let kind = self.value(key);
        let value = T::from_toml(&kind).unwrap_or_else(|| {
            problems.push(Problem {
                key: key.to_owned(),
                origin: origin.clone(),
                what: format!("found {}, expected {}", found::<T>(&kind), T::EXPECTED),
                remedy: format!("write {}", T::EXAMPLE),
            });
            let default = self.defaults.0.get(key);
            let kind = default.map_or(&ValueKind::Nil, |(_, kind)| kind);
            T::from_toml(kind).expect("the default of a key is of its kind")
        });
        Setting {
            key: key.into(),
            origin,
            value,
        }
    }
}

/// The defaults, written as a file.
fn defaults_text(sections: Sections) -> String {
    let lines = sections.0.iter().flat_map(|section| {
        let keys = section.keys.iter().filter_map(|key| match key.sample {
            SampleValue::Default(literal) => Some(format!("{} = {literal}\n", key.name)),
            SampleValue::Example(_) => None,
        });
        std::iter::once(format!("[{}]\n", section.name)).chain(keys)
    });
    lines.collect()
}

fn from_file(sections: Sections, path: &Path, problems: &mut Vec<Problem>) -> Layer {
    let name = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => parse(sections, &text, &name, problems),
        Err(error) => {
            problems.push(Problem {
                key: name,
                origin: None,
                what: format!("the file cannot be read: {error}"),
                remedy: "give --config the path of a readable TOML file".to_owned(),
            });
            Layer::default()
        }
    }
}

fn parse(sections: Sections, text: &str, origin: &str, problems: &mut Vec<Problem>) -> Layer {
    let mut layer = Layer::default();
    match File::from_str(text, FileFormat::Toml).collect() {
        Ok(table) => flatten(sections, table, "", origin, &mut layer, problems),
        Err(error) => problems.push(Problem {
            key: origin.to_owned(),
            origin: None,
            what: format!("the file is not valid TOML: {}", without_source(&error)),
            remedy: "correct this line; `diarist config` prints a valid file".to_owned(),
        }),
    }
    layer
}

/// The parser's message without the lines it quotes: one of them may hold an API key.
fn without_source(error: &config::ConfigError) -> String {
    let message = error.to_string();
    let lines = message.lines().filter(|line| {
        let quoted = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
        !quoted.starts_with('|')
    });
    lines.collect::<Vec<_>>().join(", ")
}

fn flatten(
    sections: Sections,
    table: Map<String, Value>,
    prefix: &str,
    origin: &str,
    layer: &mut Layer,
    problems: &mut Vec<Problem>,
) {
    // The order of a hash map changes from run to run; that of the problems should not.
    let table: BTreeMap<String, Value> = table.into_iter().collect();
    for (name, value) in table {
        let path = if prefix.is_empty() {
            name
        } else {
            format!("{prefix}.{name}")
        };
        match value.kind {
            ValueKind::Table(table) if sections.has_section(&path) => {
                flatten(sections, table, &path, origin, layer, problems);
            }
            kind if sections.has_key(&path) => {
                layer.0.insert(path, (origin.to_owned(), kind));
            }
            ValueKind::Table(_) => problems.push(unknown_section(sections, &path, origin)),
            _ => problems.push(unknown_key(sections, &path, origin, str::to_owned)),
        }
    }
}

fn from_environment(
    sections: Sections,
    env: &BTreeMap<String, String>,
    problems: &mut Vec<Problem>,
) -> Layer {
    // Two underscores after the name: Kubernetes sets DIARIST_PORT and similar variables in every pod of a
    // namespace with a service called diarist. `environment` warns of the others with one underscore.
    let source = config::Environment::with_prefix(ENVIRONMENT_PREFIX.trim_end_matches('_'))
        .prefix_separator("__")
        .separator("__")
        // Compose files pass `${KEY:-}` for "not set".
        .ignore_empty(true)
        .source(Some(env.clone().into_iter().collect()));
    let mut layer = Layer::default();
    // It fails only on values that are not Unicode, and these are strings.
    let values: BTreeMap<String, Value> = source
        .collect()
        .map(|map| map.into_iter().collect())
        .unwrap_or_default();
    for (path, value) in values {
        let origin = variable(&path);
        if sections.has_key(&path) {
            layer.0.insert(path, (origin, value.kind));
        } else {
            problems.push(unknown_key(sections, &path, &origin, variable));
        }
    }
    layer
}

fn from_flags(flags: &Flags) -> Layer {
    let values = flags.set_flags().map(|(flag, key, value)| {
        let kind = ValueKind::String(value.clone());
        (key.to_owned(), (flag.to_owned(), kind))
    });
    Layer(values.collect())
}

fn unknown_section(sections: Sections, path: &str, origin: &str) -> Problem {
    let suggestion = nearest(path, sections.names());
    Problem {
        key: path.to_owned(),
        origin: Some(origin.to_owned()),
        what: "there is no such section".to_owned(),
        remedy: suggestion.map_or_else(
            || "remove it; `diarist config` lists every section".to_owned(),
            |section| format!("did you mean [{section}]?"),
        ),
    }
}

/// The problem of a key that does not exist. `spell` writes a key as this source spells it.
fn unknown_key(
    sections: Sections,
    path: &str,
    origin: &str,
    spell: impl Fn(&str) -> String,
) -> Problem {
    let (what, remedy) = if sections.has_section(path) {
        let section = spell(path);
        (
            "this is a section, not a key".to_owned(),
            format!("set the keys inside {section}; `diarist config` lists them"),
        )
    } else {
        let suggestion = nearest(path, sections.keys().map(|key| key.path));
        let remedy = suggestion.map_or_else(
            || "remove it; `diarist config` lists every key".to_owned(),
            |key| format!("did you mean {}?", spell(key)),
        );
        ("there is no such key".to_owned(), remedy)
    };
    Problem {
        // A variable that is nothing but the prefix names no key.
        key: if path.is_empty() { origin } else { path }.to_owned(),
        origin: Some(origin.to_owned()),
        what,
        remedy,
    }
}
