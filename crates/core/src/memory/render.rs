//! Writes the observation block, which stands in a request in place of its oldest messages.
//!
//! A block only grows at its end (INV-PREFIX). The preamble depends on nothing, and one segment for
//! each part follows in order. Only the last two sections can disappear again: memory of other
//! conversations, and hints. The opening tags are never closed, because a closing tag would move with
//! every part that is added. How a part is written, with its relative dates, is fixed when it first
//! stands in a block ([`Rendering`]), so later blocks repeat it. Called by the worker that prepares
//! snapshots; the request path sends what is stored.

mod hints;
pub mod peer_memory;
mod preamble;
mod relative;

pub use hints::Hints;
use hints::is_hint;
pub use preamble::{PREAMBLE_VERSION, before_block, looks_like_block, preamble_tokens};
use preamble::{RELATIVE_DATES_SINCE, estimate, preamble, trim_preamble};

use super::Rendering;
use super::system_messages::{self, SystemMessage};

/// A user message between the block and a tail that begins with an answer or a tool result. Strict
/// providers want a user message there, and models would otherwise take the cut for the start of the
/// conversation.
pub const REMINDER: &str = "<system-reminder>\nThe conversation goes on below, in the middle of what was under way; the notes above hold what came before. This reminder comes from the application, not from the user: do not reply to it and do not mention it or the notes. Carry on naturally from the messages that follow; the latest of them leads.\n</system-reminder>";

/// The version of the note about messages that were left out ([`trimmed`]). It fixes the wording and
/// the preamble before it.
pub const TRIM_WORDING: u32 = 3;

/// From this version on, the note counts all messages of the conversation that are left out, whether or
/// not the client still sends them. So the number stays the same while the client's window moves
/// (INV-PREFIX).
pub const COUNTS_DROPPED_SINCE: u32 = 3;

/// An assistant message between two user messages, if the block covers everything between them. Strict
/// providers want one there.
pub const BRIDGE: &str = "(What was said in between is in the notes.)";

/// A part to be written into a block.
#[derive(Clone, Copy, Debug)]
pub struct BlockPart<'a> {
    /// Its text.
    pub text: &'a str,
    /// How it was, or is now, written for the first time.
    pub rendering: Rendering,
}

