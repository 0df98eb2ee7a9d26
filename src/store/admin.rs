//! Administration: what an operator sees of conversations and asks for, and the life of the store itself.
//!
//! The lists show all owners; nothing here serves a client. Values and the trait only; each backend
//! implements it.

use async_trait::async_trait;

use super::{LineageCosts, OperatorRequest, RecordedChain, StoreResult};
use crate::history::{Link, Scope};
use crate::memory::{Node, Part, Snapshot, Span};

/// Lists, timelines, operator requests, and the store's own state.
#[async_trait]
pub trait Admin: Send + Sync {
    /// All lineages of all owners, newest first, at most `limit`.
    async fn threads(&self, limit: u32) -> StoreResult<Vec<ThreadRow>>;

    /// One lineage of any owner.
    async fn thread(&self, lineage: i64) -> StoreResult<Option<ThreadDetail>>;

    /// The longest chain of a lineage of any owner.
    async fn longest_chain(&self, lineage: i64) -> StoreResult<Option<LongestChain>>;

    /// The waiting observations of a lineage of any owner, with their texts.
    async fn pending_texts(&self, lineage: i64) -> StoreResult<Vec<(Span, String)>>;

    /// Stores what an operator asks of a lineage. `false` if there is no such lineage.
    async fn put_operator_request(
        &self,
        scope: &Scope,
        lineage: i64,
        request: &OperatorRequest,
    ) -> StoreResult<bool>;

    /// What an operator asks of a lineage, if anything.
    async fn operator_request(
        &self,
        scope: &Scope,
        lineage: i64,
    ) -> StoreResult<Option<OperatorRequest>>;

    /// Deletes the operator's request: it is done.
    async fn complete_operator_request(&self, scope: &Scope, lineage: i64) -> StoreResult<()>;

    /// Adds events to the timeline of the conversation of `tip`; the newest [`MAX_EVENTS_PER_KIND`] of
    /// each kind stay. Returns the events as they were stored, with the `recordId` (the lineage's id)
    /// and the `threadId` (its thread key, or its id). Returns none if the conversation was forgotten.
    async fn append_events(
        &self,
        scope: &Scope,
        tip: Link,
        events: &[Event],
    ) -> StoreResult<Vec<Event>>;

    /// Waits for running queries, writes what is buffered, and closes the store.
    async fn close(&self);
}

/// Something that happened in a conversation: numbers and names, never message text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its published name.
    pub kind: String,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// A JSON object.
    pub body: String,
}

/// How many events of each kind a lineage keeps: the newest.
pub const MAX_EVENTS_PER_KIND: u32 = 100;

/// The longest chain of a lineage.
#[derive(Clone, Debug)]
pub struct LongestChain {
    /// Its owner.
    pub scope: Scope,
    /// The model of its last request.
    pub model: String,
    /// Everything that is recorded of it.
    pub chain: RecordedChain,
}

/// One lineage in a list.
#[derive(Clone, Debug)]
pub struct ThreadRow {
    /// The lineage's id, as `diarist threads` shows it.
    pub lineage: i64,
    /// Short hash of the tenant.
    pub tenant: String,
    /// Whether it belongs to a resource.
    pub resource: bool,
    /// The thread key the client gave.
    pub key: Option<String>,
    /// The title that the Observer gave it.
    pub title: Option<String>,
    /// Short name of the first link. A client that gives no thread key gets this name in the response.
    pub label: String,
    /// The model of the last request.
    pub model: String,
    /// Messages in its longest recorded chain.
    pub messages: usize,
    /// Tokens of that chain.
    pub message_tokens: u64,
    /// Requests recorded.
    pub requests: u64,
    /// Chunks and reflections written for it.
    pub parts: usize,
    /// Snapshots prepared for it.
    pub snapshots: usize,
    /// What memory's own model calls cost for it.
    pub costs: LineageCosts,
    /// The first request, in milliseconds since 1970.
    pub first_ms: i64,
    /// The last request, in milliseconds since 1970.
    pub last_ms: i64,
}

/// Everything of one lineage, for `diarist threads show`.
#[derive(Clone, Debug)]
pub struct ThreadDetail {
    /// The row of the list.
    pub row: ThreadRow,
    /// The messages of its longest chain.
    pub nodes: Vec<Node>,
    /// Its parts with their text, in order.
    pub parts: Vec<Part>,
    /// Its snapshots, in order.
    pub snapshots: Vec<Snapshot>,
    /// The settings each of them was made with
    /// ([`NewSnapshot::settings_json`](super::NewSnapshot::settings_json)).
    pub snapshot_settings: Vec<String>,
    /// What happened in it, oldest first.
    pub events: Vec<Event>,
    /// The ranges that wait for the Observer, if any.
    pub waiting: Option<WaitingRanges>,
}

/// The ranges of a lineage that wait for the Observer. It takes the oldest one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingRanges {
    /// How many.
    pub count: u64,
    /// How often the oldest one was tried.
    pub tries: u32,
    /// When its next try is due, in milliseconds since 1970. While it is tried: when that must have ended.
    pub due_ms: i64,
    /// Whether it is being tried.
    pub running: bool,
}
