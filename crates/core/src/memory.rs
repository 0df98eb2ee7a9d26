//! All decisions about memory. Pure: no async, no I/O, no clock; the same functions decide in
//! production, in tests and in replays.
//!
//! Only [`select`] runs on the request path: it says which snapshot replaces the oldest messages. Off
//! the request path, [`advance`] says what to observe, reflect or prepare next; [`observe`] and
//! [`reflect`] write prompts and read answers; [`render`] writes the block that is sent. The types here
//! are the words of the store: a *chunk* observes a range of links, a *reflection* condenses a run of
//! parts, a *snapshot* is what can be sent. All three are immutable.

pub mod advance;
pub mod alignment;
mod cache_prices;
pub mod code_reflection;
mod cost_rules;
pub mod dates;
mod log_entries;
pub mod message_tokens;
pub mod observe;
mod output;
pub mod pattern;
pub mod peer_memory;
pub mod policy;
pub mod prompt;
pub mod prompt_cache;
pub mod provenance;
pub mod record;
pub mod redact;
pub mod reflect;
pub mod render;
mod repetition;
pub mod retention;
pub mod select;
pub mod system_messages;
mod token_ratio;
pub mod transcript;
pub mod trim;

pub use cache_prices::with_cache_prices;
pub use cost_rules::CostRules;
pub use pattern::Pattern;
pub use peer_memory::PeerMemory;
pub use policy::{EarlyTriggers, IdleTrigger, Policy};
pub use token_ratio::{PromptGrowth, TokenRatio};
pub use trim::Trim;

use std::sync::Arc;

use crate::history::{Link, Role};

/// What is stored about one message of an accepted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its link.
    pub link: Link,
    /// How many messages the chain holds up to and including it (1 for the first).
    pub count: usize,
    /// The role of its author.
    pub role: Role,
    /// Its tokens: counted once, stored, never changed.
    pub tokens: u32,
    /// Whether every tool call up to here is answered.
    pub closed: bool,
    /// Whether a turn ends here: an answer of the assistant that calls no tool.
    pub turn_end: bool,
    /// The length of the first accepted request that carried it.
    pub first_length: usize,
    /// Whether a longer accepted request carried it again: it was carried by two answered requests.
    /// Only then may it be observed.
    pub confirmed: bool,
    /// When it was first seen, in milliseconds since 1970.
    pub received_ms: i64,
    /// Whether Diarist saw the message when it was new. False for history that came with the first
    /// request: the transcript gives it no minute.
    pub live: bool,
}

/// The id of a chunk or a reflection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartId(pub i64);

/// The id of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotId(pub i64);

/// The kinds of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PartKind {
    /// An observation of a range of messages.
    Chunk,
    /// A condensation of all parts before it.
    Reflection,
}

impl PartKind {
    /// The stable name in the store.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chunk => "chunk",
            Self::Reflection => "reflection",
        }
    }
}

/// A range `(from, to]` of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The link before the first message covered (the root link for the first chunk).
    pub from: Link,
    /// Messages before the range.
    pub from_count: usize,
    /// The link of the last message covered.
    pub to: Link,
    /// Messages up to the end of the range.
    pub to_count: usize,
}

impl Span {
    /// Whether `spans` follow each other without a gap from the first message of a history to `to`. Without spans,
    /// nothing is missing.
    pub fn cover_up_to<'a>(mut spans: impl Iterator<Item = &'a Self>, to: &Link) -> bool {
        let Some(first) = spans.next() else {
            return true;
        };
        let end = spans.try_fold(first.to, |end, span| (span.from == end).then_some(span.to));
        first.from_count == 0 && end == Some(*to)
    }
}

/// A chunk or a reflection without its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartMeta {
    /// Its id; unique in the store.
    pub id: PartId,
    /// What it is.
    pub kind: PartKind,
    /// What it covers. A reflection starts at the root.
    pub span: Span,
    /// The most tokens that its text can have in a block ([`render::max_tokens`]).
    pub tokens: u32,
    /// Tokens of the messages it covers.
    pub message_tokens: u32,
    /// Whether an operator requested it. Such a reflection is used at once, however long the log
    /// is.
    pub requested: bool,
    /// Whether it is a code-written reflection: code wrote it because the log had reached its hard
    /// limit before a Reflector answered. A later answer of a Reflector for the same parts, or for
    /// the first of them, is preferred.
    pub code_reflection: bool,
}

/// What is known about how a part was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartAnalysis {
    /// The messages each of its lines comes from.
    pub line_sources: provenance::LineSources,
    /// What it retained of the text it was made from.
    pub retention: retention::Retention,
    /// What it lost of that text, by name. `None` if nobody noted it.
    pub lost: Option<retention::LostItems>,
}

