//! What processes have seen, kept over a restart. These statements read across owners; only the start, the stop and the
//! housekeeping call them.

use std::collections::HashSet;

use sqlx::query;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::history::Scope;
use crate::store::rows::{self, get};
use crate::store::{DROPPED_TENANTS, SeenMessages, StoreResult, fitting_rows};

/// What a process has seen of a tenant (`$1`, as a label `$2`), stored at `$3`. Nothing if the tenant or one of its users was
/// forgotten since the process began (`$8`): the lists do not tell users apart, nor what was seen before and after that.
const PUT_SEEN_MESSAGES: &str = "
INSERT INTO seen_messages (tenant, at_ms, messages, answers, summary_answers, has_lost)
SELECT $1, $3, $4, $5, $6, $7
WHERE NOT EXISTS (SELECT 1 FROM receipts AS r
                  WHERE r.tenant = $2 AND r.kind <> 'thread' AND r.at_ms >= $8)";

/// How large all of them are, the newest first.
const SIZES_OF_SEEN_MESSAGES: &str = "
SELECT id, tenant, length(messages) + length(answers) + length(summary_answers)
FROM seen_messages ORDER BY id DESC";

/// Deletes some (`$1`).
const DROP_SEEN_MESSAGES: &str = "
DELETE FROM seen_messages WHERE id IN (SELECT p.value FROM json_each($1) AS p)";

/// Notes that something of these tenants (`$1`) is gone.
const MARK_LOST_SEEN_MESSAGES: &str = "
UPDATE seen_messages SET has_lost = 1
WHERE tenant IN (SELECT unhex(p.value) FROM json_each($1) AS p)";

pub(super) async fn put(
    conn: &mut SqliteConnection,
    entries: Vec<SeenMessages>,
    (since_ms, at_ms): (i64, i64),
    max_bytes: usize,
) -> StoreResult<()> {
    for tenant_entries in entries {
        put_one(&mut *conn, tenant_entries, (since_ms, at_ms)).await?;
    }
    let rows = query(SIZES_OF_SEEN_MESSAGES).fetch_all(&mut *conn).await?;
    let size = |row: &SqliteRow| Ok((get(row, 0)?, rows::tenant(row, 1)?, rows::int(row, 2)?));
    let sizes: Vec<(i64, [u8; 32], usize)> = rows.iter().map(size).collect::<StoreResult<_>>()?;
    let fitting = fitting_rows(
        sizes.iter().map(|(_, tenant, bytes)| (*tenant, *bytes)),
        max_bytes,
    );
    let mut dropped = Vec::new();
    let mut left: HashSet<[u8; 32]> = HashSet::new();
    for (at, (id, tenant, _)) in sizes.into_iter().enumerate() {
        if fitting.contains(&at) {
            left.insert(tenant);
        } else {
            dropped.push((id, tenant));
        }
    }
    if dropped.is_empty() {
        return Ok(());
    }
    let ids: Vec<i64> = dropped.iter().map(|(id, _)| *id).collect();
    let drop_rows = query(DROP_SEEN_MESSAGES).bind(rows::number_list(&ids));
    drop_rows.execute(&mut *conn).await?;
    let losers: HashSet<[u8; 32]> = dropped.iter().map(|(_, tenant)| *tenant).collect();
    let mark_lost = query(MARK_LOST_SEEN_MESSAGES).bind(rows::hex_list(&losers));
    mark_lost.execute(&mut *conn).await?;
    if !losers.is_subset(&left) {
        let gone = SeenMessages {
            tenant: DROPPED_TENANTS,
            has_lost: true,
            ..SeenMessages::default()
        };
        put_one(conn, gone, (since_ms, at_ms)).await?;
    }
    Ok(())
}

async fn put_one(
    conn: &mut SqliteConnection,
    entries: SeenMessages,
    (since_ms, at_ms): (i64, i64),
) -> StoreResult<()> {
    query(PUT_SEEN_MESSAGES)
        .bind(entries.tenant.as_slice())
        .bind(Scope::format_tenant_label(&entries.tenant))
        .bind(at_ms)
        .bind(entries.messages)
        .bind(entries.answers)
        .bind(entries.summary_answers)
        .bind(entries.has_lost)
        .bind(since_ms)
        .execute(conn)
        .await?;
    Ok(())
}

/// Everything, the newest first.
const SEEN_MESSAGES: &str = "
SELECT tenant, messages, answers, summary_answers, has_lost FROM seen_messages ORDER BY id DESC";

pub(super) async fn all(conn: &mut SqliteConnection) -> StoreResult<Vec<SeenMessages>> {
    let rows = query(SEEN_MESSAGES).fetch_all(conn).await?;
    let entries = |row: &SqliteRow| {
        Ok(SeenMessages {
            tenant: rows::tenant(row, 0)?,
            messages: get(row, 1)?,
            answers: get(row, 2)?,
            summary_answers: get(row, 3)?,
            has_lost: get(row, 4)?,
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
