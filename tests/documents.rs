//! The user's documents, checked against the code: every key, audit field, value and metric is described,
//! samples are valid, and links lead somewhere. Reads files; only the samples of configurations run the binary.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file below `folder` whose name ends so.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|it| it == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The documents at the root, and all below `docs`.
fn documents() -> Vec<PathBuf> {
    let names = [
        "README.md",
        "ARCHITECTURE.md",
        "SECURITY.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
    ];
    let mut all: Vec<PathBuf> = names.iter().map(|name| root().join(name)).collect();
    all.extend(files(&root().join("docs"), "md"));
    all
}

/// The same, without the recipes for clients: samples there are those of other programs.
fn own_documents() -> Vec<PathBuf> {
    let clients = root().join("docs/clients");
    let own = documents().into_iter();
    own.filter(|path| !path.starts_with(&clients)).collect()
}

/// What stands between `from` and the next `to`.
fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let (_, rest) = text
        .split_once(from)
        .unwrap_or_else(|| panic!("{from:?} is missing"));
    rest.split_once(to).map_or(rest, |(found, _)| found)
}

/// The fenced blocks of a language.
fn samples<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    let blocks = text.split(fence.as_str()).skip(1);
    blocks
        .map(|rest| rest.split_once("\n```").map_or(rest, |(block, _)| block))
        .collect()
}

/// The text without its fenced blocks.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// Section, name and default of every key of the reference, the last as the table has it.
fn keys() -> Vec<(String, String, String)> {
    let (mut section, mut keys) = (String::new(), Vec::new());
    for line in read("config/example.toml").lines() {
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        {
            name.clone_into(&mut section);
        }
        let written = line
            .strip_prefix('#')
            .and_then(|line| line.split_once(" = "));
        let Some((name, value)) = written.filter(|(name, _)| !name.contains(' ')) else {
            continue;
        };
        let default = if value.contains("  # example, unset by default") {
            "unset".to_owned()
        } else {
            format!("`{value}`")
        };
        keys.push((section.clone(), name.to_owned(), default));
    }
    keys
}

/// The sources of the program and of its core, by their text: files move.
fn sources() -> Vec<String> {
    let folders = ["src", "crates/core/src"];
    let found = folders
        .iter()
        .flat_map(|folder| files(&root().join(folder), "rs"));
    found.map(read).collect()
}

/// What follows `from` in the source that holds it, up to the end of the item.
pub fn item(from: &str) -> String {
    let sources = sources();
    let found = sources.iter().find(|source| source.contains(from));
    let source = found.unwrap_or_else(|| panic!("{from:?} is in no source"));
    between(source, from, "\n}").to_owned()
}

/// The keys, or sections with a dot behind, that only a start reads: the list that holds this one.
fn start_only() -> Vec<String> {
    let list = sources().into_iter().find_map(|source| {
        let (before, after) = source.split_once("\n    \"upstream.base_url\",\n")?;
        let head = before.rsplit_once("&[\n")?.1;
        Some(format!(
            "{head}\"upstream.base_url\"{}",
            after.split_once("];")?.0
        ))
    });
    let list = list.expect("a list in config::reload");
    let entries = list.split('"').skip(1).step_by(2);
    entries.map(str::to_owned).collect()
}

