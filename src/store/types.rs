//! The values that go into the verbs of the store and come out of them: what is recorded, offered,
//! claimed, prepared, listed. Data alone; what the verbs promise stands with [`super::Store`].

use std::sync::Arc;

use super::{LineageCosts, NewTimer};
use crate::history::{History, Link, MessageKey, Scope, ScopedHash};
use crate::memory::advance::ChainJob;
use crate::memory::alignment::{LineageName, Origin, PathEntry, StoredAlignment, SummaryCandidate};
use crate::memory::record::MessageContent;
use crate::memory::{
    NewPart, Node, Part, PartId, PartKind, PartMeta, PeerMemory, Rendering, Snapshot,
    SnapshotCause, SnapshotId, SnapshotMeta, Span, Trim,
};

/// What a recorded request was sent with; it pins the choice for every repetition (INV-SAME). The
/// default is a request that went out raw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentWith {
    /// The snapshot, or `None` where the history went out raw.
    pub snapshot: Option<SnapshotId>,
    /// Placement of the block, by its configured name; empty where there was none.
    pub placement: String,
    /// Whether its stream was asked for usage on the client's behalf; `None` where that was not ours
    /// to say.
    pub usage_requested: Option<bool>,
    /// The raw rounds that were left out behind the snapshot, because the request did not fit.
    pub trim: Option<Trim>,
}

/// The answer to a cold conversation.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// Snapshots whose `to` is among the probes.
    pub snapshots: Vec<SnapshotMeta>,
    /// What the request with exactly this tip was sent with, if it was recorded for the model.
    pub sent_with: Option<SentWith>,
    /// What the same request was sent with as a view of another chain.
    pub aligned_sent_with: Option<SentWith>,
    /// Whether the tip itself is recorded (then longer chains may be as well).
    pub tip_recorded: bool,
    /// How far recorded beginnings of this history were trimmed, once for each model.
    pub prefix_trims: Vec<PrefixTrim>,
    /// How many of the chain's messages are recorded as they are.
    pub depth: usize,
    /// Where the last of them was first said.
    pub depth_origin: Origin,
    /// The lineage that recorded the last of them.
    pub lineage: Option<i64>,
    /// The longest beginning of the chain that is a view of another one.
    pub alignment: Option<StoredAlignment>,
    /// Whether what proved that is known in no other conversation.
    pub alignment_holds: bool,
    /// The chain that `view` is of, from its first message.
    pub base_chain: Vec<PathEntry>,
    /// The place of the latest message of the request that is known anywhere, and the path it stands
    /// on, up to it. No path where that is the chain itself.
    pub path: Option<(usize, Vec<PathEntry>)>,
    /// What the request was sent with that ended where that path ends.
    pub path_sent_with: Option<SentWith>,
    /// Whether something else than this request follows the last of them. Asked only where they are so few
    /// that a conversation may share them by chance ([`crate::memory::others::CHANCE`]).
    pub continued_elsewhere: bool,
    /// The longest recorded beginning of the chain, and of each of the other chains; these with their last
    /// links.
    pub sent_prefixes: Vec<(Option<Link>, SentPrefix)>,
    /// Those snapshots among what they were sent with that cover nothing.
    pub peer_intros: Vec<SnapshotMeta>,
    /// The latest snapshot of the owner that covers nothing.
    pub newest_peer_intro: Option<SnapshotMeta>,
    /// How far requests that ended on one of the other chains were trimmed, and where.
    pub path_trims: Vec<(Link, PrefixTrim)>,
    /// An answer that the client put into its history.
    pub answered: Option<SummaryCandidate>,
    /// The names of the lineages that recorded the ends of the other chains.
    pub lineage_names: Vec<(i64, LineageName)>,
}

/// A beginning of a request that went out before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentPrefix {
    /// How many messages the request has in common with it.
    pub shared_messages: usize,
    /// What it was sent with; `None` where it went out raw.
    pub snapshot: Option<SnapshotId>,
    /// The name that its client gave the conversation.
    pub thread_key: Option<String>,
}

/// A beginning of a history that was trimmed: what continues it goes on from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixTrim {
    /// Where.
    pub trim: Trim,
    /// The model that it did not fit.
    pub model: String,
}

/// What the request path looks a conversation up by beside its links.
#[derive(Clone, Debug, Default)]
pub struct LookupKeys {
    /// Anchors of its messages and their places.
    pub anchors: Vec<(ScopedHash, usize)>,
    /// Marks of texts among its first messages and the places behind them; the best comes first.
    pub answers: Vec<(ScopedHash, usize)>,
    /// What its first leading system message is known by.
    pub system: Option<ScopedHash>,
    /// The model it asks for: what equal requests to others were sent with is not what this one was.
    /// `None`: whichever model was asked.
    pub model: Option<String>,
}

