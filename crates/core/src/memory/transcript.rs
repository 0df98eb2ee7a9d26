//! Turns a range of messages into the text the Observer reads. Pure: instants and the zone come in
//! as values; nothing is ever sent to the upstream from here.
//!
//! ```text
//! Date: Mar 4, 2026
//! User (14:05): Is the pass open?
//!   Further lines of a message are indented (empty ones empty): nobody can forge a speaker.
//! Tool call search: {"query": "pass"}
//! Tool result search (14:06): open until Friday
//! Assistant: Yes, until Friday. [Image #1: map.png]
//! Date: on or before Mar 5, 2026
//! User: Said before the first request, so nobody knows when: no minute.
//! ```
//!
//! - A line that starts in the first column is a date header, `Speaker[ name][ (HH:MM)]: text`, or,
//!   where pauses are told, `[2 hours 5 minutes later]`.
//! - The date header stands where the day changes; the minute is left out where it is the same as
//!   on the line before under the same header.
//! - System messages are not shown: code copies them into the chunk ([`system_messages`]).
//! - Of user messages, the blocks are left out that clients put in by themselves (`blocks`).
//! - Secrets and encoded blobs are replaced by notes first; then long results and arguments are
//!   shortened. What people and models said stands there whole: a range that is too long for the
//!   Observer is observed in pieces ([`super::observe::pieces`]).

mod blocks;
mod capped;
mod outline;
mod saying;

use std::fmt::Write as _;

use jiff::tz::TimeZone;

pub use capped::capped;
pub use saying::{ARGUMENT_TOKENS, RESULT_TOKENS};
use saying::{Names, Reader, Saying};

use super::prompt::head;
use super::redact::Redactor;
use super::{Node, dates, render};
use crate::history::{Piece, Role, Spoken};
use crate::tokens::TokenCounter;

/// Characters of a message that [`by_code`] keeps.
const LINE_CHARS: usize = 160;

/// One message of the range and when it was said.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// How many messages the chain holds up to and including it.
    pub count: usize,
    /// When it was first seen, in milliseconds since 1970.
    pub seen_ms: i64,
    /// Whether it was seen as it was said; otherwise it is older than `seen_ms` by an unknown time.
    pub live: bool,
    /// Milliseconds since the message before it, where the reader is to be told of pauses.
    pub pause_ms: i64,
    /// What it says.
    pub spoken: &'a Spoken,
}

impl<'a> Entry<'a> {
    /// The entry of a stored message.
    pub fn of(node: &Node, spoken: &'a Spoken) -> Self {
        Self {
            count: node.count,
            seen_ms: node.seen_ms,
            live: node.live,
            pause_ms: 0,
            spoken,
        }
    }

    /// The same, with the pause since the message `before` it. An answer makes none: how long a model
    /// thinks says nothing.
    #[must_use]
    pub fn after(mut self, before: &Node) -> Self {
        if before.live && self.live && self.spoken.role != Role::Assistant {
            self.pause_ms = self.seen_ms.saturating_sub(before.seen_ms);
        }
        self
    }
}

/// By what a range of messages is written out.
#[derive(Clone, Copy)]
pub struct Style<'a> {
    /// Where days begin.
    pub zone: &'a TimeZone,
    /// What the caps of results and arguments are measured by.
    pub counter: &'a dyn TokenCounter,
    /// What must not be shown.
    pub redactor: &'a Redactor,
    /// Tags of the blocks that clients put into user messages by themselves: they are left out.
    pub omit_blocks: &'a [String],
}

impl std::fmt::Debug for Style<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Style")
            .field("zone", &self.zone)
            .field("redactor", &self.redactor)
            .field("omit_blocks", &self.omit_blocks)
            .finish_non_exhaustive()
    }
}

