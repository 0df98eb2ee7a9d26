//! Timers: one per lineage. Its newest request moves it; one process at a time claims it.

use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_scalar};

use super::scoped::scoped_query;
use crate::history::Scope;
use crate::store::StoreResult;
use crate::store::{Alarms, NewTimer, RequestRecord, Timer, rows};

/// When a lineage (`$3`) counts as idle. A newer request moves the timer, also while a process has claimed
/// it: the fence changes.
const SET_TIMER: &str = "
INSERT INTO timers (tenant, resource, lineage, tip, model, zone, activate_ms, reflect_ms, due_ms,
                    fence)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0)
ON CONFLICT (tenant, resource, lineage)
DO UPDATE SET tip = excluded.tip, model = excluded.model, zone = excluded.zone,
              activate_ms = excluded.activate_ms, reflect_ms = excluded.reflect_ms,
              due_ms = excluded.due_ms, fence = timers.fence + 1";

/// Sets the timer of a lineage while a request is recorded.
pub(super) async fn set(
    conn: &mut SqliteConnection,
    scope: &Scope,
    lineage: i64,
    record: &RequestRecord,
    timer: &NewTimer,
) -> StoreResult<()> {
    scoped_query(SET_TIMER, scope)
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

/// Leases the next timer that is due now (`$1`) until `$2`. Names no owner, because one process serves all
/// of them.
const CLAIM_TIMER: &str = "
UPDATE timers SET due_ms = $2, fence = fence + 1
WHERE (tenant, resource, lineage) = (
    SELECT t.tenant, t.resource, t.lineage FROM timers AS t
    WHERE t.due_ms <= $1 ORDER BY t.due_ms LIMIT 1)
RETURNING tenant, resource, lineage, tip, model, zone, activate_ms, reflect_ms, fence";

pub(super) async fn claim(
    conn: &mut SqliteConnection,
    now_ms: i64,
    until_ms: i64,
) -> StoreResult<Option<Timer>> {
    query(CLAIM_TIMER)
        .bind(now_ms)
        .bind(until_ms)
        // To its end, where SQLite commits it.
        .fetch_all(conn)
        .await?
        .first()
        .map(rows::timer)
        .transpose()
}

/// Sets the alarms that remain of a claimed timer (`$3`: lineage, `$4`: fence).
const KEEP_TIMER: &str = "
UPDATE timers SET activate_ms = $5, reflect_ms = $6, due_ms = $7
WHERE tenant = $1 AND resource = $2 AND lineage = $3 AND fence = $4";

/// Deletes a claimed timer (`$3`: lineage, `$4`: fence).
const END_TIMER: &str =
    "DELETE FROM timers WHERE tenant = $1 AND resource = $2 AND lineage = $3 AND fence = $4";

pub(super) async fn end(
    conn: &mut SqliteConnection,
    timer: Timer,
    left: Option<(Alarms, i64)>,
) -> StoreResult<()> {
    let statement = match left {
        Some(_) => KEEP_TIMER,
        None => END_TIMER,
    };
    let mut ending = scoped_query(statement, &timer.scope)
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

/// When the next timer of any owner is due.
const NEXT_TIMER: &str = "SELECT min(due_ms) FROM timers";

pub(super) async fn next(conn: &mut SqliteConnection) -> StoreResult<Option<i64>> {
    Ok(query_scalar(NEXT_TIMER).fetch_one(conn).await?)
}
