//! Jobs: one per span, leased to one worker at a time. Each claim raises the job's fence, so a worker
//! whose lease has ended cannot store anything after another worker has claimed the job.
//!
//! The text for the Observer is only in the job's row. The transaction that stores the part deletes it.

use sqlx::query;
use sqlx::sqlite::SqliteConnection;

use super::scoped::{scoped_query, scoped_scalar};
use super::{observer_allowance, read};
use crate::history::{Link, Scope};
use crate::memory::{NewPart, PartId, PartKind, Span};
use crate::store::StoreResult;
use crate::store::rows::{self, count, get, id_list, pair_list, route_bytes, token_count};
use crate::store::{
    ClaimFilter, EnqueueOutcome, Job, NewJob, Release, StoreError, Urgency, utc_day,
};

/// What identifies a claimed job: its id and its fence, without its text.
#[derive(Clone)]
pub(super) struct ClaimedJob {
    scope: Scope,
    id: i64,
    fence: i64,
    /// Tokens of messages that the Observer is shown in one attempt.
    observer_tokens: u32,
    to: Link,
}

/// Tokens of messages that the job shows the Observer. A Reflector is shown no messages.
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

/// A job. Inserts nothing if its span has a job, or a part that a model wrote; if its last message (`$6`)
/// is not recorded; or if it is a chunk with more tokens (`$9`) than the account of its family allows. A
/// job without a route (`$15`) gets the last route of its conversation (`$12`: tip).
const ENQUEUE: &str = "
INSERT INTO jobs (tenant, resource, kind, from_link, from_count, to_link, to_count, state, due_ms,
                  leased, fence, attempts, empty_answers, message_tokens, parts, model, tip,
                  tip_count, payload, way, urgency)
SELECT $1, $2, $3, $4, $5, $6, $7, 'open', $8, 0, 0, 0, 0, $9, $10, $11, $12, $13, $14,
       CASE WHEN $15 <> x'' THEN $15 ELSE coalesce((
           SELECT l.way FROM nodes AS n CROSS JOIN lineages AS l
           WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $12
             AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage), x'') END,
       $16
WHERE EXISTS (SELECT 1 FROM nodes WHERE tenant = $1 AND resource = $2 AND link = $6)
  AND NOT EXISTS (SELECT 1 FROM parts WHERE tenant = $1 AND resource = $2 AND to_link = $6
                  AND from_link = $4 AND kind = $3 AND stopgap = 0)
  AND ($3 <> 'chunk' OR EXISTS (
          SELECT 1 FROM nodes AS n CROSS JOIN lineages AS l CROSS JOIN accounts AS a
          WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $6
            AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage
            AND a.tenant = $1 AND a.resource = $2 AND a.family = l.family
            AND (a.shown_tokens + $9) * 2 <= a.confirmed_tokens * 3))
ON CONFLICT (tenant, resource, to_link, from_link, kind) DO NOTHING";

/// Why [`ENQUEUE`] inserted nothing (`$3`: kind, `$4`: from, `$5`: to): whether the last message is
/// recorded, and whether the span has a job or a part.
const WHY_NOT_ENQUEUED: &str = "
SELECT EXISTS (SELECT 1 FROM nodes WHERE tenant = $1 AND resource = $2 AND link = $5),
       EXISTS (SELECT 1 FROM jobs WHERE tenant = $1 AND resource = $2 AND to_link = $5
               AND from_link = $4 AND kind = $3)
       OR EXISTS (SELECT 1 FROM parts WHERE tenant = $1 AND resource = $2 AND to_link = $5
                  AND from_link = $4 AND kind = $3 AND stopgap = 0)";

pub(super) async fn enqueue(
    conn: &mut SqliteConnection,
    scope: Scope,
    job: NewJob,
    at_ms: i64,
) -> StoreResult<EnqueueOutcome> {
    let observer_tokens = observer_tokens(&job);
    let (kind, span) = (job.kind.name(), job.span);
    let done = scoped_query(ENQUEUE, &scope)
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
        observer_allowance::add_shown(conn, &scope, observer_tokens, span.to).await?;
        return Ok(EnqueueOutcome::Queued);
    }
    let row = scoped_query(WHY_NOT_ENQUEUED, &scope)
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

