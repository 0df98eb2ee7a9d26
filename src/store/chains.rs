//! Chains: what was recorded of conversations, and how a request finds its own.
//!
//! A conversation is a chain of links, one hash for each message. A *lineage* is one conversation as
//! the store knows it; branches of a conversation are lineages too. A link is *confirmed* when two
//! answered requests carried its message. Values and the trait only; each backend implements it.

use std::sync::Arc;

use async_trait::async_trait;

use super::{NewSnapshot, NewTimer, OperatorRequest, StoreResult};
use crate::history::{AnswerHash, History, Link, MessageKey, Scope, ScopedHash};
use crate::memory::advance::ChainJob;
use crate::memory::alignment::{
    LineageName, Origin, PathEntry, StoredAlignment, SummaryCandidate, SummaryStart,
};
use crate::memory::record::MessageContent;
use crate::memory::{
    NewPart, Node, PartId, PartMeta, Rendering, Snapshot, SnapshotId, SnapshotMeta, Trim,
};

/// The look-up of a request with so many messages is large: it takes longer than 5 ms or so, in proportion to
/// them, because each message is a key. Twelve clients with 500 messages take no other tenant's memory; twelve with 2,000
/// took most of it.
pub const LARGE_REQUEST: usize = 500;

/// Recording requests and finding them again.
#[async_trait]
pub trait Chains: Send + Sync {
    /// Snapshots that end on `chain` (oldest link first), what exactly this history was sent with before,
    /// and the recorded chains on which a request may stand that continues none. One indexed query.
    async fn find_candidates(
        &self,
        scope: &Scope,
        chain: &[Link],
        keys: &LookupKeys,
    ) -> StoreResult<Candidates>;

    /// Everything that is recorded of `chain`.
    async fn load_chain(&self, scope: &Scope, chain: &[Link]) -> StoreResult<RecordedChain>;

    /// The recorded chain that ends at `tip`; empty if `tip` is not recorded.
    async fn chain_links(&self, scope: &Scope, tip: Link) -> StoreResult<Vec<Link>>;

    /// Records accepted requests in their order and in one transaction.
    ///
    /// A second record of the same request changes only `last_ms` and the number of requests. If a record names no
    /// lineage, or one that was forgotten, and another process has recorded these messages first, the request joins
    /// that lineage. A request that cannot be recorded leaves the others as they are; its error is in its place:
    /// [`StoreError::Forgotten`](super::StoreError::Forgotten) if the messages before the new ones are not recorded.
    ///
    /// # Errors
    /// If the transaction could not begin, go on or be committed. Then nothing of the batch is recorded.
    async fn record_batch(
        &self,
        batch: Vec<(Scope, RequestRecord)>,
    ) -> StoreResult<Vec<StoreResult<RecordedRequest>>>;

    /// As [`Chains::record_batch`], for one request that was observed while its client waited. The same
    /// transaction stores the observation; the request is recorded as sent with it.
    async fn record_overflow_observation(
        &self,
        scope: &Scope,
        record: &RequestRecord,
        observation: &NewOverflowObservation,
    ) -> StoreResult<StoredOverflowObservation>;

    /// Whether another process writes to the same store. If so, the cache of this process may be
    /// incomplete.
    fn has_other_writers(&self) -> bool;

    /// How often the database was opened again since the start. A backup may have taken its place, in which the numbers of
    /// parts and snapshots mean others: nothing that is remembered of the earlier one holds.
    fn reopenings(&self) -> u64;

    /// Whether the store may hold something that a request with this chain and these keys finds. `false` is
    /// certain: nothing is stored, and no other process can store it. Makes no query.
    fn may_know(&self, scope: &Scope, chain: &[Link], keys: &LookupKeys) -> bool;

    /// Whether the store may hold an answer with this ending ([`AnswerHash`]). `false` is certain, as for
    /// [`Chains::may_know`].
    fn may_know_ending(&self, ending: &ScopedHash) -> bool;

    /// Which of these recorded messages another conversation of the owner holds too, by their content
    /// or by the ids of their tool calls; and whether several lineages have this thread key.
    async fn find_shared_content(
        &self,
        scope: &Scope,
        links: &[Link],
        thread_key: Option<&str>,
    ) -> StoreResult<SharedContent>;

