//! What an operator has forgotten: tombstones and receipts, and the steps of deleting a whole owner. Deleting one
//! lineage is in [`super::forget`]. Called through [`super::verbs_forget`].
//!
//! A tombstone names what belongs to the deleted conversation alone: the links at which its chains become its
//! own, the anchors and answers that no other conversation has, and its name, if no other conversation has it.

use std::collections::BTreeMap;

use sqlx::query;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::forget::{Counts, delete_lineage, reassign_shared_rows};
use super::scoped::{lineage_rows, scoped_query, scoped_scalar};
use super::{admin, audit_lines};
use crate::history::{Link, Pepper, Scope};
use crate::store::forgotten::{Mark, Tombstone, line_owner, link_mark, name_mark, tenant_owner};
use crate::store::rows::{self, corrupt, get, hex_text};
use crate::store::{Receipt, StoreResult, TombstoneVersion};

/// The first messages of a conversation may be a template that other conversations begin with too. They are not
/// marked, unless the conversation has no others.
const BEGINNING: i64 = 8;

/// Lineages of an owner that are deleted in one transaction. The server writes between two of them.
const LINEAGES_AT_ONCE: i64 = 50;

/// Audit lines of an owner that are deleted in one transaction.
const LINES_AT_ONCE: u32 = 1_000;

/// The length of the shortest request of a lineage (`$3`).
const FIRST_REQUEST: &str = "
SELECT coalesce(min(count), 0) FROM requests WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// The links of a lineage (`$3`) behind its beginning (`$4`) that follow none of these.
const OWN_LINKS: &str = "
SELECT n.link FROM nodes AS n
WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3 AND n.count > $4
  AND NOT EXISTS (SELECT 1 FROM nodes AS p
                  WHERE p.tenant = $1 AND p.resource = $2 AND p.link = n.parent
                    AND p.lineage = $3 AND p.count > $4)";

/// The last links of a lineage (`$3`).
const OWN_ENDS: &str = "
SELECT n.link FROM nodes AS n
WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3
  AND NOT EXISTS (SELECT 1 FROM nodes AS c
                  WHERE c.tenant = $1 AND c.resource = $2 AND c.parent = n.link
                    AND c.lineage = $3)";

/// The anchors of a lineage (`$3`) behind its beginning (`$4`) that no other lineage has.
const OWN_ANCHORS: &str = "
SELECT n.anchor FROM nodes AS n
WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3 AND n.count > $4
  AND n.anchor IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM nodes AS o
                  WHERE o.tenant = $1 AND o.resource = $2 AND o.anchor = n.anchor
                    AND o.lineage <> $3)";

/// The answers that a lineage (`$3`) alone was given.
const OWN_ANSWERS: &str = "
SELECT mark FROM answers
WHERE tenant = $1 AND resource = $2 AND lineage = $3 AND tip <> zeroblob(32)";

/// The name of a lineage (`$3`), if no other lineage has it.
const OWN_NAME: &str = "
SELECT l.thread_key FROM lineages AS l
WHERE l.tenant = $1 AND l.resource = $2 AND l.id = $3 AND l.thread_key IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM lineages AS o
                  WHERE o.tenant = $1 AND o.resource = $2 AND o.thread_key = l.thread_key
                    AND o.id <> $3)";

