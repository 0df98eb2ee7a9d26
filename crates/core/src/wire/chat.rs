//! OpenAI chat completions: from a request body to its messages and their positions.
//!
//! [`parse`] is strict. A body that is not certainly a good request is a [`ParseError`]: it is
//! forwarded as it came, without memory, and the upstream judges it. Parsing never panics, never
//! recurses deeper than [`serde_json`] allows, and takes linear time. One scan finds the extents; then
//! every value is validated at its extent, text by [`string`], the rest by `serde_json`. Values without
//! escapes are borrowed.
//!
//! Lone surrogates (`\ud800` without its second half) are refused, because no two readers agree on
//! them.

mod arguments;
mod assemble;
mod attachment_bytes;
mod attachments;
mod body;
mod cache_mark;
mod content;
mod fields;
mod fingerprint;
mod other_fields;
mod parse_error;
mod plain_text;
mod prefix;
mod string;
mod text;
mod url;

pub use self::attachments::Attachment;
pub use self::body::{MAX_MESSAGES, MAX_MODEL_BYTES};
use self::body::{Messages, StreamOptions, TopLevel};
use self::content::ContentItem;
use self::fields::Fields;
use self::fingerprint::Reader;
pub use self::other_fields::FieldValue;
use self::other_fields::OtherFields;
pub use self::parse_error::ParseError;
pub use self::prefix::ParsedPrefix;
use super::scan::{self, Walk};
use crate::history::{History, Message, MessagePiece, Pepper, PlainText, PromptFields, Scope};
use bytes::Bytes;
use std::borrow::Cow;
use std::sync::Arc;

/// A chat-completions request: its bytes, and where everything stands that memory needs.
#[derive(Clone, Debug)]
pub struct ChatRequest {
    body: Bytes,
    /// All messages in order, the leading system messages first.
    messages: Arc<Vec<Message>>,
    leading_count: usize,
    /// The messages with a mark for the provider's cache, by their place in `messages`.
    marked: Vec<usize>,
    /// The client's spelling of the role of its last leading message.
    leading_role: &'static str,
    model: Option<Box<str>>,
    stream: bool,
    options: StreamOptions,
    cache_retention: Option<Box<str>>,
    other_fields: OtherFields,
    /// The position of the object's closing brace.
    close: usize,
    /// What stands in front of the messages.
    before_messages: Option<Arc<TopLevel>>,
}

/// The client's leading system and developer messages. They are in no chain, because they carry clocks
/// and change; the observation block follows them.
#[derive(Clone, Copy, Debug)]
pub struct LeadingMessages<'a> {
    messages: &'a [Message],
    role: &'static str,
}

impl<'a> LeadingMessages<'a> {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.messages.len()
    }

    /// The messages in order; their spans are what is forwarded.
    pub fn messages(&self) -> &'a [Message] {
        self.messages
    }

    /// `system` or `developer`, as the client spells its last one; `system` if it has none.
    pub fn role(&self) -> &'static str {
        self.role
    }
}

/// Reads a request body whose hashes are not stored, or are stored without a pepper.
pub fn parse(body: &Bytes) -> Result<ChatRequest, ParseError> {
    parse_peppered(body, &Pepper::NONE)
}

/// Reads a request body. The fingerprints of its messages are keyed by `pepper`.
pub fn parse_peppered(body: &Bytes, pepper: &Pepper) -> Result<ChatRequest, ParseError> {
    let text = std::str::from_utf8(body).map_err(|_| ParseError::InvalidUtf8)?;
    let start = scan::skip_space(body, 0);
    let members = Walk::object(text, start).ok_or(ParseError::NotAnObject)?;
    let mut top = TopLevel::new(pepper);
    let close = top.read(text, members)?;
    ChatRequest::new(body, top, close)
}

