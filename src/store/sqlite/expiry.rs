//! Deleting what is too old: conversations (`store.retention`), and jobs that nobody could do
//! (`store.job_retention`). Leaves no tombstones: a conversation that goes on begins anew. These statements read
//! across owners; only the housekeeping of the server calls them.

use sqlx::query;
use sqlx::sqlite::SqliteConnection;

use super::forget;
use super::scoped::scoped_query;
use crate::store::StoreResult;
use crate::store::rows::{self, get};

/// When the last request of any conversation came.
const LAST_USE: &str = "SELECT max(last_ms) FROM lineages";

pub(super) async fn last_use_ms(conn: &mut SqliteConnection) -> StoreResult<Option<i64>> {
    let row = query(LAST_USE).fetch_one(conn).await?;
    get(&row, 0)
}

/// Conversations whose last request came before `$1`, the oldest first, at most `$2`.
const EXPIRED_THREADS: &str = "
SELECT id, tenant, resource FROM lineages WHERE last_ms < $1 ORDER BY last_ms LIMIT $2";

/// Deletes conversations until [`forget::ROWS_AT_ONCE`] rows are deleted. Returns how many; none if no more are too
/// old.
pub(super) async fn expire_threads(
    conn: &mut SqliteConnection,
    before_ms: i64,
    limit: u32,
) -> StoreResult<u64> {
    let expired = query(EXPIRED_THREADS)
        .bind(before_ms)
        .bind(limit)
        .fetch_all(&mut *conn)
        .await?;
    let (mut threads, mut deleted_rows) = (0, 0);
    for row in &expired {
        if deleted_rows >= forget::ROWS_AT_ONCE {
            break;
        }
        deleted_rows += forget::forget(&mut *conn, &rows::scope(row, 1)?, get(row, 0)?).await?;
        threads += 1;
    }
    Ok(threads)
}

/// Open jobs of conversations whose last request came before `$1`, that no worker holds at `$2`, at most `$3`.
const EXPIRED_JOBS: &str = "
SELECT j.id, j.tenant, j.resource
FROM jobs AS j INDEXED BY jobs_by_route CROSS JOIN nodes AS n CROSS JOIN lineages AS l
WHERE j.state = 'open' AND (j.leased = 0 OR j.due_ms <= $2)
  AND n.tenant = j.tenant AND n.resource = j.resource AND n.link = j.to_link
  AND l.tenant = j.tenant AND l.resource = j.resource AND l.id = n.lineage AND l.last_ms < $1
LIMIT $3";

/// Takes back what was charged for the messages of a job (`$3`) that the Observer will not be shown.
const UNCHARGE: &str = "
UPDATE accounts SET shown_tokens = max(0, shown_tokens - (
    SELECT j.message_tokens FROM jobs AS j
    WHERE j.tenant = $1 AND j.resource = $2 AND j.id = $3))
WHERE tenant = $1 AND resource = $2 AND family = (
    SELECT l.family FROM jobs AS j CROSS JOIN nodes AS n CROSS JOIN lineages AS l
    WHERE j.tenant = $1 AND j.resource = $2 AND j.id = $3 AND j.kind = 'chunk'
      AND n.tenant = $1 AND n.resource = $2 AND n.link = j.to_link
      AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage)";

/// Deletes a job (`$3`).
const DROP_JOB: &str = "DELETE FROM jobs WHERE tenant = $1 AND resource = $2 AND id = $3";

pub(super) async fn expire_jobs(
    conn: &mut SqliteConnection,
    before_ms: i64,
    now_ms: i64,
    limit: u32,
) -> StoreResult<u64> {
    let expired = query(EXPIRED_JOBS)
        .bind(before_ms)
        .bind(now_ms)
        .bind(limit)
        .fetch_all(&mut *conn)
        .await?;
    for row in &expired {
        let (job, scope) = (get::<i64>(row, 0)?, rows::scope(row, 1)?);
        for statement in [UNCHARGE, DROP_JOB] {
            let run = scoped_query(statement, &scope).bind(job);
            run.execute(&mut *conn).await?;
        }
    }
    Ok(expired.len() as u64)
}
