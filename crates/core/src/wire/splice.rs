//! The outgoing body: ranges of the received body, with inserted bytes between them.

use std::ops::Range;

use bytes::Bytes;

/// A piece of an outgoing body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// These bytes of the received body.
    Original(Range<usize>),
    /// Bytes of our own.
    Inserted(Bytes),
}

/// An outgoing body as a sequence of segments. Empty segments are dropped and adjacent ranges are
/// merged, so an unchanged body is one range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Splice {
    segments: Vec<Segment>,
    len: usize,
    /// Messages in the outgoing body.
    pub(super) messages: usize,
}

impl Splice {
    /// An empty body, to which segments with so many messages are appended.
    pub(super) fn with_message_count(messages: usize) -> Self {
        Self {
            messages,
            ..Self::default()
        }
    }

    /// Appends a segment.
    pub fn push(&mut self, segment: Segment) {
        let len = match &segment {
            Segment::Original(range) => range.len(),
            Segment::Inserted(bytes) => bytes.len(),
        };
        if len == 0 {
            return;
        }
        self.len += len;
        match (self.segments.last_mut(), segment) {
            (Some(Segment::Original(last)), Segment::Original(next)) if last.end == next.start => {
                last.end = next.end;
            }
            (_, segment) => self.segments.push(segment),
        }
    }

    /// How many messages the outgoing body has, with the leading ones.
    pub fn message_count(&self) -> usize {
        self.messages
    }

    /// The segments in order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Length of the outgoing body in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is sent.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether exactly the received body is sent.
    pub fn is_identity(&self, body: &Bytes) -> bool {
        matches!(&*self.segments, [Segment::Original(range)] if *range == (0..body.len()))
    }

    /// The outgoing body as slices that share the memory of `body`, the received body.
    ///
    /// # Panics
    /// If `body` is shorter than the one that this splice was made for.
    pub fn frames(&self, body: &Bytes) -> Vec<Bytes> {
        self.segments
            .iter()
            .map(|segment| match segment {
                Segment::Original(range) => body.slice(range.clone()),
                Segment::Inserted(bytes) => bytes.clone(),
            })
            .collect()
    }
}

/// Where the observation block goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// A system message of its own behind the client's leading ones.
    SystemMessage,
    /// The end of the client's last leading system message, for upstreams that take only one.
    AppendToSystem,
    /// A system message of its own with one text part for each segment.
    Segments,
}

impl Placement {
    const ALL: [Self; 3] = [Self::SystemMessage, Self::AppendToSystem, Self::Segments];

    /// The name in the configuration, the store and the audit.
    pub fn name(self) -> &'static str {
        match self {
            Self::SystemMessage => "system_message",
            Self::AppendToSystem => "append_to_system",
            Self::Segments => "segments",
        }
    }

    /// The inverse of [`Placement::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|placement| placement.name() == name)
    }
}

/// What is added to a request besides the block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Additions<'a> {
    /// The question for usage in the stream, if the client leaves it open.
    pub usage: bool,
    /// One of the client's cache marks at the end of the block, if the cut removes them.
    pub cache_mark: bool,
    /// The value of `prompt_cache_key`, beside a block only. See [`super::Request::takes_cache_key`].
    pub cache_key: Option<&'a str>,
    /// A breakpoint for the prompt cache behind so many segments of the block: those that stay when it grows. See
    /// [`super::Request::takes_cache_breakpoint`].
    pub cache_breakpoint: Option<usize>,
}

/// The member of the body that [`Additions::cache_key`] adds. `key` needs no escapes.
pub fn cache_key_member(key: &str) -> String {
    format!(r#","prompt_cache_key":"{key}""#)
}

/// What memory puts in place of a client's oldest messages. Indices count the messages behind the
/// leading ones.
#[derive(Clone, Copy, Debug)]
pub struct Insert<'a> {
    /// How many messages the block replaces; they are left out, except those in `front`.
    pub cut: usize,
    /// Messages among them that the block does not cover: they stay raw, before it, in order.
    pub front: &'a [usize],
    /// The one of them that stands raw between block and tail.
    pub pin: Option<usize>,
    /// The text of the block in order.
    pub segments: &'a [String],
    /// Where the block goes.
    pub placement: Placement,
    /// The text of a user message before a tail that would begin with the assistant.
    pub reminder: &'a str,
    /// The text of an assistant message between two user messages, if the messages between them are
    /// covered.
    pub bridge: &'a str,
}
