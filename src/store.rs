//! Durable memory behind domain verbs. SQL lives here and nowhere else.
//!
//! Every verb names the owner ([`Scope`]); it is the first part of every key and stands in every
//! WHERE (INV-OWN). Rows are immutable but for `confirmed` of a link and the life of a job.
//! Called by `proxy` (find, snapshot), by `jobs` (the rest) and by the command line (threads).

pub mod aliases;
pub mod cache;
mod cost;
mod error;
mod rows;
mod sqlite;
mod timer;
mod types;

use async_trait::async_trait;

pub use aliases::{AddAliasOutcome, Alias, Aliases, TenantRow};
pub use cost::{CallTotals, Cost, LineageCosts};
pub use error::{StoreError, StoreResult};
pub use sqlite::{OpenError, SqliteStore};
pub use timer::{Alarms, NewTimer, Timer};
pub use types::{
    Candidates, ClaimFilter, EnqueueOutcome, Event, Job, LIVE_MS, LongestChain, LookupEntries,
    LookupKeys, MAX_EVENTS_PER_KIND, MessageMarks, NewJob, NewOverflowObservation, NewSnapshot,
    OperatorRequest, PrefixTrim, RecordedChain, Release, RequestRecord, RequestedJobOutcome,
    RequeuedJobs, SHARED_KEY_THRESHOLD, SentPrefix, SentWith, SharedContent,
    StoredOverflowObservation, TenantBacklog, ThreadDetail, ThreadRow, Urgency, utc_day,
};

use crate::history::{Link, Scope};
use crate::memory::advance::ChainJob;
use crate::memory::peer_memory::Digest;
use crate::memory::{NewPart, Part, PartId, PartKind, Rendering, Snapshot, SnapshotId, Span};