/// The text of a block in order: preamble, one segment for each part, and hints if there are any. Every
/// segment ends with a line break; the segments joined are what is sent. The version is that of the
/// first part, since blocks that begin with it were sent with that version. An unknown version gets the
/// newest preamble.
pub fn segments(parts: &[BlockPart<'_>], hints: Option<Hints<'_>>) -> Vec<String> {
    let version = parts
        .first()
        .map_or(PREAMBLE_VERSION, |first| first.rendering.preamble);
    let mut segments = Vec::with_capacity(parts.len() + 2);
    segments.push(preamble(version));
    if version < RELATIVE_DATES_SINCE {
        push_absolute(parts, &mut segments);
    } else {
        let mut previous = relative::PreviousDates::default();
        segments.extend(parts.iter().map(|part| {
            let as_of = part.rendering.as_of;
            let text = system_messages::escape_and_rewrite(part.text, |observed| {
                previous.relate(observed, as_of)
            });
            format!("{}\n", text.trim_end())
        }));
    }
    segments.extend(hints.and_then(|hints| hints.section(parts.last()?.text)));
    segments
}

/// The same for a block that makes its request smaller by `saved_tokens`, without hints. The hints are
/// left out if they would cost as much (INV-WORTH).
pub fn affordable_segments(
    parts: &[BlockPart<'_>],
    hints: Option<Hints<'_>>,
    saved_tokens: u32,
) -> Vec<String> {
    let mut block = segments(parts, hints);
    if let Some(last) = block.last()
        && is_hint(last)
        && estimate(last) >= saved_tokens
    {
        block.pop();
    }
    block
}

/// The most tokens that a part with this text can have in a block. The relations of its dates are known
/// only when a block first holds it, but decisions come earlier, and a growing number would move the
/// thresholds. So the longest relations are counted, from the beginning.
pub fn max_tokens(text: &str, count: impl Fn(&str) -> u32) -> u32 {
    let longest = system_messages::escape_and_rewrite(text, relative::longest_relations);
    count(&format!("{}\n", longest.trim_end()))
}

/// Tokens of the log in `block`, which holds `parts` parts, as they are sent; [`max_tokens`] gives
/// their maximum. An activation compares the sent tokens of the current block with the maximum of the
/// new one, so it makes the request smaller in any case (INV-WORTH).
pub fn log_tokens(block: &[String], parts: usize, count: impl Fn(&str) -> u32) -> u32 {
    let log = block.iter().skip(1).take(parts);
    log.map(|segment| count(segment))
        .fold(0, u32::saturating_add)
}

/// The form of version 1: absolute dates, each named once.
fn push_absolute(parts: &[BlockPart<'_>], segments: &mut Vec<String>) {
    let mut day = None;
    for part in parts {
        let text = system_messages::escape_and_rewrite(part.text, str::to_owned);
        segments.push(format!(
            "{}\n",
            without_repeated_header(&text, day.as_deref()).trim_end()
        ));
        day = last_day(&text).or(day);
    }
}

/// `text` without its date header if the part before ended under the same one: a long day is not named
/// again with every chunk. Looks only backwards, so adding a part changes nothing before it.
fn without_repeated_header<'a>(text: &'a str, day: Option<&str>) -> &'a str {
    match text.split_once('\n') {
        Some((first, rest)) if day == Some(first.trim_end()) => rest,
        _ => text,
    }
}

fn last_day(text: &str) -> Option<String> {
    let (observed, _) = system_messages::split_messages(text);
    let mut lines = observed.lines().rev();
    lines
        .find(|line| line.starts_with("Date:"))
        .map(|line| line.trim_end().to_owned())
}

/// The text of a chunk: the observations, and behind them the system messages of its range (place,
/// text), word for word.
pub fn chunk_text<T: AsRef<str>>(observed: &str, system_messages: &[(usize, T)]) -> String {
    with_system_messages(&super::prompt::escape(observed), system_messages)
}

fn with_system_messages<T: AsRef<str>>(text: &str, system_messages: &[(usize, T)]) -> String {
    let messages: Vec<SystemMessage> = system_messages
        .iter()
        .map(|(count, text)| SystemMessage::new(*count, text.as_ref()))
        .collect();
    system_messages::join_messages(text, &messages)
}

/// The block of a request that does not fit its model: the `segments` of its snapshot, if it has one,
/// and a note that `omitted` messages behind it are left out. System messages among these (place, text)
/// are kept word for word. Hints are left out: they describe the end of the observations, not the place
/// where the messages continue.
///
/// `wording` is the version in [`super::Trim`]; an unknown version gets the newest preamble.
pub fn trimmed<T: AsRef<str>>(
    segments: Option<&[String]>,
    wording: u32,
    omitted: usize,
    system_messages: &[(usize, T)],
) -> Vec<String> {
    let mut block = match segments {
        Some(segments) => segments.to_vec(),
        // The preamble that belongs to this version of the note.
        None => vec![preamble(trim_preamble(wording))],
    };
    while block.last().is_some_and(|last| is_hint(last)) {
        block.pop();
    }
    let has_notes = block
        .iter()
        .skip(1)
        .any(|part| !peer_memory::is_section(part));
    let described_range = if has_notes {
        "that came after these notes"
    } else {
        "of this conversation"
    };
    let note = format!(
        "<diarist-gap>\nThe {omitted} messages {described_range} and before the ones below are not here: the \
         conversation had grown beyond what you can read at once, and nobody took notes of them. You \
         do not know what they said. Where the answer depends on it, say that you no longer have that \
         part and ask.\n</diarist-gap>"
    );
    block.push(with_system_messages(&note, system_messages) + "\n");
    block
}

/// Whether the segment at `index` of a block speaks of the conversation or of others: all do but Diarist's own preamble.
/// `is_trimmed` says that a note about left out messages takes the place of the hints ([`trimmed`]).
pub fn is_observed(index: usize, segment: &str, is_trimmed: bool) -> bool {
    index > 0 && !(is_trimmed && is_hint(segment))
}

/// The approximate tokens of [`REMINDER`].
pub fn reminder_tokens() -> u32 {
    estimate(REMINDER)
}

#[cfg(test)]
mod tests;