/// The marks of a lineage. Shared rows must have been moved to other lineages before.
async fn marks_of_lineage(
    conn: &mut SqliteConnection,
    scope: &Scope,
    lineage: i64,
    pepper: &Pepper,
) -> StoreResult<Vec<Mark>> {
    let first: i64 = scoped_scalar(FIRST_REQUEST, scope)
        .bind(lineage)
        .fetch_one(&mut *conn)
        .await?;
    let beginning = first.min(BEGINNING);
    let behind = async |conn: &mut SqliteConnection, statement| {
        let query = scoped_query(statement, scope).bind(lineage).bind(beginning);
        StoreResult::Ok(query.fetch_all(conn).await?)
    };
    let mut links = behind(conn, OWN_LINKS).await?;
    if links.is_empty() {
        links = lineage_rows(conn, OWN_ENDS, scope, lineage).await?;
    }
    let mut hashes = behind(conn, OWN_ANCHORS).await?;
    hashes.extend(lineage_rows(conn, OWN_ANSWERS, scope, lineage).await?);
    let names = lineage_rows(conn, OWN_NAME, scope, lineage).await?;
    let mut marks = Vec::with_capacity(links.len() + hashes.len() + 1);
    for row in &links {
        marks.push(link_mark(&rows::link(row, 0)?));
    }
    for row in &hashes {
        marks.push(mark(row, 0)?);
    }
    let root = Link::root(scope);
    for row in &names {
        marks.push(name_mark(pepper, &root, &get::<String>(row, 0)?));
    }
    Ok(marks)
}

fn mark(row: &SqliteRow, column: usize) -> StoreResult<Mark> {
    let bytes: Vec<u8> = get(row, column)?;
    bytes
        .try_into()
        .map_err(|_| corrupt("a mark has a wrong length"))
}

/// A receipt: kind, subject, tenant, time.
const NEW_RECEIPT: &str = "
INSERT INTO receipts (kind, subject, tenant, at_ms) VALUES ($1, $2, $3, $4) RETURNING id";

/// Tombstones of an owner (`$1`) and a receipt (`$2`): marks (`$3`).
const NEW_TOMBSTONES: &str = "
INSERT INTO tombstones (owner, mark, receipt)
SELECT $1, unhex(p.value), $2 FROM json_each($3) AS p WHERE true
ON CONFLICT (owner, mark, receipt) DO NOTHING";

/// Tombstones of receipts that are in force (`$1`: owner, mark, receipt).
const ADD_TOMBSTONES: &str = "
INSERT INTO tombstones (owner, mark, receipt)
SELECT unhex(p.value ->> 0), unhex(p.value ->> 1), p.value ->> 2 FROM json_each($1) AS p
WHERE EXISTS (SELECT 1 FROM receipts AS r WHERE r.id = p.value ->> 2 AND r.lifted_ms IS NULL)
ON CONFLICT (owner, mark, receipt) DO NOTHING";

/// Stores tombstones that were added to receipts.
pub(super) async fn add_tombstones(
    conn: &mut SqliteConnection,
    tombstones: &[Tombstone],
) -> StoreResult<()> {
    let rows = tombstones.iter().map(|tombstone| {
        let mark = tombstone
            .mark
            .map(|mark| hex_text(&mark))
            .unwrap_or_default();
        serde_json::json!([hex_text(&tombstone.owner), mark, tombstone.receipt])
    });
    let rows = rows.collect::<serde_json::Value>().to_string();
    query(ADD_TOMBSTONES).bind(rows).execute(conn).await?;
    Ok(())
}

/// What was deleted for a receipt (`$1`), and whether that is all (`$3`).
const SET_COUNTS: &str = "UPDATE receipts SET counts = $2, done = $3 WHERE id = $1";

/// Forgets one conversation. `None` if there is none.
pub(super) async fn forget_thread(
    conn: &mut SqliteConnection,
    lineage: i64,
    at_ms: i64,
    pepper: &Pepper,
) -> StoreResult<Option<i64>> {
    let Some(row) = admin::lineage_row(conn, lineage).await? else {
        return Ok(None);
    };
    let scope = rows::scope(&row, 1)?;
    // Before messages move to other lineages: its first one may.
    let named = admin::thread_row(conn, &row).await?;
    reassign_shared_rows(conn, &scope, lineage).await?;
    let marks = marks_of_lineage(conn, &scope, lineage, pepper).await?;
    let marks: Vec<String> = marks.iter().map(|mark| hex_text(mark)).collect();
    let tenant = scope.tenant_label();
    let receipt = new_receipt(conn, "thread", &lineage.to_string(), &tenant, at_ms).await?;
    bury(conn, Link::root(&scope).as_bytes(), receipt, &marks).await?;
    let mut counts = delete_lineage(conn, &scope, lineage).await?;
    let names = (named.key.as_deref(), named.label.as_str());
    bury_names(conn, &scope, receipt, names, pepper).await?;
    let lines = audit_lines::forget_names(conn, &scope, names).await?;
    counts.insert("audit_lines", lines);
    set_counts(conn, receipt, &counts, true).await?;
    Ok(Some(receipt))
}

