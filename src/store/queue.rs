//! The queue: jobs for the Observer and the Reflector, and timers for conversations that fall idle.
//!
//! A span of messages has at most one job of a kind. A worker leases a job; each claim raises the job's
//! fence, so a worker that has lost its lease cannot store anything. Values and the trait only; each
//! backend implements it.

use async_trait::async_trait;

use super::{Alarms, DailyLimits, StoreResult, Timer};
use crate::history::{Link, Scope};
use crate::memory::advance::ChainJob;
use crate::memory::{NewPart, PartId, PartKind, Span};

/// Jobs and timers.
#[async_trait]
pub trait Queue: Send + Sync {
    /// The jobs whose ranges end at these links.
    async fn jobs_ending_at(&self, scope: &Scope, ends: &[Link]) -> StoreResult<Vec<ChainJob>>;

    /// Queues a job, unless its span has a job or a part, or its last link is not recorded.
    ///
    /// A chunk must also fit its family's account: the Observer is shown at most 1.5 times the tokens
    /// that the family has confirmed. The chunk is charged here, so waiting jobs count as shown.
    async fn enqueue(&self, scope: &Scope, job: &NewJob, at_ms: i64)
    -> StoreResult<EnqueueOutcome>;

    /// As [`Queue::enqueue`], for a job that an operator asked for: it replaces one that waits or was
    /// abandoned.
    async fn enqueue_requested(
        &self,
        scope: &Scope,
        job: &NewJob,
        at_ms: i64,
    ) -> StoreResult<RequestedJobOutcome>;

    /// Makes every waiting observation of a lineage due, and deletes the record of those that were
    /// abandoned.
    async fn requeue_failed(
        &self,
        scope: &Scope,
        lineage: i64,
        at_ms: i64,
    ) -> StoreResult<RequeuedJobs>;

    /// Leases the next due job until `now_ms + lease_ms`. A job whose lease has ended is free. A chunk
    /// waits for the job of the range before it, because its Observer reads the result of that one.
    async fn claim(
        &self,
        filter: &ClaimFilter,
        now_ms: i64,
        lease_ms: i64,
    ) -> StoreResult<Option<Job>>;

    /// Leases the open observation of `span` until `now_ms + lease_ms`, whether it is due or not. `None` if a
    /// worker holds it, or if there is none.
    async fn claim_observation(
        &self,
        scope: &Scope,
        span: &Span,
        now_ms: i64,
        lease_ms: i64,
    ) -> StoreResult<Option<Job>>;

    /// Makes every job due that waits, of all owners: what they waited for may have been corrected. A lease that ends later
    /// than `at_ms + lease_ms` ends then: the clock was ahead when it began. Returns how many jobs these are.
    async fn make_due(&self, at_ms: i64, lease_ms: i64) -> StoreResult<u64>;

    /// Sets the route (`None` keeps it) and the urgency of the jobs that end at these links. Called
    /// when another request of their conversation came.
    async fn reprioritize(
        &self,
        scope: &Scope,
        ends: &[Link],
        route_hash: Option<[u8; 32]>,
        urgency: Urgency,
    ) -> StoreResult<()>;

    /// Keeps a claimed job until `until_ms`, while its worker is alive. `false` if the lease was lost.
    async fn renew_lease(&self, job: &Job, until_ms: i64) -> StoreResult<bool>;

    /// Stores the part of a claimed job and deletes the job, in one transaction. `None` if the lease
    /// was lost, or if that span has a part (then the job is deleted too).
    async fn commit_part(
        &self,
        job: &Job,
        part: &NewPart,
        at_ms: i64,
    ) -> StoreResult<Option<PartId>>;

    /// Stores a code-written reflection. The job of its span stays: what a Reflector writes later is
    /// stored beside it and preferred. `None` if that span has a code-written reflection.
    ///
    /// # Errors
    /// [`StoreError::Forgotten`](super::StoreError::Forgotten) if its last link is not recorded under
    /// this owner.
    async fn commit_code_reflection(
        &self,
        scope: &Scope,
        part: &NewPart,
        at_ms: i64,
    ) -> StoreResult<Option<PartId>>;

    /// Charges the family of a job for `tokens` that the Observer was shown once more within one
    /// attempt.
    async fn charge_reobservation(&self, job: &Job, tokens: u32) -> StoreResult<()>;

    /// Gives a claimed job back. Changes nothing if the lease was lost.
    ///
    /// After an empty answer the range is charged again, because it will be shown again. It is not
    /// refused for that: one empty answer would leave a hole that no later range may cross.
    async fn release(&self, job: &Job, outcome: Release) -> StoreResult<()>;

    /// Jobs of all owners that wait, or have a lease, until `until_ms` at the latest: for metrics, and for tests and replays that
    /// wait until memory is quiet.
    async fn open_jobs(&self, until_ms: i64) -> StoreResult<u64>;

    /// Leases the next timer that is due at `now_ms`, until `until_ms`. If its process dies, the timer
    /// is due again then. A newer request moves it even while it is leased.
    async fn claim_timer(&self, now_ms: i64, until_ms: i64) -> StoreResult<Option<Timer>>;

