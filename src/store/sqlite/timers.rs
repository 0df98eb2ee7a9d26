//! Timers: one per lineage, moved by its newest request, taken by one process at a time.

use sqlx::query;
use sqlx::query_scalar;
use sqlx::sqlite::SqliteConnection;

use crate::store::StoreResult;
use crate::history::Scope;
use crate::store::{Alarms, NewTimer, RequestRecord, Timer, rows, sql};

/// Part of recording a request.
pub(super) async fn set(
    conn: &mut SqliteConnection,
    scope: &Scope,
    lineage: i64,
    record: &RequestRecord,
    timer: &NewTimer,
) -> StoreResult<()> {
    query(sql::SET_TIMER)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .bind(record.tip.as_bytes().as_slice())
        .bind(&record.model)
        .bind(timer.zone.as_deref().unwrap_or_default())
        .bind(timer.alarms.activate_ms)
        .bind(timer.alarms.reflect_ms)
        .bind(timer.alarms.next())
        .execute(conn)
        .await?;
    Ok(())
}

pub(super) async fn claim(
    conn: &mut SqliteConnection,
    now_ms: i64,
    until_ms: i64,
) -> StoreResult<Option<Timer>> {
    query(sql::CLAIM_TIMER)
        .bind(now_ms)
        .bind(until_ms)
        .fetch_optional(conn)
        .await?
        .map(|row| rows::timer(&row))
        .transpose()
}

pub(super) async fn end(
    conn: &mut SqliteConnection,
    timer: Timer,
    left: Option<(Alarms, i64)>,
) -> StoreResult<()> {
    let statement = match left {
        Some(_) => sql::KEEP_TIMER,
        None => sql::END_TIMER,
    };
    let mut ending = query(statement)
        .bind(timer.scope.tenant.as_slice())
        .bind(timer.scope.resource_key())
        .bind(timer.lineage)
        .bind(timer.fence);
    if let Some((alarms, due_ms)) = left {
        ending = ending
            .bind(alarms.activate_ms)
            .bind(alarms.reflect_ms)
            .bind(due_ms);
    }
    ending.execute(conn).await?;
    Ok(())
}

pub(super) async fn next(conn: &mut SqliteConnection) -> StoreResult<Option<i64>> {
    Ok(query_scalar(sql::NEXT_TIMER).fetch_one(conn).await?)
}