/// Audit lines with one of these names that wait to be stored are not stored any more.
async fn bury_names(
    conn: &mut SqliteConnection,
    scope: &Scope,
    receipt: i64,
    (key, label): (Option<&str>, &str),
    pepper: &Pepper,
) -> StoreResult<()> {
    let root = Link::root(scope);
    let names = key.into_iter().chain([label]);
    let marks = names.map(|name| hex_text(&name_mark(pepper, &root, name)));
    let marks: Vec<String> = marks.collect();
    bury(conn, &line_owner(&root), receipt, &marks).await
}

async fn new_receipt(
    conn: &mut SqliteConnection,
    kind: &str,
    subject: &str,
    tenant: &str,
    at_ms: i64,
) -> StoreResult<i64> {
    let row = query(NEW_RECEIPT)
        .bind(kind)
        .bind(subject)
        .bind(tenant)
        .bind(at_ms)
        .fetch_one(conn)
        .await?;
    get(&row, 0)
}

/// Stores tombstones; the marks are in hexadecimal.
async fn bury(
    conn: &mut SqliteConnection,
    owner: &[u8; 32],
    receipt: i64,
    marks: &[String],
) -> StoreResult<()> {
    query(NEW_TOMBSTONES)
        .bind(owner.as_slice())
        .bind(receipt)
        .bind(serde_json::Value::from(marks).to_string())
        .execute(conn)
        .await?;
    Ok(())
}

async fn set_counts(
    conn: &mut SqliteConnection,
    receipt: i64,
    counts: &Counts,
    done: bool,
) -> StoreResult<()> {
    let counts: serde_json::Map<_, _> = counts
        .iter()
        .filter(|(_, rows)| **rows > 0)
        .map(|(name, rows)| ((*name).to_owned(), (*rows).into()))
        .collect();
    query(SET_COUNTS)
        .bind(receipt)
        .bind(serde_json::Value::Object(counts).to_string())
        .bind(done)
        .execute(conn)
        .await?;
    Ok(())
}

/// An owner: the tenant, and the user, unless all users are meant.
pub(super) type Owner = ([u8; 32], Option<[u8; 32]>);

/// Begins to forget an owner: from now on nothing of it is recorded. Returns the receipt.
pub(super) async fn bury_owner(
    conn: &mut SqliteConnection,
    (tenant, resource): Owner,
    at_ms: i64,
) -> StoreResult<i64> {
    let scope = Scope { tenant, resource };
    let (kind, subject, owner) = match resource {
        Some(user) => ("resource", user, *Link::root(&scope).as_bytes()),
        None => ("tenant", tenant, tenant_owner(&tenant)),
    };
    let subject = Scope::format_tenant_label(&subject);
    let receipt = new_receipt(conn, kind, &subject, &scope.tenant_label(), at_ms).await?;
    // The empty mark stands for everything.
    bury(conn, &owner, receipt, &[String::new()]).await?;
    Ok(receipt)
}

/// The owners with one of some resources (`$1`).
const OWNERS_OF_RESOURCES: &str = "
SELECT DISTINCT l.tenant, l.resource FROM lineages AS l
WHERE l.resource IN (SELECT unhex(p.value) FROM json_each($1) AS p) ORDER BY l.tenant, l.resource";

