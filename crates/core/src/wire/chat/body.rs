//! Reads the object of a request body: the messages, and the fields beside them that memory depends on.
//!
//! Can go on where an earlier body ended ([`TopLevel::read_more_messages`]). Then the text that is read is only the
//! end of the body, and every range is moved by its beginning. Called by [`super::parse`].

use std::ops::Range;
use std::sync::Arc;

use serde::de::IgnoredAny;

use super::fields::Fields;
use super::fingerprint::Reader;
use super::other_fields::OtherFields;
use super::parse_error::{ParseError, read};
use super::string;
use super::text::{Text, Tree};
use crate::history::{Message, Pepper, Role};
use crate::wire::scan::{self, Walk};

/// The members of the body's object, as far as they are read.
#[derive(Clone, Debug, Default)]
pub(super) struct TopLevel {
    /// Where the text that is read begins in the body.
    base: usize,
    pepper: Pepper,
    present: [bool; MEMORY_FIELDS.len()],
    pub(super) messages: Option<Messages>,
    pub(super) model: Option<Box<str>>,
    pub(super) stream: bool,
    pub(super) options: StreamOptions,
    pub(super) cache_retention: Option<Box<str>>,
    pub(super) other_fields: OtherFields,
    /// What stands in front of the messages.
    pub(super) before_messages: Option<Arc<Self>>,
}

/// Top-level fields that memory depends on. Other fields may stand twice and are forwarded twice.
const MEMORY_FIELDS: [&str; 4] = ["messages", "model", "stream", "stream_options"];

impl TopLevel {
    /// Nothing is read yet.
    pub(super) fn new(pepper: &Pepper) -> Self {
        Self {
            pepper: *pepper,
            ..Self::default()
        }
    }

    /// The memory that its fields hold beside it, without messages, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        let text = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
        text(&self.model) + text(&self.cache_retention) + self.other_fields.held_bytes()
    }

    /// The same for a text that begins at `base` in the body.
    pub(super) fn at(self, base: usize) -> Self {
        Self { base, ..self }
    }

    /// Reads the rest of the object and of the text. Returns where its closing brace stands in the body.
    pub(super) fn read(&mut self, text: &str, mut walk: Walk<'_>) -> Result<usize, ParseError> {
        while let Some(key) = walk.key()? {
            self.member(key, text, &mut walk)?;
        }
        if scan::skip_space(text.as_bytes(), walk.at()) != text.len() {
            return Err(ParseError::InvalidJson);
        }
        Ok(self.base + walk.at() - 1)
    }

    /// Reads the rest of the array of messages, which follows the first `count` of `messages`. Returns the walk that
    /// continues behind it.
    pub(super) fn read_more_messages<'t>(
        &mut self,
        text: &'t str,
        messages: &Messages,
        count: usize,
    ) -> Result<Walk<'t>, ParseError> {
        self.before_messages = Some(Arc::new(self.clone()));
        let mut elements = Walk::in_array(text, 0);
        let before = &messages.all[..count];
        let reader = Reader::resume(&self.pepper, before);
        let marked = messages.marked.iter().copied();
        let read = Messages {
            all: Arc::default(),
            marked: marked.filter(|at| *at < count).collect(),
            ..*messages
        };
        let read = read.read(text, self.base, &mut elements, (before, reader))?;
        self.messages = Some(read);
        Ok(Walk::in_object(text, elements.at()))
    }

    /// Reads the value of the key at `name`; `walk` stands at that value.
    fn member(
        &mut self,
        name: Range<usize>,
        text: &str,
        walk: &mut Walk<'_>,
    ) -> Result<(), ParseError> {
        let key = string::decode(&text[name.clone()]).ok_or(ParseError::InvalidJson)?;
        if let Some(index) = MEMORY_FIELDS.iter().position(|field| *field == key)
            && std::mem::replace(&mut self.present[index], true)
        {
            return Err(ParseError::DuplicateKey);
        }
        if key == "messages" {
            let mut elements =
                Walk::array(text, walk.at()).ok_or(ParseError::MessagesNotAnArray)?;
            self.before_messages = Some(Arc::new(self.clone()));
            let reader = Reader::new(&self.pepper);
            let read = Messages::default().read(text, self.base, &mut elements, (&[], reader))?;
            self.messages = Some(read);
            walk.resume(elements.at());
            return Ok(());
        }
        let span = walk.value()?;
        let json = &text[span.clone()];
        match &*key {
            "model" => {
                let model = read::<Option<Text<'_>>>(json)?;
                if model
                    .as_ref()
                    .is_some_and(|model| model.len() > MAX_MODEL_BYTES)
                {
                    return Err(ParseError::WrongType);
                }
                self.model = model.map(|model| (*model).into());
            }
            "stream" => self.stream = read::<Option<bool>>(json)?.unwrap_or_default(),
            "stream_options" => self.options = StreamOptions::read(text, span)?.at(self.base),
            "prompt_cache_retention" => {
                // The upstream judges any other spelling.
                self.cache_retention = serde_json::from_str::<Text<'_>>(json)
                    .ok()
                    .filter(|retention| retention.len() <= MAX_MODEL_BYTES)
                    .map(|retention| (*retention).into());
                read::<IgnoredAny>(json)?;
            }
            _ => {
                read::<IgnoredAny>(json)?;
                let base = self.base;
                self.other_fields.add(shift(name, base), shift(span, base));
            }
        }
        Ok(())
    }
}

