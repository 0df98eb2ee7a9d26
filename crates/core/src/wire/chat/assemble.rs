//! Builds the outgoing body: leading system messages, observation block, pin, reminder, raw tail.
//!
//! Works with edits of the received body: a range to remove and its replacement. Everything outside the
//! edits stays as it came, white space included. Called by the proxy through [`ChatRequest::splice`].

use std::ops::Range;

use bytes::Bytes;

use super::cache_mark::BlockMark;
use super::text::is_cache_marker;
use super::{ChatRequest, string};
use crate::history::Role;
use crate::wire::scan::Walk;
use crate::wire::{Additions, Insert, Placement, Segment, Splice, cache_key_member};

/// Separates the client's system text from ours.
const BLOCK_SEPARATOR: &str = "\n\n";

/// A range of the body to remove, and its replacement.
struct Edit {
    removed: Range<usize>,
    replacement: Vec<Segment>,
}

impl Edit {
    fn insert(at: usize, text: String) -> Self {
        Self::replace(at..at, text)
    }

    fn insert_segment(at: usize, segment: Segment) -> Self {
        Self {
            removed: at..at,
            replacement: vec![segment],
        }
    }

    fn replace(removed: Range<usize>, text: String) -> Self {
        Self {
            removed,
            replacement: vec![inserted_segment(text)],
        }
    }
}

/// A whole message of the outgoing array.
struct OutgoingMessage {
    segment: Segment,
    /// Whether it stands before the block.
    front: bool,
}

impl OutgoingMessage {
    fn from_json(json: String) -> Self {
        Self {
            segment: inserted_segment(json),
            front: false,
        }
    }
}

impl ChatRequest {
    /// The outgoing body, with `memory` in place of the oldest messages, and with `additions`.
    ///
    /// An insert that does not fit this request (a cut beyond its end, a pin behind the cut)
    /// inserts nothing, because the client's own body is always a valid request (INV-OPEN).
    pub fn splice(&self, memory: Option<&Insert<'_>>, additions: Additions<'_>) -> Splice {
        let mut edits = Vec::new();
        let mut splice = Splice::with_message_count(self.message_count());
        if let Some(insert) = memory.filter(|insert| self.fits(insert)) {
            let mark = self.block_mark(insert, additions);
            splice.messages += self.insert_memory(insert, mark, &mut edits);
            splice.messages -= insert.cut;
            let cache_key = additions.cache_key.filter(|_| self.takes_cache_key());
            edits.extend(cache_key.map(|key| Edit::insert(self.close, cache_key_member(key))));
        }
        if additions.usage {
            edits.extend(self.ask_usage());
        }
        edits.sort_by_key(|edit| edit.removed.start);
        let mut at = 0;
        for edit in edits {
            splice.push(Segment::Original(at..edit.removed.start));
            at = edit.removed.end;
            edit.replacement
                .into_iter()
                .for_each(|segment| splice.push(segment));
        }
        splice.push(Segment::Original(at..self.body().len()));
        splice
    }

    /// Whether the block of `insert` takes over one of the client's cache marks.
    pub fn takes_over_mark(&self, insert: &Insert<'_>) -> bool {
        self.fits(insert) && self.removed_mark(insert).is_some()
    }

    fn fits(&self, insert: &Insert<'_>) -> bool {
        let mut front = insert.front.iter();
        let before_cut = |index: usize| index < insert.cut;
        insert.cut <= self.messages().len()
            && insert.pin.is_none_or(before_cut)
            && insert.front.is_sorted_by(|a, b| a < b)
            && front.all(|index| before_cut(*index) && insert.pin != Some(*index))
    }

