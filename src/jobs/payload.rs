//! What an observation job carries until its part is written: the redacted text of its range, and
//! the attachments of that text.

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::history::{MessagePiece, PlainText};
use crate::memory::observe::ObserverOptions;
use crate::memory::prompt::PromptAttachment;
use crate::memory::transcript::{self, TranscriptMessage, TranscriptStyle};
use crate::memory::{Node, Span, provenance, render};
use crate::tokens::TokenCounter;
use crate::wire;

/// The most bytes of attachments in one job. They lie in the database until the chunk is committed,
/// and providers accept requests of about 20 MB. The prompt names an attachment that does not fit
/// as not seen.
const MAX_ATTACHMENT_BYTES: usize = 8 * 1024 * 1024;

/// The most bytes of the application's system prompt in a job.
const MAX_APPLICATION_BYTES: usize = 32 * 1024;

/// The text of a job row.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ObservationPayload {
    /// What the Observer reads.
    pub(super) transcript: String,
    /// The message behind each line of the transcript that starts with a speaker, in order. Origins
    /// of observations are found by it. Empty in rows of an older version.
    pub(super) places: Vec<usize>,
    /// The observations that code writes if the transcript is empty. Otherwise they are written from the transcript, when
    /// they are needed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) by_code: String,
    /// System messages inside the range (place, text). They are copied word for word and not shown
    /// to the Observer.
    pub(super) system: Vec<(usize, String)>,
    /// The application's system prompt, if the operator wants the Observer to see it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) application: String,
    /// The attachments that the transcript names by a placeholder, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) attachments: Vec<PromptAttachment>,
    /// The IANA name of the time zone for dates and times; without one, that of the settings
    /// applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) zone: Option<String>,
    /// What the Observer should look at above all, if an operator asked for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) focus: Option<String>,
}

/// How a transcript shows times.
#[derive(Clone, Debug)]
pub(super) struct TimeStyle {
    pub(super) zone: TimeZone,
    /// Whether it shows pauses.
    pub(super) show_pauses: bool,
}

/// Where the text of a message is read.
pub(super) enum MessageSource {
    /// In the request, at this index.
    Request(usize),
    /// No longer in the request, but in the archive.
    Archived(PlainText),
}

/// The payload of `span`, read from the request that confirmed it and from the archive. `sources`
/// has one entry for each message of the span. `None` if a message cannot be read: a message that
/// the Observer does not see must not count as observed.
pub(super) fn build(
    parsed: &wire::Request,
    nodes: &[Node],
    span: &Span,
    sources: &[MessageSource],
    options: &ObserverOptions,
    time_style: &TimeStyle,
    counter: &dyn TokenCounter,
) -> Option<ObservationPayload> {
    // (place on the chain, index in the request)
    let messages: Vec<(usize, Option<usize>, PlainText)> = (span.from_count..span.to_count)
        .zip(sources)
        .map(|(place, source)| match source {
            MessageSource::Request(index) => {
                Some((place, Some(*index), parsed.reader_text(*index)?))
            }
            MessageSource::Archived(spoken) => Some((place, None, spoken.clone())),
        })
        .collect::<Option<_>>()?;
    let entries: Vec<TranscriptMessage<'_>> = messages
        .iter()
        .map(|(place, _, spoken)| {
            let entry = TranscriptMessage::from_node(&nodes[*place], spoken);
            let previous = place.checked_sub(1).map(|before| &nodes[before]);
            match previous.filter(|_| time_style.show_pauses) {
                Some(previous) => entry.with_pause_after(previous),
                None => entry,
            }
        })
        .collect();
    let style = TranscriptStyle {
        zone: &time_style.zone,
        counter,
        redactor: &options.redactor,
        omit_blocks: &options.omit_blocks,
    };
    let (transcript, places) = transcript::format_transcript(&entries, &style);
    let by_code = if transcript.trim().is_empty() {
        transcript::observations_by_code(&entries, &style)
    } else {
        String::new()
    };
    Some(ObservationPayload {
        transcript,
        places,
        by_code,
        system: transcript::system_messages(&entries),
        application: application(parsed, options),
        attachments: attachments(
            parsed,
            messages.iter().map(|(_, index, _)| *index),
            &entries,
            options,
        ),
        zone: time_style.zone.iana_name().map(str::to_owned),
        focus: None,
    })
}

/// The text of the client's leading system messages, redacted like everything else.
fn application(parsed: &wire::Request, options: &ObserverOptions) -> String {
    if !options.application {
        return String::new();
    }
    let head = parsed.leading_plain_texts();
    let texts = head.iter().flat_map(|message| &message.pieces);
    let texts = texts.filter_map(|piece| match piece {
        MessagePiece::Text(text) => Some(options.redactor.clean(render::before_block(text).trim())),
        _ => None,
    });
    let text = texts.collect::<Vec<_>>().join("\n");
    text[..text.floor_char_boundary(MAX_APPLICATION_BYTES)].to_owned()
}

/// All attachments by their placeholders. The content is included if the operator wants that and if
/// it fits.
fn attachments(
    parsed: &wire::Request,
    indices: impl Iterator<Item = Option<usize>>,
    entries: &[TranscriptMessage<'_>],
    options: &ObserverOptions,
) -> Vec<PromptAttachment> {
    let names = transcript::attachments(entries);
    if names.is_empty() {
        return Vec::new();
    }
    let mut bytes_left = MAX_ATTACHMENT_BYTES;
    let parts = indices
        .zip(entries)
        .filter(|(_, entry)| entry.content.role != crate::history::Role::System)
        .flat_map(|(index, entry)| match index {
            Some(index) => parsed
                .attachments(index)
                .into_iter()
                .map(|attachment| {
                    let shown = options.attachments.accepts(&attachment.media_type);
                    attachment.part.filter(|_| shown)
                })
                .collect::<Vec<_>>(),
            // The archive has only the names of attachments.
            None => vec![None; attachment_count(entry)],
        });
    names
        .into_iter()
        .zip(parts)
        .map(|(name, part)| {
            let part = part.filter(|part| {
                let bytes = part.to_string().len();
                let fits = bytes <= bytes_left;
                bytes_left -= if fits { bytes } else { 0 };
                fits
            });
            PromptAttachment { name, part }
        })
        .collect()
}

/// How many attachments a message names.
fn attachment_count(entry: &TranscriptMessage<'_>) -> usize {
    let pieces = entry.content.pieces.iter();
    pieces
        .filter(|piece| matches!(piece, MessagePiece::Attachment { .. }))
        .count()
}

/// The text of the message at `place`, if a job's `payload` has it.
pub fn message_text(payload: &str, place: usize) -> Option<String> {
    let payload = ObservationPayload::from_json(payload)?;
    let messages = provenance::source_messages(&payload.transcript, &payload.places);
    let of_place = messages
        .iter()
        .filter(|message| message.range.first == place);
    let texts: Vec<&str> = of_place.map(|message| message.text.trim_end()).collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

impl ObservationPayload {
    pub(super) fn to_json(&self) -> String {
        // Strings, numbers and JSON values always have a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The time zone of this job, or `default`.
    pub(super) fn zone(&self, default: &TimeZone) -> TimeZone {
        zone(self.zone.as_deref(), default)
    }

    /// `None` if the row cannot be read.
    pub(super) fn from_json(json: &str) -> Option<Self> {
        serde_json::from_str(json).ok()
    }
}

/// The time zone with this name, or `default`.
pub(super) fn zone(name: Option<&str>, default: &TimeZone) -> TimeZone {
    name.and_then(|name| TimeZone::get(name).ok())
        .unwrap_or_else(|| default.clone())
}
