//! Jobs: offered once per span, leased to one worker at a time, fenced so that a worker whose lease
//! ran out stores nothing after another took over.
//!
//! The words a job carries live in its row only; the row goes in the transaction that stores its
//! part.

use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_scalar};

use super::Answer;
use crate::history::{Link, Scope};
use crate::memory::{NewPart, PartId, PartKind};
use crate::store::rows::{self, count, get, id_list, pair_list, way, whole};
use crate::store::{ClaimFilter, Job, NewJob, Offered, Release, StoreError, Urgency, day, sql};

/// What a worker holds of a claimed job: its name and the fence, not its words.
pub(super) struct Held {
    scope: Scope,
    id: i64,
    fence: i64,
    /// What the Observer is shown by one more try.
    shows: u32,
    to: Link,
}

/// Only the Observer is shown messages.
fn shows(job: &NewJob) -> u32 {
    match job.kind {
        PartKind::Chunk => job.message_tokens,
        PartKind::Reflection => 0,
    }
}

impl Held {
    pub(super) fn of(job: &Job) -> Self {
        Self {
            scope: job.scope.clone(),
            id: job.id,
            fence: job.fence,
            shows: shows(&job.work),
            to: job.work.span.to,
        }
    }
}

pub(super) async fn offer(
    conn: &mut SqliteConnection,
    scope: Scope,
    job: NewJob,
    at_ms: i64,
) -> Answer<Offered> {
    let shows = shows(&job);
    let (kind, span) = (job.kind.name(), job.span);
    let done = query(sql::OFFER)
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
        .bind(way(job.way.as_ref()))
        .bind(job.urgency)
        .execute(&mut *conn)
        .await?;
    if done.rows_affected() == 1 {
        charge(conn, &scope, shows, span.to).await?;
        return Ok(Offered::New);
    }
    let row = query(sql::WHY_NOT_OFFERED)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(kind)
        .bind(span.from.as_bytes().as_slice())
        .bind(span.to.as_bytes().as_slice())
        .fetch_one(conn)
        .await?;
    Ok(match (get::<bool>(&row, 0)?, get::<bool>(&row, 1)?) {
        (false, _) => Offered::Forgotten,
        (true, true) => Offered::Known,
        (true, false) => Offered::Paused,
    })
}

async fn charge(conn: &mut SqliteConnection, scope: &Scope, tokens: u32, to: Link) -> Answer<()> {
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
) -> Answer<Option<Job>> {
    query(sql::CLAIM)
        .bind(filter.observe_any)
        .bind(filter.reflect_any)
        .bind(pair_list(&filter.held))
        .bind(now_ms)
        .bind(now_ms.saturating_add(lease_ms))
        .bind(whole(filter.daily_tokens.unwrap_or(u64::MAX)))
        .bind(day(now_ms))
        .fetch_optional(conn)
        .await?
        .map(|row| rows::job(&row))
        .transpose()
}

pub(super) async fn steer(
    conn: &mut SqliteConnection,
    scope: Scope,
    ends: String,
    onto: Option<[u8; 32]>,
    urgency: Urgency,
) -> Answer<()> {
    query(sql::STEER)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(ends)
        .bind(way(onto.as_ref()))
        .bind(urgency.observation)
        .bind(urgency.reflection)
        .execute(conn)
        .await?;
    Ok(())
}

pub(super) async fn commit_part(
    conn: &mut SqliteConnection,
    held: Held,
    part: NewPart,
    at_ms: i64,
) -> Answer<Option<PartId>> {
    if end(conn, sql::FINISH, &held).await? == 0 {
        return Ok(None);
    }
    new_part(conn, &held.scope, part, at_ms).await
}

pub(super) async fn commit_by_code(
    conn: &mut SqliteConnection,
    scope: Scope,
    part: NewPart,
    at_ms: i64,
) -> Answer<Option<PartId>> {
    let recorded: i64 = query_scalar(sql::NODE_EXISTS)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(part.span.to.as_bytes().as_slice())
        .fetch_one(&mut *conn)
        .await?;
    if recorded == 0 {
        return Err(StoreError::Forgotten);
    }
    new_part(conn, &scope, part, at_ms).await
}

/// Stores a part; `None` where its span has one.
pub(super) async fn new_part(
    conn: &mut SqliteConnection,
    scope: &Scope,
    part: NewPart,
    at_ms: i64,
) -> Answer<Option<PartId>> {
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
        .bind(part.asked)
        .bind(part.evidence.origins.to_json())
        .bind(part.evidence.retention.to_json())
        .bind(part.stopgap)
        .fetch_optional(conn)
        .await?;
    Ok(id.map(PartId))
}

/// The Observer was shown some of a job's messages once more.
pub(super) async fn shown_again(
    conn: &mut SqliteConnection,
    held: Held,
    tokens: u32,
) -> Answer<()> {
    charge(conn, &held.scope, tokens.min(held.shows), held.to).await
}

pub(super) async fn renew(conn: &mut SqliteConnection, held: Held, until_ms: i64) -> Answer<bool> {
    let done = query(sql::RENEW)
        .bind(held.scope.tenant.as_slice())
        .bind(held.scope.resource_key())
        .bind(held.id)
        .bind(held.fence)
        .bind(until_ms)
        .execute(conn)
        .await?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn release(conn: &mut SqliteConnection, held: Held, how: Release) -> Answer<()> {
    let (due_ms, counts, shows) = match how {
        Release::RetryAt(at_ms) => (at_ms, false, false),
        Release::EmptyRetryAt(at_ms) => (at_ms, true, true),
        Release::RejectedRetryAt(at_ms) => (at_ms, true, false),
        Release::Abandon => {
            end(conn, sql::ABANDON, &held).await?;
            return Ok(());
        }
        Release::Drop => {
            end(conn, sql::FINISH, &held).await?;
            return Ok(());
        }
    };
    let done = query(sql::RETRY)
        .bind(held.scope.tenant.as_slice())
        .bind(held.scope.resource_key())
        .bind(held.id)
        .bind(held.fence)
        .bind(due_ms)
        .bind(i64::from(counts))
        .execute(&mut *conn)
        .await?;
    if done.rows_affected() == 1 && shows {
        charge(conn, &held.scope, held.shows, held.to).await?;
    }
    Ok(())
}

/// Runs a statement that ends a lease; returns 0 where the lease was lost.
async fn end(conn: &mut SqliteConnection, statement: &'static str, held: &Held) -> Answer<u64> {
    Ok(query(statement)
        .bind(held.scope.tenant.as_slice())
        .bind(held.scope.resource_key())
        .bind(held.id)
        .bind(held.fence)
        .execute(conn)
        .await?
        .rows_affected())
}

pub(super) async fn open_jobs(conn: &mut SqliteConnection) -> Answer<u64> {
    let row = query(sql::OPEN_JOBS).fetch_one(conn).await?;
    rows::int(&row, 0)
}