/// A chunk or a reflection, before it has an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPart {
    /// What it is.
    pub kind: PartKind,
    /// What it covers.
    pub span: Span,
    /// The text that is sent, without hints.
    pub text: String,
    /// The most tokens that `text` can have in a block ([`render::max_tokens`]).
    pub tokens: u32,
    /// Tokens of the messages it covers.
    pub message_tokens: u32,
    /// The task of the conversation at the end of the range.
    pub current_task: Option<String>,
    /// How the Observer would continue.
    pub suggested_response: Option<String>,
    /// The parts a reflection condensed, in order; empty for a chunk.
    pub sources: Vec<PartId>,
    /// The model that wrote it; `code` if code did.
    pub model: String,
    /// See [`PartMeta::requested`].
    pub requested: bool,
    /// See [`PartMeta::code_reflection`].
    pub code_reflection: bool,
    /// Where its lines come from and what they retained. Never sent.
    pub analysis: PartAnalysis,
}

impl NewPart {
    /// The part without its text, under its new `id`.
    pub fn meta(&self, id: PartId) -> PartMeta {
        PartMeta {
            id,
            kind: self.kind,
            span: self.span,
            tokens: self.tokens,
            message_tokens: self.message_tokens,
            requested: self.requested,
            code_reflection: self.code_reflection,
        }
    }
}

/// How a part is written in blocks. Fixed when it first stands in a block, so a growing block keeps its
/// bytes on every chain that sends the part (INV-PREFIX).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rendering {
    /// The preamble version of a block that begins with this part.
    pub preamble: u32,
    /// The day that its dates are related to.
    pub as_of: jiff::civil::Date,
}

/// A chunk or a reflection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its id.
    pub id: PartId,
    /// How it is written; `None` until a block holds it.
    pub rendering: Option<Rendering>,
    /// Everything else.
    pub body: NewPart,
}

/// Why a snapshot was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SnapshotCause {
    /// The raw history reached `message_tokens`.
    Threshold,
    /// The observations reached `observation_tokens` and a reflection replaced them.
    Reflection,
    /// The provider refused a request as too long.
    Overflow,
    /// The conversation was idle for longer than its provider keeps a prompt in its cache.
    Idle,
    /// The request asks another model than before; the cache of that model holds nothing of the
    /// conversation.
    ModelChange,
    /// The client no longer sends what it covers.
    Dropped,
    /// Another conversation of the same user has new observations; the snapshot covers no message.
    PeerMemory,
}

impl SnapshotCause {
    pub const ALL: [Self; 7] = [
        Self::Threshold,
        Self::Reflection,
        Self::Overflow,
        Self::Idle,
        Self::ModelChange,
        Self::Dropped,
        Self::PeerMemory,
    ];

    /// The stable name in the store and the audit.
    pub fn name(self) -> &'static str {
        match self {
            Self::Threshold => "threshold",
            Self::Reflection => "reflection",
            Self::Overflow => "overflow",
            Self::Idle => "idle",
            Self::ModelChange => "model_change",
            Self::Dropped => "dropped",
            Self::PeerMemory => "others",
        }
    }

    /// The inverse of [`SnapshotCause::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.name() == name)
    }
}

/// A snapshot without its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotMeta {
    /// Its id.
    pub id: SnapshotId,
    /// The last link it covers.
    pub to: Link,
    /// How many messages it covers.
    pub to_count: usize,
    /// The chain length from which it may be used.
    pub eligible_from: usize,
    /// Index of the user message that stands raw between the block and the tail.
    pub pin: Option<usize>,
    /// Its parts in order.
    pub parts: Vec<PartId>,
    /// Tokens of its parts as they are sent ([`render::log_tokens`]).
    pub tokens: u32,
    /// Why it was made.
    pub cause: SnapshotCause,
    /// Where its block stands: the name of the placement configured when it was made. Empty if it
    /// is older than this field and was never sent.
    pub placement: String,
    /// Its memory of other conversations, and which requests may get it for that reason. `None` if
    /// it has none: then every request with its prefix may get it.
    pub peer_memory: Option<Arc<PeerMemory>>,
}

impl SnapshotMeta {
    /// Whether it covers no message: it puts memory of other conversations before a whole history.
    pub fn is_peer_intro(&self) -> bool {
        self.to_count == 0
    }
}

/// What can be sent instead of a prefix. Its text never changes: the same request goes out as the same
/// bytes for as long as the snapshot exists (INV-SAME).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Everything except the text.
    pub meta: SnapshotMeta,
    /// The text in order: preamble, one segment for each part, other conversations, hints. The next
    /// activation changes nothing before the last two (INV-PREFIX).
    pub segments: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Scope;

    /// A part of another conversation may have the number of one that is gone.
    #[test]
    fn spans_cover_a_history_only_without_a_gap_and_up_to_its_end() {
        let link = |name: &[u8]| Link::root(&Scope::new(name, None));
        let [root, one, two, other] = [b"r", b"1", b"2", b"o"].map(|name| link(name));
        let span = |(from, from_count), (to, to_count)| Span {
            from,
            from_count,
            to,
            to_count,
        };
        let (first, second) = (span((root, 0), (one, 4)), span((one, 4), (two, 6)));
        let strange = span((root, 0), (other, 4));
        for (spans, to, covered) in [
            (&[first, second][..], two, true),
            (&[first], one, true),
            (&[], two, true),
            (&[first, second], one, false),
            (&[strange, second], two, false),
            (&[first, strange], two, false),
            (&[second], two, false),
            (&[strange], one, false),
        ] {
            assert_eq!(Span::cover_up_to(spans.iter(), &to), covered, "{spans:?}");
        }
    }
}
