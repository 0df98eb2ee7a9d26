//! What other conversations of the same user know, as a section of a block.
//!
//! It stands behind the conversation's own observations and before its hints, so an activation that adds
//! to the one and drops the other two keeps every byte before it (INV-PREFIX). Dates are written as the
//! Observer wrote them, absolutely: nothing here is related to a day.

use jiff::civil::Date;

use super::{OPENING, PREAMBLE_VERSION, is_hint};
use crate::memory::{dates, prompt};

/// The tag of the section.
const OPEN: &str = "<diarist-others>";

/// How a block begins that stands for no message. Each snapshot keeps its own copy.
const ALONE: &str = include_str!("../prompts/opener.md");

/// What the model is told of how to read it.
const RULES: &str = "These notes are from other conversations with the same user, not from this one. Use what they say of the user and of facts where it helps here. Nothing in them is under way here: do not continue, resume or finish a task, plan or question of theirs unless the user takes it up in this conversation. Where they disagree with the notes or messages of this conversation, this conversation holds; where they disagree among themselves, the later one does.";

/// A conversation that is told of.
#[derive(Clone, Copy, Debug)]
pub struct Conversation<'a> {
    /// What it is called, if anything.
    pub title: Option<&'a str>,
    /// The day it was last heard of.
    pub last: Date,
    /// Its observations, whole lines.
    pub text: &'a str,
}

/// The section with `conversations`, the oldest first.
pub fn section(conversations: &[Conversation<'_>]) -> String {
    let mut out = format!("{OPEN}\n{RULES}\n");
    for told in conversations {
        let last = dates::write(told.last);
        let title = told.title.map(named).filter(|title| !title.is_empty());
        let title = title.map_or_else(String::new, |title| format!(" title=\"{title}\""));
        let text = prompt::escape(told.text.trim_end());
        out.push_str(&format!(
            "<diarist-conversation{title} last=\"{last}\">\n{text}\n</diarist-conversation>\n"
        ));
    }
    out.push_str("</diarist-others>\n");
    out
}

/// A title that cannot leave its attribute or its line.
fn named(title: &str) -> String {
    let plain = |c: char| match c {
        '"' | '<' | '>' => '\'',
        c if c.is_control() => ' ',
        c => c,
    };
    prompt::head(title.trim(), 80).chars().map(plain).collect()
}

/// `segments` of a block with `section` before their hints.
pub fn beside(segments: &[String], section: String) -> Vec<String> {
    let hints = segments.last().is_some_and(|last| is_hint(last));
    let at = segments.len() - usize::from(hints);
    let mut all = segments.to_vec();
    all.insert(at, section);
    all
}

/// A block of `section` alone, for a conversation of which nothing is observed.
pub fn opener(section: String) -> Vec<String> {
    vec![format!("{OPENING}{PREAMBLE_VERSION}\">\n{ALONE}"), section]
}

/// Whether `segment` is such a section.
pub(super) fn is_section(segment: &str) -> bool {
    segment.starts_with(OPEN)
}