    /// Ends a claimed timer. `remaining` holds the alarms that are still to come, and when the timer is
    /// due next. Changes nothing if a newer request moved the timer.
    async fn end_timer(&self, timer: &Timer, remaining: Option<(Alarms, i64)>) -> StoreResult<()>;

    /// When the next timer of any owner is due.
    async fn next_timer(&self) -> StoreResult<Option<i64>>;
}

/// A job to be done. (owner, kind, from, to) is unique: a second one changes nothing.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// What to do.
    pub kind: PartKind,
    /// The range of messages.
    pub span: Span,
    /// Tokens of the messages in the range.
    pub message_tokens: u32,
    /// Text for the Observer (redacted, fenced later); empty for a reflection. Deleted with the job.
    pub payload: String,
    /// The parts before the range (Observer), or the parts to condense (Reflector).
    pub parts: Vec<PartId>,
    /// The conversation's model, used if none is configured.
    pub model: String,
    /// Tip of the request that made the job due.
    pub tip: Link,
    /// Length of that request.
    pub tip_count: usize,
    /// Hash of the route to the upstream that its conversation used. If no endpoint is configured,
    /// only a process that holds this route may do the job. `None`: the last recorded route of the
    /// conversation.
    pub route_hash: Option<[u8; 32]>,
    /// How close the conversation is to its limit, in thousandths of the limit. More urgent jobs of a
    /// tenant are claimed first.
    pub urgency: u32,
}

/// The result of [`Queue::enqueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueOutcome {
    /// The job is in the queue.
    Queued,
    /// Its span has a job or a part already.
    AlreadyExists,
    /// The account of this family does not allow it: the Observer was shown too much for what is
    /// confirmed. The same job may be queued once more is confirmed.
    Paused,
    /// Its last link is not recorded, or no longer.
    Forgotten,
}

/// How close a conversation is to the limits that its jobs keep it from, in thousandths of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Urgency {
    /// For the Observer's jobs.
    pub observation: u32,
    /// For the Reflector's jobs. It never lowers the urgency of a job that an operator asked for.
    pub reflection: u32,
}

/// A claimed job. `fence` changes with every claim; a commit with an old fence is refused.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its row; [`Job::NOT_QUEUED`] if it is not in the queue.
    pub id: i64,
    /// The owner.
    pub scope: Scope,
    /// What to do.
    pub spec: NewJob,
    /// How often it was claimed, this time included.
    pub attempts: u32,
    /// How often it came back without a usable answer: empty answers and rejections.
    pub empty_answers: u32,
    /// The lease's fencing number.
    pub fence: i64,
    /// How often in a row it was claimed without being given back or finished, this time included.
    pub unsettled: u32,
    /// The name of its conversation, or its lineage's id. For operators.
    pub conversation: String,
}

impl Job {
    /// The id of every job that was never in the queue. Rows count from 1.
    pub const NOT_QUEUED: i64 = 0;

    /// Whether its id is its own, so that something may be kept under it. All jobs outside the queue
    /// share one id, also those of other owners (INV-OWN).
    pub fn is_queued(&self) -> bool {
        self.id != Self::NOT_QUEUED
    }
}

/// Which jobs a worker may claim.
#[derive(Clone, Debug)]
pub struct ClaimFilter {
    /// Whether it may claim observe jobs of any tenant, because an endpoint is configured. Otherwise
    /// only those of `held_routes`.
    pub observe_any: bool,
    /// The same for reflect jobs.
    pub reflect_any: bool,
    /// Tenants, and the routes of theirs that this process holds.
    pub held_routes: Vec<([u8; 32], [u8; 32])>,
    /// The tokens that model calls may cost on one UTC day. Jobs of an account that has spent them wait for the
    /// next day.
    pub daily: DailyLimits,
}

/// How a claimed job ended without a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Try again at this time (milliseconds since 1970).
    RetryAt(i64),
    /// The model gave no usable answer; try again at this time.
    EmptyRetryAt(i64),
    /// The endpoint rejected the call, and no model read it; try again at this time.
    RejectedRetryAt(i64),
    /// A fault in the program ended the work; try again at this time. The claim stays unsettled
    /// ([`Job::unsettled`]).
    FaultRetryAt(i64),
    /// Never try this span again.
    Abandon,
    /// Delete the job, so that its span can be queued again.
    Drop,
}

/// The result of [`Queue::requeue_failed`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequeuedJobs {
    /// Ranges that were abandoned and can be queued again.
    pub abandoned: u64,
    /// Jobs that are due now.
    pub made_due: u64,
}

/// The result of [`Queue::enqueue_requested`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedJobOutcome {
    /// The job is in the queue.
    Queued,
    /// It was waiting or abandoned, and is due now.
    Requeued,
    /// A worker is running it.
    Running,
    /// Its span has a part.
    Done,
    /// Its last link is not recorded, or no longer.
    Forgotten,
}