#[test]
fn every_key_has_a_row_with_default_and_restart_note() {
    let document = read("docs/configuration.md");
    let start_only = start_only();
    let needs_restart = |key: &str| {
        let is = |entry: &String| key == entry || entry.ends_with('.') && key.starts_with(entry);
        start_only.iter().any(is)
    };
    let mut missing = Vec::new();
    for (section, name, default) in keys() {
        let rows = between(&document, &format!("\n### `[{section}]`\n"), "\n#");
        let begins = format!("| `{name}` | {default} |");
        let row = rows.lines().find(|row| row.starts_with(&begins));
        let restart = needs_restart(&format!("{section}.{name}"));
        if row.is_none_or(|row| row.contains("| **restart** |") != restart) {
            missing.push(format!("{section}: {begins} … restart: {restart}"));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    let rows = between(&document, "\n## Keys\n", "\n## ");
    let rows = rows.lines().filter(|row| row.starts_with("| `")).count();
    assert_eq!(rows, keys().len(), "a row describes no key");
}

#[test]
fn every_key_named_in_a_document_exists() {
    let keys: BTreeSet<String> = keys()
        .into_iter()
        .map(|(section, name, _)| format!("{section}.{name}"))
        .collect();
    let known = |key: &str| {
        let section = format!("{key}.");
        keys.contains(key) || keys.iter().any(|known| known.starts_with(&section))
    };
    let mut unknown = Vec::new();
    for path in own_documents() {
        let text = read(&path);
        for code in prose(&text).split('`').skip(1).step_by(2) {
            let key = code.split([' ', '=']).next().unwrap();
            let begins = [
                "server.",
                "upstream.",
                "store.",
                "audit.",
                "identity.",
                "memory.",
                "otlp.",
            ];
            // A file, and an attribute of OpenTelemetry.
            let others = ["audit.jsonl", "server.address"];
            let spelled = |letter: char| letter.is_ascii_lowercase() || "._".contains(letter);
            let looks = key.chars().all(spelled) && !key.ends_with('.') && !others.contains(&key);
            if looks && begins.iter().any(|section| key.starts_with(section)) && !known(key) {
                unknown.push(format!("{}: {key}", path.display()));
            }
        }
        for variable in text.split("DIARIST__").skip(1) {
            let end = variable.find(|letter: char| !letter.is_ascii_uppercase() && letter != '_');
            let key = variable[..end.unwrap_or(variable.len())]
                .to_lowercase()
                .replace("__", ".");
            if key != "section.key" && !known(&key) {
                unknown.push(format!("{}: DIARIST__{variable:.40}", path.display()));
            }
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// Most of them are tests, which are renamed more often than anything else.
#[test]
fn every_long_identifier_in_a_document_stands_in_the_sources() {
    let folders = ["src", "crates", "tests", "benches"];
    let paths = folders
        .iter()
        .flat_map(|folder| files(&root().join(folder), "rs"));
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut words = BTreeSet::new();
    for path in paths {
        let text = read(&path);
        words.extend(text.split(|letter| !is_part(letter)).map(str::to_owned));
    }
    let is_long = |code: &&str| {
        code.matches('_').count() >= 3
            && code.chars().all(|letter| {
                letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_'
            })
    };
    let (mut found, mut unknown) = (0, Vec::new());
    for path in own_documents() {
        let text = read(&path);
        for code in prose(&text).split('`').skip(1).step_by(2).filter(is_long) {
            found += 1;
            if !words.contains(code) {
                unknown.push(format!("{}: {code}", path.display()));
            }
        }
    }
    assert!(found > 300, "the documents were read: {found}");
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// The fields of a struct, in order.
fn fields(name: &str) -> Vec<String> {
    item(&format!("pub struct {name} {{"))
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(':'))
        .map(|(field, _)| field.to_owned())
        .collect()
}

fn lines_of_requests() -> Vec<String> {
    fields("AuditRecord")
}

fn lines_of_parts() -> Vec<String> {
    fields("PartRecord")
}

fn lines_of_deletions() -> Vec<String> {
    fields("ForgottenRecord")
}

fn lines_of_calls() -> Vec<String> {
    fields("CallRecord")
}

fn lines_of_passes() -> Vec<String> {
    fields("PassRecord")
}

#[test]
fn every_field_of_the_audit_has_a_row() {
    let document = read("docs/audit.md");
    let (requests, rest) = document.split_once("\n## Part lines\n").unwrap();
    let (parts, rest) = rest.split_once("\n## Lines of deletions\n").unwrap();
    let (deletions, rest) = rest.split_once("\n## Call lines\n").unwrap();
    let (calls, passes) = rest.split_once("\n## Pass lines\n").unwrap();
    for (fields, text) in [
        (lines_of_requests(), requests),
        (lines_of_parts(), parts),
        (lines_of_deletions(), deletions),
        (lines_of_calls(), calls),
        (lines_of_passes(), passes),
    ] {
        assert!(fields.len() > 6, "{fields:?}");
        let has = |field: &&String| text.contains(&format!("\n| `{field}` |"));
        let missing: Vec<&String> = fields.iter().filter(|field| !has(field)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}

/// All names that the items with an arm for `name` give.
fn names_beside(name: &str) -> Vec<String> {
    let arm = format!("=> \"{name}\"");
    let sources = sources();
    let items = sources.iter().flat_map(|source| source.split("\n}\n"));
    let arms = items.filter(|item| item.contains(&arm));
    arms.flat_map(|item| item.split("=> \"").skip(1))
        .filter_map(|arm| Some(arm.split_once('"')?.0.to_owned()))
        .collect()
}

#[test]
fn every_value_in_audit_and_metrics_is_described() {
    let (audit, operating) = ("docs/audit.md", "docs/operating.md");
    let mut missing = Vec::new();
    let mut look = |document: &str, values: Vec<String>, beside: &str| {
        assert!(values.len() > 2, "{beside}: {values:?}");
        let text = read(document);
        // In front of some stands the name of a place.
        let has = |value: &String| {
            text.contains(&format!("`{value}`")) || text.contains(&format!(":{value}`"))
        };
        let lacking = values.into_iter().filter(|value| !has(value));
        missing.extend(lacking.map(|value| format!("{document}: {value}, beside {beside}")));
    };
    // One name of each set: rungs, reasons, flaws of tokens, of names, modes, states, causes, items.
    for name in [
        "passed_over",
        "no_placement",
        "signed_body",
        "resource_signature",
        "ambiguous",
        "read",
        "bypass",
        "model_change",
        "compaction_link",
        "identifier",
        "cold_start",
        "tools_changed",
        "abandoned",
    ] {
        look(audit, names_beside(name), name);
    }
    for name in ["identifier", "stalled", "5xx", "downstream", "given_up"] {
        look(operating, names_beside(name), name);
    }
    let sources = sources();
    let mut items = sources.iter().flat_map(|source| source.split("\n}\n"));
    let unread = items.find(|item| item.contains("#[error(\"messages_empty\")]"));
    let unread = unread.unwrap().split("#[error(\"").skip(1);
    let unread = unread.filter_map(|rest| rest.split('"').next());
    look(audit, unread.map(str::to_owned).collect(), "messages_empty");
    let answers = sources
        .iter()
        .find(|source| source.contains("\"target_too_long\","));
    let (answers, _) = answers.unwrap().split_once("#[cfg(test)]").unwrap();
    let codes = answers.lines();
    let codes = codes.filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix("\","));
    let is_code = |text: &&str| text.bytes().all(|it| it == b'_' || it.is_ascii_lowercase());
    let codes = codes.filter(is_code).map(str::to_owned).collect();
    look("docs/headers.md", codes, "target_too_long");
    assert!(missing.is_empty(), "{missing:#?}");
}

fn metrics_of_the_code() -> BTreeSet<String> {
    let mut metrics = BTreeSet::new();
    for source in sources() {
        for line in source.lines() {
            let named = line
                .split_once("const ")
                .and_then(|it| it.1.split_once(": &str = \"diarist_"));
            metrics
                .extend(named.map(|(_, rest)| format!("diarist_{}", rest.trim_end_matches("\";"))));
        }
    }
    metrics
}

/// A query for a metric that does not exist is an empty panel, or an alert that never fires.
#[test]
fn dashboard_and_alerts_query_only_existing_metrics() {
    let metrics = metrics_of_the_code();
    for file in ["docs/grafana.json", "docs/alerts.yml"] {
        let text = read(file);
        let names = text.match_indices("diarist_").map(|(at, _)| {
            let is_name = |c: char| c == '_' || c.is_ascii_alphanumeric();
            let name = text[at..].split(|c| !is_name(c)).next().unwrap_or("");
            let suffixes = ["_bucket", "_sum", "_count"];
            let base = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
            base.unwrap_or(name).to_owned()
        });
        let unknown: BTreeSet<String> = names.filter(|name| !metrics.contains(name)).collect();
        assert_eq!(unknown, BTreeSet::new(), "{file}");
    }
}

#[test]
fn every_metric_has_a_row_and_every_row_a_metric() {
    let metrics = metrics_of_the_code();
    assert!(metrics.len() > 20, "{metrics:?}");
    let document = read("docs/operating.md");
    let described = document
        .lines()
        .filter_map(|row| row.strip_prefix("| `diarist_")?.split_once("` | "));
    // Other tables speak of metrics too.
    let described = described.filter(|(_, rest)| {
        ["counter", "gauge", "histogram"]
            .iter()
            .any(|kind| rest.starts_with(kind))
    });
    let described: BTreeSet<String> = described
        .map(|(name, _)| format!("diarist_{name}"))
        .collect();
    assert_eq!(metrics, described);
}

/// The name by which a link finds a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        letter => letter.is_alphanumeric().then_some(letter),
    });
    kept.collect::<String>().to_lowercase()
}

#[test]
fn every_relative_link_leads_to_an_existing_file_and_heading() {
    let mut broken = Vec::new();
    for path in documents() {
        for link in prose(&read(&path)).split("](").skip(1) {
            let link = link.split([')', ' ']).next().unwrap();
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                path.clone()
            } else {
                path.parent().unwrap().join(file)
            };
            let leads = target.exists()
                && (heading.is_empty()
                    || prose(&read(&target))
                        .lines()
                        .filter(|line| line.starts_with('#'))
                        .any(|line| anchor(line.trim_start_matches('#')) == heading));
            if !leads {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn documents_for_newcomers_stay_short() {
    for (file, most) in [("README.md", 9_500), ("ARCHITECTURE.md", 26_000)] {
        let bytes = read(file).len();
        assert!(bytes <= most, "{file} has {bytes} bytes of {most}");
    }
}

#[test]
fn the_readme_contains_the_serve_and_test_commands() {
    let readme = read("README.md");
    for command in ["\n    cargo run --release -- serve ", "\n    cargo test\n"] {
        assert!(readme.contains(command), "{command:?}");
    }
}

#[test]
fn every_sample_audit_line_has_existing_fields_in_order() {
    let mut shown = 0;
    for path in own_documents() {
        let text = read(&path);
        for line in samples(&text, "json").into_iter().flat_map(str::lines) {
            let value = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(line);
            let line = value.unwrap_or_else(|error| panic!("{}: {error}: {line}", path.display()));
            if !line.contains_key("time") {
                continue;
            }
            shown += 1;
            let known = if line.contains_key("wrote") {
                lines_of_parts()
            } else if line.contains_key("call") {
                lines_of_calls()
            } else if line.contains_key("path") {
                lines_of_passes()
            } else if line.contains_key("forgot") {
                lines_of_deletions()
            } else {
                lines_of_requests()
            };
            let found: Vec<&String> = line.keys().collect();
            let expected: Vec<&String> = known
                .iter()
                .filter(|field| line.contains_key(*field))
                .collect();
            assert_eq!(found, expected, "{}", path.display());
        }
    }
    assert!(shown >= 4, "{shown}");
}

#[test]
fn every_sample_configuration_is_valid() {
    let mut shown = 0;
    for path in own_documents() {
        for sample in samples(&read(&path), "toml") {
            shown += 1;
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(file.path(), sample).unwrap();
            let mut command = Command::new(assert_cmd::cargo::cargo_bin!("diarist"));
            command.env_clear().env("HOME", "/home/ada");
            command.arg("check").arg("--config").arg(file.path());
            let output = command.output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success(),
                "{}:\n{sample}\n{stderr}",
                path.display()
            );
        }
    }
    assert!(shown >= 5, "{shown}");
}