    /// The title of the lineage that recorded `link`.
    async fn title(&self, scope: &Scope, link: Link) -> StoreResult<Option<String>>;

    /// Gives the lineage that recorded `link` a title. Changes nothing if it has that title, or was
    /// forgotten.
    async fn set_title(&self, scope: &Scope, link: Link, title: &str) -> StoreResult<()>;

    /// How many conversations with this thread key were continued at least once, among the latest 64
    /// whose last request came at `since_ms` or later. Side calls have the key of their conversation,
    /// but nobody continues them, so they do not count.
    async fn count_live_conversations(
        &self,
        scope: &Scope,
        key: &str,
        since_ms: i64,
    ) -> StoreResult<u32>;

    /// The kept texts of these messages (see [`LookupEntries::kept_messages`]).
    async fn kept_messages(
        &self,
        scope: &Scope,
        links: &[Link],
    ) -> StoreResult<Vec<(Link, String)>>;

    /// Deletes the kept texts from before `before_ms`, of all owners, at most `limit` of them. Returns (tenant, link)
    /// of each deleted text.
    async fn expire_messages(
        &self,
        before_ms: i64,
        limit: u32,
    ) -> StoreResult<Vec<([u8; 32], Link)>>;
}

/// What a recorded request was sent with. Every repetition of the request is sent with the same
/// (INV-SAME). The default is a request that was sent raw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentWith {
    /// The snapshot; `None` if the history was sent raw.
    pub snapshot: Option<SnapshotId>,
    /// Placement of the block, by its configured name; empty without a block.
    pub placement: String,
    /// Whether Diarist asked for usage in the client's stream; `None` if that was not for Diarist to
    /// decide.
    pub usage_requested: Option<bool>,
    /// Whether Diarist added `prompt_cache_key`.
    pub cache_key: bool,
    /// Whether Diarist added a breakpoint for the prompt cache.
    pub cache_breakpoint: bool,
    /// The raw rounds behind the snapshot that were left out, because the request did not fit.
    pub trim: Option<Trim>,
}

impl SentWith {
    /// Whether two equal requests were sent alike. If only one of them streams, only that one could be asked for its usage,
    /// and the question makes no difference.
    pub fn is_alike(&self, other: &Self) -> bool {
        let usage = self.usage_requested.zip(other.usage_requested);
        let without_usage = |sent: &Self| Self {
            usage_requested: None,
            ..sent.clone()
        };
        usage.is_none_or(|(one, other)| one == other) && without_usage(self) == without_usage(other)
    }
}

/// What the store finds for a request: memory of its own chain, and other chains it may stand on.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// Snapshots that end on the request's chain, or on one of the other chains.
    pub snapshots: Vec<SnapshotMeta>,
    /// What the request with exactly this tip was sent with, if it was recorded for this model.
    pub sent_with: Option<SentWith>,
    /// What the same request was sent with when it was aligned with another chain.
    pub aligned_sent_with: Option<SentWith>,
    /// How far recorded prefixes of this history were trimmed, once for each model.
    pub prefix_trims: Vec<PrefixTrim>,
    /// How many messages of the request's own chain are recorded.
    pub depth: usize,
    /// The origin of the last of them.
    pub depth_origin: Origin,
    /// The lineage that recorded the last of them.
    pub lineage: Option<i64>,
    /// The stored alignment of the longest prefix of the chain that has one.
    pub alignment: Option<StoredAlignment>,
    /// Whether the messages that prove this alignment occur in no other conversation.
    pub alignment_holds: bool,
    /// The chain that `alignment` refers to, from its first message.
    pub base_chain: Vec<PathEntry>,
    /// The position of the latest message of the request that is recorded anywhere, and the chain up
    /// to that message. The chain is empty if it is the request's own.
    pub path: Option<(usize, Vec<PathEntry>)>,
    /// What the request was sent with that ended where `path` ends.
    pub path_sent_with: Option<SentWith>,
    /// Whether another request continues differently after the last recorded message. Looked up only
    /// if so few messages are recorded that two conversations may share them by chance
    /// ([`MAX_CHANCE_PREFIX`](crate::memory::peer_memory::MAX_CHANCE_PREFIX)).
    pub continued_elsewhere: bool,
    /// The longest prefix that was sent as a request: one entry for each chain, with the chain's last
    /// link. `None` is the request's own chain.
    pub sent_prefixes: Vec<(Option<Link>, SentPrefix)>,
    /// The peer intros among the snapshots of `sent_prefixes`: snapshots that cover no message.
    pub peer_intros: Vec<SnapshotMeta>,
    /// The latest peer intro of the owner.
    pub newest_peer_intro: Option<SnapshotMeta>,
    /// How far requests on the other chains were trimmed, with the last link of each.
    pub path_trims: Vec<(Link, PrefixTrim)>,
    /// A recorded answer that the client has put into its history as a summary.
    pub answered: Option<SummaryCandidate>,
    /// The names of the lineages that recorded the ends of the other chains.
    pub lineage_names: Vec<(i64, LineageName)>,
}

