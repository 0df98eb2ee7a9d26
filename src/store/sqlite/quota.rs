//! What each tenant holds in bytes, and the deletion of its longest silent conversations
//! (`store.max_account_bytes`). SQLite knows only the size of the whole file. So a row counts with its texts and a
//! fixed number, measured with `dbstat` in a database of 80 MB: its hashes and numbers, its entries in indexes, and for rows
//! with a long text the part of a page that stays empty behind it. The first statements read across owners and whole
//! tables; only the housekeeping of the server calls them.

use std::collections::HashMap;

use sqlx::query;
use sqlx::sqlite::SqliteConnection;

use super::forget;
use super::scoped::scoped_scalar;
use crate::history::Scope;
use crate::store::rows::{self, get};
use crate::store::{QuotaDeletion, SilentThread, StoreResult};

const BYTES_OF_LINEAGES: &str = "SELECT tenant, 300 * count(*) FROM lineages GROUP BY tenant";

const BYTES_OF_NODES: &str = "SELECT tenant, 620 * count(*) FROM nodes GROUP BY tenant";

const BYTES_OF_CONTENTS: &str = "SELECT tenant, 170 * count(*) FROM contents GROUP BY tenant";

const BYTES_OF_REQUESTS: &str = "SELECT tenant, 240 * count(*) FROM requests GROUP BY tenant";

const BYTES_OF_ANSWERS: &str = "SELECT tenant, 170 * count(*) FROM answers GROUP BY tenant";

const BYTES_OF_PARTS: &str = "
SELECT tenant, sum(1300 + octet_length(text) + octet_length(sources) + octet_length(origins)
                   + octet_length(retention) + coalesce(octet_length(lost), 0))
FROM parts NOT INDEXED GROUP BY tenant";

const BYTES_OF_SNAPSHOTS: &str = "
SELECT tenant, sum(1300 + octet_length(segments) + coalesce(octet_length(others), 0))
FROM snapshots NOT INDEXED GROUP BY tenant";

const BYTES_OF_JOBS: &str = "
SELECT tenant, sum(1300 + octet_length(payload)) FROM jobs NOT INDEXED GROUP BY tenant";

const BYTES_OF_MESSAGES: &str = "
SELECT tenant, sum(300 + octet_length(words)) FROM messages NOT INDEXED GROUP BY tenant";

const BYTES_OF_EVENTS: &str = "
SELECT tenant, sum(100 + octet_length(body)) FROM events GROUP BY tenant";

const BYTES_OF_VIEWS: &str = "
SELECT tenant, sum(300 + octet_length(runs)) FROM views GROUP BY tenant";

const BYTES_OF_DIGESTS: &str = "
SELECT tenant, sum(150 + octet_length(text)) FROM digests GROUP BY tenant";

/// The sums, each by tenant. They are read one after the other: the journal can be emptied between two of them.
pub(super) const SUMS: [&str; 12] = [
    BYTES_OF_LINEAGES,
    BYTES_OF_NODES,
    BYTES_OF_CONTENTS,
    BYTES_OF_REQUESTS,
    BYTES_OF_ANSWERS,
    BYTES_OF_PARTS,
    BYTES_OF_SNAPSHOTS,
    BYTES_OF_JOBS,
    BYTES_OF_MESSAGES,
    BYTES_OF_EVENTS,
    BYTES_OF_VIEWS,
    BYTES_OF_DIGESTS,
];

/// Adds one of [`SUMS`] to `held`.
pub(super) async fn add_bytes(
    conn: &mut SqliteConnection,
    sum: &'static str,
    mut held: HashMap<[u8; 32], i64>,
) -> StoreResult<HashMap<[u8; 32], i64>> {
    for row in &query(sum).fetch_all(conn).await? {
        *held.entry(rows::tenant(row, 0)?).or_default() += get::<i64>(row, 1)?;
    }
    Ok(held)
}

/// The conversations of a tenant (`$1`), at most `$4`: the longest silent first, and those with a request since `$2`
/// or a job that a worker holds at `$3` last.
const LONGEST_SILENT: &str = "
SELECT l.id, l.tenant, l.resource, l.last_ms, l.last_ms >= $2 OR l.id IN (
    SELECT n.lineage FROM jobs AS j INDEXED BY jobs_running CROSS JOIN nodes AS n
    WHERE j.tenant = $1 AND j.state = 'open' AND j.leased = 1 AND j.due_ms > $3
      AND n.tenant = j.tenant AND n.resource = j.resource AND n.link = j.to_link) AS in_use
FROM lineages AS l INDEXED BY lineages_by_family
WHERE l.tenant = $1 ORDER BY in_use, l.last_ms, l.id LIMIT $4";

