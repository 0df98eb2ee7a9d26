//! For the operator: the list of conversations, everything stored of one, and titles.

use sqlx::query;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::scoped::{lineage_rows, scoped_query};
use crate::history::{Link, Scope};
use crate::store::StoreResult;
use crate::store::rows::{self, get, int};
use crate::store::{ThreadDetail, ThreadRow, WaitingRanges};

/// Lineages of all owners for the operator, newest first.
const THREADS: &str = "
SELECT l.id, l.tenant, l.resource, l.thread_key, l.model, l.requests, l.first_ms, l.last_ms, l.title
FROM lineages AS l ORDER BY l.last_ms DESC, l.id DESC LIMIT $1";

pub(super) async fn threads(
    conn: &mut SqliteConnection,
    limit: u32,
) -> StoreResult<Vec<ThreadRow>> {
    let rows = query(THREADS).bind(limit).fetch_all(&mut *conn).await?;
    let mut threads = Vec::with_capacity(rows.len());
    for row in &rows {
        threads.push(thread_row(conn, row).await?);
    }
    Ok(threads)
}

/// The longest chain of a lineage (`$3`), from its last message back to its first. `UNION` ends also in a damaged chain that
/// leads back to itself.
pub(super) const LONGEST_CHAIN: &str = "
WITH RECURSIVE up (link) AS (
    SELECT * FROM (
        SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3
        ORDER BY count DESC LIMIT 1)
    UNION
    SELECT n.parent FROM up CROSS JOIN nodes AS n
    WHERE n.tenant = $1 AND n.resource = $2 AND n.link = up.link)
SELECT n.link, n.count, n.role, n.tokens, n.closed, n.turn_end, n.born, n.confirmed, n.seen_ms,
       n.live, n.lineage
FROM up CROSS JOIN nodes AS n
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = up.link";

/// Parts of a lineage (`$3`) with their text.
const PARTS_OF_LINEAGE: &str = "
SELECT t.id, t.kind, t.from_link, t.from_count, t.to_link, t.to_count, t.tokens, t.message_tokens,
       t.asked, t.stopgap, t.text, t.current_task, t.suggested_response, t.sources, t.model, t.origins,
       t.retention, t.preamble, t.as_of, t.lost
FROM nodes AS n CROSS JOIN parts AS t
WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3
  AND t.tenant = $1 AND t.resource = $2 AND t.to_link = n.link
ORDER BY t.to_count, t.id";

/// Snapshots of a lineage (`$3`) with their text and the settings they were made with.
const SNAPSHOTS_OF_LINEAGE: &str = "
SELECT 0, s.id, s.to_link, s.to_count, s.eligible_from, s.pin, s.parts, s.tokens, s.cause,
       s.placement, s.segments, s.others, s.made_with
FROM nodes AS n CROSS JOIN snapshots AS s
WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3
  AND s.tenant = $1 AND s.resource = $2 AND s.to_link = n.link
ORDER BY s.to_count, s.id";

/// Peer intros that requests of a lineage (`$3`) were sent with, with their text.
const PEER_INTROS_OF_LINEAGE: &str = "
SELECT 0, s.id, s.to_link, s.to_count, s.eligible_from, s.pin, s.parts, s.tokens, s.cause,
       s.placement, s.segments, s.others, s.made_with
FROM requests AS r CROSS JOIN snapshots AS s
WHERE r.tenant = $1 AND r.resource = $2 AND r.lineage = $3
  AND s.tenant = $1 AND s.resource = $2 AND s.id = r.snapshot AND s.to_count = 0
GROUP BY s.id ORDER BY s.id";

/// The timeline of a lineage (`$3`), oldest first. At the same time, a start comes before an end.
const EVENTS_OF_LINEAGE: &str = "
SELECT kind, place / 1000, body FROM events
WHERE tenant = $1 AND resource = $2 AND lineage = $3 ORDER BY place, kind DESC";

/// The open observations of a lineage (`$3`), the oldest range first.
const WAITING_RANGES: &str = "
SELECT count(*) OVER (), j.attempts, j.due_ms, j.leased
FROM nodes AS n CROSS JOIN jobs AS j
WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3
  AND j.tenant = $1 AND j.resource = $2 AND j.to_link = n.link
  AND j.kind = 'chunk' AND j.state = 'open'
ORDER BY j.from_count LIMIT 1";

fn waiting_ranges(row: &SqliteRow) -> StoreResult<WaitingRanges> {
    Ok(WaitingRanges {
        count: int(row, 0)?,
        tries: int(row, 1)?,
        due_ms: get(row, 2)?,
        running: get(row, 3)?,
    })
}