/// A prefix of a request that was sent as a request before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentPrefix {
    /// How many messages the request shares with it.
    pub shared_messages: usize,
    /// The snapshot it was sent with; `None` if it was sent raw.
    pub snapshot: Option<SnapshotId>,
    /// The thread key that its client gave.
    pub thread_key: Option<String>,
}

/// How a prefix of a history was trimmed. A request that continues it is trimmed there too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixTrim {
    /// Which rounds were left out.
    pub trim: Trim,
    /// The model that the prefix did not fit.
    pub model: String,
}

/// What a request is looked up by, besides its links.
#[derive(Clone, Debug, Default)]
pub struct LookupKeys {
    /// Anchors of its messages and their positions, from the last message to the first.
    pub anchors: Vec<(ScopedHash, usize)>,
    /// Whether anchors that lead to several messages are passed over. Otherwise the latest one counts, and leads to the
    /// message that was recorded last.
    pub unique_anchors: bool,
    /// Hashes of texts among its first messages, and the positions behind them; the best comes first.
    pub answers: Vec<(ScopedHash, usize)>,
    /// For each of `answers`, the hash of the content of its message, if the model is its author.
    pub answer_contents: Vec<Option<ScopedHash>>,
    /// The thread key that its client gives. Only [`Chains::may_know`] uses it.
    pub thread_key: Option<String>,
    /// The hash of its first leading system message.
    pub system: Option<ScopedHash>,
    /// The model it asks for. Only what was sent to this model counts as sent before; `None`: every
    /// model counts.
    pub model: Option<String>,
    /// Who pays for its tenant; `None`: the tenant itself. Look-ups of large requests take turns by it.
    pub account: Option<[u8; 32]>,
}

/// By what a message is found, besides its link.
#[derive(Clone, Copy, Debug)]
pub struct MessageMarks {
    /// The hashes of its content and of its tool call ids.
    pub item: MessageKey,
    /// The hash of this message together with the one before it.
    pub anchor: Option<ScopedHash>,
    /// Where its content occurred first.
    pub origin: Origin,
    /// Whether the upstream gave it as its answer in this conversation.
    pub from_upstream: bool,
    /// What stands in front of the summary, if the client put the message in the place of what it summarises.
    pub summary_start: Option<SummaryStart>,
}

/// What a recorded request shares with other conversations of the owner.
#[derive(Clone, Debug, Default)]
pub struct SharedContent {
    /// Messages that another conversation holds too.
    pub messages: Vec<Link>,
    /// Whether several lineages have its thread key.
    pub thread_key_shared: bool,
}

/// What later requests find an accepted request by if they do not continue its chain.
#[derive(Clone, Debug, Default)]
pub struct LookupEntries {
    /// The marks of each new message, in order; empty if none are recorded.
    pub marks: Vec<MessageMarks>,
    /// The alignment of the request with the recorded chain, and the last link of what the client
    /// sent.
    pub alignment: Option<(Link, StoredAlignment)>,
    /// The hashes of the model's answer, and the chain that it answered.
    pub answer: Option<(AnswerHash, Arc<History>)>,
    /// The hash of the client's first leading system message.
    pub system: Option<ScopedHash>,
    /// Texts of messages to keep, already in the form in which they are kept.
    pub kept_messages: Vec<(Link, String)>,
}

