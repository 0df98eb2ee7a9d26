//! What an observe job carries until its part is written: the words of its range, already redacted,
//! and what is attached to them.

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::history::{Piece, Spoken};
use crate::memory::observe::Options;
use crate::memory::prompt::Attached;
use crate::memory::transcript::{self, Entry, Style};
use crate::memory::{Node, Span, provenance, render};
use crate::tokens::TokenCounter;
use crate::wire::chat::Parsed;

/// Bytes of attachments in one job. They lie in the database until the chunk commits, and providers
/// take requests of some 20 MB; what does not fit is named as not seen.
const ATTACHED_BYTES: usize = 8 * 1024 * 1024;

/// Bytes of the application's system prompt that are shown.
const APPLICATION_BYTES: usize = 32 * 1024;

/// The text of a job row.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Payload {
    /// What the Observer reads.
    pub(super) transcript: String,
    /// Which message says each line of the transcript that starts with a speaker, in order: origins
    /// are found by it. Empty in rows of an older version.
    pub(super) places: Vec<usize>,
    /// What code writes where the Observer finds nothing twice.
    pub(super) by_code: String,
    /// System messages inside the range (place, words): copied verbatim, never shown.
    pub(super) system: Vec<(usize, String)>,
    /// The application's system prompt, where the operator wants it shown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) application: String,
    /// What the transcript names by a placeholder, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) attachments: Vec<Attached>,
    /// The zone its days and minutes are told in, by its IANA name; that of the settings in force
    /// where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) zone: Option<String>,
    /// What whoever asked for it wants to have looked at above all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) focus: Option<String>,
}

/// How times are told.
#[derive(Clone, Debug)]
pub(super) struct Telling {
    pub(super) zone: TimeZone,
    /// Whether pauses are.
    pub(super) pauses: bool,
}

/// Where the words of a message are.
pub(super) enum Words {
    /// In the request, at this index.
    Sent(usize),
    /// No longer there, but they were kept.
    Kept(Spoken),
}

/// The payload of `span`, read from the request that confirmed it. `None` where a message of it
/// cannot be read again: what is not shown must not count as observed.
///
/// `sent` says of each message of the span where it is read.
pub(super) fn of(
    parsed: &Parsed,
    nodes: &[Node],
    span: &Span,
    sent: &[Words],
    options: &Options,
    telling: &Telling,
    counter: &dyn TokenCounter,
) -> Option<Payload> {
    // (place on the chain, index in the request)
    let told: Vec<(usize, Option<usize>, Spoken)> = (span.from_count..span.to_count)
        .zip(sent)
        .map(|(place, words)| match words {
            Words::Sent(index) => Some((place, Some(*index), parsed.told(*index)?)),
            Words::Kept(spoken) => Some((place, None, spoken.clone())),
        })
        .collect::<Option<_>>()?;
    let entries: Vec<Entry<'_>> = told
        .iter()
        .map(|(place, _, spoken)| {
            let entry = Entry::of(&nodes[*place], spoken);
            let before = place.checked_sub(1).map(|before| &nodes[before]);
            match before.filter(|_| telling.pauses) {
                Some(before) => entry.after(before),
                None => entry,
            }
        })
        .collect();
    let style = Style {
        zone: &telling.zone,
        counter,
        redactor: &options.redactor,
        omit_blocks: &options.omit_blocks,
    };
    let (transcript, places) = transcript::placed(&entries, &style);
    Some(Payload {
        transcript,
        places,
        by_code: transcript::by_code(&entries, &style),
        system: transcript::system_messages(&entries),
        application: application(parsed, options),
        attachments: attachments(
            parsed,
            told.iter().map(|(_, index, _)| *index),
            &entries,
            options,
        ),
        zone: telling.zone.iana_name().map(str::to_owned),
        focus: None,
    })
}

/// The words of the client's leading system messages, redacted as everything else.
fn application(parsed: &Parsed, options: &Options) -> String {
    if !options.application {
        return String::new();
    }
    let head = parsed.head_spoken();
    let texts = head.iter().flat_map(|message| &message.pieces);
    let texts = texts.filter_map(|piece| match piece {
        Piece::Text(text) => Some(options.redactor.clean(render::before_block(text).trim())),
        _ => None,
    });
    let text = texts.collect::<Vec<_>>().join("\n");
    text[..text.floor_char_boundary(APPLICATION_BYTES)].to_owned()
}

/// Every attachment by its placeholder; the part itself where the operator wants it shown and there
/// is room.
fn attachments(
    parsed: &Parsed,
    told: impl Iterator<Item = Option<usize>>,
    entries: &[Entry<'_>],
    options: &Options,
) -> Vec<Attached> {
    let names = transcript::attachments(entries);
    if names.is_empty() {
        return Vec::new();
    }
    let mut room = ATTACHED_BYTES;
    let parts = told
        .zip(entries)
        .filter(|(_, entry)| entry.spoken.role != crate::history::Role::System)
        .flat_map(|(index, entry)| match index {
            Some(index) => parsed
                .attachments(index)
                .into_iter()
                .map(|attachment| {
                    let shown = options.attachments.shows(&attachment.media_type);
                    attachment.part.filter(|_| shown)
                })
                .collect::<Vec<_>>(),
            // Of what was kept there are only names.
            None => vec![None; named(entry)],
        });
    names
        .into_iter()
        .zip(parts)
        .map(|(name, part)| {
            let part = part.filter(|part| {
                let bytes = part.to_string().len();
                let fits = bytes <= room;
                room -= if fits { bytes } else { 0 };
                fits
            });
            Attached { name, part }
        })
        .collect()
}

/// How many attachments a message names.
fn named(entry: &Entry<'_>) -> usize {
    let pieces = entry.spoken.pieces.iter();
    pieces
        .filter(|piece| matches!(piece, Piece::Attachment { .. }))
        .count()
}

/// What the message at `place` says, where the words of a job (its payload) hold it.
pub fn words(payload: &str, place: usize) -> Option<String> {
    let payload = Payload::from_json(payload)?;
    let said = provenance::messages(&payload.transcript, &payload.places);
    let said = said.iter().filter(|said| said.range.first == place);
    let texts: Vec<&str> = said.map(|said| said.text.trim_end()).collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

impl Payload {
    pub(super) fn to_json(&self) -> String {
        // Strings, numbers and JSON values always have a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The zone whose days are told, else `otherwise`.
    pub(super) fn zone(&self, otherwise: &TimeZone) -> TimeZone {
        zone(self.zone.as_deref(), otherwise)
    }

    /// `None` where the row cannot be read.
    pub(super) fn from_json(json: &str) -> Option<Self> {
        serde_json::from_str(json).ok()
    }
}

/// The zone of this name, else `otherwise`.
pub(super) fn zone(name: Option<&str>, otherwise: &TimeZone) -> TimeZone {
    name.and_then(|name| TimeZone::get(name).ok())
        .unwrap_or_else(|| otherwise.clone())
}
