//! Recording an accepted request: its lineage, its new messages, what it confirms, what it was sent
//! with. One transaction; a second process that records the same thing at the same time finds it
//! recorded.

use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_scalar};

use super::Answer;
use crate::history::{Link, Scope};
use crate::memory::Node;
use crate::store::rows::{content_list, count, node_list, probes};
use crate::store::{Record, sql};

pub(super) async fn record(
    conn: &mut SqliteConnection,
    scope: Scope,
    record: Record,
) -> Answer<i64> {
    let lineage = lineage(conn, &scope, &record).await?;
    if !record.new_nodes.is_empty() {
        query(sql::NEW_NODES)
            .bind(scope.tenant.as_slice())
            .bind(scope.resource_key())
            .bind(lineage)
            .bind(node_list(&record.new_nodes, record.parent))
            .execute(&mut *conn)
            .await?;
    }
    confirm(conn, &scope, &record).await?;
    credit(conn, &scope, lineage, &record).await?;
    query(sql::RECORD_REQUEST)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(record.tip.as_bytes().as_slice())
        .bind(count(record.count))
        .bind(lineage)
        .bind(record.used.snapshot.map(|id| id.0))
        .bind(&record.used.placement)
        .bind(&record.model)
        .bind(record.at_ms)
        .execute(&mut *conn)
        .await?;
    query(sql::TOUCH_LINEAGE)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .bind(record.at_ms)
        .bind(&record.model)
        .bind(&record.thread_key)
        .execute(conn)
        .await?;
    Ok(lineage)
}

/// The lineage the request belongs to. The caller looked before this transaction began: what it
/// named may be forgotten by now, and what it found new may be recorded.
async fn lineage(conn: &mut SqliteConnection, scope: &Scope, record: &Record) -> Answer<i64> {
    if let Some(lineage) = record.lineage {
        let exists: i64 = query_scalar(sql::LINEAGE_EXISTS)
            .bind(scope.tenant.as_slice())
            .bind(scope.resource_key())
            .bind(lineage)
            .fetch_one(&mut *conn)
            .await?;
        if exists != 0 {
            return Ok(lineage);
        }
    }
    let own = record.new_nodes.iter().map(|node| &node.link);
    let joined: Option<i64> = query_scalar(sql::LINEAGE_OF_LINKS)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(probes(own.chain([&record.tip])))
        .fetch_optional(&mut *conn)
        .await?;
    if let Some(lineage) = joined {
        return Ok(lineage);
    }
    Ok(query_scalar(sql::NEW_LINEAGE)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(&record.thread_key)
        .bind(&record.model)
        .bind(record.at_ms)
        .fetch_one(conn)
        .await?)
}

/// Confirms what the caller asked for, and its new messages too where another process recorded
/// them first, as not yet confirmed.
async fn confirm(conn: &mut SqliteConnection, scope: &Scope, record: &Record) -> Answer<()> {
    let new = record.new_nodes.iter().filter(|node| node.confirmed);
    let links: Vec<&Link> = record
        .confirm
        .iter()
        .chain(new.map(|node: &Node| &node.link))
        .collect();
    if links.is_empty() {
        return Ok(());
    }
    query(sql::CONFIRM)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(probes(links))
        .execute(conn)
        .await?;
    Ok(())
}

/// Raises the bound on what the Observer may be shown by what nobody confirmed before.
async fn credit(
    conn: &mut SqliteConnection,
    scope: &Scope,
    lineage: i64,
    record: &Record,
) -> Answer<()> {
    if record.contents.is_empty() {
        return Ok(());
    }
    let contents = content_list(&record.contents);
    query(sql::CREDIT)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(&contents)
        .execute(&mut *conn)
        .await?;
    query(sql::NEW_CONTENTS)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .bind(&contents)
        .execute(conn)
        .await?;
    Ok(())
}
