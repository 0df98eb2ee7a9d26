//! Reading what is recorded: chains, parts, snapshots, jobs. Changes nothing.

use std::collections::HashMap;

use sqlx::sqlite::SqliteConnection;

use super::scoped::{scoped_query, scoped_scalar};
use crate::history::{Link, Scope};
use crate::memory::advance::ChainJob;
use crate::memory::{Part, PartId, PartKind, Snapshot, SnapshotId};
use crate::store::StoreResult;
use crate::store::rows::{self, get};
use crate::store::{EarlierLog, LogBounds, SharedContent};

/// Those of some messages (`$3`: links) that another conversation holds too: the same content, or the same
/// tool call ids, with another origin.
const SHARED_MESSAGES: &str = "
SELECT n.link FROM json_each($3) AS p CROSS JOIN nodes AS n
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = unhex(p.value)
  AND CASE WHEN n.ids IS NULL
      THEN EXISTS (
          SELECT 1 FROM nodes AS o
          WHERE o.tenant = $1 AND o.resource = $2 AND o.content = n.content AND o.origin < n.origin)
        OR EXISTS (
          SELECT 1 FROM nodes AS o
          WHERE o.tenant = $1 AND o.resource = $2 AND o.content = n.content AND o.origin > n.origin)
      ELSE EXISTS (
          SELECT 1 FROM nodes AS o
          WHERE o.tenant = $1 AND o.resource = $2 AND o.ids = n.ids AND o.origin < n.origin)
        OR EXISTS (
          SELECT 1 FROM nodes AS o
          WHERE o.tenant = $1 AND o.resource = $2 AND o.ids = n.ids AND o.origin > n.origin)
      END";

/// How many lineages have a thread key (`$3`): 0, 1, or 2 for more.
const LINEAGES_NAMED: &str = "
SELECT count(*) FROM (
    SELECT 1 FROM lineages AS l
    WHERE l.tenant = $1 AND l.resource = $2 AND l.thread_key = $3 LIMIT 2)";

pub(super) async fn find_shared_content(
    conn: &mut SqliteConnection,
    scope: Scope,
    links: Vec<Link>,
    thread_key: Option<String>,
) -> StoreResult<SharedContent> {
    let rows = rows_of_chain(conn, SHARED_MESSAGES, &scope, &rows::link_list(&links)).await?;
    let messages = rows.iter().map(|row| rows::link(row, 0));
    let messages = messages.collect::<Result<_, _>>()?;
    let lineages: i64 = match thread_key {
        None => 0,
        Some(name) => {
            scoped_scalar(LINEAGES_NAMED, &scope)
                .bind(name)
                .fetch_one(conn)
                .await?
        }
    };
    Ok(SharedContent {
        messages,
        thread_key_shared: lineages > 1,
    })
}

/// One snapshot (`$3`: id) with its text.
const SNAPSHOT: &str = "
SELECT 0, id, to_link, to_count, eligible_from, pin, parts, tokens, cause, placement, segments,
       others
FROM snapshots WHERE tenant = $1 AND resource = $2 AND id = $3";

pub(super) async fn snapshot(
    conn: &mut SqliteConnection,
    scope: Scope,
    id: SnapshotId,
) -> StoreResult<Option<Snapshot>> {
    scoped_query(SNAPSHOT, &scope)
        .bind(id.0)
        .fetch_optional(conn)
        .await?
        .map(|row| rows::snapshot(&row))
        .transpose()
}

/// Jobs that end at some links (`$3`).
const JOBS_OF_CHAIN: &str = "
SELECT j.kind, j.from_link, j.from_count, j.to_link, j.to_count, j.state,
       j.attempts > 0 AND j.leased = 0
FROM json_each($3) AS p CROSS JOIN jobs AS j
WHERE j.tenant = $1 AND j.resource = $2 AND j.to_link = unhex(p.value)";

pub(super) async fn jobs_ending_at(
    conn: &mut SqliteConnection,
    scope: Scope,
    ends: Vec<Link>,
) -> StoreResult<Vec<ChainJob>> {
    let found = rows_of_chain(conn, JOBS_OF_CHAIN, &scope, &rows::link_list(&ends)).await?;
    found.iter().map(rows::work).collect()
}

async fn rows_of_chain(
    conn: &mut SqliteConnection,
    statement: &'static str,
    scope: &Scope,
    chain: &str,
) -> StoreResult<Vec<sqlx::sqlite::SqliteRow>> {
    Ok(scoped_query(statement, scope)
        .bind(chain)
        .fetch_all(conn)
        .await?)
}

/// Parts by id (`$3`: ids) with their text.
const PARTS: &str = "
SELECT t.id, t.kind, t.from_link, t.from_count, t.to_link, t.to_count, t.tokens, t.message_tokens,
       t.asked, t.stopgap, t.text, t.current_task, t.suggested_response, t.sources, t.model, t.origins,
       t.retention, t.preamble, t.as_of, t.lost
FROM json_each($3) AS p CROSS JOIN parts AS t
WHERE t.tenant = $1 AND t.resource = $2 AND t.id = p.value";

