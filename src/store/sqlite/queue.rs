//! Jobs: offered once per span, leased to one worker at a time, fenced so that a worker whose lease
//! ran out stores nothing after another took over.
//!
//! The words a job carries live in its row only; the row goes in the transaction that stores its
//! part.

use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_scalar};

use crate::store::StoreResult;
use crate::history::{Link, Scope};
use crate::memory::{NewPart, PartId, PartKind};
use crate::store::rows::{self, count, get, id_list, pair_list, route_bytes, token_count};
use crate::store::{
    ClaimFilter, EnqueueOutcome, Job, NewJob, Release, StoreError, Urgency, sql, utc_day,
};

/// What a worker holds of a claimed job: its name and the fence, not its words.
pub(super) struct ClaimedJob {
    scope: Scope,
    id: i64,
    fence: i64,
    /// What the Observer is shown by one more try.
    observer_tokens: u32,
    to: Link,
}

/// Only the Observer is shown messages.
fn observer_tokens(job: &NewJob) -> u32 {
    match job.kind {
        PartKind::Chunk => job.message_tokens,
        PartKind::Reflection => 0,
    }
}

impl ClaimedJob {
    pub(super) fn from_job(job: &Job) -> Self {
        Self {
            scope: job.scope.clone(),
            id: job.id,
            fence: job.fence,
            observer_tokens: observer_tokens(&job.spec),
            to: job.spec.span.to,
        }
    }
}

pub(super) async fn enqueue(
    conn: &mut SqliteConnection,
    scope: Scope,
    job: NewJob,
    at_ms: i64,
) -> StoreResult<EnqueueOutcome> {
    let observer_tokens = observer_tokens(&job);
    let (kind, span) = (job.kind.name(), job.span);
    let done = query(sql::ENQUEUE)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(job.kind.name())
        .bind(job.span.from.as_bytes().as_slice())
        .bind(count(job.span.from_count))
        .bind(job.span.to.as_bytes().as_slice())
        .bind(count(job.span.to_count))
        .bind(at_ms)
        .bind(job.message_tokens)
        .bind(id_list(&job.parts))
        .bind(job.model)
        .bind(job.tip.as_bytes().as_slice())
        .bind(count(job.tip_count))
        .bind(job.payload)
        .bind(route_bytes(job.route_hash.as_ref()))
        .bind(job.urgency)
        .execute(&mut *conn)
        .await?;
    if done.rows_affected() == 1 {
        charge(conn, &scope, observer_tokens, span.to).await?;
        return Ok(EnqueueOutcome::Queued);
    }
    let row = query(sql::WHY_NOT_ENQUEUED)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(kind)
        .bind(span.from.as_bytes().as_slice())
        .bind(span.to.as_bytes().as_slice())
        .fetch_one(conn)
        .await?;
    Ok(match (get::<bool>(&row, 0)?, get::<bool>(&row, 1)?) {
        (false, _) => EnqueueOutcome::Forgotten,
        (true, true) => EnqueueOutcome::AlreadyExists,
        (true, false) => EnqueueOutcome::Paused,
    })
}

async fn charge(
    conn: &mut SqliteConnection,
    scope: &Scope,
    tokens: u32,
    to: Link,
) -> StoreResult<()> {
    query(sql::CHARGE)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(tokens)
        .bind(to.as_bytes().as_slice())
        .execute(conn)
        .await?;
    Ok(())
}

pub(super) async fn claim(
    conn: &mut SqliteConnection,
    filter: ClaimFilter,
    now_ms: i64,
    lease_ms: i64,
) -> StoreResult<Option<Job>> {
    query(sql::CLAIM)
        .bind(filter.observe_any)
        .bind(filter.reflect_any)
        .bind(pair_list(&filter.held_routes))
        .bind(now_ms)
        .bind(now_ms.saturating_add(lease_ms))
        .bind(token_count(filter.daily_tokens.unwrap_or(u64::MAX)))
        .bind(utc_day(now_ms))
        .fetch_optional(conn)
        .await?
        .map(|row| rows::job(&row))
        .transpose()
}

pub(super) async fn reprioritize(
    conn: &mut SqliteConnection,
    scope: Scope,
    ends: String,
    route_hash: Option<[u8; 32]>,
    urgency: Urgency,
) -> StoreResult<()> {
    query(sql::REPRIORITIZE)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(ends)
        .bind(route_bytes(route_hash.as_ref()))
        .bind(urgency.observation)
        .bind(urgency.reflection)
        .execute(conn)
        .await?;
    Ok(())
}

