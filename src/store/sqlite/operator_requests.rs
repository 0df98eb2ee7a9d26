//! What an operator asks of one conversation: to observe it whole, to condense its log. Written into the
//! store, where a running server finds it, or the next one.

use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_as, query_scalar};

use super::read;
use crate::store::StoreResult;
use crate::history::Scope;
use crate::memory::Span;
use crate::store::rows::{self, get, id_list, link_list};
use crate::store::{
    EnqueueOutcome, LongestChain, NewJob, OperatorRequest, RequestedJobOutcome, RequeuedJobs, sql,
};

/// The longest chain of a lineage and everything known of it.
pub(super) async fn longest_chain(
    conn: &mut SqliteConnection,
    lineage: i64,
) -> StoreResult<Option<LongestChain>> {
    let row = query(sql::THREAD)
        .bind(lineage)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let (scope, model) = (rows::scope(&row, 1)?, get::<String>(&row, 4)?);
    let mut links = Vec::new();
    for row in &lineage_rows(conn, sql::LONGEST_CHAIN, &scope, lineage).await? {
        links.push(rows::node(row)?.link);
    }
    links.reverse();
    let chain = read::load_chain(conn, scope.clone(), link_list(&links)).await?;
    Ok(Some(LongestChain {
        scope,
        model,
        chain,
    }))
}

async fn lineage_rows(
    conn: &mut SqliteConnection,
    statement: &'static str,
    scope: &Scope,
    lineage: i64,
) -> StoreResult<Vec<sqlx::sqlite::SqliteRow>> {
    Ok(query(statement)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .fetch_all(conn)
        .await?)
}

pub(super) async fn put_operator_request(
    conn: &mut SqliteConnection,
    scope: Scope,
    lineage: i64,
    request: OperatorRequest,
) -> StoreResult<bool> {
    let done = query(sql::PUT_OPERATOR_REQUEST)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .bind(request.number())
        .bind(request.focus())
        .execute(conn)
        .await?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn operator_request(
    conn: &mut SqliteConnection,
    scope: Scope,
    lineage: i64,
) -> StoreResult<Option<OperatorRequest>> {
    let row: Option<(i64, Option<String>)> = query_as(sql::OPERATOR_REQUEST)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .fetch_optional(conn)
        .await?;
    Ok(row.and_then(|(number, focus)| OperatorRequest::from_number(number, focus)))
}

pub(super) async fn complete_operator_request(
    conn: &mut SqliteConnection,
    scope: Scope,
    lineage: i64,
) -> StoreResult<()> {
    query(sql::COMPLETE_OPERATOR_REQUEST)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .execute(conn)
        .await?;
    Ok(())
}

pub(super) async fn requeue_failed(
    conn: &mut SqliteConnection,
    scope: Scope,
    lineage: i64,
    at_ms: i64,
) -> StoreResult<RequeuedJobs> {
    let abandoned = query(sql::FORGET_ABANDONED)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .execute(&mut *conn)
        .await?
        .rows_affected();
    let made_due = query(sql::DUE_NOW)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
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

pub(super) async fn enqueue_requested(
    conn: &mut SqliteConnection,
    scope: Scope,
    job: NewJob,
    at_ms: i64,
) -> StoreResult<RequestedJobOutcome> {
    let span = job.span;
    let part: Option<i64> = query_scalar(sql::PART_OF_SPAN)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(job.kind.name())
        .bind(span.from.as_bytes().as_slice())
        .bind(span.to.as_bytes().as_slice())
        .fetch_optional(&mut *conn)
        .await?;
    if part.is_some() {
        return Ok(RequestedJobOutcome::Done);
    }
    let waiting = query(sql::REQUEUE_REQUESTED)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
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

/// Jobs of a lineage that wait, with the words they carry.
pub(super) async fn pending_texts(
    conn: &mut SqliteConnection,
    lineage: i64,
) -> StoreResult<Vec<(Span, String)>> {
    let row = query(sql::THREAD)
        .bind(lineage)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = row else {
        return Ok(Vec::new());
    };
    let scope = rows::scope(&row, 1)?;
    let mut words = Vec::new();
    for row in &lineage_rows(conn, sql::PENDING_TEXTS_OF_LINEAGE, &scope, lineage).await? {
        words.push((rows::span(row, 0)?, get(row, 4)?));
    }
    Ok(words)
}
