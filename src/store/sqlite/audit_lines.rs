//! Audit lines and figures of token counts. These statements read across owners: the lines of all owners are stored
//! together, and only the operator's commands and the housekeeping read them. Called through [`super::verbs_audit`].

use sqlx::query;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::history::{Link, Pepper, Scope};
use crate::memory::SnapshotId;
use crate::store::forgotten::{line_owner, name_mark, tenant_owner};
use crate::store::rows::{self, corrupt, get, hex_text};
use crate::store::{AuditPage, AuditRequest, NewAuditLine, StoreResult, StoredTokenRatio};

/// Lines in one list (`$1`), but those of requests that came before a deletion which covers them: they waited while it
/// ran. One statement for all of them: each statement costs two switches between threads.
const APPEND_AUDIT_LINES: &str = "
INSERT INTO audit_lines (time_ms, request_id, tenant, resource, thread, line)
SELECT p.value ->> 0, p.value ->> 1, unhex(p.value ->> 2), unhex(p.value ->> 3), p.value ->> 4, p.value ->> 5
FROM json_each($1) AS p
WHERE NOT EXISTS (
    SELECT 1 FROM json_each(p.value, '$[6]') AS cover CROSS JOIN tombstones AS t CROSS JOIN receipts AS r
    WHERE t.owner = unhex(cover.value ->> 0) AND t.mark = unhex(cover.value ->> 1)
      AND r.id = t.receipt AND r.at_ms >= p.value ->> 0)
ORDER BY p.key";

pub(super) async fn append(
    conn: &mut SqliteConnection,
    lines: Vec<NewAuditLine>,
    pepper: &Pepper,
) -> StoreResult<()> {
    let list: Vec<_> = lines
        .iter()
        .map(|line| {
            let covers = line.owner.as_ref().map_or_else(Vec::new, |owner| {
                covering_tombstones(owner, line.thread.as_deref(), pepper)
            });
            let (tenant, resource) = line.owner.as_ref().map_or_else(Default::default, |owner| {
                (hex_text(&owner.tenant), hex_text(owner.resource_key()))
            });
            let (id, thread) = (&line.request_id, &line.thread);
            let text = &line.line;
            (line.time_ms, id, tenant, resource, thread, text, covers)
        })
        .collect();
    let list = serde_json::to_string(&list).map_err(|_| corrupt("audit lines are no JSON"))?;
    query(APPEND_AUDIT_LINES).bind(list).execute(conn).await?;
    Ok(())
}

/// The tombstones that can cover a line, in hexadecimal: of its tenant, of its user, and of the name in it.
fn covering_tombstones(
    owner: &Scope,
    thread: Option<&str>,
    pepper: &Pepper,
) -> Vec<(String, String)> {
    let root = Link::root(owner);
    let whole = [tenant_owner(&owner.tenant), *root.as_bytes()];
    let whole = whole.map(|owner| (hex_text(&owner), String::new()));
    let name = thread.map(|name| {
        let mark = name_mark(pepper, &root, name);
        (hex_text(&line_owner(&root)), hex_text(&mark))
    });
    whole.into_iter().chain(name).collect()
}

/// Lines behind `$1`, at most `$2`, as one text: a row for each would take longer than to read it.
const AUDIT_PAGE: &str = "
SELECT max(id), group_concat(line, char(10) ORDER BY id) FROM (
    SELECT id, line FROM audit_lines WHERE id > $1 ORDER BY id LIMIT $2)";

pub(super) async fn page(
    conn: &mut SqliteConnection,
    after: i64,
    limit: u32,
) -> StoreResult<Option<AuditPage>> {
    let page = query(AUDIT_PAGE).bind(after).bind(limit);
    page_of_row(&page.fetch_one(conn).await?)
}

fn page_of_row(row: &SqliteRow) -> StoreResult<Option<AuditPage>> {
    let Some(last) = get::<Option<i64>>(row, 0)? else {
        return Ok(None);
    };
    let lines = get(row, 1)?;
    Ok(Some(AuditPage { last, lines }))
}

/// The first and the last line. Two searches, where one statement with both would read the whole table.
const AUDIT_RANGE: &str = "
SELECT coalesce((SELECT min(id) FROM audit_lines), 0), coalesce((SELECT max(id) FROM audit_lines), 0)";

pub(super) async fn range(conn: &mut SqliteConnection) -> StoreResult<(i64, i64)> {
    let row = query(AUDIT_RANGE).fetch_one(conn).await?;
    Ok((get(&row, 0)?, get(&row, 1)?))
}

/// The last line with a request id (`$1`).
const AUDIT_REQUEST: &str = "
SELECT line, tenant, resource, thread FROM audit_lines WHERE request_id = $1 ORDER BY id DESC LIMIT 1";

pub(super) async fn request(
    conn: &mut SqliteConnection,
    request_id: String,
) -> StoreResult<Option<AuditRequest>> {
    let found = query(AUDIT_REQUEST).bind(request_id);
    let row = found.fetch_optional(conn).await?;
    let request = |row: &SqliteRow| {
        Ok(AuditRequest {
            line: get(row, 0)?,
            tenant: get(row, 1)?,
            resource: get(row, 2)?,
            thread: get(row, 3)?,
        })
    };
    row.as_ref().map(request).transpose()
}

/// As [`AUDIT_PAGE`], of one owner (`$1`, `$2`) and one name (`$3`): lines behind `$4`, at most `$5`.
const AUDIT_PAGE_OF: &str = "
SELECT max(id), group_concat(line, char(10) ORDER BY id) FROM (
    SELECT id, line FROM audit_lines
    WHERE tenant = $1 AND resource = $2 AND thread = $3 AND id > $4 ORDER BY id LIMIT $5)";