pub(super) async fn commit_part(
    conn: &mut SqliteConnection,
    claimed: ClaimedJob,
    part: NewPart,
    at_ms: i64,
) -> StoreResult<Option<PartId>> {
    if end_lease(conn, sql::FINISH, &claimed).await? == 0 {
        return Ok(None);
    }
    insert_part(conn, &claimed.scope, part, at_ms).await
}

pub(super) async fn commit_code_reflection(
    conn: &mut SqliteConnection,
    scope: Scope,
    part: NewPart,
    at_ms: i64,
) -> StoreResult<Option<PartId>> {
    let recorded: i64 = query_scalar(sql::NODE_EXISTS)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(part.span.to.as_bytes().as_slice())
        .fetch_one(&mut *conn)
        .await?;
    if recorded == 0 {
        return Err(StoreError::Forgotten);
    }
    insert_part(conn, &scope, part, at_ms).await
}

/// Stores a part; `None` where its span has one.
pub(super) async fn insert_part(
    conn: &mut SqliteConnection,
    scope: &Scope,
    part: NewPart,
    at_ms: i64,
) -> StoreResult<Option<PartId>> {
    let id: Option<i64> = query_scalar(sql::NEW_PART)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(part.kind.name())
        .bind(part.span.from.as_bytes().as_slice())
        .bind(count(part.span.from_count))
        .bind(part.span.to.as_bytes().as_slice())
        .bind(count(part.span.to_count))
        .bind(part.text)
        .bind(part.tokens)
        .bind(part.message_tokens)
        .bind(part.current_task)
        .bind(part.suggested_response)
        .bind(id_list(&part.sources))
        .bind(part.model)
        .bind(at_ms)
        .bind(part.requested)
        .bind(part.analysis.line_sources.to_json())
        .bind(part.analysis.retention.to_json())
        .bind(part.code_reflection)
        .fetch_optional(conn)
        .await?;
    Ok(id.map(PartId))
}

/// The Observer was shown some of a job's messages once more.
pub(super) async fn charge_reobservation(
    conn: &mut SqliteConnection,
    claimed: ClaimedJob,
    tokens: u32,
) -> StoreResult<()> {
    charge(
        conn,
        &claimed.scope,
        tokens.min(claimed.observer_tokens),
        claimed.to,
    )
    .await
}

pub(super) async fn renew_lease(
    conn: &mut SqliteConnection,
    claimed: ClaimedJob,
    until_ms: i64,
) -> StoreResult<bool> {
    let done = query(sql::RENEW)
        .bind(claimed.scope.tenant.as_slice())
        .bind(claimed.scope.resource_key())
        .bind(claimed.id)
        .bind(claimed.fence)
        .bind(until_ms)
        .execute(conn)
        .await?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn release(
    conn: &mut SqliteConnection,
    claimed: ClaimedJob,
    outcome: Release,
) -> StoreResult<()> {
    let (due_ms, count_empty_answer, charge_again) = match outcome {
        Release::RetryAt(at_ms) => (at_ms, false, false),
        Release::EmptyRetryAt(at_ms) => (at_ms, true, true),
        Release::RejectedRetryAt(at_ms) => (at_ms, true, false),
        Release::Abandon => {
            end_lease(conn, sql::ABANDON, &claimed).await?;
            return Ok(());
        }
        Release::Drop => {
            end_lease(conn, sql::FINISH, &claimed).await?;
            return Ok(());
        }
    };
    let done = query(sql::RETRY)
        .bind(claimed.scope.tenant.as_slice())
        .bind(claimed.scope.resource_key())
        .bind(claimed.id)
        .bind(claimed.fence)
        .bind(due_ms)
        .bind(i64::from(count_empty_answer))
        .execute(&mut *conn)
        .await?;
    if done.rows_affected() == 1 && charge_again {
        charge(conn, &claimed.scope, claimed.observer_tokens, claimed.to).await?;
    }
    Ok(())
}

/// Runs a statement that ends a lease; returns 0 where the lease was lost.
async fn end_lease(
    conn: &mut SqliteConnection,
    statement: &'static str,
    claimed: &ClaimedJob,
) -> StoreResult<u64> {
    Ok(query(statement)
        .bind(claimed.scope.tenant.as_slice())
        .bind(claimed.scope.resource_key())
        .bind(claimed.id)
        .bind(claimed.fence)
        .execute(conn)
        .await?
        .rows_affected())
}

pub(super) async fn open_jobs(conn: &mut SqliteConnection) -> StoreResult<u64> {
    let row = query(sql::OPEN_JOBS).fetch_one(conn).await?;
    rows::int(&row, 0)
}