    /// Adds the edits that put `insert` in the place of the oldest messages. Returns how many messages they insert.
    fn insert_memory(
        &self,
        insert: &Insert<'_>,
        mark: Option<BlockMark<'_>>,
        edits: &mut Vec<Edit>,
    ) -> usize {
        // The new items of the array in order, each as a whole.
        let mut items = self.raw_before_tail(insert);
        if let Some(append) = self.append(insert, mark) {
            edits.push(append);
        } else {
            let behind_front = items.iter().rposition(|item| item.front);
            let at = behind_front.map_or(0, |last| last + 1);
            let block = OutgoingMessage::from_json(self.block(insert, mark));
            items.insert(at, block);
        }
        let items: Vec<Segment> = items.into_iter().map(|item| item.segment).collect();
        let count = items.len();
        edits.push(self.replace_oldest(insert.cut, items));
        count
    }

    /// The messages between block and tail: those that stay raw in front, the pin, and one of our
    /// own wherever the cut leaves two messages of one role side by side.
    fn raw_before_tail(&self, insert: &Insert<'_>) -> Vec<OutgoingMessage> {
        if insert.front.is_empty() {
            return self.pin_and_reminder(insert);
        }
        let mut items = Vec::new();
        let (mut speaker, mut last) = (None, None);
        let front = insert.front.iter().map(|index| (*index, true));
        let pin = insert.pin.map(|index| (index, false));
        for (index, front) in front.chain(pin) {
            let role = self.messages()[index].role;
            let has_gap = last.map_or(index > 0, |last| index > last + 1);
            if has_gap && role != Role::System {
                items.extend(Self::separator_message(insert, speaker, role).map(|json| {
                    OutgoingMessage {
                        front,
                        ..OutgoingMessage::from_json(json)
                    }
                }));
            }
            items.push(OutgoingMessage {
                segment: Segment::Original(self.messages()[index].span.clone()),
                front,
            });
            if role != Role::System {
                speaker = Some(role);
            }
            last = Some(index);
        }
        let tail = self.messages()[insert.cut..].iter().map(|m| m.role);
        let next = tail.into_iter().find(|role| *role != Role::System);
        if let Some(next) = next {
            items.extend(
                Self::separator_message(insert, speaker, next).map(OutgoingMessage::from_json),
            );
        }
        items
    }

    /// The same if nothing stays in front.
    fn pin_and_reminder(&self, insert: &Insert<'_>) -> Vec<OutgoingMessage> {
        if insert.cut == 0 {
            // Nothing was left out, so the client's own first message stays first.
            return Vec::new();
        }
        let pinned = insert.pin.map(|pin| &self.messages()[pin]);
        let speaker = pinned
            .into_iter()
            .chain(&self.messages()[insert.cut..])
            .map(|message| message.role)
            .find(|role| *role != Role::System);
        let reminder = matches!(speaker, Some(Role::Assistant | Role::Tool))
            .then(|| OutgoingMessage::from_json(message("user", &quoted(insert.reminder))));
        let pin = pinned.map(|pin| OutgoingMessage {
            segment: Segment::Original(pin.span.clone()),
            front: false,
        });
        pin.into_iter().chain(reminder).collect()
    }

    /// The text that must stand between the last role and the next. An assistant or tool message
    /// never comes first behind the system messages: providers that demand alternation refuse that,
    /// and a model reads it as a monologue of its own.
    fn separator_message(insert: &Insert<'_>, last: Option<Role>, next: Role) -> Option<String> {
        let both_users = last == Some(Role::User) && next == Role::User;
        let answers = matches!(next, Role::Assistant | Role::Tool);
        let follows_input = last == Some(Role::User) || last == Some(Role::Tool);
        if both_users {
            return Some(message("assistant", &quoted(insert.bridge)));
        }
        (answers && !follows_input).then(|| message("user", &quoted(insert.reminder)))
    }