pub(super) async fn owners_of_resources(
    conn: &mut SqliteConnection,
    resources: Vec<[u8; 32]>,
) -> StoreResult<Vec<([u8; 32], [u8; 32])>> {
    let resources: Vec<String> = resources.iter().map(|id| hex_text(id)).collect();
    let found = query(OWNERS_OF_RESOURCES).bind(serde_json::Value::from(resources).to_string());
    let rows = found.fetch_all(conn).await?;
    let owner = |row: &SqliteRow| Ok((rows::tenant(row, 0)?, rows::tenant(row, 1)?));
    rows.iter().map(owner).collect()
}

/// Lineages of a tenant (`$1`) and, unless it is NULL, of one resource (`$2`), at most `$3`.
const LINEAGES_OF_OWNER: &str = "
SELECT id, tenant, resource FROM lineages
WHERE tenant = $1 AND ($2 IS NULL OR resource = $2) LIMIT $3";

/// Rows of an owner that no lineage has: what is left of jobs that were given up, and sums.
const SWEEP_JOBS: &str = "DELETE FROM jobs WHERE tenant = $1 AND ($2 IS NULL OR resource = $2)";
const SWEEP_SNAPSHOTS: &str =
    "DELETE FROM snapshots WHERE tenant = $1 AND ($2 IS NULL OR resource = $2)";
const SWEEP_PARTS: &str = "DELETE FROM parts WHERE tenant = $1 AND ($2 IS NULL OR resource = $2)";
const SWEEP_ACCOUNTS: &str =
    "DELETE FROM accounts WHERE tenant = $1 AND ($2 IS NULL OR resource = $2)";
const SWEEP_SPENDING: &str =
    "DELETE FROM spending WHERE tenant = $1 AND ($2 IS NULL OR resource = $2)";
const SWEEP_TENANT_ACCOUNTS: &str = "DELETE FROM tenant_accounts WHERE tenant = $1 AND $2 IS NULL";

/// Also what the tenant's other users said: the lists do not tell them apart.
const SWEEP_SEEN_MESSAGES: &str = "DELETE FROM seen_messages WHERE tenant = $1";

/// Deletes some conversations and audit lines of an owner, and adds what it deleted to `counts`. Returns whether that was
/// all.
pub(super) async fn forget_some(
    conn: &mut SqliteConnection,
    (receipt, (tenant, resource)): (i64, Owner),
    mut counts: Counts,
) -> StoreResult<(Counts, bool)> {
    let resource = resource.as_ref().map(<[u8; 32]>::as_slice);
    let found = query(LINEAGES_OF_OWNER)
        .bind(tenant.as_slice())
        .bind(resource)
        .bind(LINEAGES_AT_ONCE)
        .fetch_all(&mut *conn)
        .await?;
    for row in &found {
        let (lineage, scope) = (get::<i64>(row, 0)?, rows::scope(row, 1)?);
        add(&mut counts, delete_lineage(conn, &scope, lineage).await?);
    }
    let swept = audit_lines::sweep(conn, &tenant, resource, LINES_AT_ONCE).await?;
    *counts.entry("audit_lines").or_default() += swept;
    let all = found.len() < usize::try_from(LINEAGES_AT_ONCE).unwrap_or(usize::MAX)
        && swept < u64::from(LINES_AT_ONCE);
    if all {
        for (name, statement) in [
            ("jobs", SWEEP_JOBS),
            ("snapshots", SWEEP_SNAPSHOTS),
            ("parts", SWEEP_PARTS),
            ("accounts", SWEEP_ACCOUNTS),
            ("spending", SWEEP_SPENDING),
            ("tenant_accounts", SWEEP_TENANT_ACCOUNTS),
        ] {
            let sweep = query(statement).bind(tenant.as_slice()).bind(resource);
            let rows = sweep.execute(&mut *conn).await?.rows_affected();
            *counts.entry(name).or_default() += rows;
        }
        let sweep = query(SWEEP_SEEN_MESSAGES).bind(tenant.as_slice());
        let rows = sweep.execute(&mut *conn).await?.rows_affected();
        *counts.entry("seen_messages").or_default() += rows;
    }
    set_counts(conn, receipt, &counts, all).await?;
    Ok((counts, all))
}

