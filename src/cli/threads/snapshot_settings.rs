//! The settings with which the snapshots of a conversation were made, such as thresholds and time zone.
//!
//! A snapshot keeps its settings, so a change of the configuration shows in later snapshots only.

use serde_json::{Map, Value};

use crate::cli::terminal::harmless;
use crate::memory::Snapshot;
use crate::report::{ColumnAlign, align_columns, grouped};
use crate::store::ThreadDetail;

/// One row for successive snapshots with the same settings; empty if there is no snapshot.
pub(super) fn text(detail: &ThreadDetail) -> String {
    let mut groups: Vec<(Vec<&Snapshot>, Map<String, Value>)> = Vec::new();
    for (snapshot, made_with) in detail.snapshots.iter().zip(&detail.snapshot_settings) {
        let mut settings = Map::new();
        let placement = &snapshot.meta.placement;
        settings.insert("placement".to_owned(), placement.as_str().into());
        // An early version stored no settings with a snapshot: only the placement is known.
        settings.extend(serde_json::from_str::<Map<String, Value>>(made_with).unwrap_or_default());
        match groups.last_mut() {
            Some((snapshots, same)) if *same == settings => snapshots.push(snapshot),
            _ => groups.push((vec![snapshot], settings)),
        }
    }
    let mut head: Vec<String> = Vec::new();
    for name in groups.iter().flat_map(|(_, settings)| settings.keys()) {
        if !head.contains(name) {
            head.push(name.clone());
        }
    }
    if head.is_empty() {
        return String::new();
    }
    let mut rows: Vec<Vec<String>> = groups
        .iter()
        .map(|(snapshots, settings)| {
            let values = head.iter().map(|name| settings.get(name));
            let cells = values.map(|value| value.map_or_else(|| "-".to_owned(), cell));
            std::iter::once(ids(snapshots)).chain(cells).collect()
        })
        .collect();
    let names = head.iter().map(|name| harmless(name));
    rows.insert(
        0,
        std::iter::once("snapshot".to_owned())
            .chain(names)
            .collect(),
    );
    let sides = vec![ColumnAlign::Right; head.len() + 1];
    format!(
        "\nMade with these settings\n{}",
        align_columns(&rows, &sides)
    )
}

/// `3`, or `3-5`.
fn ids(snapshots: &[&Snapshot]) -> String {
    let id = |snapshot: Option<&&Snapshot>| snapshot.map_or(0, |snapshot| snapshot.meta.id.0);
    match (id(snapshots.first()), id(snapshots.last())) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Number(number) => number.as_u64().map_or_else(|| number.to_string(), grouped),
        Value::String(text) if !text.is_empty() => harmless(text),
        Value::Null | Value::String(_) => "-".to_owned(),
        other => harmless(&other.to_string()),
    }
}
