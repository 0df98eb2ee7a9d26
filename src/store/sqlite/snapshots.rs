//! Committing a snapshot: when it becomes eligible is decided in the transaction that stores it.

use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_scalar};

use super::{peer_memory, read};
use crate::store::StoreResult;
use crate::history::Scope;
use crate::memory::{Part, PartId, Rendering, Snapshot, SnapshotId, SnapshotMeta};
use crate::store::rows::{self, corrupt, count, id_list};
use crate::store::{NewSnapshot, StoreError, sql};

pub(super) async fn commit(
    conn: &mut SqliteConnection,
    scope: Scope,
    new: NewSnapshot,
) -> StoreResult<Snapshot> {
    let parts = id_list(&new.parts);
    let is_peer_intro = peer_memory::is_peer_intro(&scope, &new)?;
    if !peer_memory::are_peers_recorded(conn, &scope, &new).await?
        || !is_peer_intro && !is_recorded(conn, &scope, &new, &parts).await?
    {
        return Err(StoreError::Forgotten);
    }
    if is_peer_intro && let Some(equal) = peer_memory::equal_peer_intro(conn, &scope, &new).await? {
        return Ok(equal);
    }
    let eligible_from = if new.eligible_now {
        new.tip_count
    } else {
        // Beyond every chain that was sent without it: their repetitions keep their bytes.
        longest_extension(conn, &scope, &new).await? + 1
    };
    let segments = serde_json::to_string(&new.segments)
        .map_err(|_| corrupt("the text of a snapshot cannot be written"))?;
    let peer_memory = new
        .peer_memory
        .as_deref()
        .map(rows::peer_memory_json)
        .transpose()?;
    if !is_peer_intro
        && let Some(meta) = find_equal(conn, &scope, &new, &parts, &segments, eligible_from).await?
    {
        let segments = new.segments;
        return Ok(Snapshot { meta, segments });
    }
    let id: i64 = query_scalar(sql::NEW_SNAPSHOT)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(new.to.as_bytes().as_slice())
        .bind(count(new.to_count))
        .bind(count(eligible_from))
        .bind(new.pin.map(count))
        .bind(parts)
        .bind(new.tokens)
        .bind(new.cause.name())
        .bind(segments)
        .bind(new.at_ms)
        .bind(&new.placement)
        .bind(&new.settings_json)
        .bind(peer_memory)
        .bind(is_peer_intro)
        .fetch_one(&mut *conn)
        .await?;
    peer_memory::record_peers(conn, &scope, &new, id).await?;
    Ok(Snapshot {
        meta: SnapshotMeta {
            id: SnapshotId(id),
            to: new.to,
            to_count: new.to_count,
            eligible_from,
            pin: new.pin,
            parts: new.parts,
            tokens: new.tokens,
            cause: new.cause,
            placement: new.placement,
            peer_memory: new.peer_memory,
        },
        segments: new.segments,
    })
}

/// Both or neither; without `bound` where one that it tells of was forgotten.
pub(super) async fn commit_pair(
    conn: &mut SqliteConnection,
    scope: Scope,
    new: NewSnapshot,
    peer_snapshot: NewSnapshot,
) -> StoreResult<(Snapshot, Option<Snapshot>)> {
    let stored_peer_snapshot = match commit(conn, scope.clone(), peer_snapshot).await {
        Err(StoreError::Forgotten) => None,
        result => Some(result?),
    };
    Ok((commit(conn, scope, new).await?, stored_peer_snapshot))
}

/// Fixes how `parts` are written where no block held them yet, and reads them.
pub(super) async fn fix_rendering(
    conn: &mut SqliteConnection,
    scope: Scope,
    parts: Vec<PartId>,
    rendering: Rendering,
) -> StoreResult<Vec<Part>> {
    query(sql::FIX_RENDERING)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(id_list(&parts))
        .bind(rendering.preamble)
        .bind(rendering.as_of.to_string())
        .execute(&mut *conn)
        .await?;
    read::parts(conn, scope, parts).await
}

/// Whether what the snapshot covers, and every part it sends, is still recorded under this owner.
async fn is_recorded(
    conn: &mut SqliteConnection,
    scope: &Scope,
    new: &NewSnapshot,
    parts: &str,
) -> StoreResult<bool> {
    let node: i64 = query_scalar(sql::NODE_EXISTS)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(new.to.as_bytes().as_slice())
        .fetch_one(&mut *conn)
        .await?;
    let recorded_parts: i64 = query_scalar(sql::COUNT_PARTS)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(parts)
        .fetch_one(conn)
        .await?;
    Ok(node != 0 && recorded_parts == count(new.parts.len()))
}

async fn longest_extension(
    conn: &mut SqliteConnection,
    scope: &Scope,
    new: &NewSnapshot,
) -> StoreResult<usize> {
    let row = query(sql::LONGEST_EXTENSION)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(new.tip.as_bytes().as_slice())
        .bind(count(new.tip_count))
        .fetch_one(conn)
        .await?;
    rows::int(&row, 0)
}

async fn find_equal(
    conn: &mut SqliteConnection,
    scope: &Scope,
    new: &NewSnapshot,
    parts: &str,
    segments: &str,
    eligible_from: usize,
) -> StoreResult<Option<SnapshotMeta>> {
    query(sql::EQUAL_SNAPSHOT)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(new.to.as_bytes().as_slice())
        .bind(parts)
        .bind(segments)
        .bind(new.pin.map(count))
        .bind(count(eligible_from))
        .bind(&new.placement)
        .bind(
            new.peer_memory
                .as_deref()
                .map(rows::peer_memory_json)
                .transpose()?,
        )
        .fetch_optional(conn)
        .await?
        .map(|row| rows::snapshot_meta(&row))
        .transpose()
}
