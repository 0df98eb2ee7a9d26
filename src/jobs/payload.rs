//! What an observe job carries until its part is written: the words of its range, already redacted.

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::history::Spoken;
use crate::memory::transcript::{self, Entry};
use crate::memory::{Node, Span};
use crate::wire::chat::Parsed;

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
}

/// The payload of `span`, read from the request that confirmed it.
pub(super) fn of(parsed: &Parsed, nodes: &[Node], span: &Span) -> Payload {
    let nodes = &nodes[span.from_count..span.to_count];
    let spoken: Vec<Option<Spoken>> = (span.from_count..span.to_count)
        .map(|index| parsed.spoken(index))
        .collect();
    let entries: Vec<Entry<'_>> = nodes
        .iter()
        .zip(&spoken)
        .filter_map(|(node, spoken)| Some(Entry::of(node, spoken.as_ref()?)))
        .collect();
    let zone = TimeZone::UTC;
    let (transcript, places) = transcript::placed(&entries, &zone);
    Payload {
        transcript,
        places,
        by_code: transcript::by_code(&entries, &zone),
        system: transcript::system_messages(&entries),
    }
}

impl Payload {
    pub(super) fn to_json(&self) -> String {
        // Three strings and a list of pairs always have a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// `None` where the row was written by another version.
    pub(super) fn from_json(json: &str) -> Option<Self> {
        serde_json::from_str(json).ok()
    }
}
