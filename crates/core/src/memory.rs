//! Decisions about memory. Pure: no async, no I/O, no clock; the same functions decide in tests,
//! in replay and in production.
//!
//! On the request path only [`select`] runs: which snapshot may stand in for the oldest messages.
//! Off it [`advance`] says what is to be observed, reflected or prepared next, `observe` and
//! `reflect` write prompts and read answers, `render` writes the block that is sent. The types here
//! are the vocabulary of the store: a *chunk* observes a range of links, a *reflection* condenses a
//! run of chunks, a *snapshot* is what can be sent. All three are immutable.

pub mod advance;
pub mod alignment;
pub mod code_reflection;
pub mod dates;
mod log_entries;
pub mod message_tokens;
pub mod observe;
mod output;
pub mod pattern;
pub mod peer_memory;
pub mod policy;
pub mod prompt;
pub mod provenance;
pub mod record;
pub mod redact;
pub mod reflect;
pub mod render;
mod repetition;
pub mod retention;
pub mod select;
pub mod system_messages;
pub mod transcript;
pub mod trim;

pub use pattern::Pattern;
pub use peer_memory::PeerMemory;
pub use policy::{EarlyTriggers, IdleTrigger, Policy};
pub use trim::Trim;

use std::sync::Arc;

use crate::history::{Link, Role};

/// What is kept of one message of an accepted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its link.
    pub link: Link,
    /// How many messages the chain holds up to and including it (1 for the first).
    pub count: usize,
    /// Who speaks.
    pub role: Role,
    /// Its tokens. Counted once, stored, never changed.
    pub tokens: u32,
    /// Whether every tool call up to here is answered.
    pub closed: bool,
    /// Whether a turn ends here: an answer of the assistant that calls no tool.
    pub turn_end: bool,
    /// Length of the first accepted request that carried it.
    pub first_length: usize,
    /// Whether a longer accepted request carried it again: only then may it be observed.
    pub confirmed: bool,
    /// When it was first seen, in milliseconds since 1970.
    pub received_ms: i64,
    /// Whether it was seen as it was said; false for history that was there before the first
    /// request, which gets no minute.
    pub live: bool,
}

/// The id of a chunk or a reflection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartId(pub i64);

/// The id of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotId(pub i64);

/// What a part is.
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

/// A chunk or a reflection without its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartMeta {
    /// Its id; unique in the store.
    pub id: PartId,
    /// What it is.
    pub kind: PartKind,
    /// What it covers. A reflection starts at the root.
    pub span: Span,
    /// Tokens of its text in a block, at most ([`render::weight`]).
    pub tokens: u32,
    /// Tokens of the messages it covers.
    pub message_tokens: u32,
    /// Whether somebody asked for it: such a reflection is used at once, whatever the log weighs.
    pub requested: bool,
    /// Whether it is a reflection that code wrote because the log had reached its hard limit before a
    /// Reflector answered: what one writes later of as much, or of the beginning of it, is preferred.
    pub code_reflection: bool,
}

/// What is known of how a part came to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartAnalysis {
    /// The messages each of its lines comes from.
    pub line_sources: provenance::LineSources,
    /// What it kept of what it was written from.
    pub retention: retention::Retention,
}

/// A chunk or a reflection, before it has an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPart {
    /// What it is.
    pub kind: PartKind,
    /// What it covers.
    pub span: Span,
    /// What is sent to the model, without hints.
    pub text: String,
    /// Tokens of `text` in a block, at most ([`render::weight`]).
    pub tokens: u32,
    /// Tokens of the messages it covers.
    pub message_tokens: u32,
    /// What the conversation was busy with at the end of the range.
    pub current_task: Option<String>,
    /// How the Observer would go on.
    pub suggested_response: Option<String>,
    /// The parts a reflection condensed, in order; empty for a chunk.
    pub sources: Vec<PartId>,
    /// The model that wrote it; `code` where code did.
    pub model: String,
    /// See [`PartMeta::asked`].
    pub requested: bool,
    /// See [`PartMeta::stopgap`].
    pub code_reflection: bool,
    /// Where its lines come from and what they kept. Never part of what is sent.
    pub analysis: PartAnalysis,
}

impl NewPart {
    /// The same without its text, under the `id` it was given.
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

/// How a part is written in blocks: fixed when it first stands in one, and the same ever after, so
/// that a block which grows keeps its bytes on every chain that sends the part (INV-PREFIX).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rendering {
    /// The version of the preamble that a block has which begins with it.
    pub preamble: u32,
    /// The day its dates are related to.
    pub as_of: jiff::civil::Date,
}

/// A chunk or a reflection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its id.
    pub id: PartId,
    /// How it is written; `None` until it is frozen for a block.
    pub rendering: Option<Rendering>,
    /// Everything else.
    pub body: NewPart,
}

/// Why a snapshot was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SnapshotCause {
    /// The raw history reached `message_tokens`.
    Threshold,
    /// The observations reached `observation_tokens` and a reflection took their place.
    Reflection,
    /// The provider refused a request as too long.
    Overflow,
    /// The conversation was idle for longer than its provider keeps a prompt in its cache.
    Idle,
    /// Another model is asked than before, whose cache holds nothing of the conversation.
    ModelChange,
    /// The client no longer sends what it covers.
    Dropped,
    /// Another conversation of the same user has learned something; it covers nothing.
    PeerMemory,
}

impl SnapshotCause {
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

    /// The inverse of [`Cause::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        [
            Self::Threshold,
            Self::Reflection,
            Self::Overflow,
            Self::Idle,
            Self::ModelChange,
            Self::Dropped,
            Self::PeerMemory,
        ]
        .into_iter()
        .find(|cause| cause.name() == name)
    }
}

/// A snapshot without what it sends.
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
    /// Where its block stands, by the configured name: what was configured when it was made. Empty
    /// for one that is older than this field and was never sent.
    pub placement: String,
    /// What it holds of other conversations, and whom it may serve because of that; `None` where it
    /// holds nothing of any, and serves whoever has its prefix.
    pub peer_memory: Option<Arc<PeerMemory>>,
}

impl SnapshotMeta {
    /// Whether it covers nothing: what other conversations know stands before a whole history.
    pub fn is_peer_intro(&self) -> bool {
        self.to_count == 0
    }
}

/// What can be sent in place of a covered prefix. Its text is frozen: the same request goes out as
/// the same bytes for as long as the snapshot exists (INV-SAME).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Everything but the text.
    pub meta: SnapshotMeta,
    /// The text in order: preamble, one segment per part, other conversations, hints. What stands
    /// before those two is unchanged by the next activation (INV-PREFIX).
    pub segments: Vec<String>,
}
