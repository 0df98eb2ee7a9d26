//! The words of messages, where the operator has them kept.

use sqlx::query;
use sqlx::sqlite::SqliteConnection;

use crate::store::StoreResult;
use crate::history::{Link, Scope};
use crate::store::rows::{self, get};
use crate::store::sql;

/// Keeps `words` of messages that `lineage` recorded.
pub(super) async fn keep_messages(
    conn: &mut SqliteConnection,
    scope: &Scope,
    lineage: i64,
    words: &[(Link, String)],
    at_ms: i64,
) -> StoreResult<()> {
    if words.is_empty() {
        return Ok(());
    }
    query(sql::KEEP_MESSAGES)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .bind(at_ms)
        .bind(rows::message_list(words))
        .execute(conn)
        .await?;
    Ok(())
}

/// What is kept of these messages.
pub(super) async fn kept_messages(
    conn: &mut SqliteConnection,
    scope: Scope,
    links: String,
) -> StoreResult<Vec<(Link, String)>> {
    query(sql::KEPT_MESSAGES)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(links)
        .fetch_all(conn)
        .await?
        .iter()
        .map(|row| Ok((rows::link(row, 0)?, get(row, 1)?)))
        .collect()
}

/// Deletes what was kept before `before_ms`; of whom and which.
pub(super) async fn expire_messages(
    conn: &mut SqliteConnection,
    before_ms: i64,
) -> StoreResult<Vec<([u8; 32], Link)>> {
    query(sql::EXPIRE_MESSAGES)
        .bind(before_ms)
        .fetch_all(conn)
        .await?
        .iter()
        .map(|row| Ok((rows::tenant(row, 0)?, rows::link(row, 1)?)))
        .collect()
}