pub(super) async fn page_of(
    conn: &mut SqliteConnection,
    request: AuditRequest,
    after: i64,
    limit: u32,
) -> StoreResult<Option<AuditPage>> {
    let page = query(AUDIT_PAGE_OF)
        .bind(request.tenant)
        .bind(request.resource)
        .bind(request.thread)
        .bind(after)
        .bind(limit);
    page_of_row(&page.fetch_one(conn).await?)
}

/// The owner of a snapshot (`$1`), and when it was made.
const SNAPSHOT_ORIGIN: &str = "SELECT tenant, resource, at_ms FROM snapshots WHERE id = $1";

pub(super) async fn snapshot_origin(
    conn: &mut SqliteConnection,
    snapshot: SnapshotId,
) -> StoreResult<Option<(Scope, i64)>> {
    let found = query(SNAPSHOT_ORIGIN).bind(snapshot.0);
    let row = found.fetch_optional(conn).await?;
    let origin = |row: &SqliteRow| Ok((rows::scope(row, 0)?, get(row, 2)?));
    row.as_ref().map(origin).transpose()
}

/// Lines of before `$1`, the oldest first, at most `$2`.
const EXPIRE_AUDIT_LINES: &str = "
DELETE FROM audit_lines WHERE id IN (
    SELECT id FROM audit_lines WHERE time_ms < $1 ORDER BY time_ms LIMIT $2)";

pub(super) async fn expire(
    conn: &mut SqliteConnection,
    before_ms: i64,
    limit: u32,
) -> StoreResult<u64> {
    let expired = query(EXPIRE_AUDIT_LINES).bind(before_ms).bind(limit);
    Ok(expired.execute(conn).await?.rows_affected())
}

/// Lines of an owner (`$1`, `$2`) with one of two names (`$3`, `$4`).
const FORGET_AUDIT_LINES: &str = "
DELETE FROM audit_lines WHERE tenant = $1 AND resource = $2 AND thread IN ($3, $4)";

/// Deletes the lines of a conversation by the names that its lines can have. Returns how many.
pub(super) async fn forget_names(
    conn: &mut SqliteConnection,
    scope: &Scope,
    (key, label): (Option<&str>, &str),
) -> StoreResult<u64> {
    let forgotten = super::scoped::scoped_query(FORGET_AUDIT_LINES, scope)
        .bind(key)
        .bind(label);
    Ok(forgotten.execute(conn).await?.rows_affected())
}

/// Lines of a tenant (`$1`) and, unless it is NULL, of one resource (`$2`), at most `$3`.
const SWEEP_AUDIT_LINES: &str = "
DELETE FROM audit_lines WHERE id IN (
    SELECT id FROM audit_lines WHERE tenant = $1 AND ($2 IS NULL OR resource = $2) LIMIT $3)";

/// Deletes some lines of an owner. Returns how many.
pub(super) async fn sweep(
    conn: &mut SqliteConnection,
    tenant: &[u8; 32],
    resource: Option<&[u8]>,
    limit: u32,
) -> StoreResult<u64> {
    let swept = query(SWEEP_AUDIT_LINES)
        .bind(tenant.as_slice())
        .bind(resource)
        .bind(limit);
    Ok(swept.execute(conn).await?.rows_affected())
}

/// The figures of all models.
const TOKEN_RATIOS: &str = "SELECT model, counted, reported FROM token_ratios";

pub(super) async fn token_ratios(
    conn: &mut SqliteConnection,
) -> StoreResult<Vec<StoredTokenRatio>> {
    let rows = query(TOKEN_RATIOS).fetch_all(conn).await?;
    let ratio = |row: &SqliteRow| {
        Ok(StoredTokenRatio {
            model: get(row, 0)?,
            counted: rows::int(row, 1)?,
            reported: rows::int(row, 2)?,
        })
    };
    rows.iter().map(ratio).collect()
}

/// Figures in one list (`$1`), as of `$2`.
const PUT_TOKEN_RATIOS: &str = "
INSERT INTO token_ratios (model, counted, reported, at_ms)
SELECT p.value ->> 0, p.value ->> 1, p.value ->> 2, $2 FROM json_each($1) AS p WHERE true
ON CONFLICT (model) DO UPDATE SET
    counted = excluded.counted, reported = excluded.reported, at_ms = excluded.at_ms";

/// All figures but the `$1` newest.
const DROP_OLD_TOKEN_RATIOS: &str = "
DELETE FROM token_ratios WHERE model IN (
    SELECT model FROM token_ratios ORDER BY at_ms DESC, model LIMIT -1 OFFSET $1)";

pub(super) async fn put_token_ratios(
    conn: &mut SqliteConnection,
    ratios: Vec<StoredTokenRatio>,
    at_ms: i64,
    keep: u32,
) -> StoreResult<()> {
    let list: Vec<_> = ratios
        .iter()
        .map(|ratio| (&ratio.model, ratio.counted, ratio.reported))
        .collect();
    let list = serde_json::to_string(&list).map_err(|_| corrupt("figures are no JSON"))?;
    let put = query(PUT_TOKEN_RATIOS).bind(list).bind(at_ms);
    put.execute(&mut *conn).await?;
    let old = query(DROP_OLD_TOKEN_RATIOS).bind(keep);
    old.execute(conn).await?;
    Ok(())
}