    /// The edit that replaces the first `cut` messages by `items`.
    fn replace_oldest(&self, cut: usize, items: Vec<Segment>) -> Edit {
        let head_end = self
            .leading_messages()
            .messages()
            .last()
            .map(|message| message.span.end);
        let start = head_end.unwrap_or_else(|| self.messages().first().map_or(0, |m| m.span.start));
        let end = match cut.checked_sub(1) {
            Some(last) => self.messages()[last].span.end,
            None => start,
        };
        // A comma stands before each item except the first of the array. Behind the items
        // follows the client's own comma or bracket, unless nothing was removed and nothing
        // stood before.
        let mut replacement = Vec::with_capacity(items.len() * 2);
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 || head_end.is_some() {
                replacement.push(Segment::Inserted(Bytes::from_static(b",")));
            }
            replacement.push(item);
        }
        if cut == 0 && head_end.is_none() && !replacement.is_empty() {
            replacement.push(Segment::Inserted(Bytes::from_static(b",")));
        }
        Edit {
            removed: start..end,
            replacement,
        }
    }

    /// The block as a message. Only a part of content can have a mark, so text with a mark is a part: the same prompt.
    fn block(&self, insert: &Insert<'_>, mark: Option<BlockMark<'_>>) -> String {
        let role = self.leading_messages().role();
        let parts = match (insert.placement, mark) {
            (Placement::Segments, _) => {
                let member = |index| mark.filter(|mark| mark.behind == index + 1);
                let texts = insert.segments.iter().enumerate();
                let parts = texts.map(|(index, text)| text_part(text, member(index)));
                parts.collect::<Vec<_>>().join(",")
            }
            (_, None) => return message(role, &quoted(&insert.segments.concat())),
            (_, Some(mark)) => {
                let (before, rest) = insert.segments.split_at(mark.behind);
                text_part(&before.concat(), Some(mark)) + &rest_part(rest)
            }
        };
        message(role, &format!("[{parts}]"))
    }

    /// Appends the block to the client's last leading message; `None` if it needs a message of its
    /// own: another placement, no such message, or no text to append to.
    fn append(&self, insert: &Insert<'_>, mark: Option<BlockMark<'_>>) -> Option<Edit> {
        if insert.placement != Placement::AppendToSystem {
            return None;
        }
        let span = self.content_of_last_leading()?;
        // Directly before the end of the string or the list.
        let at = span.end - 1;
        let marked = mark.map_or(insert.segments.len(), |mark| mark.behind);
        let (before, rest) = insert.segments.split_at(marked);
        let before = before.iter().map(String::as_str);
        let text: String = std::iter::once(BLOCK_SEPARATOR).chain(before).collect();
        match self.body()[span.start] {
            b'"' => {
                let inside = Segment::Inserted(inside_quotes(&text));
                let Some(mark) = mark else {
                    return Some(Edit::insert_segment(at, inside));
                };
                // The client's string becomes a text part, which can have a mark: the same prompt.
                let replacement = vec![
                    inserted_segment(r#"[{"type":"text","text":"#.to_owned()),
                    Segment::Original(span.start..at),
                    inside,
                    Segment::Original(at..span.end),
                    inserted_segment(format!(",{}}}{}]", mark.member, rest_part(rest))),
                ];
                Some(Edit {
                    removed: span,
                    replacement,
                })
            }
            b'[' => {
                let list = std::str::from_utf8(&self.body()[span.clone()]).ok()?;
                let last = last_element(list)?;
                // Some templates read the first part only.
                if let Some(end) = end_of_text_part(&list[last.clone()]) {
                    let inside = Segment::Inserted(inside_quotes(&text));
                    let at = span.start + last.start + end;
                    let Some(mark) = mark else {
                        return Some(Edit::insert_segment(at, inside));
                    };
                    // The same prompt. The mark becomes a member of the part, behind the text.
                    let end = span.start + last.end;
                    let replacement = vec![
                        inside,
                        Segment::Original(at..at + 1),
                        inserted_segment(format!(",{}", mark.member)),
                        Segment::Original(at + 1..end),
                        inserted_segment(rest_part(rest)),
                    ];
                    return Some(Edit {
                        removed: at..end,
                        replacement,
                    });
                }
                let parts = text_part(&text, mark) + &rest_part(rest);
                Some(Edit::insert(at, format!(",{parts}")))
            }
            _ => None,
        }
    }

    fn content_of_last_leading(&self) -> Option<Range<usize>> {
        let message = self.leading_messages().messages().last()?.span.clone();
        let text = std::str::from_utf8(&self.body()[message.clone()]).ok()?;
        let mut walk = Walk::object(text, 0)?;
        while let Some(key) = walk.key().ok()? {
            let value = walk.value().ok()?;
            if string::decode(&text[key]).is_some_and(|key| key == "content") {
                return Some(message.start + value.start..message.start + value.end);
            }
        }
        None
    }

    /// The edit that asks for usage, unless the client says yes or no itself.
    fn ask_usage(&self) -> Option<Edit> {
        let options = &self.options;
        if options.requested_usage.is_some() {
            return None;
        }
        let Some(span) = options.span.clone() else {
            let text = r#","stream_options":{"include_usage":true}"#;
            return Some(Edit::insert(self.close, text.to_owned()));
        };
        if options.null {
            return Some(Edit::replace(span, r#"{"include_usage":true}"#.to_owned()));
        }
        if let Some(null_span) = options.include_usage.clone() {
            return Some(Edit::replace(null_span, "true".to_owned()));
        }
        let inside = &self.body()[span.start + 1..span.end - 1];
        let comma = if inside.trim_ascii().is_empty() {
            ""
        } else {
            ","
        };
        Some(Edit::insert(
            span.end - 1,
            format!(r#"{comma}"include_usage":true"#),
        ))
    }
}

/// Where the last element of a list is. `None` if it has none.
fn last_element(list: &str) -> Option<Range<usize>> {
    let mut walk = Walk::array(list, 0)?;
    let mut last = None;
    while let Some(element) = walk.element().ok()? {
        last = Some(element);
    }
    last
}

/// Where the text of a part of content ends, before its quotation mark. `None` if the part has something besides its text. The
/// client's mark for the prompt cache stands at the end of what the client wrote. An empty one would stand beside that of the block.
fn end_of_text_part(part: &str) -> Option<usize> {
    let mut walk = Walk::object(part, 0)?;
    let (mut is_text, mut end) = (false, None);
    while let Some(key) = walk.key().ok()? {
        let key = string::decode(&part[key])?;
        let value = walk.value().ok()?;
        match &*key {
            "type" => is_text = string::decode(&part[value])? == "text",
            "text" if part[value.clone()].starts_with('"') => end = Some(value.end - 1),
            "text" => return None,
            // Some clients write all fields that there are.
            key if &part[value] == "null" && !is_cache_marker(key) => {}
            _ => return None,
        }
    }
    end.filter(|_| is_text)
}

fn inserted_segment(text: String) -> Segment {
    Segment::Inserted(Bytes::from(text))
}

fn message(role: &str, content: &str) -> String {
    format!(r#"{{"role":"{role}","content":{content}}}"#)
}

/// A part of content, with its mark.
fn text_part(text: &str, mark: Option<BlockMark<'_>>) -> String {
    let mark = mark.map_or_else(String::new, |mark| format!(",{}", mark.member));
    format!(r#"{{"type":"text","text":{}{mark}}}"#, quoted(text))
}

/// The part behind a mark, with the comma before it; empty if nothing stands there.
fn rest_part(rest: &[String]) -> String {
    if rest.is_empty() {
        return String::new();
    }
    format!(",{}", text_part(&rest.concat(), None))
}

/// `text` as a JSON string. The text of a block has kilobytes, so room for it is made once.
#[expect(
    clippy::expect_used,
    reason = "a vector takes every string, and JSON is UTF-8"
)]
fn quoted(text: &str) -> String {
    let mut json = Vec::with_capacity(text.len() + text.len() / 16 + 2);
    serde_json::to_writer(&mut json, text).expect("a string");
    String::from_utf8(json).expect("JSON")
}

/// What stands between the quotation marks of `text` as a JSON string.
fn inside_quotes(text: &str) -> Bytes {
    let json = Bytes::from(quoted(text));
    json.slice(1..json.len() - 1)
}
