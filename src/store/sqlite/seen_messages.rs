//! What processes have seen, kept over a restart. These statements read across owners; only the start, the stop and the
//! housekeeping call them.

use sqlx::query;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::history::Scope;
use crate::store::rows::{self, get};
use crate::store::{SeenMessages, StoreResult};

/// What a process has seen of a tenant (`$1`, as a label `$2`) until `$3`. The tenant may have users, and the lists do not tell
/// them apart, so nothing is stored while the tenant or one of its users is forgotten.
const PUT_SEEN_MESSAGES: &str = "
INSERT INTO seen_messages (tenant, at_ms, messages, answers, summary_answers)
SELECT $1, $3, $4, $5, $6
WHERE NOT EXISTS (SELECT 1 FROM receipts AS r
                  WHERE r.tenant = $2 AND r.kind <> 'thread' AND r.lifted_ms IS NULL)";

/// Deletes the oldest until at most `$1` bytes are left.
const DROP_OLD_SEEN_MESSAGES: &str = "
DELETE FROM seen_messages WHERE id IN (
    SELECT held.id FROM (
        SELECT id, sum(length(messages) + length(answers) + length(summary_answers))
                   OVER (ORDER BY id DESC) AS bytes
        FROM seen_messages) AS held
    WHERE held.bytes > $1)";

pub(super) async fn put(
    conn: &mut SqliteConnection,
    entries: Vec<SeenMessages>,
    at_ms: i64,
    max_bytes: i64,
) -> StoreResult<()> {
    for tenant_entries in entries {
        query(PUT_SEEN_MESSAGES)
            .bind(tenant_entries.tenant.as_slice())
            .bind(Scope::format_tenant_label(&tenant_entries.tenant))
            .bind(at_ms)
            .bind(tenant_entries.messages)
            .bind(tenant_entries.answers)
            .bind(tenant_entries.summary_answers)
            .execute(&mut *conn)
            .await?;
    }
    query(DROP_OLD_SEEN_MESSAGES)
        .bind(max_bytes)
        .execute(conn)
        .await?;
    Ok(())
}

/// Everything, the newest first.
const SEEN_MESSAGES: &str = "
SELECT tenant, messages, answers, summary_answers FROM seen_messages ORDER BY id DESC";

pub(super) async fn all(conn: &mut SqliteConnection) -> StoreResult<Vec<SeenMessages>> {
    let rows = query(SEEN_MESSAGES).fetch_all(conn).await?;
    let entries = |row: &SqliteRow| {
        Ok(SeenMessages {
            tenant: rows::tenant(row, 0)?,
            messages: get(row, 1)?,
            answers: get(row, 2)?,
            summary_answers: get(row, 3)?,
        })
    };
    rows.iter().map(entries).collect()
}

/// Deletes what was stored before `$1`.
const EXPIRE_SEEN_MESSAGES: &str = "DELETE FROM seen_messages WHERE at_ms < $1";

pub(super) async fn expire(conn: &mut SqliteConnection, before_ms: i64) -> StoreResult<()> {
    let expire = query(EXPIRE_SEEN_MESSAGES).bind(before_ms);
    expire.execute(conn).await?;
    Ok(())
}