/// What a message is known and found by, beside its link.
#[derive(Clone, Copy, Debug)]
pub struct MessageMarks {
    /// What it says.
    pub item: MessageKey,
    /// What it is looked up by, together with the message before it.
    pub anchor: Option<ScopedHash>,
    /// Where it was first said.
    pub origin: Origin,
    /// Whether the upstream gave it as its answer in this conversation.
    pub from_upstream: bool,
}

/// What of a recorded request other conversations of the owner share with it.
#[derive(Clone, Debug, Default)]
pub struct SharedContent {
    /// Messages that another one holds as well.
    pub messages: Vec<Link>,
    /// Whether several lineages go under its name.
    pub thread_key_shared: bool,
}

/// What an accepted request leaves behind for those that do not continue its chain.
#[derive(Clone, Debug, Default)]
pub struct LookupEntries {
    /// What each new message is known and found by, in order; empty where that is not kept.
    pub marks: Vec<MessageMarks>,
    /// The last link of what the client sent, if that is a view of the chain.
    pub alignment: Option<(Link, StoredAlignment)>,
    /// The mark of what the model answered, and the chain that it answered.
    pub answer: Option<(ScopedHash, Arc<History>)>,
    /// What the client's first leading system message is known by.
    pub system: Option<ScopedHash>,
    /// The words of messages, where they are to be kept, as who keeps them wrote them down.
    pub kept_messages: Vec<(Link, String)>,
}

/// What the store knows of one chain.
#[derive(Clone, Debug, Default)]
pub struct RecordedChain {
    /// The recorded prefix of the chain, in order, gapless from the first message.
    pub nodes: Vec<Node>,
    /// The lineage of the deepest recorded link.
    pub lineage: Option<i64>,
    /// Every lineage that recorded one of the links, and its thread key; the deepest comes first.
    pub lineages: Vec<(i64, Option<String>)>,
    /// Whether the deepest recorded link already has a recorded successor (then a new message
    /// after it is a fork).
    pub has_successor: bool,
    /// Chunks and reflections whose span lies in the chain, by `to_count`, then id.
    pub parts: Vec<PartMeta>,
    /// Snapshots whose `to` lies in the chain, by `to_count`, then id.
    pub snapshots: Vec<SnapshotMeta>,
    /// Jobs whose span lies in the chain.
    pub jobs: Vec<ChainJob>,
    /// The zone that the client of that lineage last named.
    pub zone: Option<String>,
}

/// One accepted request, as it is recorded.
#[derive(Clone, Debug)]
pub struct RequestRecord {
    /// The thread key the client gave, if any.
    pub thread_key: Option<String>,
    /// The lineage it continues; `None` starts a new one.
    pub lineage: Option<i64>,
    /// Messages not recorded before, in order; the parent of the first is `parent`.
    pub new_nodes: Vec<Node>,
    /// The link the new messages follow.
    pub parent: Link,
    /// Messages up to this count become confirmed.
    pub confirmed_count: usize,
    /// The links up to `confirmed` that were not yet confirmed.
    pub newly_confirmed: Vec<Link>,
    /// What those links say. What no other chain of its family has confirmed yet raises the bound
    /// on what the Observer may be shown.
    pub contents: Vec<MessageContent>,
    /// The last link of the request and its length.
    pub tip: Link,
    /// Its length.
    pub count: usize,
    /// What it was sent with.
    pub sent_with: SentWith,
    /// The model it asked for.
    pub model: String,
    /// The way it took to the upstream (see [`NewJob::way`]); `None` leaves what is known.
    pub route_hash: Option<[u8; 32]>,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// What later requests find it by that do not continue its chain.
    pub lookup_entries: LookupEntries,
    /// When the conversation will have been idle for long enough, if that matters.
    pub timer: Option<NewTimer>,
    /// The zone its client named; `None` leaves what is known.
    pub zone: Option<String>,
}

/// A job to be done. (owner, kind, from, to) is unique: offering it twice changes nothing.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// What to do.
    pub kind: PartKind,
    /// The range.
    pub span: Span,
    /// Tokens of the messages in the range.
    pub message_tokens: u32,
    /// Text for the Observer (redacted, fenced later); empty for a reflection. Deleted with the job.
    pub payload: String,
    /// The parts that stand before the range (Observer) or are to be condensed (Reflector).
    pub parts: Vec<PartId>,
    /// The conversation's model, used where none is configured.
    pub model: String,
    /// Tip of the request that made it due.
    pub tip: Link,
    /// Length of that request.
    pub tip_count: usize,
    /// Hash of the way to the upstream that its conversation took: where no endpoint of its own is
    /// configured, only who holds this very way may do the job. `None`: the last one that the
    /// conversation is known to have taken.
    pub route_hash: Option<[u8; 32]>,
    /// How close the conversation is to its limit, in thousandths of it. More urgent jobs of a
    /// tenant are claimed first.
    pub urgency: u32,
}

