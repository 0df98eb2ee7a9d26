//! The content of a message in canonical form: runs of text and everything else, in order.
//!
//! A string, one text part, and the same text in adjacent parts are the same content. Text is trimmed
//! at both ends, and the model's thinking is left out. Fingerprints and token counts both use this
//! form, so equal messages have equal counts.

use std::borrow::Cow;

use super::fields::{Content, Fields};
use super::text::{Tree, is_cache_marker};
use crate::history::Role;

/// A piece of content.
#[derive(Debug, PartialEq)]
pub(super) enum ContentItem<'f> {
    /// Adjacent text, joined and trimmed; never empty.
    Text(Cow<'f, str>),
    /// A part that is not only text, without cache markers and null members.
    Part(Tree<'f>),
}

/// The content of `fields`.
pub(super) fn items<'f>(fields: &'f Fields<'_>) -> Vec<ContentItem<'f>> {
    join_text(fields, |_, _| false)
}

/// The same for a reader. A text part of a user message that is a tag, or ends with one, gets lines of
/// its own: clients put blocks of their own beside what the user says.
pub(super) fn reader_items<'f>(fields: &'f Fields<'_>) -> Vec<ContentItem<'f>> {
    let user = fields.role == Role::User;
    join_text(fields, |before, part| {
        user && !before.ends_with('\n') && (part.starts_with('<') || before.ends_with('>'))
    })
}

/// The content, with a line break between two text parts if `apart` says so.
fn join_text<'f>(
    fields: &'f Fields<'_>,
    needs_line_break: impl Fn(&str, &str) -> bool,
) -> Vec<ContentItem<'f>> {
    let mut items = Vec::new();
    let mut run = Cow::Borrowed("");
    match &fields.content {
        Content::Nothing => {}
        Content::Text(text) => run = Cow::Borrowed(text),
        Content::Parts(parts) => {
            for part in parts {
                match PartKind::from_part(part, fields.role) {
                    PartKind::Text(text) if run.is_empty() => run = Cow::Borrowed(text),
                    PartKind::Text(text) => {
                        if needs_line_break(&run, text) {
                            run.to_mut().push('\n');
                        }
                        run.to_mut().push_str(text);
                    }
                    PartKind::Reasoning => {}
                    PartKind::Other => {
                        close_run(&mut items, &mut run, fields.role);
                        let mut part = part.clone();
                        part.strip();
                        items.push(ContentItem::Part(part));
                    }
                }
            }
        }
    }
    close_run(&mut items, &mut run, fields.role);
    items
}

/// The parts of `fields` that are not only text, as written.
pub(super) fn other_parts<'f, 'a>(fields: &'f Fields<'a>) -> impl Iterator<Item = &'f Tree<'a>> {
    let parts: &[Tree<'a>] = match &fields.content {
        Content::Parts(parts) => parts,
        Content::Nothing | Content::Text(_) => &[],
    };
    parts
        .iter()
        .filter(|part| matches!(PartKind::from_part(part, fields.role), PartKind::Other))
}

enum PartKind<'p> {
    Text(&'p str),
    Reasoning,
    Other,
}

impl<'p> PartKind<'p> {
    fn from_part(part: &'p Tree<'_>, role: Role) -> Self {
        let kind = part.get("type").and_then(Tree::as_text);
        match (kind, part.get("text")) {
            (Some("text"), Some(Tree::Text(text)))
                if role == Role::Assistant || is_plain_text_part(part) =>
            {
                Self::Text(text)
            }
            (Some("thinking" | "redacted_thinking" | "reasoning"), _)
                if role == Role::Assistant =>
            {
                Self::Reasoning
            }
            _ => Self::Other,
        }
    }
}

/// Whether a text part holds nothing besides its text.
fn is_plain_text_part(part: &Tree<'_>) -> bool {
    let Tree::Map(members) = part else {
        return false;
    };
    members.iter().all(|(key, value)| {
        matches!(&**key, "type" | "text") || is_cache_marker(key) || value.is_empty()
    })
}

fn close_run<'f>(items: &mut Vec<ContentItem<'f>>, run: &mut Cow<'f, str>, role: Role) {
    let text = match std::mem::take(run) {
        Cow::Borrowed(text) => Cow::Borrowed(visible_text(text, role, items.is_empty())),
        Cow::Owned(text) => Cow::Owned(visible_text(&text, role, items.is_empty()).to_owned()),
    };
    if !text.is_empty() {
        items.push(ContentItem::Text(text));
    }
}

/// `text` trimmed, and without a think block at the beginning of an assistant message.
fn visible_text(text: &str, role: Role, first: bool) -> &str {
    let text = trim(text);
    if role != Role::Assistant || !first {
        return text;
    }
    text.strip_prefix("<think>")
        .and_then(|rest| rest.split_once("</think>"))
        .map_or(text, |(_, rest)| trim(rest))
}

/// Trims the white space of all client languages: Unicode white space, JavaScript's byte-order mark,
/// and the four separators that Python counts as space.
fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '\u{feff}' | '\u{1c}'..='\u{1f}'))
}