pub(super) async fn parts(
    conn: &mut SqliteConnection,
    scope: Scope,
    ids: Vec<PartId>,
) -> StoreResult<Vec<Part>> {
    let rows = rows_of_chain(conn, PARTS, &scope, &rows::id_list(&ids)).await?;
    let mut found = HashMap::with_capacity(rows.len());
    for row in &rows {
        let part = rows::part(row)?;
        found.insert(part.id, part);
    }
    Ok(ids.iter().filter_map(|id| found.get(id).cloned()).collect())
}

/// What a log shows of the part of a kind (`$4`) whose range ends at a link (`$3`). Of several the longest, as in
/// `advance`; of two equal ones the one that a model wrote.
const PART_ENDING: &str = "
SELECT t.from_link, t.tokens, t.text, t.current_task, t.suggested_response
FROM parts AS t
WHERE t.tenant = $1 AND t.resource = $2 AND t.to_link = $3 AND t.kind = $4
ORDER BY t.from_count, t.stopgap, t.id LIMIT 1";

pub(super) async fn log_before(
    conn: &mut SqliteConnection,
    scope: Scope,
    to: Link,
    bounds: LogBounds,
) -> StoreResult<EarlierLog> {
    let mut log = EarlierLog::default();
    let (mut at, mut tokens) = (to, 0_u32);
    let most = bounds.chunks.unwrap_or(usize::MAX);
    while tokens < bounds.tokens && log.texts.len() < most {
        let Some(chunk) = part_ending(conn, &scope, PartKind::Chunk, at).await? else {
            break;
        };
        if log.texts.is_empty() {
            log.current_task = get(&chunk, 3)?;
            log.suggested_response = get(&chunk, 4)?;
        }
        let reflection = match bounds.chunks {
            None => part_ending(conn, &scope, PartKind::Reflection, at).await?,
            Some(_) => None,
        };
        let part = reflection.unwrap_or(chunk);
        at = rows::link(&part, 0)?;
        tokens = tokens.saturating_add(rows::int(&part, 1)?);
        log.texts.push(get(&part, 2)?);
    }
    log.texts.reverse();
    Ok(log)
}

async fn part_ending(
    conn: &mut SqliteConnection,
    scope: &Scope,
    kind: PartKind,
    to: Link,
) -> StoreResult<Option<sqlx::sqlite::SqliteRow>> {
    Ok(scoped_query(PART_ENDING, scope)
        .bind(to.as_bytes().as_slice())
        .bind(kind.name())
        .fetch_optional(conn)
        .await?)
}

/// Whether a link (`$3`) is recorded.
const NODE_EXISTS: &str = "
SELECT EXISTS (SELECT 1 FROM nodes WHERE tenant = $1 AND resource = $2 AND link = $3)";

/// Whether a message is recorded under this owner.
pub(super) async fn is_recorded(
    conn: &mut SqliteConnection,
    scope: &Scope,
    link: Link,
) -> StoreResult<bool> {
    let recorded: i64 = scoped_scalar(NODE_EXISTS, scope)
        .bind(link.as_bytes().as_slice())
        .fetch_one(conn)
        .await?;
    Ok(recorded != 0)
}

/// The chain that ends at a link (`$3`), from there back to its first message.
const CHAIN_TO: &str = "
WITH RECURSIVE up (link, parent, count) AS (
    SELECT * FROM (
        SELECT link, parent, count FROM nodes WHERE tenant = $1 AND resource = $2 AND link = $3)
    UNION ALL
    SELECT n.link, n.parent, n.count FROM up CROSS JOIN nodes AS n
    WHERE n.tenant = $1 AND n.resource = $2 AND n.link = up.parent)
SELECT link FROM up ORDER BY count";

pub(super) async fn chain_links(
    conn: &mut SqliteConnection,
    scope: Scope,
    tip: Link,
) -> StoreResult<Vec<Link>> {
    let rows = scoped_query(CHAIN_TO, &scope)
        .bind(tip.as_bytes().as_slice())
        .fetch_all(conn)
        .await?;
    rows.iter().map(|row| rows::link(row, 0)).collect()
}

/// How many of the latest 64 lineages with a thread key (`$3`) and a request since `$4` were continued: they
/// have a confirmed message. Side calls with the key of their conversation have none, because no request
/// carries their messages again.
const COUNT_LIVE_CONVERSATIONS: &str = "
SELECT count(*) FROM (SELECT id FROM lineages
                      WHERE tenant = $1 AND resource = $2 AND thread_key = $3 AND last_ms >= $4
                      ORDER BY last_ms DESC LIMIT 64) latest
WHERE EXISTS (SELECT 1 FROM nodes
              WHERE tenant = $1 AND resource = $2 AND lineage = latest.id AND confirmed = 1)";

pub(super) async fn count_live_conversations(
    conn: &mut SqliteConnection,
    scope: Scope,
    key: String,
    since_ms: i64,
) -> StoreResult<u32> {
    let found = scoped_scalar(COUNT_LIVE_CONVERSATIONS, &scope)
        .bind(key)
        .bind(since_ms)
        .fetch_one(conn)
        .await?;
    Ok(found)
}