/// Leases the next due job. `$1`, `$2`: whether observe and reflect jobs of any tenant may be claimed;
/// `$3`: pairs of tenant and route whose jobs may be claimed otherwise; `$4`: now; `$5`: end of the lease;
/// `$6`, `$8`: tokens that an account, and all together, may spend on a day; `$7`: today. Tenants with the fewest running jobs come first,
/// then conversations closest to their limit. If only jobs of some routes may be claimed, only those are looked
/// at (index `jobs_by_route`): jobs whose route is gone may wait for long.
///
/// The statement names no owner, because a worker serves all of them. The job comes back with its scope.
const CLAIM: &str = "
UPDATE jobs SET leased = 1, due_ms = $5, attempts = attempts + 1, fence = fence + 1,
                unsettled = unsettled + 1
WHERE id = (
    WITH due (id) AS (
        SELECT d.id FROM json_each($3) AS p CROSS JOIN jobs AS d
        WHERE d.tenant = unhex(p.value ->> 0) AND d.way = unhex(p.value ->> 1)
          AND d.state = 'open' AND d.due_ms <= $4
        UNION
        SELECT d.id FROM jobs AS d
        WHERE ($1 OR $2) AND d.state = 'open' AND d.due_ms <= $4
          AND ((d.kind = 'chunk' AND $1) OR (d.kind = 'reflection' AND $2)))
    SELECT j.id FROM due CROSS JOIN jobs AS j
    WHERE j.id = due.id
      AND coalesce((SELECT sum(s.tokens) FROM spending AS s
                    WHERE s.day = $7
                      AND s.account = coalesce((SELECT t.account FROM tenant_accounts AS t
                                                WHERE t.tenant = j.tenant), j.tenant)), 0) < $6
      AND ($8 IS NULL OR coalesce((SELECT sum(s.tokens) FROM spending AS s WHERE s.day = $7), 0) < $8)
      AND NOT (j.kind = 'chunk' AND EXISTS (
          SELECT 1 FROM jobs AS e
          WHERE e.tenant = j.tenant AND e.resource = j.resource AND e.kind = 'chunk'
            AND e.to_link = j.from_link AND e.state = 'open'))
    ORDER BY (SELECT count(*) FROM jobs AS b
              WHERE b.tenant = j.tenant AND b.state = 'open' AND b.leased = 1 AND b.due_ms > $4),
             j.urgency DESC, j.due_ms, j.id
    LIMIT 1)
RETURNING id, tenant, resource, kind, from_link, from_count, to_link, to_count, message_tokens,
          payload, parts, model, tip, tip_count, attempts, empty_answers, fence, way, urgency, unsettled,
          coalesce((SELECT coalesce(l.thread_key, CAST(l.id AS TEXT)) FROM nodes AS n CROSS JOIN lineages AS l
                    WHERE n.tenant = jobs.tenant AND n.resource = jobs.resource AND n.link = jobs.tip
                      AND l.tenant = jobs.tenant AND l.resource = jobs.resource AND l.id = n.lineage), '')";

pub(super) async fn claim(
    conn: &mut SqliteConnection,
    filter: ClaimFilter,
    now_ms: i64,
    lease_ms: i64,
) -> StoreResult<Option<Job>> {
    query(CLAIM)
        .bind(filter.observe_any)
        .bind(filter.reflect_any)
        .bind(pair_list(&filter.held_routes))
        .bind(now_ms)
        .bind(now_ms.saturating_add(lease_ms))
        .bind(token_count(filter.daily.account.unwrap_or(u64::MAX)))
        .bind(utc_day(now_ms))
        .bind(filter.daily.all.map(token_count))
        // To its end, where SQLite commits it.
        .fetch_all(conn)
        .await?
        .first()
        .map(rows::job)
        .transpose()
}

/// Leases the observation from `$3` to `$4` until `$6`, unless a lease runs at `$5` (now).
const CLAIM_OBSERVATION: &str = "
UPDATE jobs SET leased = 1, due_ms = $6, attempts = attempts + 1, fence = fence + 1,
                unsettled = unsettled + 1
WHERE tenant = $1 AND resource = $2 AND to_link = $4 AND from_link = $3 AND kind = 'chunk'
  AND state = 'open' AND (leased = 0 OR due_ms <= $5)
