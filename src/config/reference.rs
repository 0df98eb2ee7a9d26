//! The configuration as text: the commented reference file, and the values in force.
//!
//! Both are generated from the table in `settings`. Called by `diarist config`.

use config::ValueKind;

use super::layers::Layers;
use super::parse::{REDACTED, to_toml};
use super::settings::SECTIONS;
use super::spec::{SampleValue, SectionSpec};
use super::valid::Database;

const HEAD: &str = "\
# Diarist, the reference configuration: every key, its meaning and its default.
#
# No key has to be set. To change one, remove the # in front of it. A key that is not set follows
# the default of each version. Keys can also be set in the environment: begin with DIARIST, write the
# section and the key in capitals, and put two underscores between all parts:
# DIARIST__MEMORY__OBSERVATION__MESSAGE_TOKENS=20000.
# A flag wins over the environment, the environment over this file, and this file over the defaults.
#
# Durations are a number and a unit in quotes: \"250ms\", \"30s\", \"5m\", \"1h\".
#
# The log level is not a key: the variable DIARIST_LOG (or RUST_LOG) takes a level, or levels by module,
# such as DIARIST_LOG=warn,diarist=debug. Logs go to standard error, as text in a terminal and as JSON
# elsewhere. Events of memory are logged under diarist::events. To log the state of a conversation after
# each of its requests as well, write DIARIST_LOG=info,diarist::events::status=debug.
";

/// Marks a line that shows an example instead of a default.
const EXAMPLE: &str = "  # example, unset by default";

/// The commented reference file, as `config/example.toml` holds it.
#[must_use]
pub fn reference() -> String {
    let mut text = HEAD.to_owned();
    for section in SECTIONS.0 {
        push_section_head(&mut text, section);
        for (at, key) in section.keys.iter().enumerate() {
            if at > 0 {
                text.push('\n');
            }
            push_comment(&mut text, key.doc);
            let (literal, mark) = match key.sample {
                SampleValue::Default(literal) => (literal, ""),
                SampleValue::Example(literal) => (literal, EXAMPLE),
            };
            push_line(&mut text, format_args!("#{} = {literal}{mark}", key.name));
        }
    }
    text
}

/// The values in force, each with its source. Keys without a value are left out, secrets are redacted. `database` is the
/// one in use: its default is no constant, but depends on the environment.
pub(super) fn effective(layers: &Layers, database: &Database) -> String {
    let mut text = String::new();
    for section in SECTIONS.0 {
        if !text.is_empty() {
            text.push('\n');
        }
        push_line(&mut text, format_args!("[{}]", section.name));
        for key in section.keys {
            let value = match layers.value(key.path) {
                ValueKind::Nil if key.path == "store.url" => {
                    to_toml(&ValueKind::String(database.to_string()))
                }
                ValueKind::Nil => continue,
                _ if key.is_secret() => REDACTED.to_owned(),
                kind => to_toml(&kind),
            };
            let origin = layers.origin(key.path).unwrap_or("default");
            push_line(
                &mut text,
                format_args!("{} = {value}  # {origin}", key.name),
            );
        }
    }
    text
}

fn push_section_head(text: &mut String, section: &SectionSpec) {
    text.push('\n');
    push_comment(text, section.doc);
    push_line(text, format_args!("[{}]", section.name));
}

fn push_comment(text: &mut String, doc: &[&str]) {
    for doc_line in doc {
        // A doc comment's lines begin with the blank that follows the slashes.
        push_line(text, format_args!("#{doc_line}"));
    }
}

fn push_line(text: &mut String, line: std::fmt::Arguments<'_>) {
    text.push_str(&line.to_string());
    text.push('\n');
}
