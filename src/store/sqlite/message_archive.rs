//! The words of messages, where the operator has them kept.

use sqlx::query;
use sqlx::sqlite::SqliteConnection;

use super::scoped::scoped_query;
use crate::history::{Link, Scope};
use crate::store::StoreResult;
use crate::store::rows::{self, get};

/// The words (`$5`: pairs of link and words) of messages of a lineage (`$3`), kept since `$4`. The
/// first that is kept of a message stays.
const KEEP_MESSAGES: &str = "
INSERT INTO messages (tenant, resource, lineage, at_ms, link, words)
SELECT $1, $2, $3, $4, unhex(p.value ->> 0), p.value ->> 1 FROM json_each($5) AS p WHERE true
ON CONFLICT (tenant, resource, link) DO NOTHING";

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
    scoped_query(KEEP_MESSAGES, scope)
        .bind(lineage)
        .bind(at_ms)
        .bind(rows::message_list(words))
        .execute(conn)
        .await?;
    Ok(())
}

/// The words of some messages (`$3`: links), as far as they are kept.
const KEPT_MESSAGES: &str = "
SELECT m.link, m.words FROM json_each($3) AS p CROSS JOIN messages AS m
WHERE m.tenant = $1 AND m.resource = $2 AND m.link = unhex(p.value)";

/// What is kept of these messages.
pub(super) async fn kept_messages(
    conn: &mut SqliteConnection,
    scope: Scope,
    links: String,
) -> StoreResult<Vec<(Link, String)>> {
    scoped_query(KEPT_MESSAGES, &scope)
        .bind(links)
        .fetch_all(conn)
        .await?
        .iter()
        .map(|row| Ok((rows::link(row, 0)?, get(row, 1)?)))
        .collect()
}

/// What was kept before `$1`, of whomever, goes.
const EXPIRE_MESSAGES: &str = "DELETE FROM messages WHERE at_ms < $1 RETURNING tenant, link";

/// Deletes what was kept before `before_ms`; of whom and which.
pub(super) async fn expire_messages(
    conn: &mut SqliteConnection,
    before_ms: i64,
) -> StoreResult<Vec<([u8; 32], Link)>> {
    query(EXPIRE_MESSAGES)
        .bind(before_ms)
        .fetch_all(conn)
        .await?
        .iter()
        .map(|row| Ok((rows::tenant(row, 0)?, rows::link(row, 1)?)))
        .collect()
}
