//! Which of the client's prompt-cache marks the block takes over.
//!
//! A *mark* is `cache_control` (Anthropic) or `prompt_cache_breakpoint` (OpenAI), on a part of content or on a message:
//! up to here the provider stores the prompt. If a cut removes the marks that the client set behind its leading messages,
//! nothing behind these would be read from the cache. So the block takes over the last removed mark, byte for byte.
//!
//! Never adds a mark beside one that stays, or beyond what a provider takes. Where the client set none at all, the proxy
//! may ask for a breakpoint of Diarist's own. Called by [`super::assemble`].

use std::ops::Range;

use super::string;
use super::text::is_cache_marker;
use super::{ChatRequest, FieldValue};
use crate::history::Message;
use crate::wire::scan::Walk;
use crate::wire::{Additions, Insert};

/// How many marks Anthropic and OpenAI take in one request.
const MAX_MARKS: usize = 4;

/// The marks as JSON keys. Text that quotes them has backslashes before the quotes, so it does not match.
const MARK_KEYS: [&str; 2] = [r#""cache_control""#, r#""prompt_cache_breakpoint""#];

/// A breakpoint of Diarist's own, as GPT-5.6 and later models take it.
const BREAKPOINT: &str = r#""prompt_cache_breakpoint":{"mode":"explicit"}"#;

/// A mark in the block.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockMark<'a> {
    /// The member of the part: `"cache_control":{…}`.
    pub(super) member: &'a str,
    /// How many segments of the block stand before it.
    pub(super) behind: usize,
}

impl ChatRequest {
    /// The mark that the block has, if any.
    pub(super) fn block_mark<'a>(
        &'a self,
        insert: &Insert<'_>,
        additions: Additions<'_>,
    ) -> Option<BlockMark<'a>> {
        let count = insert.segments.len();
        let removed = additions.cache_mark.then(|| self.removed_mark(insert));
        if let Some(member) = removed.flatten() {
            let behind = count;
            return Some(BlockMark { member, behind });
        }
        let lasting = additions.cache_breakpoint?;
        (self.takes_cache_breakpoint() && count > 0).then(|| BlockMark {
            member: BREAKPOINT,
            behind: lasting.clamp(1, count),
        })
    }

    /// See [`crate::wire::Request::takes_cache_breakpoint`].
    pub fn takes_cache_breakpoint(&self) -> bool {
        let fields = &self.other_fields;
        let names = ["cache_control", "prompt_cache_options"];
        self.marked.is_empty()
            && !names.iter().any(|name| fields.may_have(self.body(), name))
            && !self.has_marks_beside_messages()
    }

    /// Whether a tool may have a mark.
    fn has_marks_beside_messages(&self) -> bool {
        let all = self.leading_messages().messages().iter();
        let mut spans = all.chain(self.messages()).map(|message| &message.span);
        let first = spans.next();
        let start = first.map_or(0, |span| span.start);
        let end = spans.next_back().or(first).map_or(0, |span| span.end);
        [0..start, end..self.body().len()]
            .into_iter()
            .filter_map(|span| std::str::from_utf8(&self.body()[span]).ok())
            .any(|text| MARK_KEYS.iter().any(|key| text.contains(key)))
    }

    /// The mark that the block takes over: `"cache_control":{…}` as the client wrote it.
    ///
    /// It depends on the request and the cut alone, so the same request goes out as the same bytes (INV-SAME). A mark is
    /// no part of the prompt: a turn with it and a turn without it have the same prefix (INV-PREFIX).
    pub(super) fn removed_mark(&self, insert: &Insert<'_>) -> Option<&str> {
        let mut behind = self
            .marked
            .iter()
            .filter_map(|index| index.checked_sub(self.leading_count));
        let stays = |index| {
            index >= insert.cut || insert.pin == Some(index) || insert.front.contains(&index)
        };
        if behind.clone().any(stays) || self.field("cache_control").is_some() {
            return None;
        }
        let message = &self.messages()[behind.next_back()?];
        let mark = self.last_mark(message)?;
        (self.kept_marks(insert) < MAX_MARKS).then_some(mark)
    }

    /// The lifetime that the last mark asks for (`ttl`).
    pub(super) fn mark_lifetime(&self) -> Option<String> {
        if let Some(FieldValue::Text(ttl)) = self.field("cache_control.ttl") {
            return Some(ttl);
        }
        let message = self.messages.get(*self.marked.last()?)?;
        let (_, mark) = self.last_mark(message)?.split_once(':')?;
        let mark: serde_json::Value = serde_json::from_str(mark).ok()?;
        Some(mark.get("ttl")?.as_str()?.to_owned())
    }

    /// At most how many marks are in what stays. Tools and tool calls can have marks too, so keys are counted.
    fn kept_marks(&self, insert: &Insert<'_>) -> usize {
        let first = self.messages().first().map_or(0, |m| m.span.start);
        let last_removed = insert.cut.checked_sub(1).map(|last| &self.messages()[last]);
        let tail = last_removed.map_or(first, |message| message.span.end);
        let raw = insert.front.iter().copied().chain(insert.pin);
        let raw = raw.map(|index| self.messages()[index].span.clone());
        [0..first, tail..self.body().len()]
            .into_iter()
            .chain(raw)
            .filter_map(|span| std::str::from_utf8(&self.body()[span]).ok())
            .flat_map(|text| MARK_KEYS.map(|key| text.matches(key).count()))
            .sum()
    }

    /// The last mark of a message, key and value.
    fn last_mark(&self, message: &Message) -> Option<&str> {
        let text = std::str::from_utf8(&self.body()[message.span.clone()]).ok()?;
        let mut found = None;
        let mut members = Walk::object(text, 0)?;
        while let Some(key) = members.key().ok()? {
            let value = members.value().ok()?;
            let name = string::decode(&text[key.clone()])?;
            if name == "content"
                && let Some(mut parts) = Walk::array(text, value.start)
            {
                while let Some(part) = parts.element().ok()? {
                    found = mark_of_part(text, part).or(found);
                }
            } else if is_mark(text, &key, &value) {
                found = Some(key.start..value.end);
            }
        }
        found.map(|span| &text[span])
    }
}

fn mark_of_part(text: &str, part: Range<usize>) -> Option<Range<usize>> {
    let mut found = None;
    let mut members = Walk::object(text, part.start)?;
    while let Some(key) = members.key().ok()? {
        let value = members.value().ok()?;
        if is_mark(text, &key, &value) {
            found = Some(key.start..value.end);
        }
    }
    found
}

fn is_mark(text: &str, key: &Range<usize>, value: &Range<usize>) -> bool {
    string::decode(&text[key.clone()]).is_some_and(|key| is_cache_marker(&key))
        && &text[value.clone()] != "null"
}
