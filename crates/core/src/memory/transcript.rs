//! Writes a range of messages as the text that the Observer reads. Pure: instants and the zone come in
//! as values. Nothing from here is sent to the upstream as part of a request.
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
//! - A line that starts in the first column is a date header, `Speaker[ name][ (HH:MM)]: text`, or, if
//!   pauses are shown, `[2 hours 5 minutes later]`.
//! - A date header stands where the day changes. The minute is left out if it is the same as on the line
//!   before under the same header.
//! - System messages are not shown: code copies them into the chunk ([`system_messages`]).
//! - Blocks that clients put into user messages are left out ([`mod@blocks`]).
//! - Secrets and encoded data are replaced by notes first; then long results and arguments are shortened.
//!   The words of people and models are never shortened: a range that is too long for the Observer is
//!   observed in pieces ([`super::observe::split_pieces`]).

mod blocks;
mod outline;
mod rendered_text;
mod truncate;

use std::borrow::Cow;
use std::fmt::Write as _;

use jiff::tz::TimeZone;

pub use rendered_text::{ARGUMENT_TOKENS, RESULT_TOKENS, TranscriptStyle};
use rendered_text::{AttachmentNames, LabelledText, MessageReader};
pub use truncate::truncate_middle;

use super::prompt::first_chars;
use super::{Node, dates};
use crate::history::{MessagePiece, PlainText, Role};

/// Characters of a message that [`observations_by_code`] keeps.
const LINE_CHARS: usize = 160;

/// One message of the range with its time.
#[derive(Clone, Copy, Debug)]
pub struct TranscriptMessage<'a> {
    /// How many messages the chain holds up to and including it.
    pub count: usize,
    /// When it was first seen, in milliseconds since 1970.
    pub received_ms: i64,
    /// Whether it was seen when it was new; otherwise it is older than `received_ms` by an unknown
    /// time.
    pub live: bool,
    /// Milliseconds since the message before it, if pauses are shown.
    pub pause_ms: i64,
    /// The content.
    pub content: &'a PlainText,
}

impl<'a> TranscriptMessage<'a> {
    /// The entry for a stored message.
    pub fn from_node(node: &Node, content: &'a PlainText) -> Self {
        Self {
            count: node.count,
            received_ms: node.received_ms,
            live: node.live,
            pause_ms: 0,
            content,
        }
    }

    /// The same with the pause since the message `before` it. Answers get none: how long a model
    /// thinks says nothing.
    #[must_use]
    pub fn with_pause_after(mut self, before: &Node) -> Self {
        if before.live && self.live && self.content.role != Role::Assistant {
            self.pause_ms = self.received_ms.saturating_sub(before.received_ms);
        }
        self
    }
}