fn add(sum: &mut Counts, more: Counts) {
    for (name, rows) in more {
        *sum.entry(name).or_default() += rows;
    }
}

/// All receipts, the oldest first.
const RECEIPTS: &str = "
SELECT id, kind, subject, tenant, at_ms, counts, done, audited, lifted_ms FROM receipts ORDER BY id";

pub(super) async fn receipts(conn: &mut SqliteConnection) -> StoreResult<Vec<Receipt>> {
    let rows = query(RECEIPTS).fetch_all(conn).await?;
    rows.iter().map(receipt).collect()
}

fn receipt(row: &SqliteRow) -> StoreResult<Receipt> {
    let counts: BTreeMap<String, u64> = serde_json::from_str(&get::<String>(row, 5)?)
        .map_err(|_| corrupt("the counts of a receipt cannot be read"))?;
    Ok(Receipt {
        id: get(row, 0)?,
        kind: get(row, 1)?,
        subject: get(row, 2)?,
        tenant: get(row, 3)?,
        at_ms: get(row, 4)?,
        counts,
        done: get(row, 6)?,
        audited: get(row, 7)?,
        lifted_ms: get(row, 8)?,
    })
}

/// Notes that the audit has a line of a receipt (`$1`).
const MARK_AUDITED: &str = "UPDATE receipts SET audited = 1 WHERE id = $1";

pub(super) async fn mark_audited(conn: &mut SqliteConnection, receipt: i64) -> StoreResult<()> {
    query(MARK_AUDITED).bind(receipt).execute(conn).await?;
    Ok(())
}

/// Notes that the tombstones of a receipt (`$1`) were removed at `$2`. The audit gets a line of that too.
const MARK_LIFTED: &str = "
UPDATE receipts SET lifted_ms = $2, audited = 0 WHERE id = $1 AND lifted_ms IS NULL";

/// Removes the tombstones of a receipt (`$1`).
const DROP_TOMBSTONES: &str = "DELETE FROM tombstones WHERE receipt = $1";

pub(super) async fn lift(
    conn: &mut SqliteConnection,
    receipt: i64,
    at_ms: i64,
) -> StoreResult<bool> {
    let lifted = query(MARK_LIFTED)
        .bind(receipt)
        .bind(at_ms)
        .execute(&mut *conn)
        .await?;
    query(DROP_TOMBSTONES).bind(receipt).execute(conn).await?;
    Ok(lifted.rows_affected() == 1)
}

/// Changes with every deletion, when one is finished, and when one is lifted.
const TOMBSTONE_VERSION: &str = "
SELECT coalesce(max(id), 0), coalesce(sum(done), 0), count(lifted_ms) FROM receipts";

pub(super) async fn tombstone_version(
    conn: &mut SqliteConnection,
) -> StoreResult<TombstoneVersion> {
    let version = sqlx::query_as(TOMBSTONE_VERSION);
    Ok(version.fetch_one(conn).await?)
}

/// All tombstones.
const TOMBSTONES: &str = "SELECT owner, mark, receipt FROM tombstones";

pub(super) async fn tombstones(conn: &mut SqliteConnection) -> StoreResult<Vec<Tombstone>> {
    let rows = query(TOMBSTONES).fetch_all(conn).await?;
    let tombstone = |row: &SqliteRow| {
        let bytes: Vec<u8> = get(row, 1)?;
        let mark = if bytes.is_empty() {
            None
        } else {
            let wrong = |_| corrupt("a mark has a wrong length");
            Some(bytes.try_into().map_err(wrong)?)
        };
        Ok(Tombstone {
            owner: rows::tenant(row, 0)?,
            mark,
            receipt: get(row, 2)?,
        })
    };
    rows.iter().map(tombstone).collect()
}
