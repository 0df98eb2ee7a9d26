//! What `advance` reads and returns: the state of one chain, and the actions for it.
//!
//! Plain values without behaviour. The jobs module fills [`ChainState`] from the store and performs the
//! [`Action`]s.

use crate::history::Link;
use crate::memory::{Node, PartId, PartKind, PartMeta, SnapshotCause, SnapshotMeta, Span};

/// Everything that is known of one chain.
#[derive(Clone, Copy, Debug)]
pub struct ChainState<'a> {
    /// The link before the first message.
    pub root: Link,
    /// The messages of the longest recorded request on this chain.
    pub nodes: &'a [Node],
    /// Chunks and reflections on the chain.
    pub parts: &'a [PartMeta],
    /// Snapshots on the chain.
    pub snapshots: &'a [SnapshotMeta],
    /// Jobs that are waiting, running or given up.
    pub jobs: &'a [ChainJob],
}

/// The part of a job that decisions depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainJob {
    /// The kind of part that it will write.
    pub kind: PartKind,
    /// The range that it covers.
    pub span: Span,
    /// Its state.
    pub state: JobState,
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It waits for its first attempt, or runs.
    Fresh,
    /// An attempt failed and it waits for the next one.
    Retrying,
    /// It was given up for this range.
    Abandoned,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write a chunk of this range. Several ranges come in order; the Observer of each is shown
    /// what the ones before wrote.
    Observe {
        /// The range.
        span: Span,
        /// Tokens of its messages.
        message_tokens: u32,
    },
    /// Condense these parts.
    Reflect {
        /// The parts in order, without a gap from the root.
        sources: Vec<PartId>,
        /// The range that they cover.
        span: Span,
        /// Tokens of their text.
        tokens: u32,
        /// Tokens of the messages they cover.
        message_tokens: u32,
    },
    /// Prepare a snapshot.
    Snapshot(SnapshotPlan),
    /// Shorten the log of `plan` without a model to less than `limit` tokens, then decide again. If
    /// nothing can be left out, prepare `plan` as it is.
    Shorten {
        /// The range that the shorter log covers.
        span: Span,
        /// Tokens of the messages it covers.
        message_tokens: u32,
        /// The size of the log that is too large.
        limit: u32,
        /// The snapshot that waits for it.
        plan: SnapshotPlan,
    },
}

/// A snapshot to be prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotPlan {
    /// The last link covered.
    pub to: Link,
    /// How many messages are covered.
    pub to_count: usize,
    /// See [`SnapshotMeta::pin`].
    pub pin: Option<usize>,
    /// The parts in order.
    pub parts: Vec<PartId>,
    /// Chunks of messages behind it, in order. They are not in the block, but a task that they
    /// report as done must not be in the hints.
    pub later_chunks: Vec<PartId>,
    /// Tokens of the text of `parts`.
    pub tokens: u32,
    /// Tokens by which the next request gets smaller, without the hints. The hints are read only
    /// when the block is written, and are left out if they would cost as much.
    pub saved_tokens: u32,
    /// Why it is prepared.
    pub cause: SnapshotCause,
}