pub(super) async fn longest_silent(
    conn: &mut SqliteConnection,
    tenant: [u8; 32],
    (used_since_ms, now_ms): (i64, i64),
    limit: u32,
) -> StoreResult<Vec<SilentThread>> {
    let rows = query(LONGEST_SILENT)
        .bind(tenant.as_slice())
        .bind(used_since_ms)
        .bind(now_ms)
        .bind(limit)
        .fetch_all(conn)
        .await?;
    let thread = |row| {
        Ok(SilentThread {
            lineage: get(row, 0)?,
            scope: rows::scope(row, 1)?,
            last_ms: get(row, 3)?,
            in_use: get::<i64>(row, 4)? != 0,
        })
    };
    rows.iter().map(thread).collect()
}

/// Whether the last request of a lineage (`$3`) came at `$4`.
const IS_SILENT: &str = "
SELECT EXISTS (
    SELECT 1 FROM lineages WHERE tenant = $1 AND resource = $2 AND id = $3 AND last_ms = $4)";

/// The bytes of a lineage (`$3`), counted as in [`SUMS`]. What is made of a message counts for the lineage of that message.
const BYTES_OF_LINEAGE: &str = "
SELECT 300
    + (SELECT coalesce(sum(620
          + (SELECT coalesce(sum(1300 + octet_length(p.text) + octet_length(p.sources) + octet_length(p.origins)
                                 + octet_length(p.retention) + coalesce(octet_length(p.lost), 0)), 0)
             FROM parts AS p WHERE p.tenant = $1 AND p.resource = $2 AND p.to_link = n.link)
          + (SELECT coalesce(sum(1300 + octet_length(s.segments) + coalesce(octet_length(s.others), 0)), 0)
             FROM snapshots AS s WHERE s.tenant = $1 AND s.resource = $2 AND s.to_link = n.link)
          + (SELECT coalesce(sum(1300 + octet_length(j.payload)), 0)
             FROM jobs AS j WHERE j.tenant = $1 AND j.resource = $2 AND j.to_link = n.link)), 0)
       FROM nodes AS n WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3)
    + (SELECT 170 * count(*) FROM contents AS c
       WHERE c.tenant = $1 AND c.resource = $2 AND c.lineage = $3)
    + (SELECT 240 * count(*) FROM requests AS r
       WHERE r.tenant = $1 AND r.resource = $2 AND r.lineage = $3)
    + (SELECT 170 * count(*) FROM answers AS a
       WHERE a.tenant = $1 AND a.resource = $2 AND a.lineage = $3)
    + (SELECT coalesce(sum(300 + octet_length(m.words)), 0) FROM messages AS m
       WHERE m.tenant = $1 AND m.resource = $2 AND m.lineage = $3)
    + (SELECT coalesce(sum(100 + octet_length(e.body)), 0) FROM events AS e
       WHERE e.tenant = $1 AND e.resource = $2 AND e.lineage = $3)
    + (SELECT coalesce(sum(300 + octet_length(v.runs)), 0) FROM views AS v
       WHERE v.tenant = $1 AND v.resource = $2 AND v.lineage = $3)
    + (SELECT coalesce(sum(150 + octet_length(d.text)), 0) FROM digests AS d
       WHERE d.tenant = $1 AND d.resource = $2 AND d.lineage = $3)";

pub(super) async fn delete_silent(
    conn: &mut SqliteConnection,
    threads: &[SilentThread],
    bytes: i64,
) -> StoreResult<QuotaDeletion> {
    let mut done = QuotaDeletion::default();
    let mut rows = 0;
    for thread in threads {
        if done.bytes >= bytes || rows >= forget::ROWS_AT_ONCE {
            break;
        }
        done.handled += 1;
        let silent: bool = scoped_scalar(IS_SILENT, &thread.scope)
            .bind(thread.lineage)
            .bind(thread.last_ms)
            .fetch_one(&mut *conn)
            .await?;
        if silent {
            let (some, freed) = delete_thread(conn, &thread.scope, thread.lineage).await?;
            rows += some;
            done.bytes += freed;
            done.threads += 1;
        }
    }
    Ok(done)
}

/// Forgets a lineage. Returns how many rows it had, and how many bytes: only what no other lineage uses.
async fn delete_thread(
    conn: &mut SqliteConnection,
    scope: &Scope,
    lineage: i64,
) -> StoreResult<(u64, i64)> {
    forget::reassign_shared_rows(&mut *conn, scope, lineage).await?;
    let bytes: i64 = scoped_scalar(BYTES_OF_LINEAGE, scope)
        .bind(lineage)
        .fetch_one(&mut *conn)
        .await?;
    let counts = forget::delete_lineage(conn, scope, lineage).await?;
    Ok((counts.values().sum(), bytes))
}