RETURNING id, tenant, resource, kind, from_link, from_count, to_link, to_count, message_tokens,
          payload, parts, model, tip, tip_count, attempts, empty_answers, fence, way, urgency, unsettled,
          ''";

pub(super) async fn claim_observation(
    conn: &mut SqliteConnection,
    scope: Scope,
    span: Span,
    now_ms: i64,
    lease_ms: i64,
) -> StoreResult<Option<Job>> {
    scoped_query(CLAIM_OBSERVATION, &scope)
        .bind(span.from.as_bytes().as_slice())
        .bind(span.to.as_bytes().as_slice())
        .bind(now_ms)
        .bind(now_ms.saturating_add(lease_ms))
        // To its end, where SQLite commits it.
        .fetch_all(conn)
        .await?
        .first()
        .map(rows::job)
        .transpose()
}

/// Makes every job due (`$1`: now) that waits. A lease that ends later than one that begins now (`$2`: its end) ends then:
/// the clock was ahead when it began. Not at once, because its worker may live and renew it. It names no owner, because what
/// all of them waited for has changed.
const MAKE_DUE: &str = "
UPDATE jobs SET due_ms = CASE leased WHEN 0 THEN $1 ELSE $2 END
WHERE state = 'open' AND due_ms > $1 AND (leased = 0 OR due_ms > $2)";

pub(super) async fn make_due(
    conn: &mut SqliteConnection,
    at_ms: i64,
    lease_ms: i64,
) -> StoreResult<u64> {
    let done = query(MAKE_DUE)
        .bind(at_ms)
        .bind(at_ms.saturating_add(lease_ms))
        .execute(conn)
        .await?;
    Ok(done.rows_affected())
}

/// Sets the route (`$4`, unless empty) and the urgency of open jobs that end at some links (`$3`): `$5` for
/// the Observer's, `$6` for the Reflector's. The urgency of a reflection only rises, because an operator
/// may have asked for it.
const REPRIORITIZE: &str = "
UPDATE jobs SET way = CASE WHEN $4 = x'' THEN way ELSE $4 END,
                urgency = CASE WHEN kind = 'chunk' THEN $5 ELSE max(urgency, $6) END
WHERE tenant = $1 AND resource = $2 AND state = 'open'
  AND to_link IN (SELECT unhex(p.value) FROM json_each($3) AS p)";

pub(super) async fn reprioritize(
    conn: &mut SqliteConnection,
    scope: Scope,
    ends: Vec<Link>,
    route_hash: Option<[u8; 32]>,
    urgency: Urgency,
) -> StoreResult<()> {
    scoped_query(REPRIORITIZE, &scope)
        .bind(rows::link_list(&ends))
        .bind(route_bytes(route_hash.as_ref()))
        .bind(urgency.observation)
        .bind(urgency.reflection)
        .execute(conn)
        .await?;
    Ok(())
}

/// Deletes a job (`$3`) if the worker still holds it (`$4`: fence).
const FINISH: &str = "
DELETE FROM jobs
WHERE tenant = $1 AND resource = $2 AND id = $3 AND fence = $4 AND leased = 1 AND state = 'open'";

pub(super) async fn commit_part(
    conn: &mut SqliteConnection,
    claimed: ClaimedJob,
    part: NewPart,
    at_ms: i64,
) -> StoreResult<Option<PartId>> {
    if end_lease(conn, FINISH, &claimed).await? == 0 {
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
    if !read::is_recorded(conn, &scope, part.span.to).await? {
        return Err(StoreError::Forgotten);
    }
    insert_part(conn, &scope, part, at_ms).await
}

/// A part. Inserts nothing if the span has one already. A code-written reflection (column `stopgap`) and one
/// that a model wrote count separately.
const NEW_PART: &str = "
INSERT INTO parts (tenant, resource, kind, from_link, from_count, to_link, to_count, text, tokens,
                   message_tokens, current_task, suggested_response, sources, model, at_ms, asked,
                   origins, retention, stopgap, lost)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)
ON CONFLICT (tenant, resource, to_link, from_link, kind, stopgap) DO NOTHING
RETURNING id";