/// The store.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Snapshots whose `to` is among `chain` (oldest first), and what exactly this history was
    /// sent with before. One indexed query.
    async fn find_on_chain(&self, scope: &Scope, chain: &[Link]) -> Result<Candidates, StoreError> {
        self.find_candidates(scope, chain, &LookupKeys::default())
            .await
    }

    /// The same, and the paths that a request which does not continue a chain may stand on. One
    /// indexed query.
    async fn find_candidates(
        &self,
        scope: &Scope,
        chain: &[Link],
        keys: &LookupKeys,
    ) -> Result<Candidates, StoreError>;

    /// A snapshot with its text. One indexed query.
    async fn snapshot(&self, scope: &Scope, id: SnapshotId)
    -> Result<Option<Snapshot>, StoreError>;

    /// Everything known of `chain`.
    async fn load_chain(&self, scope: &Scope, chain: &[Link]) -> Result<RecordedChain, StoreError>;

    /// Records an accepted request in one transaction and returns its lineage. Recording the same
    /// request twice changes nothing but `last_ms` and the request count. Where no lineage is named
    /// (or one that was forgotten) and another process recorded these messages first, its lineage
    /// is joined. [`StoreError::Forgotten`] where the messages before the new ones are not recorded.
    async fn record(&self, scope: &Scope, record: &RequestRecord) -> Result<i64, StoreError>;

    /// Whether another process writes to the same store: then what this one remembers of it is not all
    /// there is.
    fn has_other_writers(&self) -> bool;

    /// Which of these recorded messages another conversation of the owner holds as well, by what they
    /// say or by the ids of their tool calls; and whether several lineages go under `name`.
    async fn find_shared_content(
        &self,
        scope: &Scope,
        links: &[Link],
        thread_key: Option<&str>,
    ) -> Result<SharedContent, StoreError>;

    /// [`Store::record`] for a request that was observed while its client waited: what was written for
    /// it is stored with it, in one transaction, and is what it was sent with.
    async fn record_overflow_observation(
        &self,
        scope: &Scope,
        record: &RequestRecord,
        observation: &NewOverflowObservation,
    ) -> Result<StoredOverflowObservation, StoreError>;

    /// The texts of `parts`, in the order given; missing ones are left out.
    async fn parts(&self, scope: &Scope, parts: &[PartId]) -> Result<Vec<Part>, StoreError>;

    /// The part of this kind whose range ends at `to`.
    async fn part_ending(
        &self,
        scope: &Scope,
        kind: PartKind,
        to: Link,
    ) -> Result<Option<Part>, StoreError>;

    /// The jobs whose ranges end at these links.
    async fn jobs_ending_at(
        &self,
        scope: &Scope,
        ends: &[Link],
    ) -> Result<Vec<ChainJob>, StoreError>;

    /// Puts a job into the queue unless its span has one, or has a part already, or its last link
    /// is not recorded. A chunk also has to fit: the messages of all chunks ever queued for this
    /// owner weigh at most 1.5 times what was confirmed of them by content. It is charged here, so
    /// that what waits counts as shown.
    async fn enqueue(
        &self,
        scope: &Scope,
        job: &NewJob,
        at_ms: i64,
    ) -> Result<EnqueueOutcome, StoreError>;

    /// Leases the next due job until `now_ms + lease_ms`. Expired leases count as free. A chunk
    /// waits for the job of the range before it, since its Observer is shown what that one wrote.
    async fn claim(
        &self,
        filter: &ClaimFilter,
        now_ms: i64,
        lease_ms: i64,
    ) -> Result<Option<Job>, StoreError>;

    /// Jobs that end at these links are now to go this way (`None`: as before) and are so urgent: another
    /// request of their conversation came.
    async fn reprioritize(
        &self,
        scope: &Scope,
        ends: &[Link],
        route_hash: Option<[u8; 32]>,
        urgency: Urgency,
    ) -> Result<(), StoreError>;

    /// Writes down what a call for the conversation of `tip` cost, and returns what its tenant spent
    /// on that UTC day in all. Forgetting the conversation does not give it back.
    async fn record_cost(
        &self,
        scope: &Scope,
        tip: Link,
        cost: Cost,
        at_ms: i64,
    ) -> Result<u64, StoreError>;

    /// What the tenant spent on the UTC day of `at_ms`, over its resources.
    async fn spent_tokens(&self, scope: &Scope, at_ms: i64) -> Result<u64, StoreError>;

    /// Puts events on the timeline of the conversation of `tip`; of each kind the newest
    /// [`EVENTS_KEPT`] stay. Returns them as they were written down, with the `recordId` (its id) and
    /// the `threadId` (its key, else its id); none where the conversation was forgotten.
    async fn append_events(
        &self,
        scope: &Scope,
        tip: Link,
        events: &[Event],
    ) -> Result<Vec<Event>, StoreError>;

    /// Tenants with open jobs, and what they spent on the UTC day of `at_ms`, for the operator.
    async fn tenant_backlogs(&self, at_ms: i64) -> Result<Vec<TenantBacklog>, StoreError>;

    /// Stores the part of a claimed job and deletes the job, in one transaction. `None` where the
    /// lease was lost or a part for that span exists (then the job is gone as well).
    async fn commit_part(
        &self,
        job: &Job,
        part: &NewPart,
        at_ms: i64,
    ) -> Result<Option<PartId>, StoreError>;

    /// Stores a stopgap. The job of its span stays: what a Reflector writes is preferred, and stands
    /// beside it. `None` where a stopgap for that span exists; [`StoreError::Forgotten`] where its last
    /// link is not recorded under this owner (any more).
    async fn commit_code_reflection(
        &self,
        scope: &Scope,
        part: &NewPart,
        at_ms: i64,
    ) -> Result<Option<PartId>, StoreError>;

    /// Keeps a claimed job until `until_ms`, while its worker is alive. `false` where the lease was
    /// lost.
    async fn renew_lease(&self, job: &Job, until_ms: i64) -> Result<bool, StoreError>;

    /// The Observer was shown so many tokens of a job's messages once more, within one try: what it may
    /// be shown of others is that much less.
    async fn charge_reobservation(&self, job: &Job, tokens: u32) -> Result<(), StoreError>;

    /// Gives a claimed job back. Nothing happens where the lease was lost. A range that is to be
    /// shown again after an empty answer is charged again; it is not refused, or one empty answer
    /// would leave a hole that no later range may cross.
    async fn release(&self, job: &Job, outcome: Release) -> Result<(), StoreError>;

    /// The title of the lineage that recorded `link`.
    async fn title(&self, scope: &Scope, link: Link) -> Result<Option<String>, StoreError>;

    /// Gives the lineage that recorded `link` a title. Nothing happens where it has it already, or
    /// was forgotten.
    async fn set_title(&self, scope: &Scope, link: Link, title: &str) -> Result<(), StoreError>;

    /// The parts in the order given, as a block is to write them; missing ones are left out. Those
    /// that no block held yet are written by `rendering` from now on; that of the others never
    /// changes, whoever asks.
    async fn fix_rendering(
        &self,
        scope: &Scope,
        parts: &[PartId],
        rendering: Rendering,
    ) -> Result<Vec<Part>, StoreError>;

    /// Takes the next timer that is due at `now_ms`, until `until_ms`: should whoever took it die, it
    /// is due again then. A newer request moves it meanwhile.
    async fn claim_timer(&self, now_ms: i64, until_ms: i64) -> Result<Option<Timer>, StoreError>;

    /// A claimed timer was acted on; `left` is what is still to come, and when it is to be claimed
    /// next. Nothing happens where a newer request moved it.
    async fn end_timer(
        &self,
        timer: &Timer,
        remaining: Option<(Alarms, i64)>,
    ) -> Result<(), StoreError>;

    /// When the next timer is due, whosever it is.
    async fn next_timer(&self) -> Result<Option<i64>, StoreError>;

    /// The recorded chain that ends at `tip`; empty where it is not recorded.
    async fn chain_links(&self, scope: &Scope, tip: Link) -> Result<Vec<Link>, StoreError>;

    /// Commits a snapshot; fills in its id and `eligible_from`. Where one exists that sends the same
    /// (same `to`, parts, pin, placement, text and conversations told of) and is eligible no later, that
    /// one is returned. [`StoreError::Forgotten`] where `to`, a part or a conversation that it tells of
    /// is not recorded under this owner.
    async fn commit_snapshot(
        &self,
        scope: &Scope,
        snapshot: &NewSnapshot,
    ) -> Result<Snapshot, StoreError>;

    /// [`Store::commit_snapshot`] for one that serves everybody with its prefix, and for the same with what
    /// others know, `bound` to its conversation: both or neither, so that no crash leaves one without the
    /// other. The second is left out where a conversation that it tells of was forgotten.
    async fn commit_snapshot_pair(
        &self,
        scope: &Scope,
        snapshot: &NewSnapshot,
        peer_snapshot: &NewSnapshot,
    ) -> Result<(Snapshot, Option<Snapshot>), StoreError>;

    /// What other conversations of the owner may be told of a lineage; replaces what was there. Nothing
    /// happens where it was forgotten.
    async fn publish_digest(
        &self,
        scope: &Scope,
        lineage: i64,
        text: &str,
    ) -> Result<(), StoreError>;

    /// What may be told of the latest conversations of the owner, the latest first and
    /// [`crate::memory::others::TOLD`] at most, but for the lineages `but` and those under `key`.
    async fn peer_digests(
        &self,
        scope: &Scope,
        except: &[i64],
        key: Option<&str>,
    ) -> Result<Vec<Digest>, StoreError>;

    /// How many of the latest conversations under `key` were gone on with, of those whose last request
    /// came at `since_ms` or later. Side calls go under the name of their conversation and are none.
    async fn count_live_conversations(
        &self,
        scope: &Scope,
        key: &str,
        since_ms: i64,
    ) -> Result<u32, StoreError>;

    /// Names under which at least [`CROWD`] conversations were gone on with whose last requests came at
    /// `since_ms` or later, of all owners: for a process that starts, and for the operator.
    async fn shared_thread_keys(&self, since_ms: i64) -> Result<Vec<(Scope, String)>, StoreError>;

    /// Jobs waiting or running, for metrics and for tests that wait until memory is quiet.
    async fn open_jobs(&self) -> Result<u64, StoreError>;

    /// All lineages, newest first.
    async fn threads(&self, limit: u32) -> Result<Vec<ThreadRow>, StoreError>;

    /// One lineage, for the operator (who stands above owners).
    async fn thread(&self, lineage: i64) -> Result<Option<ThreadDetail>, StoreError>;

    /// The longest chain of a lineage, for the operator (who stands above owners).
    async fn longest_chain(&self, lineage: i64) -> Result<Option<LongestChain>, StoreError>;

    /// Writes down what an operator wants of a lineage. `false` where there is none.
    async fn put_operator_request(
        &self,
        scope: &Scope,
        lineage: i64,
        request: &OperatorRequest,
    ) -> Result<bool, StoreError>;

    /// What is wanted of a lineage, if anything.
    async fn operator_request(
        &self,
        scope: &Scope,
        lineage: i64,
    ) -> Result<Option<OperatorRequest>, StoreError>;

    /// What was wanted of a lineage is done.
    async fn complete_operator_request(
        &self,
        scope: &Scope,
        lineage: i64,
    ) -> Result<(), StoreError>;

    /// Makes every waiting observation of a lineage due, and forgets which were given up.
    async fn requeue_failed(
        &self,
        scope: &Scope,
        lineage: i64,
        at_ms: i64,
    ) -> Result<RequeuedJobs, StoreError>;

    /// Puts a job into the queue that somebody asked for, in the place of one that waits or was given up.
    async fn enqueue_requested(
        &self,
        scope: &Scope,
        job: &NewJob,
        at_ms: i64,
    ) -> Result<RequestedJobOutcome, StoreError>;

    /// The observations of a lineage that wait, with the words they carry: for the operator.
    async fn pending_texts(&self, lineage: i64) -> Result<Vec<(Span, String)>, StoreError>;

    /// The words of these messages, as far as they are kept (see [`Traces::words`]).
    async fn kept_messages(
        &self,
        scope: &Scope,
        links: &[Link],
    ) -> Result<Vec<(Link, String)>, StoreError>;

    /// Deletes the words of messages that were kept before `before_ms`, whosever they are; says of
    /// which tenant and which.
    async fn expire_messages(&self, before_ms: i64) -> Result<Vec<([u8; 32], Link)>, StoreError>;

    /// Deletes everything of a lineage that no other lineage uses; returns how many rows went.
    /// What the Observer was shown of it stays charged. Its contents go, so that a client that goes
    /// on talking is observed as a new conversation would be.
    async fn forget(&self, scope: &Scope, lineage: i64) -> Result<u64, StoreError>;

    /// Which tenants are served as others, as the operator said.
    async fn aliases(&self) -> Result<Vec<Alias>, StoreError>;

    /// From now on requests of `name` belong to `tenant`: judged and written in one transaction.
    async fn add_alias(
        &self,
        name: [u8; 32],
        tenant: [u8; 32],
        at_ms: i64,
    ) -> Result<AddAliasOutcome, StoreError>;

    /// Requests of `name` are its own again. `false` where they were.
    async fn remove_alias(&self, name: [u8; 32]) -> Result<bool, StoreError>;

    /// Tenants with memory, for the operator (who stands above owners).
    async fn tenants(&self) -> Result<Vec<TenantRow>, StoreError>;

    /// Whether the store answers now.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Writes out what is buffered and closes.
    async fn close(&self);
}
