//! What an operator asks of one conversation: to observe it whole, to condense its log. Written into the
//! store, where a running server finds it, or the next one.

use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_as, query_scalar};

use super::{Answer, read};
use crate::history::Scope;
use crate::memory::Span;
use crate::store::rows::{self, get, id_list, probes};
use crate::store::{Chain, Demanded, NewJob, Offered, Revived, Wanted, sql};

/// The longest chain of a lineage and everything known of it.
pub(super) async fn known_of(conn: &mut SqliteConnection, lineage: i64) -> Answer<Option<Chain>> {
    let row = query(sql::THREAD)
        .bind(lineage)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let (scope, model) = (rows::scope(&row, 1)?, get::<String>(&row, 4)?);
    let mut links = Vec::new();
    for row in &of(conn, sql::LONGEST_CHAIN, &scope, lineage).await? {
        links.push(rows::node(row)?.link);
    }
    links.reverse();
    let known = read::known(conn, scope.clone(), probes(&links)).await?;
    Ok(Some(Chain {
        scope,
        model,
        known,
    }))
}

async fn of(
    conn: &mut SqliteConnection,
    statement: &'static str,
    scope: &Scope,
    lineage: i64,
) -> Answer<Vec<sqlx::sqlite::SqliteRow>> {
    Ok(query(statement)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .fetch_all(conn)
        .await?)
}

pub(super) async fn want(
    conn: &mut SqliteConnection,
    scope: Scope,
    lineage: i64,
    wanted: Wanted,
) -> Answer<bool> {
    let done = query(sql::WANT)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .bind(wanted.number())
        .bind(wanted.focus())
        .execute(conn)
        .await?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn wanted(
    conn: &mut SqliteConnection,
    scope: Scope,
    lineage: i64,
) -> Answer<Option<Wanted>> {
    let row: Option<(i64, Option<String>)> = query_as(sql::WANTED)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .fetch_optional(conn)
        .await?;
    Ok(row.and_then(|(number, focus)| Wanted::of(number, focus)))
}

pub(super) async fn given(conn: &mut SqliteConnection, scope: Scope, lineage: i64) -> Answer<()> {
    query(sql::GIVEN)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .execute(conn)
        .await?;
    Ok(())
}

pub(super) async fn revive(
    conn: &mut SqliteConnection,
    scope: Scope,
    lineage: i64,
    at_ms: i64,
) -> Answer<Revived> {
    let given_up = query(sql::OFFER_AGAIN)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .execute(&mut *conn)
        .await?
        .rows_affected();
    let due = query(sql::DUE_NOW)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .bind(at_ms)
        .execute(conn)
        .await?
        .rows_affected();
    Ok(Revived { given_up, due })
}

pub(super) async fn demand(
    conn: &mut SqliteConnection,
    scope: Scope,
    job: NewJob,
    at_ms: i64,
) -> Answer<Demanded> {
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
        return Ok(Demanded::Done);
    }
    let waiting = query(sql::DEMAND)
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
        return Ok(Demanded::Revived);
    }
    Ok(match super::queue::offer(conn, scope, job, at_ms).await? {
        Offered::New => Demanded::New,
        Offered::Known => Demanded::Running,
        Offered::Paused | Offered::Forgotten => Demanded::Forgotten,
    })
}

/// Jobs of a lineage that wait, with the words they carry.
pub(super) async fn words(
    conn: &mut SqliteConnection,
    lineage: i64,
) -> Answer<Vec<(Span, String)>> {
    let row = query(sql::THREAD)
        .bind(lineage)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = row else {
        return Ok(Vec::new());
    };
    let scope = rows::scope(&row, 1)?;
    let mut words = Vec::new();
    for row in &of(conn, sql::WORDS_OF_LINEAGE, &scope, lineage).await? {
        words.push((rows::span(row, 0)?, get(row, 4)?));
    }
    Ok(words)
}
