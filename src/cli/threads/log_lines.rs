//! The observations of one conversation with numbered lines: first those that are sent, then those that wait for an
//! activation. `--why` takes the number of a line.

use crate::cli::terminal::harmless;
use crate::memory::retention::Share;
use crate::memory::{Part, PartKind};
use crate::report::grouped;
use crate::store::ThreadDetail;

/// A line with an observation.
pub(super) struct LogLine<'a> {
    /// Its number, from 1.
    pub(super) number: usize,
    /// Its part, and the index of the line in the text of that part.
    pub(super) part: &'a Part,
    pub(super) index: usize,
    pub(super) text: &'a str,
}

/// The parts that are sent now, and those that wait for the next activation.
fn log_sections(detail: &ThreadDetail) -> [(&'static str, Vec<&Part>); 2] {
    let newest = detail
        .snapshots
        .iter()
        .max_by_key(|snapshot| (snapshot.meta.to_count, snapshot.meta.id));
    let sent = newest
        .into_iter()
        .flat_map(|snapshot| &snapshot.meta.parts)
        .filter_map(|id| detail.parts.iter().find(|part| part.id == *id))
        .collect();
    let covered = newest.map_or(0, |snapshot| snapshot.meta.to_count);
    let waiting = detail
        .parts
        .iter()
        .filter(|part| part.body.kind == PartKind::Chunk && part.body.span.to_count > covered);
    [
        ("Observations in the newest snapshot", sent),
        (
            "Observations that wait for the next activation",
            waiting.collect(),
        ),
    ]
}

/// The lines with observations, without dates and empty lines.
pub(super) fn numbered(detail: &ThreadDetail) -> Vec<LogLine<'_>> {
    let parts = log_sections(detail)
        .into_iter()
        .flat_map(|(_, parts)| parts);
    parts
        .flat_map(|part| {
            let lines = part.body.text.trim_end().lines().enumerate();
            lines
                .filter(|(_, text)| is_numbered(text))
                .map(move |(index, text)| (part, index, text))
        })
        .enumerate()
        .map(|(at, (part, index, text))| LogLine {
            number: at + 1,
            part,
            index,
            text,
        })
        .collect()
}

fn is_numbered(line: &str) -> bool {
    !line.trim().is_empty() && !line.starts_with("Date:")
}

/// The observations as text.
pub(super) fn log(detail: &ThreadDetail) -> String {
    let mut text = String::new();
    let mut number = 0;
    for (title, parts) in log_sections(detail) {
        if !parts.is_empty() {
            text.push_str(&format!("\n{title}\n"));
            text.extend(parts.into_iter().map(|part| part_text(part, &mut number)));
        }
    }
    if text.is_empty() {
        text.push_str("\nNothing was observed yet.\n");
    }
    text
}

fn part_text(part: &Part, number: &mut usize) -> String {
    let body = &part.body;
    let mut text = format!(
        "\n-- {} {}: messages {}-{} ({} tokens) in {} tokens, by {}{}\n",
        body.kind.name(),
        part.id.0,
        body.span.from_count + 1,
        body.span.to_count,
        grouped(body.message_tokens.into()),
        grouped(body.tokens.into()),
        harmless(&body.model),
        retention_note(part),
    );
    for line in body.text.trim_end().lines() {
        if is_numbered(line) {
            *number += 1;
            text.push_str(&format!("{number:>4}  {}\n", harmless(line)));
        } else {
            text.push_str(&format!("{}\n", harmless(line)));
        }
    }
    text
}

/// How many important items of its source this part kept.
fn retention_note(part: &Part) -> String {
    match part.body.analysis.retention.high {
        Share { total: 0, .. } => String::new(),
        Share {
            retained: kept,
            total,
        } => format!("; kept {kept} of {total} important items"),
    }
}