/// A request that was recorded, and what the recorder needs to know of its conversation at that moment.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// The lineage it belongs to.
    pub lineage: i64,
    /// What its new messages share with other conversations.
    pub shared: SharedContent,
    /// What an operator asks of the lineage, if anything.
    pub operator_request: Option<OperatorRequest>,
}

/// What the store knows of one chain.
#[derive(Clone, Debug, Default)]
pub struct RecordedChain {
    /// The recorded prefix of the chain, in order, without a gap from the first message.
    pub nodes: Vec<Node>,
    /// The lineage of the deepest recorded link.
    pub lineage: Option<i64>,
    /// Every lineage that recorded one of the links, and its thread key; the deepest comes first.
    pub lineages: Vec<(i64, Option<String>)>,
    /// Whether something follows the deepest recorded link. Then a new message after it is a fork.
    pub has_successor: bool,
    /// Chunks and reflections whose span lies in the chain, by `to_count`, then id.
    pub parts: Vec<PartMeta>,
    /// Snapshots whose `to` lies in the chain, by `to_count`, then id.
    pub snapshots: Vec<SnapshotMeta>,
    /// Jobs whose span lies in the chain.
    pub jobs: Vec<ChainJob>,
    /// The time zone that the client of that lineage last named.
    pub zone: Option<String>,
}

/// One accepted request, as it is recorded.
#[derive(Clone, Debug)]
pub struct RequestRecord {
    /// The thread key the client gave, if any.
    pub thread_key: Option<String>,
    /// The lineage it continues; `None` starts a new one.
    pub lineage: Option<i64>,
    /// Messages not recorded before, in order. The first follows `parent`.
    pub new_nodes: Vec<Node>,
    /// The link the new messages follow.
    pub parent: Link,
    /// Messages up to this count become confirmed.
    pub confirmed_count: usize,
    /// The links up to `confirmed_count` that were not confirmed before.
    pub newly_confirmed: Vec<Link>,
    /// The contents of those links. The Observer may be shown more of the family for each content
    /// that no other chain of the family has confirmed.
    pub contents: Vec<MessageContent>,
    /// The last link of the request.
    pub tip: Link,
    /// The number of its messages.
    pub count: usize,
    /// What it was sent with.
    pub sent_with: SentWith,
    /// The model it asked for.
    pub model: String,
    /// The hash of its route to the upstream (see [`NewJob::route_hash`](super::NewJob::route_hash));
    /// `None` keeps the recorded one.
    pub route_hash: Option<[u8; 32]>,
    /// When it came, in milliseconds since 1970.
    pub at_ms: i64,
    /// What later requests find it by if they do not continue its chain.
    pub lookup_entries: LookupEntries,
    /// When the conversation counts as idle, if an action waits for that.
    pub timer: Option<NewTimer>,
    /// The time zone its client named; `None` keeps the recorded one.
    pub zone: Option<String>,
}

/// What was observed for a request while its client waited, before it is stored.
#[derive(Clone, Debug)]
pub struct NewOverflowObservation {
    /// The chunks, in order.
    pub parts: Vec<NewPart>,
    /// How parts are rendered that no block has held before.
    pub rendering: Rendering,
    /// The snapshot that the request was sent with. Its parts are stored ones and, behind them, those
    /// of `parts`, numbered from -1 downwards.
    pub snapshot: NewSnapshot,
    /// The same snapshot with peer memory. If there is one, the request was sent with this one.
    pub peer_snapshot: Option<NewSnapshot>,
}

/// A [`NewOverflowObservation`] after it was stored.
#[derive(Clone, Debug)]
pub struct StoredOverflowObservation {
    /// The lineage of the request.
    pub lineage: i64,
    /// The ids of the chunks, in order.
    pub parts: Vec<PartId>,
    /// The snapshot.
    pub snapshot: Snapshot,
    /// The same snapshot with peer memory. If there is one, the request was sent with this one.
    pub peer_snapshot: Option<Snapshot>,
}
