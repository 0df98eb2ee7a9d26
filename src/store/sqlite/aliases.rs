//! Owners themselves: who has memory, who is served as whom, which names stand for many conversations.

use sqlx::query;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::store::StoreResult;
use crate::history::Scope;
use crate::store::aliases::check_alias;
use crate::store::rows::{self, corrupt, get, int};
use crate::store::{AddAliasOutcome, Alias, SHARED_KEY_THRESHOLD, TenantRow, sql};

pub(super) async fn aliases(conn: &mut SqliteConnection) -> StoreResult<Vec<Alias>> {
    let rows = query(sql::ALIASES).fetch_all(conn).await?;
    let alias = |row: &SqliteRow| {
        Ok(Alias {
            name: tenant(row, 0)?,
            tenant: tenant(row, 1)?,
            at_ms: get(row, 2)?,
        })
    };
    rows.iter().map(alias).collect()
}

pub(super) async fn add_alias(
    conn: &mut SqliteConnection,
    name: [u8; 32],
    tenant: [u8; 32],
    at_ms: i64,
) -> StoreResult<AddAliasOutcome> {
    let outcome = check_alias(&aliases(&mut *conn).await?, name, tenant);
    if outcome == AddAliasOutcome::Added {
        query(sql::NEW_ALIAS)
            .bind(name.as_slice())
            .bind(tenant.as_slice())
            .bind(at_ms)
            .execute(conn)
            .await?;
    }
    Ok(outcome)
}

pub(super) async fn remove_alias(conn: &mut SqliteConnection, name: [u8; 32]) -> StoreResult<bool> {
    let done = query(sql::DROP_ALIAS)
        .bind(name.as_slice())
        .execute(conn)
        .await?;
    Ok(done.rows_affected() > 0)
}

pub(super) async fn tenants(conn: &mut SqliteConnection) -> StoreResult<Vec<TenantRow>> {
    let rows = query(sql::TENANTS).fetch_all(conn).await?;
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

/// Names handed out at most; a process holds no more.
const MAX_SHARED_KEYS: i64 = 4_096;

pub(super) async fn shared_thread_keys(
    conn: &mut SqliteConnection,
    since_ms: i64,
) -> StoreResult<Vec<(Scope, String)>> {
    let rows = query(sql::SHARED_THREAD_KEYS)
        .bind(since_ms)
        .bind(SHARED_KEY_THRESHOLD)
        .bind(MAX_SHARED_KEYS)
        .fetch_all(conn)
        .await?;
    let shared_key = |row: &SqliteRow| Ok((rows::scope(row, 0)?, get(row, 2)?));
    rows.iter().map(shared_key).collect()
}

fn tenant(row: &SqliteRow, column: usize) -> StoreResult<[u8; 32]> {
    get::<Vec<u8>>(row, column)?
        .try_into()
        .map_err(|_| corrupt("a tenant is a hash of 32 bytes"))
}
