//! For people: which conversations there are, what is remembered of one, and forgetting it.

use sqlx::query;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::store::StoreResult;
use crate::history::{Link, Scope};
use crate::store::rows::{self, get, int};
use crate::store::{ThreadDetail, ThreadRow, sql};

pub(super) async fn threads(
    conn: &mut SqliteConnection,
    limit: u32,
) -> StoreResult<Vec<ThreadRow>> {
    let rows = query(sql::THREADS)
        .bind(limit)
        .fetch_all(&mut *conn)
        .await?;
    let mut threads = Vec::with_capacity(rows.len());
    for row in &rows {
        threads.push(thread_row(conn, row).await?);
    }
    Ok(threads)
}

pub(super) async fn thread(
    conn: &mut SqliteConnection,
    lineage: i64,
) -> StoreResult<Option<ThreadDetail>> {
    let row = query(sql::THREAD)
        .bind(lineage)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let scope = rows::scope(&row, 1)?;
    let row = thread_row(conn, &row).await?;
    let mut nodes = lineage_rows(conn, sql::LONGEST_CHAIN, &scope, lineage)
        .await?
        .iter()
        .map(rows::node)
        .collect::<StoreResult<Vec<_>>>()?;
    nodes.reverse();
    let parts = lineage_rows(conn, sql::PARTS_OF_LINEAGE, &scope, lineage).await?;
    let snapshots = lineage_rows(conn, sql::SNAPSHOTS_OF_LINEAGE, &scope, lineage).await?;
    let openers = lineage_rows(conn, sql::PEER_INTROS_OF_LINEAGE, &scope, lineage).await?;
    let made_with = openers.iter().chain(&snapshots);
    let made_with = made_with.map(|row| get(row, 12));
    let made_with = made_with.collect::<StoreResult<_>>()?;
    let events = lineage_rows(conn, sql::EVENTS_OF_LINEAGE, &scope, lineage).await?;
    Ok(Some(ThreadDetail {
        row,
        nodes,
        parts: parts.iter().map(rows::part).collect::<StoreResult<_>>()?,
        snapshots: openers
            .iter()
            .chain(&snapshots)
            .map(rows::snapshot)
            .collect::<StoreResult<_>>()?,
        snapshot_settings: made_with,
        events: events.iter().map(rows::event).collect::<StoreResult<_>>()?,
    }))
}

/// The columns of `THREADS`, completed by what must be counted.
async fn thread_row(conn: &mut SqliteConnection, row: &SqliteRow) -> StoreResult<ThreadRow> {
    let (lineage, scope) = (get::<i64>(row, 0)?, rows::scope(row, 1)?);
    let totals = count_row(conn, sql::TOTALS_OF_LINEAGE, &scope, lineage).await?;
    let counts = count_row(conn, sql::COUNTS_OF_LINEAGE, &scope, lineage).await?;
    let costs = lineage_rows(conn, sql::COSTS_OF_LINEAGE, &scope, lineage).await?;
    let first = get::<Option<Vec<u8>>>(&totals, 2)?;
    let first = first.and_then(|bytes| Link::from_slice(&bytes));
    Ok(ThreadRow {
        lineage,
        tenant: scope.tenant_label(),
        resource: scope.resource.is_some(),
        key: get(row, 3)?,
        title: get(row, 8)?,
        label: first.map_or_else(String::new, |link| link.label()),
        model: get(row, 4)?,
        messages: int(&totals, 0)?,
        message_tokens: int(&totals, 1)?,
        requests: int(row, 5)?,
        parts: int(&counts, 0)?,
        snapshots: int(&counts, 1)?,
        costs: rows::costs(&costs)?,
        first_ms: get(row, 6)?,
        last_ms: get(row, 7)?,
    })
}

pub(super) async fn title(
    conn: &mut SqliteConnection,
    scope: Scope,
    link: Link,
) -> StoreResult<Option<String>> {
    let row = query(sql::TITLE)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(link.as_bytes().as_slice())
        .fetch_optional(conn)
        .await?;
    row.map_or(Ok(None), |row| get(&row, 0))
}

pub(super) async fn set_title(
    conn: &mut SqliteConnection,
    scope: Scope,
    link: Link,
    title: String,
) -> StoreResult<()> {
    query(sql::SET_TITLE)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(link.as_bytes().as_slice())
        .bind(title)
        .execute(conn)
        .await?;
    Ok(())
}

/// The one row of a statement that counts.
async fn count_row(
    conn: &mut SqliteConnection,
    statement: &'static str,
    scope: &Scope,
    lineage: i64,
) -> StoreResult<SqliteRow> {
    let answer = lineage_rows(conn, statement, scope, lineage).await?;
    answer
        .into_iter()
        .next()
        .ok_or_else(|| rows::corrupt("nothing was counted"))
}

async fn lineage_rows(
    conn: &mut SqliteConnection,
    statement: &'static str,
    scope: &Scope,
    lineage: i64,
) -> StoreResult<Vec<SqliteRow>> {
    Ok(query(statement)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .fetch_all(conn)
        .await?)
}

pub(super) async fn forget(
    conn: &mut SqliteConnection,
    scope: Scope,
    lineage: i64,
) -> StoreResult<u64> {
    delete_rows(conn, sql::REASSIGN_SHARED_ROWS, &scope, lineage).await?;
    let mut deleted = 0;
    for statement in [
        sql::FORGET_SNAPSHOT_PEERS,
        sql::FORGET_DIGEST,
        sql::FORGET_JOBS,
        sql::FORGET_SNAPSHOTS,
        sql::FORGET_PARTS,
        sql::FORGET_CONTENTS,
        sql::FORGET_COSTS,
        sql::FORGET_EVENTS,
        sql::FORGET_TIMER,
        sql::FORGET_REQUESTS,
        sql::FORGET_VIEWS,
        sql::FORGET_NODE_MESSAGES,
        sql::FORGET_MESSAGES,
        sql::FORGET_ANSWERS,
        sql::FORGET_NODES,
        sql::FORGET_LINEAGE,
    ] {
        deleted += delete_rows(conn, statement, &scope, lineage).await?;
    }
    Ok(deleted)
}

async fn delete_rows(
    conn: &mut SqliteConnection,
    statement: &'static str,
    scope: &Scope,
    lineage: i64,
) -> StoreResult<u64> {
    Ok(query(statement)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .execute(conn)
        .await?
        .rows_affected())
}