/// A longer name is no model's. The name is kept in many places, so it must not be of any length. The longest real
/// ones are paths of files.
pub const MAX_MODEL_BYTES: usize = 4096;

/// A request with more messages has no memory. Each message costs some 200 bytes and several hashes whatever its
/// length, so a body of millions of tiny ones would cost gigabytes. The longest real conversations that were
/// seen have some thousands.
pub const MAX_MESSAGES: usize = 50_000;

/// The messages that are read.
#[derive(Clone, Debug)]
pub(super) struct Messages {
    pub(super) all: Arc<Vec<Message>>,
    pub(super) leading_count: usize,
    pub(super) leading_role: &'static str,
    pub(super) marked: Vec<usize>,
}

impl Default for Messages {
    fn default() -> Self {
        Self {
            all: Arc::default(),
            leading_count: 0,
            leading_role: "system",
            marked: Vec::new(),
        }
    }
}

impl Messages {
    /// Reads the messages that follow those `before`. `text` begins at `base` in the body.
    fn read(
        mut self,
        text: &str,
        base: usize,
        elements: &mut Walk<'_>,
        (before, mut reader): (&[Message], Reader<'_>),
    ) -> Result<Self, ParseError> {
        while elements.next_item()? {
            let start = elements.at();
            let (fields, end) = Fields::read(text, start)?;
            elements.resume(end);
            if fields.role == Role::System && self.leading_count == reader.count() {
                self.leading_count += 1;
                self.leading_role = if &*fields.raw_role == "developer" {
                    "developer"
                } else {
                    "system"
                };
            }
            if fields.has_cache_mark {
                self.marked.push(reader.count());
            }
            reader.message(&fields, shift(start..end, base));
            if reader.count() > MAX_MESSAGES {
                return Err(ParseError::TooManyMessages);
            }
        }
        let new = reader.finish();
        if before.is_empty() && new.is_empty() {
            return Err(ParseError::MessagesEmpty);
        }
        self.all = Arc::new(match before {
            [] => new,
            before => [before, &new].concat(),
        });
        Ok(self)
    }
}

/// The client's `stream_options`.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamOptions {
    /// The range of the value, if the key is there.
    pub(super) span: Option<Range<usize>>,
    /// The value is `null`.
    pub(super) null: bool,
    /// The range of the value of `include_usage`, if the key is there.
    pub(super) include_usage: Option<Range<usize>>,
    pub(super) requested_usage: Option<bool>,
}

impl StreamOptions {
    /// The same in a body in which the text begins at `base`.
    fn at(self, base: usize) -> Self {
        Self {
            span: self.span.map(|span| shift(span, base)),
            include_usage: self.include_usage.map(|span| shift(span, base)),
            ..self
        }
    }

    fn read(text: &str, span: Range<usize>) -> Result<Self, ParseError> {
        let mut options = Self {
            span: Some(span.clone()),
            ..Self::default()
        };
        let value: Tree<'_> = read(&text[span.clone()])?;
        options.null = value == Tree::Null;
        let Some(mut walk) = Walk::object(text, span.start) else {
            return if options.null {
                Ok(options)
            } else {
                Err(ParseError::WrongType)
            };
        };
        while let Some(key) = walk.key()? {
            let key = string::decode(&text[key]).ok_or(ParseError::InvalidJson)?;
            let value = walk.value()?;
            if key == "include_usage" {
                options.requested_usage = read(&text[value.clone()])?;
                if options.include_usage.replace(value).is_some() {
                    return Err(ParseError::DuplicateKey);
                }
            }
        }
        Ok(options)
    }
}

/// The range in a body in which the text begins at `base`.
fn shift(range: Range<usize>, base: usize) -> Range<usize> {
    range.start + base..range.end + base
}