/// Stores a part; `None` if its span has one.
pub(super) async fn insert_part(
    conn: &mut SqliteConnection,
    scope: &Scope,
    part: NewPart,
    at_ms: i64,
) -> StoreResult<Option<PartId>> {
    let id: Option<i64> = scoped_scalar(NEW_PART, scope)
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
        .bind(part.analysis.lost.map(|lost| lost.to_json()))
        .fetch_optional(conn)
        .await?;
    Ok(id.map(PartId))
}

/// Charges the account for messages that the Observer was shown once more, at most for the whole job.
pub(super) async fn charge_reobservation(
    conn: &mut SqliteConnection,
    claimed: ClaimedJob,
    tokens: u32,
) -> StoreResult<()> {
    observer_allowance::add_shown(
        conn,
        &claimed.scope,
        tokens.min(claimed.observer_tokens),
        claimed.to,
    )
    .await
}

/// Extends the lease of a job (`$3`, `$4`: fence) until `$5`.
const RENEW: &str = "
UPDATE jobs SET due_ms = $5
WHERE tenant = $1 AND resource = $2 AND id = $3 AND fence = $4 AND leased = 1 AND state = 'open'";

pub(super) async fn renew_lease(
    conn: &mut SqliteConnection,
    claimed: ClaimedJob,
    until_ms: i64,
) -> StoreResult<bool> {
    let done = scoped_query(RENEW, &claimed.scope)
        .bind(claimed.id)
        .bind(claimed.fence)
        .bind(until_ms)
        .execute(conn)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// Marks a span as abandoned. The row stays without its text, so that the span is not queued again.
const ABANDON: &str = "
UPDATE jobs SET leased = 0, state = 'abandoned', payload = '', parts = '[]'
WHERE tenant = $1 AND resource = $2 AND id = $3 AND fence = $4 AND leased = 1 AND state = 'open'";

/// Gives a job (`$3`, `$4`: fence) back; it is due at `$5`. `$6` is 1 after an empty answer. `$7`: whether
/// the claim is settled.
const RETRY: &str = "
UPDATE jobs SET leased = 0, due_ms = $5, empty_answers = empty_answers + $6,
                unsettled = CASE WHEN $7 THEN 0 ELSE unsettled END
WHERE tenant = $1 AND resource = $2 AND id = $3 AND fence = $4 AND leased = 1 AND state = 'open'";

pub(super) async fn release(
    conn: &mut SqliteConnection,
    claimed: ClaimedJob,
    outcome: Release,
) -> StoreResult<()> {
    let (due_ms, count_empty_answer, charge_again) = match outcome {
        Release::RetryAt(at_ms) | Release::FaultRetryAt(at_ms) => (at_ms, false, false),
        Release::EmptyRetryAt(at_ms) => (at_ms, true, true),
        Release::RejectedRetryAt(at_ms) => (at_ms, true, false),
        Release::Abandon => {
            end_lease(conn, ABANDON, &claimed).await?;
            return Ok(());
        }
        Release::Drop => {
            end_lease(conn, FINISH, &claimed).await?;
            return Ok(());
        }
    };
    let done = scoped_query(RETRY, &claimed.scope)
        .bind(claimed.id)
        .bind(claimed.fence)
        .bind(due_ms)
        .bind(i64::from(count_empty_answer))
        .bind(!matches!(outcome, Release::FaultRetryAt(_)))
        .execute(&mut *conn)
        .await?;
    if done.rows_affected() == 1 && charge_again {
        observer_allowance::add_shown(conn, &claimed.scope, claimed.observer_tokens, claimed.to)
            .await?;
    }
    Ok(())
}

/// Runs a statement that ends a lease; returns 0 if the lease was lost.
async fn end_lease(
    conn: &mut SqliteConnection,
    statement: &'static str,
    claimed: &ClaimedJob,
) -> StoreResult<u64> {
    Ok(scoped_query(statement, &claimed.scope)
        .bind(claimed.id)
        .bind(claimed.fence)
        .execute(conn)
        .await?
        .rows_affected())
}

/// Jobs of all owners that wait, or have a lease, until `$1` at the latest.
const OPEN_JOBS: &str = "SELECT count(*) FROM jobs WHERE state = 'open' AND due_ms <= $1";

pub(super) async fn open_jobs(conn: &mut SqliteConnection, until_ms: i64) -> StoreResult<u64> {
    let row = query(OPEN_JOBS).bind(until_ms).fetch_one(conn).await?;
    rows::int(&row, 0)
}
