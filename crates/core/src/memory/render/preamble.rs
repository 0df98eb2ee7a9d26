//! What a block begins with: its opening tag and its version, and how a block is recognised by them.
//!
//! Preambles are numbered and never change, because blocks that begin with one are sent for as long as their
//! snapshot exists. Called by [`super`] and [`super::peer_memory`], and by the parts that look for a block in
//! text of a client.

/// The preamble version of new snapshots. A snapshot keeps its own text, and a growing block keeps the
/// version it began with, so a new version changes nothing that is already sent.
pub const PREAMBLE_VERSION: u32 = 2;

/// The preambles, version 1 first. They are never changed.
const PREAMBLES: [&str; 2] = [
    include_str!("../prompts/block.1.md"),
    include_str!("../prompts/block.md"),
];

/// From this version on, dates are related to the day on which the part was put into the block.
pub(super) const RELATIVE_DATES_SINCE: u32 = 2;

/// The beginning of every block of every version. No conversation text that went through
/// [`super::segments`] contains it.
pub(super) const BLOCK_START: &str = "<diarist-log version=\"";

/// The preamble version for each version of the note, if nothing is observed.
const TRIM_PREAMBLES: [u32; 3] = [1, 2, 2];

/// The preamble of this version; an unknown version gets the newest one.
pub(super) fn preamble(version: u32) -> String {
    let (number, rules) = version
        .checked_sub(1)
        .and_then(|index| Some((version, *PREAMBLES.get(index as usize)?)))
        .unwrap_or((PREAMBLE_VERSION, PREAMBLES[PREAMBLES.len() - 1]));
    format!("{BLOCK_START}{number}\">\n{rules}\n<observations>\n")
}

/// The version of the preamble that a note of this wording follows.
pub(super) fn trim_preamble(wording: u32) -> u32 {
    let age = wording.checked_sub(1).map(|index| index as usize);
    let preamble_version = age.and_then(|age| TRIM_PREAMBLES.get(age));
    preamble_version.copied().unwrap_or(PREAMBLE_VERSION)
}

/// Whether `text` contains a block: a client sent back what it should never have seen.
pub fn looks_like_block(text: &str) -> bool {
    before_block(text).len() < text.len()
}

/// The text before a block; all of `text` if there is none. Text behind a block cannot be separated
/// from its hints and is dropped with it.
pub fn before_block(text: &str) -> &str {
    text.match_indices(BLOCK_START)
        .map(|(at, _)| at)
        .find(|at| {
            text[..*at].trim_end_matches([' ', '\t']).ends_with('\n')
                || text[..*at].trim().is_empty()
        })
        .map_or(text, |at| &text[..at])
}

/// The approximate tokens of a block before its first observation. Rather too many (English prose has
/// 4.5 characters per token), for policies that count overheads.
pub fn preamble_tokens(version: u32) -> u32 {
    estimate(&preamble(version))
}

/// A rough count of tokens: a quarter of the bytes.
pub(super) fn estimate(text: &str) -> u32 {
    u32::try_from(text.len() / 4).unwrap_or(u32::MAX)
}
