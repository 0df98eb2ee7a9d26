//! Writes what other conversations of the same user know, as a section of a block.
//!
//! The section stands between the conversation's own observations and its hints. So an activation that
//! adds observations and replaces section and hints keeps every byte before them (INV-PREFIX). Dates
//! stay absolute, as the Observer wrote them.

use jiff::civil::Date;

use super::hints::is_hint;
use super::preamble::{BLOCK_START, PREAMBLE_VERSION};
use crate::memory::{dates, prompt};

/// The tag of the section.
const SECTION_START: &str = "<diarist-others>";

/// The preamble of a block that covers no message. Each snapshot keeps its own copy.
const PEER_INTRO: &str = include_str!("../prompts/opener.md");

/// The rules for the model that reads the section.
const RULES: &str = "These notes are from other conversations with the same user, not from this one. Use what they say of the user and of facts where it helps here. Nothing in them is under way here: do not continue, resume or finish a task, plan or question of theirs unless the user takes it up in this conversation. Where they disagree with the notes or messages of this conversation, this conversation holds; where they disagree among themselves, the later one does.";

/// A conversation in the section.
#[derive(Clone, Copy, Debug)]
pub struct PeerConversation<'a> {
    /// Its title, if it has one.
    pub title: Option<&'a str>,
    /// The day it last received something.
    pub last_date: Date,
    /// Its observations, in whole lines.
    pub text: &'a str,
}

/// The section with `conversations`, the oldest first.
pub fn section(conversations: &[PeerConversation<'_>]) -> String {
    let mut out = format!("{SECTION_START}\n{RULES}\n");
    for conversation in conversations {
        let last = dates::format_date(conversation.last_date);
        let title = conversation
            .title
            .map(clean_title)
            .filter(|title| !title.is_empty());
        let title = title.map_or_else(String::new, |title| format!(" title=\"{title}\""));
        let text = prompt::escape(conversation.text.trim_end());
        out.push_str(&format!(
            "<diarist-conversation{title} last=\"{last}\">\n{text}\n</diarist-conversation>\n"
        ));
    }
    out.push_str("</diarist-others>\n");
    out
}

/// A title that cannot break out of its attribute or line.
fn clean_title(title: &str) -> String {
    let to_plain = |c: char| match c {
        '"' | '<' | '>' => '\'',
        c if c.is_control() => ' ',
        c => c,
    };
    prompt::first_chars(title.trim(), 80)
        .chars()
        .map(to_plain)
        .collect()
}

/// `segments` of a block with `section` before their hints.
pub fn insert_section(segments: &[String], section: String) -> Vec<String> {
    let hints = segments.last().is_some_and(|last| is_hint(last));
    let at = segments.len() - usize::from(hints);
    let mut all = segments.to_vec();
    all.insert(at, section);
    all
}

/// A block with only `section`, for a conversation without observations.
pub fn peer_intro(section: String) -> Vec<String> {
    vec![
        format!("{BLOCK_START}{PREAMBLE_VERSION}\">\n{PEER_INTRO}"),
        section,
    ]
}

/// Whether `segment` is a section about other conversations.
pub(super) fn is_section(segment: &str) -> bool {
    segment.starts_with(SECTION_START)
}