/// Reads a request body that begins with the bytes of `prefix`: the result is that of [`parse_peppered`], with the
/// pepper of the first body. Only what follows the prefix is read.
///
/// The caller guarantees the bytes. If they differ, the result is wrong.
pub fn parse_grown(body: &Bytes, prefix: &ParsedPrefix) -> Result<ChatRequest, ParseError> {
    let start = prefix.bytes();
    let rest = body.get(start..).ok_or(ParseError::InvalidJson)?;
    let text = std::str::from_utf8(rest).map_err(|_| ParseError::InvalidUtf8)?;
    let mut top = prefix.top_level();
    let members = top.read_more_messages(text, prefix.messages(), prefix.message_count())?;
    let close = top.read(text, members)?;
    ChatRequest::new(body, top, close)
}

/// Reads one message alone, as an answer contains it.
pub fn message(json: &str, pepper: &Pepper) -> Option<Message> {
    let (fields, end) = Fields::read(json, 0).ok()?;
    let mut reader = Reader::new(pepper);
    reader.message(&fields, 0..end);
    reader.finish().pop()
}

impl ChatRequest {
    /// The request of a `body` whose object is read and ends at `close`.
    fn new(body: &Bytes, top: TopLevel, close: usize) -> Result<Self, ParseError> {
        let messages = top.messages.ok_or(ParseError::MessagesMissing)?;
        Ok(Self {
            body: body.clone(),
            messages: messages.all,
            leading_count: messages.leading_count,
            marked: messages.marked,
            leading_role: messages.leading_role,
            model: top.model,
            stream: top.stream,
            options: top.options,
            cache_retention: top.cache_retention,
            other_fields: top.other_fields,
            close,
            before_messages: top.before_messages,
        })
    }

    /// What was read of the first `most` bytes of the body, for [`parse_grown`]: it ends with a message. `None` if no
    /// message ends there, or only leading ones do.
    pub fn prefix(&self, most: usize) -> Option<ParsedPrefix> {
        let count = self
            .messages
            .partition_point(|message| message.span.end <= most);
        let before_messages = self.before_messages.clone()?;
        if count <= self.leading_count {
            return None;
        }
        let messages = Messages {
            all: Arc::clone(&self.messages),
            leading_count: self.leading_count,
            leading_role: self.leading_role,
            marked: self.marked.clone(),
        };
        Some(ParsedPrefix::new(before_messages, messages, count))
    }

    /// The body as received.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The requested model.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// The value of a field beside the messages: `session_id`, `metadata.chat_id`. `None` if it is
    /// missing. Not for fields that chat completions reads itself (`model`).
    pub fn field(&self, path: &str) -> Option<FieldValue> {
        self.other_fields.get(&self.body, path)
    }

    /// The hash of the fields beside the messages that are part of the prompt (`tools`); `None` if there are
    /// none. Not for the request path.
    pub fn prompt_fields(&self) -> Option<PromptFields> {
        self.other_fields.prompt_fields(&self.body)
    }

    /// Whether the client wants a stream.
    pub fn stream(&self) -> bool {
        self.stream
    }

    /// `stream_options.include_usage` as written.
    pub fn requested_usage(&self) -> Option<bool> {
        self.options.requested_usage
    }