/// The transcript of `entries`, in order; empty where none of them says anything.
pub fn format(entries: &[Entry<'_>], style: &Style<'_>) -> String {
    placed(entries, style).0
}

/// The same, and for each of its lines that start in the first column with a speaker, in order, the
/// place ([`Entry::count`]) of the message that says it.
pub fn placed(entries: &[Entry<'_>], style: &Style<'_>) -> (String, Vec<usize>) {
    let mut places = Vec::new();
    let mut reader = Reader::new(style);
    let mut clock = Clock::new(style.zone);
    let mut out = String::new();
    for entry in entries {
        if entry.spoken.role == Role::System {
            continue;
        }
        let mut pause = dates::pause(entry.pause_ms);
        for Saying { who, what } in reader.read(entry.spoken) {
            if let Some(pause) = pause.take() {
                let _ = writeln!(out, "[{pause} later]");
            }
            if let Some(header) = clock.header(entry) {
                let _ = writeln!(out, "{header}");
            }
            let time = match clock.minute(entry) {
                Some(minute) => format!(" ({minute})"),
                None => String::new(),
            };
            let _ = writeln!(out, "{who}{time}: {}", indent(&what));
            places.push(entry.count);
        }
    }
    (out, places)
}

/// What code writes in place of an Observer that found nothing twice: one line for every message
/// that is not a system message, its first 160 characters, under the same date headers.
pub fn by_code(entries: &[Entry<'_>], style: &Style<'_>) -> String {
    let mut reader = Reader::new(style);
    let mut clock = Clock::new(style.zone);
    let mut out = String::new();
    for entry in entries {
        if entry.spoken.role == Role::System {
            continue;
        }
        if let Some(header) = clock.header(entry) {
            let _ = writeln!(out, "{header}");
        }
        let mark = match entry.spoken.role {
            Role::User => "🟡",
            _ => "🟢",
        };
        let time = match clock.every_minute(entry) {
            Some(minute) => format!(" ({minute})"),
            None => String::new(),
        };
        let _ = writeln!(out, "* {mark}{time} {}", one_line(entry, &mut reader));
    }
    super::prompt::escape(&out)
}

/// The system messages of the range as [`render::chunk_text`] takes them: place and words.
pub fn system_messages(entries: &[Entry<'_>]) -> Vec<(usize, String)> {
    entries
        .iter()
        .filter(|entry| entry.spoken.role == Role::System)
        .filter_map(|entry| {
            let texts: Vec<&str> = entry
                .spoken
                .pieces
                .iter()
                .filter_map(|piece| match piece {
                    Piece::Text(text) => Some(render::before_block(text).trim()),
                    _ => None,
                })
                .filter(|text| !text.is_empty())
                .collect();
            (!texts.is_empty()).then(|| (entry.count, texts.join("\n")))
        })
        .collect()
}

/// What the placeholders of the attachments of `entries` are called, in order: `Image #1`.
pub fn attachments(entries: &[Entry<'_>]) -> Vec<String> {
    let mut names = Names::default();
    entries
        .iter()
        .filter(|entry| entry.spoken.role != Role::System)
        .flat_map(|entry| &entry.spoken.pieces)
        .filter_map(|piece| match piece {
            Piece::Attachment { kind, .. } => Some(names.next(*kind)),
            _ => None,
        })
        .collect()
}

fn one_line(entry: &Entry<'_>, reader: &mut Reader<'_>) -> String {
    let sayings = reader.read(entry.spoken);
    let said: Vec<String> = sayings
        .iter()
        .map(|Saying { who, what }| format!("{who}: {what}"))
        .collect();
    let words = said.join(" | ");
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.is_empty() {
        return format!("{}: [nothing said]", saying::speaker(entry.spoken));
    }
    let kept = head(&words, LINE_CHARS);
    let more = if kept.len() < words.len() { "…" } else { "" };
    format!("{kept}{more}")
}

/// Every line but the first by two spaces. All that any reader may take for a line break counts.
fn indent(text: &str) -> String {
    let text = text.trim().replace("\r\n", "\n");
    let breaks = [
        '\n', '\r', '\u{b}', '\u{c}', '\u{85}', '\u{2028}', '\u{2029}',
    ];
    let mut lines = text.split(breaks);
    let mut out = lines.next().unwrap_or_default().to_owned();
    for line in lines {
        out.push_str(if line.is_empty() { "\n" } else { "\n  " });
        out.push_str(line);
    }
    out
}

/// Knows which header and which minute the line before had.
struct Clock<'a> {
    zone: &'a TimeZone,
    header: Option<String>,
    minute: Option<String>,
}

impl<'a> Clock<'a> {
    fn new(zone: &'a TimeZone) -> Self {
        Self {
            zone,
            header: None,
            minute: None,
        }
    }

    /// The date header, where it differs from the one in force.
    fn header(&mut self, entry: &Entry<'_>) -> Option<String> {
        let day = dates::day(entry.seen_ms, self.zone);
        let header = if entry.live {
            format!("Date: {day}")
        } else {
            format!("Date: on or before {day}")
        };
        if self.header.as_ref() == Some(&header) {
            return None;
        }
        self.minute = None;
        self.header = Some(header.clone());
        Some(header)
    }

    /// The minute, where one is known and differs from the line before.
    fn minute(&mut self, entry: &Entry<'_>) -> Option<String> {
        let minute = self.every_minute(entry)?;
        if self.minute.as_ref() == Some(&minute) {
            return None;
        }
        self.minute = Some(minute.clone());
        Some(minute)
    }

    /// The minute, where one is known.
    fn every_minute(&self, entry: &Entry<'_>) -> Option<String> {
        entry.live.then(|| dates::minute(entry.seen_ms, self.zone))
    }
}

#[cfg(test)]
mod tests;
