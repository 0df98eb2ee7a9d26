//! What one request led to, whoever made it out: the harness of the property tests or the simulation.

use std::collections::HashSet;

use bytes::Bytes;
use diarist::history::Role;
use diarist::memory::{Snapshot, SnapshotId, render};
use diarist::tokens::TokenCounter;
use diarist::wire::{Insert, Placement};
use diarist_provider::AcceptedRequest;

use super::conversation::{Digest, Request, Run};

/// What a request was sent with.
pub type Used = Option<(SnapshotId, Placement)>;

/// Four bytes a token, as the provider of these tests counts too.
#[derive(Debug)]
pub struct Quarters;

impl TokenCounter for Quarters {
    fn count(&self, text: &str) -> u32 {
        u32::try_from(text.len().div_ceil(4)).unwrap()
    }

    fn counted_bytes(&self) -> u64 {
        0
    }
}

/// What one request led to.
#[derive(Debug, Default)]
pub struct Exchange {
    /// Every body that went upstream, in order, and what it was made with.
    pub sent: Vec<(Bytes, Used)>,
    /// The last one, if it was accepted.
    pub accepted: Option<AcceptedRequest>,
    /// What the Observer was shown because of it.
    pub shown: Vec<Shown>,
    /// Whether a placement was given up.
    pub stepped_down: bool,
    /// Whether the Observer still had something to do when the request was made, or may be shown no
    /// more.
    pub waiting: bool,
    /// Whether it was under way in another process when its twin was: what the two have learned of
    /// the upstream, and so where they place the block, may differ until one is recorded.
    pub elsewhere: bool,
    /// Whether the upstream refused as too long, whatever came of it.
    pub too_long: bool,
    /// Whether there is something to be sent and the model takes the block nowhere.
    pub unplaced: bool,
    /// Whether what it was sent with was not stored before it was answered.
    pub held: bool,
    /// The last messages of its owner's accepted requests that were never recorded.
    pub lost: HashSet<Run>,
    /// Whether memory had to decide without its store, or by a view of it that was out of date: what
    /// it may send is bound by fewer laws then.
    pub doubtful: bool,
    /// Whether something that it may belong to was withheld from it, for want of proof.
    pub withheld: bool,
}

/// A range that the Observer was shown.
#[derive(Clone, Debug)]
pub struct Shown {
    pub owner: String,
    /// Digests of the chain up to the end of the range.
    pub chain: Vec<Digest>,
    /// Where the range begins.
    pub from: usize,
}

/// The newest user message among `turns`.
pub fn newest_user(request: &Request) -> Option<usize> {
    request
        .turns
        .iter()
        .rposition(|turn| turn.role() == Role::User)
}

/// A snapshot as it is inserted.
pub fn insert(snapshot: &Snapshot, placement: Placement) -> Insert<'_> {
    Insert {
        cut: snapshot.meta.to_count,
        pin: snapshot.meta.pin,
        segments: &snapshot.segments,
        placement,
        reminder: render::REMINDER,
        front: &[],
        bridge: render::BRIDGE,
    }
}

/// What stands between two messages of one role, as a message.
pub fn bridge() -> String {
    format!(
        r#"{{"role":"assistant","content":{}}}"#,
        serde_json::Value::from(render::BRIDGE)
    )
}

/// The reminder as a message.
pub fn reminder() -> String {
    format!(
        r#"{{"role":"user","content":{}}}"#,
        serde_json::Value::from(render::REMINDER)
    )
}
