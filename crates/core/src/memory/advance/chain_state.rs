//! What `advance` reads and returns: the state of one chain, and the actions for it.
//!
//! Plain values without behaviour. The jobs room fills [`ChainState`] from the store and performs the
//! [`Action`]s.

use crate::history::Link;
use crate::memory::{Node, PartId, PartKind, PartMeta, SnapshotCause, SnapshotMeta, Span};

/// Everything known of one chain.
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
    /// Work that is waiting or running, or was given up.
    pub jobs: &'a [ChainJob],
}

/// A job as far as decisions depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainJob {
    /// What it will write.
    pub kind: PartKind,
    /// Its range.
    pub span: Span,
    /// How it stands.
    pub state: JobState,
}

/// How a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// Waiting for its first try, or running.
    Fresh,
    /// Tried in vain and waiting to be tried again.
    Retrying,
    /// Given up for this range.
    Abandoned,
}

/// A thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write a chunk of this range. Several come in order; each sees what the ones before wrote.
    Observe {
        /// The range.
        span: Span,
        /// Tokens of its messages.
        message_tokens: u32,
    },
    /// Condense these parts.
    Reflect {
        /// In order, gapless from the root.
        sources: Vec<PartId>,
        /// What they cover.
        span: Span,
        /// Tokens of their text.
        tokens: u32,
        /// Tokens of the messages they cover.
        message_tokens: u32,
    },
    /// Prepare a snapshot.
    Snapshot(SnapshotPlan),
    /// Shorten the log of `plan` without a model, below `limit` tokens, and decide again. Where nothing
    /// can be left out, `plan` is prepared as it is.
    Shorten {
        /// What the shorter log covers.
        span: Span,
        /// Tokens of the messages it covers.
        message_tokens: u32,
        /// Tokens of the log that are too many.
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
    /// Chunks of what stands behind it, in order. They are not told yet, but what they say is done is no
    /// task for its hints.
    pub later_chunks: Vec<PartId>,
    /// Tokens of the text of `parts`.
    pub tokens: u32,
    /// Tokens by which it makes the next request smaller. The hints are not counted in it: they are only
    /// read when it is written, and go where they would cost as much.
    pub saved_tokens: u32,
    /// Why.
    pub cause: SnapshotCause,
}
