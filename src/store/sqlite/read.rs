//! Looking up: what a chain means, what its parts and snapshots say. Changes nothing.

use std::collections::HashMap;

use sqlx::query;
use sqlx::sqlite::SqliteConnection;

use super::Answer;
use crate::history::{Link, Scope};
use crate::memory::{Part, PartId, Snapshot, SnapshotId};
use crate::store::rows::{self, corrupt, get};
use crate::store::{Carried, Found, Known, sql};

pub(super) async fn find(
    conn: &mut SqliteConnection,
    scope: Scope,
    probes: String,
    tip: Link,
) -> Answer<Found> {
    let rows = query(sql::FIND)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(probes)
        .bind(tip.as_bytes().as_slice())
        .fetch_all(conn)
        .await?;
    let mut found = Found::default();
    for row in &rows {
        match get::<i64>(row, 0)? {
            0 => found.snapshots.push(rows::snapshot_meta(row)?),
            1 => found.used = Some(rows::used(row)?),
            2 => found.tip_known = true,
            3 => {
                let model = get(row, 9)?;
                let carried = rows::trim(row)?.map(|trim| Carried { trim, model });
                found.carried.extend(carried);
            }
            _ => return Err(corrupt("an unknown kind of row")),
        }
    }
    found.snapshots.sort_unstable_by_key(|s| (s.to_count, s.id));
    Ok(found)
}

pub(super) async fn snapshot(
    conn: &mut SqliteConnection,
    scope: Scope,
    id: SnapshotId,
) -> Answer<Option<Snapshot>> {
    query(sql::SNAPSHOT)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(id.0)
        .fetch_optional(conn)
        .await?
        .map(|row| rows::snapshot(&row))
        .transpose()
}

pub(super) async fn known(
    conn: &mut SqliteConnection,
    scope: Scope,
    chain: String,
) -> Answer<Known> {
    let mut known = Known::default();
    for row in rows_of_chain(conn, sql::NODES_OF_CHAIN, &scope, &chain).await? {
        let node = rows::node(&row)?;
        // The links drive the join, so rows come in the order of the chain; a gap ends the prefix.
        if node.count != known.nodes.len() + 1 {
            break;
        }
        known.nodes.push(node);
        let lineage = get(&row, 10)?;
        if known.lineage.replace(lineage) != Some(lineage) {
            known.lineages.retain(|(other, _)| *other != lineage);
            known.lineages.insert(0, (lineage, get(&row, 11)?));
        }
    }
    let Some(deepest) = known.nodes.last() else {
        return Ok(known);
    };
    known.branches = query(sql::HAS_SUCCESSOR)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(deepest.link.as_bytes().as_slice())
        .fetch_one(&mut *conn)
        .await
        .map_err(Into::into)
        .and_then(|row| get::<i64>(&row, 0))?
        != 0;
    for row in rows_of_chain(conn, sql::PARTS_OF_CHAIN, &scope, &chain).await? {
        known.parts.push(rows::part_meta(&row)?);
    }
    known
        .parts
        .sort_unstable_by_key(|p| (p.span.to_count, p.id));
    for row in rows_of_chain(conn, sql::SNAPSHOTS_OF_CHAIN, &scope, &chain).await? {
        known.snapshots.push(rows::snapshot_meta(&row)?);
    }
    known.snapshots.sort_unstable_by_key(|s| (s.to_count, s.id));
    for row in rows_of_chain(conn, sql::JOBS_OF_CHAIN, &scope, &chain).await? {
        known.jobs.push(rows::work(&row)?);
    }
    Ok(known)
}

async fn rows_of_chain(
    conn: &mut SqliteConnection,
    statement: &'static str,
    scope: &Scope,
    chain: &str,
) -> Answer<Vec<sqlx::sqlite::SqliteRow>> {
    Ok(query(statement)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(chain)
        .fetch_all(conn)
        .await?)
}

pub(super) async fn parts(
    conn: &mut SqliteConnection,
    scope: Scope,
    wanted: Vec<PartId>,
) -> Answer<Vec<Part>> {
    let rows = rows_of_chain(conn, sql::PARTS, &scope, &rows::id_list(&wanted)).await?;
    let mut found = HashMap::with_capacity(rows.len());
    for row in &rows {
        let part = rows::part(row)?;
        found.insert(part.id, part);
    }
    Ok(wanted
        .iter()
        .filter_map(|id| found.get(id).cloned())
        .collect())
}

pub(super) async fn chunk_ending(
    conn: &mut SqliteConnection,
    scope: Scope,
    to: Link,
) -> Answer<Option<Part>> {
    query(sql::CHUNK_ENDING)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(to.as_bytes().as_slice())
        .fetch_optional(conn)
        .await?
        .map(|row| rows::part(&row))
        .transpose()
}

/// Reads a page of the file: a connection alone would answer without one.
pub(super) async fn ping(conn: &mut SqliteConnection) -> Answer<()> {
    query(sql::PING).fetch_one(conn).await?;
    Ok(())
}
