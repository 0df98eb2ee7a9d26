//! `docs/audit.schema.json` against the code and the document: the same fields, the same kinds of values.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::documents::{item, read};

/// The kinds of lines: their name in the schema, their struct, their heading in `docs/audit.md`.
const KINDS: [(&str, &str, &str); 5] = [
    ("request", "AuditRecord", "Request lines"),
    ("part", "PartRecord", "Part lines"),
    ("deletion", "ForgottenRecord", "Lines of deletions"),
    ("call", "CallRecord", "Call lines"),
    ("pass", "PassRecord", "Pass lines"),
];

fn schema(kind: &str) -> Map<String, Value> {
    let schema: Value = serde_json::from_str(&read("docs/audit.schema.json")).unwrap();
    schema["$defs"][kind].as_object().unwrap().clone()
}

fn names(list: &Value) -> BTreeSet<String> {
    let names = list.as_array().unwrap().iter();
    names
        .map(|name| name.as_str().unwrap().to_owned())
        .collect()
}

/// What is wrong with a line of this kind. Knows what our schema uses: `required`, `properties`, `type`.
fn problems(kind: &str, line: &Map<String, Value>) -> Vec<String> {
    let schema = schema(kind);
    let required = names(&schema["required"]);
    let missing = required.iter().filter(|name| !line.contains_key(*name));
    let missing = missing.map(|name| format!("{name} is missing"));
    let wrong = line.iter().filter_map(|(name, value)| {
        let fits = match schema["properties"][name]["type"].as_str() {
            Some("string") => value.is_string(),
            Some("integer") => value.is_u64(),
            Some("number") => value.is_number(),
            Some("boolean") => value.is_boolean(),
            Some("object") => value.is_object(),
            Some("array") => value.is_array(),
            _ => false,
        };
        (!fits).then(|| format!("{name} is not as in the schema: {value}"))
    });
    missing.chain(wrong).collect()
}

#[test]
fn the_schema_has_the_fields_of_the_code() {
    for (kind, record, _) in KINDS {
        let fields = item(&format!("pub struct {record} {{"));
        let fields: Vec<(&str, bool)> = fields
            .lines()
            .filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(": "))
            .map(|(name, kind)| (name, !kind.starts_with("Option<")))
            .collect();
        let schema = schema(kind);
        let all = fields.iter().map(|(name, _)| (*name).to_owned());
        let described = schema["properties"].as_object().unwrap().keys().cloned();
        assert_eq!(
            described.collect::<BTreeSet<_>>(),
            all.collect::<BTreeSet<_>>(),
            "{kind}"
        );
        let always = fields.iter().filter(|(_, always)| *always);
        let always: BTreeSet<String> = always.map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(names(&schema["required"]), always, "{kind}");
    }
}

#[test]
fn the_lines_in_the_document_fit_the_schema() {
    let document = read("docs/audit.md");
    for (kind, _, heading) in KINDS {
        let (_, section) = document.split_once(&format!("\n## {heading}\n")).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let samples = section.lines().filter(|line| line.starts_with("{\"time\""));
        let samples: Vec<Map<String, Value>> = samples
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert!(!samples.is_empty(), "{heading} has no sample");
        for sample in samples {
            assert_eq!(problems(kind, &sample), [] as [String; 0], "{sample:?}");
        }
    }
}