/// What became of a job that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueOutcome {
    /// It is in the queue.
    Queued,
    /// Its span has a job or a part already.
    AlreadyExists,
    /// The Observer was shown as much of this family of conversations as it may be for what is
    /// confirmed of them. The same job may be taken when more is.
    Paused,
    /// Its last link is not recorded (any more).
    Forgotten,
}

/// How close a conversation is to the limits that its jobs keep it from, in thousandths of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Urgency {
    /// Of what the Observer is to do.
    pub observation: u32,
    /// Of what the Reflector is to do; one that somebody asked for stays as urgent as it is.
    pub reflection: u32,
}

/// A claimed job. `fence` changes with every claim; a commit with an old one is refused.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its row; [`Job::BESIDE`] where it is none of the queue's.
    pub id: i64,
    /// The owner.
    pub scope: Scope,
    /// What to do.
    pub spec: NewJob,
    /// How often it was claimed, this time included.
    pub attempts: u32,
    /// How often it came back before without anything usable said: empty answers and rejections.
    pub empty_answers: u32,
    /// The lease's fencing number.
    pub fence: i64,
}

impl Job {
    /// The number of every job that was never in the queue. Rows count from 1.
    pub const NOT_QUEUED: i64 = 0;

    /// Whether its number names it alone, so that something may be kept under it: without a row it is
    /// the number of other jobs, of other owners, as well (INV-OWN).
    pub fn is_queued(&self) -> bool {
        self.id != Self::NOT_QUEUED
    }
}

/// Which jobs a worker may claim.
#[derive(Clone, Debug)]
pub struct ClaimFilter {
    /// Observe jobs of any tenant (an endpoint of its own is configured), or only of `held`.
    pub observe_any: bool,
    /// Reflect jobs of any tenant, or only of `held`.
    pub reflect_any: bool,
    /// Tenants and the ways of theirs that this process holds.
    pub held_routes: Vec<([u8; 32], [u8; 32])>,
    /// Tokens that model calls may cost a tenant on a UTC day; jobs of one that has spent them wait
    /// for the next.
    pub daily_tokens: Option<u64>,
}

/// Live conversations that a name can stand for, each gone on with at least once: clients start anew under a name now and then, and a
/// name that all users of an application share has more at once.
pub const SHARED_KEY_THRESHOLD: u32 = 8;

/// How long ago the last request of a conversation that is live may have come: a week.
pub const LIVE_MS: i64 = 7 * 24 * 60 * 60 * 1_000;

/// Something that happened in a conversation: numbers and names, never words of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its published name.
    pub kind: String,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// A JSON object.
    pub body: String,
}

/// Events of each kind that a lineage keeps, the newest.
pub const MAX_EVENTS_PER_KIND: u32 = 100;

/// A tenant with open jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantBacklog {
    /// Short hash of the tenant.
    pub tenant: String,
    /// Open jobs.
    pub open_jobs: u64,
    /// Tokens its model calls cost on the day asked about.
    pub spent_tokens: u64,
}

/// The UTC day of a time in milliseconds since 1970, counted from then.
#[must_use]
pub fn utc_day(at_ms: i64) -> i64 {
    at_ms.div_euclid(24 * 60 * 60 * 1_000)
}

/// How a claimed job ended without a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Try again at this time (milliseconds since 1970).
    RetryAt(i64),
    /// The model answered nothing usable; try again at this time.
    EmptyRetryAt(i64),
    /// The endpoint does not take what it was asked, and no model was shown it; try again at this time.
    RejectedRetryAt(i64),
    /// Give the span up.
    Abandon,
    /// Delete the job, so that its span can be offered again.
    Drop,
}

