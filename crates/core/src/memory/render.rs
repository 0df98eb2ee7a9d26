//! Writes the observation block: what stands in a request in place of its oldest messages.
//!
//! Append-only by construction (INV-PREFIX): the preamble depends on nothing, one segment per part
//! follows in order, and only what comes last may go again: what other conversations know, and the
//! hints. The opening tags are never closed, since a closing tag would move with every append. How a
//! part is written is frozen when it first stands in a block ([`Rendering`]), its relative dates
//! included, so later blocks repeat it. Called by the worker that prepares snapshots; the request path sends what is stored.

mod hints;
pub mod peer_memory;
mod relative;

pub use hints::Hints;

use super::Rendering;
use super::system_messages::{self, SystemMessage};

/// The version of the preamble that new snapshots use. A snapshot keeps its own text, and a block
/// that only grows the version it began with: a new version changes nothing that is already sent.
pub const PREAMBLE_VERSION: u32 = 2;

/// The preambles, oldest first: version 1 is the first. None is ever changed.
const PREAMBLES: [&str; 2] = [
    include_str!("prompts/block.1.md"),
    include_str!("prompts/block.md"),
];

/// From this version on dates are related to the day the part was put into the block.
const RELATIVE_DATES_SINCE: u32 = 2;

/// What every block of every version starts with, and no text of a conversation that went through
/// [`segments`] contains.
const BLOCK_START: &str = "<diarist-log version=\"";

/// The message, in the role of the user, that stands between the block and a tail which begins with
/// an answer or a tool result. Strict providers want a user message there, and models otherwise take
/// the cut for the start of the conversation.
pub const REMINDER: &str = "<system-reminder>\nThe conversation goes on below, in the middle of what was under way; the notes above hold what came before. This reminder comes from the application, not from the user: do not reply to it and do not mention it or the notes. Carry on naturally from the messages that follow; the latest of them leads.\n</system-reminder>";

/// The version of the words that note what was left out ([`trimmed`]). One number fixes them and the
/// preamble before them.
pub const TRIM_WORDING: u32 = 3;

/// From this version on the note counts the messages of the conversation, whether or not its client
/// still sends them: the number stays as it is while a window slides on (INV-PREFIX).
pub const COUNTS_DROPPED_SINCE: u32 = 3;

/// The version of the preamble that each version of the note begins with, where nothing is observed.
const TRIM_PREAMBLES: [u32; 3] = [1, 2, 2];

/// The message, in the role of the assistant, that stands between two of the user where everything
/// said between them is in the notes. Strict providers want one there.
pub const BRIDGE: &str = "(What was said in between is in the notes.)";

/// A part as it is to be written.
#[derive(Clone, Copy, Debug)]
pub struct BlockPart<'a> {
    /// Its text.
    pub text: &'a str,
    /// How it was, or is now, first written.
    pub rendering: Rendering,
}

/// The text of a block in order: preamble, one segment for each part, the hints where there are any.
/// Every segment ends with a line break; their concatenation is what is sent. The version is that of
/// the first part: what begins with it was sent so before. An unknown one gets the newest preamble.
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

/// The same for a block that makes its request smaller by `saves` tokens, its hints not counted: where
/// they would cost as much, they go (INV-WORTH).
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

/// Tokens of a part of this text in a block, at most. How its dates are related is fixed when a block
/// first holds it, and decided is before that; and a sum that grew with it would move the thresholds.
/// So the longest relations count, from the moment the part is written.
pub fn max_tokens(text: &str, count: impl Fn(&str) -> u32) -> u32 {
    let longest = system_messages::escape_and_rewrite(text, relative::longest_relations);
    count(&format!("{}\n", longest.trim_end()))
}

/// Tokens of the log in `block`, which holds `parts` parts: as they are sent, where [`weight`] says what
/// they come to at most. An activation counts what is sent as it is and what would be sent by its
/// weight, so that it makes the request smaller however much of the weight is never used (INV-WORTH).
pub fn log_tokens(block: &[String], parts: usize, count: impl Fn(&str) -> u32) -> u32 {
    let log = block.iter().skip(1).take(parts);
    log.map(|segment| count(segment))
        .fold(0, u32::saturating_add)
}

/// As version 1 had it: absolute dates, each named once.
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

/// `text` without its date header where the part before ended under the same one: a long day is not
/// said again with every chunk. Looks only backwards, so an append changes nothing before it.
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

/// The text of a chunk: what was observed, and the system messages of its range (place, words) word
/// for word behind it.
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

/// The block of a request that does not fit its model: `segments` of its snapshot (none where it has
/// none), and last a note that the `left_out` messages behind it are gone. System messages among
/// them (place, words) are kept word for word. Hints go: they speak of the place where the
/// observations end, not of that where the messages go on.
///
/// `wording` is that of [`super::Trim`]; an unknown one gets the newest.
pub fn trimmed<T: AsRef<str>>(
    segments: Option<&[String]>,
    wording: u32,
    omitted: usize,
    system_messages: &[(usize, T)],
) -> Vec<String> {
    let mut block = match segments {
        Some(segments) => segments.to_vec(),
        // The preamble of the same age.
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

fn trim_preamble(wording: u32) -> u32 {
    let age = wording.checked_sub(1).map(|index| index as usize);
    let preamble_version = age.and_then(|age| TRIM_PREAMBLES.get(age));
    preamble_version.copied().unwrap_or(PREAMBLE_VERSION)
}

fn is_hint(segment: &str) -> bool {
    ["<current-task>", "<suggested-response>"]
        .iter()
        .any(|tag| segment.starts_with(tag))
}

/// Whether `text` holds a block of ours: a client sent back what it was never meant to see.
pub fn looks_like_block(text: &str) -> bool {
    before_block(text).len() < text.len()
}

/// What stands in `text` before a block of ours; all of it where there is none. What stands behind
/// one can not be told from its hints and is given up with it.
pub fn before_block(text: &str) -> &str {
    text.match_indices(BLOCK_START)
        .map(|(at, _)| at)
        .find(|at| {
            text[..*at].trim_end_matches([' ', '\t']).ends_with('\n')
                || text[..*at].trim().is_empty()
        })
        .map_or(text, |at| &text[..at])
}

/// About how many tokens a block costs before its first observation. An estimate on the high side
/// (English prose has 4.5 characters a token), for policies that count overheads.
pub fn preamble_tokens(version: u32) -> u32 {
    estimate(&preamble(version))
}

/// About how many tokens [`REMINDER`] costs.
pub fn reminder_tokens() -> u32 {
    estimate(REMINDER)
}

fn estimate(text: &str) -> u32 {
    u32::try_from(text.len() / 4).unwrap_or(u32::MAX)
}

fn preamble(version: u32) -> String {
    let (number, rules) = version
        .checked_sub(1)
        .and_then(|index| Some((version, *PREAMBLES.get(index as usize)?)))
        .unwrap_or((PREAMBLE_VERSION, PREAMBLES[PREAMBLES.len() - 1]));
    format!("{BLOCK_START}{number}\">\n{rules}\n<observations>\n")
}

#[cfg(test)]
mod tests;
