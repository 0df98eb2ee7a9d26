//! What an operator asks of one conversation: to observe all of it, or to condense its log. The request is
//! stored; a running server finds it with the conversation's next request, or the next server does.

use sqlx::query_as;
use sqlx::sqlite::SqliteConnection;

use super::scoped::{lineage_rows, scoped_query, scoped_scalar};
use super::{admin, load_chain};
use crate::history::Scope;
use crate::memory::Span;
use crate::store::StoreResult;
use crate::store::rows::{self, get, id_list};
use crate::store::{
    EnqueueOutcome, LongestChain, NewJob, OperatorRequest, RequestedJobOutcome, RequeuedJobs,
};

/// The longest chain of a lineage, and everything recorded of it.
pub(super) async fn longest_chain(
    conn: &mut SqliteConnection,
    lineage: i64,
) -> StoreResult<Option<LongestChain>> {
    let row = admin::lineage_row(conn, lineage).await?;
    let Some(row) = row else { return Ok(None) };
    let (scope, model) = (rows::scope(&row, 1)?, get::<String>(&row, 4)?);
    let mut links = Vec::new();
    for row in &lineage_rows(conn, admin::LONGEST_CHAIN, &scope, lineage).await? {
        links.push(rows::node(row)?.link);
    }
    links.reverse();
    let chain = load_chain::load_chain(conn, scope.clone(), links).await?;
    Ok(Some(LongestChain {
        scope,
        model,
        chain,
    }))
}

/// Stores a request (`$4`: `OperatorRequest::number`, `$5`: focus) for a lineage (`$3`). Of two requests
/// the one with the larger number stays, and the newest focus.
const PUT_OPERATOR_REQUEST: &str = "
UPDATE lineages SET observe_asked = max(observe_asked, $4),
                    observe_focus = coalesce($5, observe_focus)
WHERE tenant = $1 AND resource = $2 AND id = $3";

