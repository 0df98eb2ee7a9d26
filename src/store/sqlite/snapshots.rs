//! Committing a snapshot. The transaction that stores it also decides from which request length it is
//! eligible, so that two processes decide alike.

use sqlx::sqlite::SqliteConnection;

use super::scoped::{scoped_query, scoped_scalar};
use super::{peer_memory, read};
use crate::history::Scope;
use crate::memory::{Part, PartId, Rendering, Snapshot, SnapshotId, SnapshotMeta};
use crate::store::StoreResult;
use crate::store::rows::{self, corrupt, count, id_list};
use crate::store::{NewSnapshot, StoreError};

/// A snapshot.
const NEW_SNAPSHOT: &str = "
INSERT INTO snapshots (tenant, resource, to_link, to_count, eligible_from, pin, parts, tokens,
                       cause, segments, at_ms, placement, made_with, others, unused)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) RETURNING id";

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
        // Longer than every chain that was sent without it, so that repetitions of those keep their bytes.
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
    let id: i64 = scoped_scalar(NEW_SNAPSHOT, &scope)
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
    Ok(new.into_snapshot(SnapshotId(id), eligible_from))
}

/// Stores both or neither; only the first if a conversation in the second one's peer memory was forgotten.
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

/// Sets the rendering of those parts (`$3`: ids) that no block has held.
const FIX_RENDERING: &str = "
UPDATE parts SET preamble = coalesce(preamble, $4), as_of = $5
WHERE tenant = $1 AND resource = $2 AND as_of IS NULL
  AND id IN (SELECT p.value FROM json_each($3) AS p)";

/// Gives `rendering` to those `parts` that no block has held, and reads all of them.
pub(super) async fn fix_rendering(
    conn: &mut SqliteConnection,
    scope: Scope,
    parts: Vec<PartId>,
    rendering: Rendering,
) -> StoreResult<Vec<Part>> {
    scoped_query(FIX_RENDERING, &scope)
        .bind(id_list(&parts))
        .bind(rendering.preamble)
        .bind(rendering.as_of.to_string())
        .execute(&mut *conn)
        .await?;
    read::parts(conn, scope, parts).await
}

/// How many of some parts (`$3`: ids) are this owner's.
const COUNT_PARTS: &str = "
SELECT count(*) FROM json_each($3) AS p CROSS JOIN parts AS t
WHERE t.tenant = $1 AND t.resource = $2 AND t.id = p.value";

/// Whether the end of the snapshot and all its parts are still recorded under this owner.
async fn is_recorded(
    conn: &mut SqliteConnection,
    scope: &Scope,
    new: &NewSnapshot,
    parts: &str,
) -> StoreResult<bool> {
    let is_end_recorded = read::is_recorded(conn, scope, new.to).await?;
    let recorded_parts: i64 = scoped_scalar(COUNT_PARTS, scope)
        .bind(parts)
        .fetch_one(conn)
        .await?;
    Ok(is_end_recorded && recorded_parts == count(new.parts.len()))
}

/// Length of the longest recorded chain that extends a tip (`$3`, `$4` long).
///
/// The number of rows is bounded, because all messages of a much forked tree are below a tip near its
/// root. At the bound the result may be too small. That matters only to requests that were never recorded:
/// a recorded request is sent again with what it was sent with before.
const LONGEST_EXTENSION: &str = "
WITH RECURSIVE below (link, count) AS (
    SELECT $3, $4
    UNION ALL
    SELECT n.link, n.count FROM below CROSS JOIN nodes AS n
    WHERE n.tenant = $1 AND n.resource = $2 AND n.parent = below.link
    LIMIT 200000)
SELECT max(count) FROM below";

async fn longest_extension(
    conn: &mut SqliteConnection,
    scope: &Scope,
    new: &NewSnapshot,
) -> StoreResult<usize> {
    let row = scoped_query(LONGEST_EXTENSION, scope)
        .bind(new.tip.as_bytes().as_slice())
        .bind(count(new.tip_count))
        .fetch_one(conn)
        .await?;
    rows::int(&row, 0)
}

/// A stored snapshot that sends the same and is eligible no later than `$7`.
const EQUAL_SNAPSHOT: &str = "
SELECT 0, id, to_link, to_count, eligible_from, pin, parts, tokens, cause, placement, NULL, others
FROM snapshots
WHERE tenant = $1 AND resource = $2 AND to_link = $3 AND parts = $4 AND segments = $5
  AND pin IS $6 AND eligible_from <= $7 AND placement = $8 AND others IS $9
ORDER BY eligible_from, id LIMIT 1";

async fn find_equal(
    conn: &mut SqliteConnection,
    scope: &Scope,
    new: &NewSnapshot,
    parts: &str,
    segments: &str,
    eligible_from: usize,
) -> StoreResult<Option<SnapshotMeta>> {
    scoped_query(EQUAL_SNAPSHOT, scope)
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
