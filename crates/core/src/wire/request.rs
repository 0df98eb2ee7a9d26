//! A request in one of the wire formats that memory reads.
//!
//! The rest of the program knows requests by these methods alone. A further format is one more variant, with
//! a module beside [`chat`] that reads it. Called by the proxy, the jobs module and the audit.

use std::borrow::Cow;

use bytes::Bytes;

use super::chat::{
    self, Attachment, ChatRequest, FieldValue, LeadingMessages, ParseError, ParsedPrefix,
};
use super::{Additions, Insert, Splice};
use crate::history::{History, Message, Pepper, PlainText, PromptFields, Scope};

/// A request: its bytes, and where everything stands that memory needs.
#[derive(Clone, Debug)]
pub enum Request {
    /// OpenAI chat completions.
    Chat(ChatRequest),
}

impl Request {
    /// Reads the body of a chat-completions request, as [`chat::parse`].
    pub fn parse_chat(body: &Bytes) -> Result<Self, ParseError> {
        chat::parse(body).map(Self::Chat)
    }

    /// Reads the body of a chat-completions request, as [`chat::parse_peppered`].
    pub fn parse_chat_peppered(body: &Bytes, pepper: &Pepper) -> Result<Self, ParseError> {
        chat::parse_peppered(body, pepper).map(Self::Chat)
    }

    /// Reads the body of a chat-completions request that begins with the bytes of `prefix`, as
    /// [`chat::parse_grown`].
    pub fn parse_grown(body: &Bytes, prefix: &ParsedPrefix) -> Result<Self, ParseError> {
        chat::parse_grown(body, prefix).map(Self::Chat)
    }

    /// What was read of the first `most` bytes of the body, for [`Request::parse_grown`].
    pub fn prefix(&self, most: usize) -> Option<ParsedPrefix> {
        let Self::Chat(chat) = self;
        chat.prefix(most)
    }

    /// The body as received.
    pub fn body(&self) -> &Bytes {
        let Self::Chat(chat) = self;
        chat.body()
    }

    /// The requested model.
    pub fn model(&self) -> Option<&str> {
        let Self::Chat(chat) = self;
        chat.model()
    }

    /// The value of a field beside the messages: `session_id`, `metadata.chat_id`. `None` if it is
    /// missing. Not for fields that the format reads itself (`model`).
    pub fn field(&self, path: &str) -> Option<FieldValue> {
        let Self::Chat(chat) = self;
        chat.field(path)
    }

    /// The hash of the fields beside the messages that are part of the prompt (`tools`); `None` if there are
    /// none. Not for the request path.
    pub fn prompt_fields(&self) -> Option<PromptFields> {
        let Self::Chat(chat) = self;
        chat.prompt_fields()
    }

    /// Whether the client wants a stream.
    pub fn stream(&self) -> bool {
        let Self::Chat(chat) = self;
        chat.stream()
    }

    /// Whether the client asks for token counts in the stream. `None` if it leaves this open.
    pub fn requested_usage(&self) -> Option<bool> {
        let Self::Chat(chat) = self;
        chat.requested_usage()
    }

    /// How long the client wants the provider to keep the prompt in its cache (see
    /// [`ChatRequest::cache_retention`]). Not for the request path.
    pub fn cache_retention(&self) -> Option<Cow<'_, str>> {
        let Self::Chat(chat) = self;
        chat.cache_retention()
    }

    /// The messages with a mark for the provider's cache, by their place among all messages.
    pub fn marked_messages(&self) -> &[usize] {
        let Self::Chat(chat) = self;
        chat.marked_messages()
    }

    /// Whether `prompt_cache_key` may be added: the client set neither that nor `user`, by which providers route
    /// requests that have no key.
    pub fn takes_cache_key(&self) -> bool {
        let Self::Chat(chat) = self;
        chat.takes_cache_key()
    }

    /// Whether the block may have a breakpoint for the prompt cache (`prompt_cache_breakpoint`): the client set no mark
    /// and no option for its cache.
    pub fn takes_cache_breakpoint(&self) -> bool {
        let Self::Chat(chat) = self;
        chat.takes_cache_breakpoint()
    }

    /// Whether the block of `insert` takes over one of the client's cache marks.
    pub fn takes_over_mark(&self, insert: &Insert<'_>) -> bool {
        let Self::Chat(chat) = self;
        chat.takes_over_mark(insert)
    }

    /// How many messages the client sent, with leading ones.
    pub fn message_count(&self) -> usize {
        let Self::Chat(chat) = self;
        chat.message_count()
    }

    /// The client's leading system and developer messages.
    pub fn leading_messages(&self) -> LeadingMessages<'_> {
        let Self::Chat(chat) = self;
        chat.leading_messages()
    }

    /// The messages behind the leading ones.
    pub fn messages(&self) -> &[Message] {
        let Self::Chat(chat) = self;
        chat.messages()
    }

    /// The texts among which an answer of the model may stand as a summary (see [`ChatRequest::first_texts`]).
    pub fn first_texts(
        &self,
        indices: impl Iterator<Item = usize>,
        least_bytes: usize,
    ) -> Vec<(usize, String)> {
        let Self::Chat(chat) = self;
        chat.first_texts(indices, least_bytes)
    }

    /// The messages behind the leading ones, chained under `scope`.
    pub fn history(&self, scope: &Scope) -> History {
        History::chain(scope, self.messages().iter().cloned())
    }

    /// The same for a request that was read behind `prefix`.
    pub fn history_behind(&self, prefix: &ParsedPrefix, scope: &Scope) -> History {
        History::chain_behind(prefix.chain(), scope, self.messages().iter().cloned())
    }

    /// The plain text of one message of [`Request::messages`]. Not for the request path: it reads the message
    /// again and copies its text.
    pub fn plain_text(&self, index: usize) -> Option<PlainText> {
        let Self::Chat(chat) = self;
        chat.plain_text(index)
    }

    /// The same for a reader. A tag at the beginning or end of a text part of a user message gets a line of
    /// its own.
    pub fn reader_text(&self, index: usize) -> Option<PlainText> {
        let Self::Chat(chat) = self;
        chat.reader_text(index)
    }

    /// The plain texts of the client's leading system and developer messages. Not for the request path.
    pub fn leading_plain_texts(&self) -> Vec<PlainText> {
        let Self::Chat(chat) = self;
        chat.leading_plain_texts()
    }

    /// The attachments of one message, in the order of their placeholders in [`Request::plain_text`]. Not for
    /// the request path.
    pub fn attachments(&self, index: usize) -> Vec<Attachment> {
        let Self::Chat(chat) = self;
        chat.attachments(index)
    }

    /// The outgoing body, with `memory` in place of the oldest messages (see [`ChatRequest::splice`]).
    pub fn splice(&self, memory: Option<&Insert<'_>>, additions: Additions<'_>) -> Splice {
        let Self::Chat(chat) = self;
        chat.splice(memory, additions)
    }
}