/// The transcript of `messages`, in order; empty if none of them says anything. With the place
/// ([`TranscriptMessage::count`]) of the message for each line that starts in the first column with a speaker.
pub fn format_transcript(
    messages: &[TranscriptMessage<'_>],
    style: &TranscriptStyle<'_>,
) -> (String, Vec<usize>) {
    let mut places = Vec::new();
    let mut reader = MessageReader::new(style);
    let mut headers = TimeHeaders::new(style.zone);
    let mut out = String::new();
    for message in messages {
        if message.content.role == Role::System {
            continue;
        }
        let mut pause = dates::pause(message.pause_ms);
        for LabelledText {
            label: who,
            text: what,
        } in reader.read(message.content)
        {
            if let Some(pause) = pause.take() {
                let _ = writeln!(out, "[{pause} later]");
            }
            if let Some(header) = headers.header(message) {
                let _ = writeln!(out, "{header}");
            }
            let time = match headers.minute(message) {
                Some(minute) => format!(" ({minute})"),
                None => String::new(),
            };
            let _ = writeln!(out, "{who}{time}: {}", indent(&what));
            places.push(message.count);
        }
    }
    (out, places)
}

/// The observations that code writes after the Observer found nothing twice: one line for each message
/// except system messages, with its first 160 characters, under the same date headers.
pub fn observations_by_code(
    messages: &[TranscriptMessage<'_>],
    style: &TranscriptStyle<'_>,
) -> String {
    let mut reader = MessageReader::new(style);
    let mut headers = TimeHeaders::new(style.zone);
    let mut out = String::new();
    for message in messages {
        if message.content.role == Role::System {
            continue;
        }
        if let Some(header) = headers.header(message) {
            let _ = writeln!(out, "{header}");
        }
        let mark = match message.content.role {
            Role::User => "🟡",
            _ => "🟢",
        };
        let time = match headers.every_minute(message) {
            Some(minute) => format!(" ({minute})"),
            None => String::new(),
        };
        let _ = writeln!(out, "* {mark}{time} {}", one_line(message, &mut reader));
    }
    super::prompt::escape(&out)
}

/// The system messages of the range, for [`super::render::chunk_text`]: place and text.
pub fn system_messages(messages: &[TranscriptMessage<'_>]) -> Vec<(usize, String)> {
    messages
        .iter()
        .filter(|message| message.content.role == Role::System)
        .filter_map(|message| {
            let texts = message.content.pieces.iter().filter_map(|piece| {
                let text: Cow<'_, str> = match piece {
                    MessagePiece::Text(text) | MessagePiece::Unknown(text) => text.trim().into(),
                    MessagePiece::Attachment { label, .. } => format!("[{label}]").into(),
                    _ => return None,
                };
                (!text.is_empty()).then_some(text)
            });
            let texts: Vec<Cow<'_, str>> = texts.collect();
            (!texts.is_empty()).then(|| (message.count, texts.join("\n")))
        })
        .collect()
}

/// The names of the attachment placeholders in `messages`, in order: `Image #1`.
pub fn attachments(messages: &[TranscriptMessage<'_>]) -> Vec<String> {
    let mut names = AttachmentNames::default();
    messages
        .iter()
        .filter(|message| message.content.role != Role::System)
        .flat_map(|message| &message.content.pieces)
        .filter_map(|piece| match piece {
            MessagePiece::Attachment { kind, .. } => Some(names.next(*kind)),
            _ => None,
        })
        .collect()
}

fn one_line(message: &TranscriptMessage<'_>, reader: &mut MessageReader<'_>) -> String {
    let texts_by_speaker = reader.read(message.content);
    let texts: Vec<String> = texts_by_speaker
        .iter()
        .map(
            |LabelledText {
                 label: who,
                 text: what,
             }| format!("{who}: {what}"),
        )
        .collect();
    let words = texts.join(" | ");
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.is_empty() {
        return format!(
            "{}: [nothing said]",
            rendered_text::speaker_label(message.content)
        );
    }
    let shortened = first_chars(&words, LINE_CHARS);
    let more = if shortened.len() < words.len() {
        "…"
    } else {
        ""
    };
    format!("{shortened}{more}")
}

/// Indents every line but the first by two spaces. Everything that a reader may take for a line break
/// counts as one.
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

/// The header and minute of the line before.
struct TimeHeaders<'a> {
    zone: &'a TimeZone,
    header: Option<String>,
    minute: Option<String>,
}

impl<'a> TimeHeaders<'a> {
    fn new(zone: &'a TimeZone) -> Self {
        Self {
            zone,
            header: None,
            minute: None,
        }
    }

    /// The date header, if it differs from the current one.
    fn header(&mut self, message: &TranscriptMessage<'_>) -> Option<String> {
        let day = dates::format_day(message.received_ms, self.zone);
        let header = if message.live {
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

    /// The minute, if it is known and differs from that of the line before.
    fn minute(&mut self, message: &TranscriptMessage<'_>) -> Option<String> {
        let minute = self.every_minute(message)?;
        if self.minute.as_ref() == Some(&minute) {
            return None;
        }
        self.minute = Some(minute.clone());
        Some(minute)
    }

    /// The minute, if it is known.
    fn every_minute(&self, message: &TranscriptMessage<'_>) -> Option<String> {
        message
            .live
            .then(|| dates::format_minute(message.received_ms, self.zone))
    }
}

#[cfg(test)]
mod tests;