/// A snapshot before the store gave it an id and a first eligible length.
#[derive(Clone, Debug)]
pub struct NewSnapshot {
    /// The last link it covers.
    pub to: Link,
    /// How many messages it covers.
    pub to_count: usize,
    /// See [`SnapshotMeta::pin`].
    pub pin: Option<usize>,
    /// Its parts in order.
    pub parts: Vec<PartId>,
    /// Tokens of its parts as they are sent ([`crate::memory::render::log_tokens`]).
    pub tokens: u32,
    /// Why it was made.
    pub cause: SnapshotCause,
    /// The frozen text.
    pub segments: Vec<String>,
    /// See [`SnapshotMeta::placement`].
    pub placement: String,
    /// See [`SnapshotMeta::others`].
    pub peer_memory: Option<Arc<PeerMemory>>,
    /// By which settings it was made, as a JSON object: for people.
    pub settings_json: String,
    /// The chain it was made for: it becomes eligible beyond the longest recorded chain that
    /// extends this tip.
    pub tip: Link,
    /// Length of that chain.
    pub tip_count: usize,
    /// Eligible at `tip_count` itself: the request at hand was refused as too long and is sent
    /// again with it.
    pub eligible_now: bool,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
}

/// What was observed for a request while its client waited, and is not stored yet.
#[derive(Clone, Debug)]
pub struct NewOverflowObservation {
    /// The chunks, in order.
    pub parts: Vec<NewPart>,
    /// How parts are written that were not frozen before.
    pub rendering: Rendering,
    /// What the request went out with. Its parts are stored ones and, behind them, those of `parts`,
    /// numbered from -1 downwards.
    pub snapshot: NewSnapshot,
    /// The same with what other conversations know: what it went out with, where there is one.
    pub peer_snapshot: Option<NewSnapshot>,
}

/// The same, stored.
#[derive(Clone, Debug)]
pub struct StoredOverflowObservation {
    /// The lineage of the request.
    pub lineage: i64,
    /// The ids of the chunks, in order.
    pub parts: Vec<PartId>,
    /// The snapshot.
    pub snapshot: Snapshot,
    /// The same with what other conversations know; what the request was sent with, where there is one.
    pub peer_snapshot: Option<Snapshot>,
}

/// The longest chain of a lineage, for the operator.
#[derive(Clone, Debug)]
pub struct LongestChain {
    /// Whose it is.
    pub scope: Scope,
    /// The model of its last request.
    pub model: String,
    /// Everything known of it.
    pub chain: RecordedChain,
}

/// What an operator wants of a conversation; it is done with its next request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorRequest {
    /// To look again what waits for it: the store was written to beside the server.
    Refresh,
    /// To observe everything that is confirmed, whatever it weighs.
    Observe {
        /// What whoever asks wants to have looked at above all, in their own words.
        focus: Option<String>,
    },
}

impl OperatorRequest {
    pub(super) fn number(&self) -> i64 {
        match self {
            Self::Refresh => 1,
            Self::Observe { .. } => 2,
        }
    }

    pub(super) fn focus(&self) -> Option<&str> {
        match self {
            Self::Observe { focus } => focus.as_deref(),
            Self::Refresh => None,
        }
    }

    pub(super) fn from_number(number: i64, focus: Option<String>) -> Option<Self> {
        match number {
            1 => Some(Self::Refresh),
            2 => Some(Self::Observe { focus }),
            _ => None,
        }
    }
}

/// What became of the waiting observations of a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequeuedJobs {
    /// Ranges that were given up and can be offered again.
    pub abandoned: u64,
    /// Jobs that are due now.
    pub made_due: u64,
}

/// What became of a job that somebody asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedJobOutcome {
    /// It is in the queue.
    Queued,
    /// It was waiting or given up, and is due now.
    Requeued,
    /// A worker is at it.
    Running,
    /// Its span has a part.
    Done,
    /// Its last link is not recorded (any more).
    Forgotten,
}

/// A thread or lineage for people.
#[derive(Clone, Debug)]
pub struct ThreadRow {
    /// The lineage's id as shown by `diarist threads`.
    pub lineage: i64,
    /// Short hash of the tenant.
    pub tenant: String,
    /// Whether it belongs to a resource.
    pub resource: bool,
    /// The key the client gave.
    pub key: Option<String>,
    /// What the Observer calls it.
    pub title: Option<String>,
    /// Short name of the first link: what a client that gives no key is told it is called.
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
    /// First and last request, in milliseconds since 1970.
    pub first_ms: i64,
    /// See `first_ms`.
    pub last_ms: i64,
}

/// Everything of one lineage, for `diarist threads show`.
#[derive(Clone, Debug)]
pub struct ThreadDetail {
    /// The row of the list.
    pub row: ThreadRow,
    /// Links of its longest chain.
    pub nodes: Vec<Node>,
    /// Its parts with their text, in order.
    pub parts: Vec<Part>,
    /// Its snapshots, in order.
    pub snapshots: Vec<Snapshot>,
    /// Of each of them, by which settings it was made ([`NewSnapshot::made_with`]).
    pub snapshot_settings: Vec<String>,
    /// What happened in it, oldest first.
    pub events: Vec<Event>,
}