pub(super) async fn put_operator_request(
    conn: &mut SqliteConnection,
    scope: Scope,
    lineage: i64,
    request: OperatorRequest,
) -> StoreResult<bool> {
    let done = scoped_query(PUT_OPERATOR_REQUEST, &scope)
        .bind(lineage)
        .bind(request.number())
        .bind(request.focus())
        .execute(conn)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// The operator's request for a lineage (`$3`).
const OPERATOR_REQUEST: &str = "SELECT observe_asked, observe_focus FROM lineages WHERE tenant = $1 AND resource = $2 AND id = $3";

pub(super) async fn operator_request(
    conn: &mut SqliteConnection,
    scope: Scope,
    lineage: i64,
) -> StoreResult<Option<OperatorRequest>> {
    let row: Option<(i64, Option<String>)> = query_as(OPERATOR_REQUEST)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .fetch_optional(conn)
        .await?;
    Ok(row.and_then(|(number, focus)| OperatorRequest::from_number(number, focus)))
}

/// Deletes the operator's request for a lineage (`$3`).
const COMPLETE_OPERATOR_REQUEST: &str = "UPDATE lineages SET observe_asked = 0, observe_focus = NULL WHERE tenant = $1 AND resource = $2 AND id = $3";

pub(super) async fn complete_operator_request(
    conn: &mut SqliteConnection,
    scope: Scope,
    lineage: i64,
) -> StoreResult<()> {
    scoped_query(COMPLETE_OPERATOR_REQUEST, &scope)
        .bind(lineage)
        .execute(conn)
        .await?;
    Ok(())
}

/// Deletes the abandoned observations of a lineage (`$3`), so that its next request can queue them again.
const FORGET_ABANDONED: &str = "
DELETE FROM jobs
WHERE tenant = $1 AND resource = $2 AND kind = 'chunk' AND state = 'abandoned'
  AND to_link IN (SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3)";

/// Makes the waiting observations of a lineage (`$3`) due at `$4`.
const DUE_NOW: &str = "
UPDATE jobs SET due_ms = $4, attempts = 0
WHERE tenant = $1 AND resource = $2 AND kind = 'chunk' AND state = 'open' AND leased = 0
  AND to_link IN (SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3)";

pub(super) async fn requeue_failed(
    conn: &mut SqliteConnection,
    scope: Scope,
    lineage: i64,
    at_ms: i64,
) -> StoreResult<RequeuedJobs> {
    let abandoned = scoped_query(FORGET_ABANDONED, &scope)
        .bind(lineage)
        .execute(&mut *conn)
        .await?
        .rows_affected();
    let made_due = scoped_query(DUE_NOW, &scope)
        .bind(lineage)
        .bind(at_ms)
        .execute(conn)
        .await?
        .rows_affected();
    Ok(RequeuedJobs {
        abandoned,
        made_due,
    })
}

/// The part of a span (`$3`: kind, `$4`: from, `$5`: to) that a model wrote.
const PART_OF_SPAN: &str = "
SELECT id FROM parts
WHERE tenant = $1 AND resource = $2 AND to_link = $5 AND from_link = $4 AND kind = $3
  AND stopgap = 0";

/// Makes the job of a span (`$3`: kind, `$4`: from, `$5`: to) due at `$6` with another text (`$7`) and
/// other parts (`$8`), also if it was abandoned, but not while a worker holds it.
const REQUEUE_REQUESTED: &str = "
UPDATE jobs SET state = 'open', leased = 0, due_ms = $6, attempts = 0, empty_answers = 0,
                payload = $7, parts = $8
WHERE tenant = $1 AND resource = $2 AND to_link = $5 AND from_link = $4 AND kind = $3
  AND (leased = 0 OR due_ms <= $6)";

pub(super) async fn enqueue_requested(
    conn: &mut SqliteConnection,
    scope: Scope,
    job: NewJob,
    at_ms: i64,
) -> StoreResult<RequestedJobOutcome> {
    let span = job.span;
    let part: Option<i64> = scoped_scalar(PART_OF_SPAN, &scope)
        .bind(job.kind.name())
        .bind(span.from.as_bytes().as_slice())
        .bind(span.to.as_bytes().as_slice())
        .fetch_optional(&mut *conn)
        .await?;
    if part.is_some() {
        return Ok(RequestedJobOutcome::Done);
    }
    let waiting = scoped_query(REQUEUE_REQUESTED, &scope)
        .bind(job.kind.name())
        .bind(span.from.as_bytes().as_slice())
        .bind(span.to.as_bytes().as_slice())
        .bind(at_ms)
        .bind(&job.payload)
        .bind(id_list(&job.parts))
        .execute(&mut *conn)
        .await?;
    if waiting.rows_affected() == 1 {
        return Ok(RequestedJobOutcome::Requeued);
    }
    Ok(
        match super::queue::enqueue(conn, scope, job, at_ms).await? {
            EnqueueOutcome::Queued => RequestedJobOutcome::Queued,
            EnqueueOutcome::AlreadyExists => RequestedJobOutcome::Running,
            EnqueueOutcome::Paused | EnqueueOutcome::Forgotten => RequestedJobOutcome::Forgotten,
        },
    )
}

/// Observations of a lineage (`$3`) that wait, with their texts.
const PENDING_TEXTS_OF_LINEAGE: &str = "
SELECT j.from_link, j.from_count, j.to_link, j.to_count, j.payload
FROM nodes AS n CROSS JOIN jobs AS j
WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3
  AND j.tenant = $1 AND j.resource = $2 AND j.to_link = n.link AND j.kind = 'chunk'";

/// The waiting observations of a lineage, with their texts.
pub(super) async fn pending_texts(
    conn: &mut SqliteConnection,
    lineage: i64,
) -> StoreResult<Vec<(Span, String)>> {
    let row = admin::lineage_row(conn, lineage).await?;
    let Some(row) = row else {
        return Ok(Vec::new());
    };
    let scope = rows::scope(&row, 1)?;
    let mut texts = Vec::new();
    for row in &lineage_rows(conn, PENDING_TEXTS_OF_LINEAGE, &scope, lineage).await? {
        texts.push((rows::span(row, 0)?, get(row, 4)?));
    }
    Ok(texts)
}
