//! The message archive: texts of messages, kept for a time if the operator has set `keep_messages`.

use sqlx::query;
use sqlx::sqlite::SqliteConnection;

use super::scoped::scoped_query;
use crate::history::{Link, Scope};
use crate::store::StoreResult;
use crate::store::rows::{self, get};

/// Texts (`$5`: pairs of link and text) of messages of a lineage (`$3`), kept since `$4`. The first text
/// of a message stays.
const KEEP_MESSAGES: &str = "
INSERT INTO messages (tenant, resource, lineage, at_ms, link, words)
SELECT $1, $2, $3, $4, unhex(p.value ->> 0), p.value ->> 1 FROM json_each($5) AS p WHERE true
ON CONFLICT (tenant, resource, link) DO NOTHING";

/// Keeps `texts` of messages that `lineage` recorded.
pub(super) async fn keep_messages(
    conn: &mut SqliteConnection,
    scope: &Scope,
    lineage: i64,
    texts: &[(Link, String)],
    at_ms: i64,
) -> StoreResult<()> {
    if texts.is_empty() {
        return Ok(());
    }
    scoped_query(KEEP_MESSAGES, scope)
        .bind(lineage)
        .bind(at_ms)
        .bind(rows::message_list(texts))
        .execute(conn)
        .await?;
    Ok(())
}

/// The kept texts of some messages (`$3`: links).
const KEPT_MESSAGES: &str = "
SELECT m.link, m.words FROM json_each($3) AS p CROSS JOIN messages AS m
WHERE m.tenant = $1 AND m.resource = $2 AND m.link = unhex(p.value)";

/// The kept texts of these messages.
pub(super) async fn kept_messages(
    conn: &mut SqliteConnection,
    scope: Scope,
    links: Vec<Link>,
) -> StoreResult<Vec<(Link, String)>> {
    scoped_query(KEPT_MESSAGES, &scope)
        .bind(rows::link_list(&links))
        .fetch_all(conn)
        .await?
        .iter()
        .map(|row| Ok((rows::link(row, 0)?, get(row, 1)?)))
        .collect()
}

/// Deletes the texts from before `$1`, of all owners, the oldest first, at most `$2`.
const EXPIRE_MESSAGES: &str = "
DELETE FROM messages WHERE rowid IN (SELECT rowid FROM messages WHERE at_ms < $1 ORDER BY at_ms LIMIT $2)
RETURNING tenant, link";

/// Deletes the texts from before `before_ms`, at most `limit` of them. Returns (tenant, link) of each.
pub(super) async fn expire_messages(
    conn: &mut SqliteConnection,
    before_ms: i64,
    limit: u32,
) -> StoreResult<Vec<([u8; 32], Link)>> {
    query(EXPIRE_MESSAGES)
        .bind(before_ms)
        .bind(limit)
        .fetch_all(conn)
        .await?
        .iter()
        .map(|row| Ok((rows::tenant(row, 0)?, rows::link(row, 1)?)))
        .collect()
}