pub(super) async fn thread(
    conn: &mut SqliteConnection,
    lineage: i64,
) -> StoreResult<Option<ThreadDetail>> {
    let row = lineage_row(conn, lineage).await?;
    let Some(row) = row else { return Ok(None) };
    let scope = rows::scope(&row, 1)?;
    let row = thread_row(conn, &row).await?;
    let mut nodes = lineage_rows(conn, LONGEST_CHAIN, &scope, lineage)
        .await?
        .iter()
        .map(rows::node)
        .collect::<StoreResult<Vec<_>>>()?;
    nodes.reverse();
    let parts = lineage_rows(conn, PARTS_OF_LINEAGE, &scope, lineage).await?;
    let snapshots = lineage_rows(conn, SNAPSHOTS_OF_LINEAGE, &scope, lineage).await?;
    let openers = lineage_rows(conn, PEER_INTROS_OF_LINEAGE, &scope, lineage).await?;
    let made_with = openers.iter().chain(&snapshots);
    let made_with = made_with.map(|row| get(row, 12));
    let made_with = made_with.collect::<StoreResult<_>>()?;
    let events = lineage_rows(conn, EVENTS_OF_LINEAGE, &scope, lineage).await?;
    let waiting = lineage_rows(conn, WAITING_RANGES, &scope, lineage).await?;
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
        waiting: waiting.first().map(waiting_ranges).transpose()?,
    }))
}

/// One lineage (`$1`), for the operator.
const THREAD: &str = "
SELECT l.id, l.tenant, l.resource, l.thread_key, l.model, l.requests, l.first_ms, l.last_ms, l.title
FROM lineages AS l WHERE l.id = $1";

/// The row of a lineage of any owner.
pub(super) async fn lineage_row(
    conn: &mut SqliteConnection,
    lineage: i64,
) -> StoreResult<Option<SqliteRow>> {
    Ok(query(THREAD).bind(lineage).fetch_optional(conn).await?)
}

/// Length, tokens and first link of the longest chain of a lineage (`$3`).
const TOTALS_OF_LINEAGE: &str = "
WITH RECURSIVE up (link) AS (
    SELECT * FROM (
        SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3
        ORDER BY count DESC LIMIT 1)
    UNION
    SELECT n.parent FROM up CROSS JOIN nodes AS n
    WHERE n.tenant = $1 AND n.resource = $2 AND n.link = up.link)
SELECT coalesce(max(n.count), 0), coalesce(sum(n.tokens), 0),
       max(CASE WHEN n.count = 1 THEN n.link END)
FROM up CROSS JOIN nodes AS n
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = up.link";

/// How many parts and snapshots a lineage (`$3`) has.
const COUNTS_OF_LINEAGE: &str = "
SELECT coalesce(sum((SELECT count(*) FROM parts AS t
            WHERE t.tenant = $1 AND t.resource = $2 AND t.to_link = n.link)), 0),
       coalesce(sum((SELECT count(*) FROM snapshots AS s
            WHERE s.tenant = $1 AND s.resource = $2 AND s.to_link = n.link)), 0)
FROM nodes AS n WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3";

/// What the calls for a lineage (`$3`) cost.
const COSTS_OF_LINEAGE: &str = "
SELECT kind, calls, sent, cached, written, guessed FROM costs
WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// A row of the list: the columns of [`THREADS`], with counts and costs.
pub(super) async fn thread_row(
    conn: &mut SqliteConnection,
    row: &SqliteRow,
) -> StoreResult<ThreadRow> {
    let (lineage, scope) = (get::<i64>(row, 0)?, rows::scope(row, 1)?);
    let totals = count_row(conn, TOTALS_OF_LINEAGE, &scope, lineage).await?;
    let counts = count_row(conn, COUNTS_OF_LINEAGE, &scope, lineage).await?;
    let costs = lineage_rows(conn, COSTS_OF_LINEAGE, &scope, lineage).await?;
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

/// The title of the lineage that recorded a message (`$3`).
const TITLE: &str = "
SELECT l.title FROM nodes AS n CROSS JOIN lineages AS l
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $3
  AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage";

pub(super) async fn title(
    conn: &mut SqliteConnection,
    scope: Scope,
    link: Link,
) -> StoreResult<Option<String>> {
    let row = scoped_query(TITLE, &scope)
        .bind(link.as_bytes().as_slice())
        .fetch_optional(conn)
        .await?;
    row.map_or(Ok(None), |row| get(&row, 0))
}

/// Sets the title (`$4`) of the lineage that recorded a message (`$3`), if it is another one.
const SET_TITLE: &str = "
UPDATE lineages SET title = $4
WHERE tenant = $1 AND resource = $2 AND title IS NOT $4
  AND id = (SELECT n.lineage FROM nodes AS n
            WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $3)";

pub(super) async fn set_title(
    conn: &mut SqliteConnection,
    scope: Scope,
    link: Link,
    title: String,
) -> StoreResult<()> {
    scoped_query(SET_TITLE, &scope)
        .bind(link.as_bytes().as_slice())
        .bind(title)
        .execute(conn)
        .await?;
    Ok(())
}

/// The single row of a statement that counts.
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
        .ok_or_else(|| rows::corrupt("a count has no row"))
}
