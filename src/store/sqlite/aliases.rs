//! Tenants: which have memory, which are served as another tenant, and which thread keys stand for many
//! conversations. These statements read across owners; only the operator and the start-up call them.

use sqlx::query;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::history::Scope;
use crate::store::StoreResult;
use crate::store::aliases::check_alias;
use crate::store::rows::{self, corrupt, get, int};
use crate::store::{AddAliasOutcome, Alias, SHARED_KEY_THRESHOLD, TenantRow};

/// All aliases, the oldest first.
const ALIASES: &str = "SELECT name, tenant, at_ms FROM aliases ORDER BY at_ms, name";

pub(super) async fn aliases(conn: &mut SqliteConnection) -> StoreResult<Vec<Alias>> {
    let rows = query(ALIASES).fetch_all(conn).await?;
    let alias = |row: &SqliteRow| {
        Ok(Alias {
            name: tenant(row, 0)?,
            tenant: tenant(row, 1)?,
            at_ms: get(row, 2)?,
        })
    };
    rows.iter().map(alias).collect()
}

/// An alias: requests of `$1` belong to `$2`.
const NEW_ALIAS: &str = "INSERT INTO aliases (name, tenant, at_ms) VALUES ($1, $2, $3)";

pub(super) async fn add_alias(
    conn: &mut SqliteConnection,
    name: [u8; 32],
    tenant: [u8; 32],
    at_ms: i64,
) -> StoreResult<AddAliasOutcome> {
    let outcome = check_alias(&aliases(&mut *conn).await?, name, tenant);
    if outcome == AddAliasOutcome::Added {
        query(NEW_ALIAS)
            .bind(name.as_slice())
            .bind(tenant.as_slice())
            .bind(at_ms)
            .execute(conn)
            .await?;
    }
    Ok(outcome)
}

/// Deletes the alias of a name (`$1`).
const DROP_ALIAS: &str = "DELETE FROM aliases WHERE name = $1";

pub(super) async fn remove_alias(conn: &mut SqliteConnection, name: [u8; 32]) -> StoreResult<bool> {
    let done = query(DROP_ALIAS)
        .bind(name.as_slice())
        .execute(conn)
        .await?;
    Ok(done.rows_affected() > 0)
}

/// All tenants with memory.
const TENANTS: &str = "
SELECT tenant, count(*), coalesce(sum(requests), 0), max(last_ms) FROM lineages GROUP BY tenant";

pub(super) async fn tenants(conn: &mut SqliteConnection) -> StoreResult<Vec<TenantRow>> {
    let rows = query(TENANTS).fetch_all(conn).await?;
    let row = |row: &SqliteRow| {
        Ok(TenantRow {
            tenant: tenant(row, 0)?,
            conversations: int(row, 1)?,
            requests: int(row, 2)?,
            last_ms: get(row, 3)?,
        })
    };
    rows.iter().map(row).collect()
}

/// At most this many thread keys are returned; the cache of a process holds no more.
const MAX_SHARED_KEYS: i64 = 4_096;

/// Thread keys that at least `$2` conversations have, counting those with a request since `$1` that were
/// continued (they have a confirmed message); at most `$3` keys.
const SHARED_THREAD_KEYS: &str = "
SELECT tenant, resource, thread_key FROM lineages l
WHERE thread_key IS NOT NULL AND last_ms >= $1
  AND EXISTS (SELECT 1 FROM nodes
              WHERE tenant = l.tenant AND resource = l.resource AND lineage = l.id AND confirmed = 1)
GROUP BY tenant, resource, thread_key HAVING count(*) >= $2
LIMIT $3";

pub(super) async fn shared_thread_keys(
    conn: &mut SqliteConnection,
    since_ms: i64,
) -> StoreResult<Vec<(Scope, String)>> {
    let rows = query(SHARED_THREAD_KEYS)
        .bind(since_ms)
        .bind(SHARED_KEY_THRESHOLD)
        .bind(MAX_SHARED_KEYS)
        .fetch_all(conn)
        .await?;
    let shared_key = |row: &SqliteRow| Ok((rows::scope(row, 0)?, get(row, 2)?));
    rows.iter().map(shared_key).collect()
}

pub(super) fn tenant(row: &SqliteRow, column: usize) -> StoreResult<[u8; 32]> {
    get::<Vec<u8>>(row, column)?
        .try_into()
        .map_err(|_| corrupt("a tenant is a hash of 32 bytes"))
}