    /// How long the client wants the provider to keep the prompt in its cache: in OpenAI's words, or those of the last
    /// mark for Anthropic's cache. Reads marked messages again.
    pub fn cache_retention(&self) -> Option<Cow<'_, str>> {
        let named = self.cache_retention.as_deref().map(Cow::Borrowed);
        named.or_else(|| self.mark_lifetime().map(Cow::Owned))
    }

    /// The messages with a mark for the provider's cache, by their place among all messages.
    pub fn marked_messages(&self) -> &[usize] {
        &self.marked
    }

    /// Whether `prompt_cache_key` may be added (see [`crate::wire::Request::takes_cache_key`]).
    pub fn takes_cache_key(&self) -> bool {
        let fields = &self.other_fields;
        !fields.may_have(&self.body, "prompt_cache_key") && !fields.may_have(&self.body, "user")
    }

    /// How many messages the client sent, with leading ones.
    pub fn message_count(&self) -> usize {
        self.messages.len()
    }

    /// The client's leading system and developer messages.
    pub fn leading_messages(&self) -> LeadingMessages<'_> {
        LeadingMessages {
            messages: &self.messages[..self.leading_count],
            role: self.leading_role,
        }
    }

    /// The messages behind the leading ones.
    pub fn messages(&self) -> &[Message] {
        &self.messages[self.leading_count..]
    }

    /// The texts among which an answer of the model may stand as a summary: of the last leading
    /// message, and of the messages at `indices`. Each comes with the number of messages up to and
    /// including it. Messages of fewer than `least_bytes` of JSON are left out. Reads these messages again; for requests
    /// that are not known.
    pub fn first_texts(
        &self,
        indices: impl Iterator<Item = usize>,
        least_bytes: usize,
    ) -> Vec<(usize, String)> {
        let leading = self
            .leading_messages()
            .messages()
            .last()
            .map(|message| (0, message));
        let after = indices.filter_map(|at| Some((at + 1, self.messages().get(at)?)));
        leading
            .into_iter()
            .chain(after)
            .filter(|(_, message)| message.calls.is_empty() && message.answers.is_none())
            // No text is longer than the JSON of its message.
            .filter(|(_, message)| message.span.len() >= least_bytes)
            .filter_map(|(place, message)| Some((place, self.text(message)?)))
            .collect()
    }

    fn text(&self, message: &Message) -> Option<String> {
        let fields = self.fields(message)?;
        let mut items = content::items(&fields);
        // Most messages are one text. It is copied once.
        if let [ContentItem::Text(text)] = &mut items[..] {
            return Some(std::mem::take(text).into_owned());
        }
        let plain = plain_text::plain_text(&fields);
        let texts: Vec<&str> = plain
            .pieces
            .iter()
            .filter_map(|piece| match piece {
                MessagePiece::Text(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        Some(texts.concat())
    }

    /// The messages behind the leading ones, chained under `scope`.
    pub fn history(&self, scope: &Scope) -> History {
        History::chain(scope, self.messages().iter().cloned())
    }

    /// The plain text of one message of [`ChatRequest::messages`]. Not for the request path: it
    /// reads the message again and copies its text.
    pub fn plain_text(&self, index: usize) -> Option<PlainText> {
        self.fields(self.messages().get(index)?)
            .map(|fields| plain_text::plain_text(&fields))
    }

    /// The same for a reader. A tag at the beginning or end of a text part of a user message gets a
    /// line of its own.
    pub fn reader_text(&self, index: usize) -> Option<PlainText> {
        self.fields(self.messages().get(index)?)
            .map(|fields| plain_text::reader_text(&fields))
    }

    /// The plain texts of the client's leading system and developer messages. Not for the request
    /// path.
    pub fn leading_plain_texts(&self) -> Vec<PlainText> {
        let fields = self
            .leading_messages()
            .messages
            .iter()
            .map(|message| self.fields(message));
        fields
            .flatten()
            .map(|fields| plain_text::plain_text(&fields))
            .collect()
    }

    /// The attachments of one message, in the order of their placeholders in
    /// [`ChatRequest::plain_text`]. Not for the request path.
    pub fn attachments(&self, index: usize) -> Vec<Attachment> {
        let fields = self
            .messages()
            .get(index)
            .and_then(|message| self.fields(message));
        fields.map_or_else(Vec::new, |fields| attachments::attachments(&fields))
    }

    fn fields(&self, message: &Message) -> Option<Fields<'_>> {
        // Both always succeed for a span that parsing returned.
        let json = std::str::from_utf8(self.body.get(message.span.clone())?).ok()?;
        Some(Fields::read(json, 0).ok()?.0)
    }
}

#[cfg(test)]
mod fingerprint_tests;
#[cfg(test)]
mod splice_tests;
#[cfg(test)]
mod tests;
