//! Peer memory: what conversations of one user may read of each other. Stores digests, reads them, and
//! records which snapshots contain them, so that forgetting a conversation deletes those snapshots.

use sqlx::sqlite::SqliteConnection;

use super::scoped::{scoped_query, scoped_scalar};
use crate::history::{Link, Scope};
use crate::memory::peer_memory::{Digest, MAX_CHANCE_PREFIX, MAX_CONVERSATIONS};
use crate::memory::{Snapshot, SnapshotId};
use crate::store::StoreResult;
use crate::store::rows::{self, get};
use crate::store::{NewSnapshot, StoreError};

/// A peer intro that no recorded request was sent with is kept this long: a request may be on its way with
/// it. Much longer than any answer takes.
const UNUSED_INTRO_TTL_MS: i64 = 24 * 60 * 60 * 1_000;

/// The digest (`$4`) of a lineage (`$3`); replaces the old one.
const PUBLISH_DIGEST: &str = "
INSERT INTO digests (tenant, resource, lineage, at_ms, text)
SELECT $1, $2, l.id, l.last_ms, $4
FROM lineages AS l WHERE l.tenant = $1 AND l.resource = $2 AND l.id = $3
ON CONFLICT (tenant, resource, lineage)
DO UPDATE SET at_ms = excluded.at_ms, text = excluded.text";

pub(super) async fn publish_digest(
    conn: &mut SqliteConnection,
    scope: Scope,
    lineage: i64,
    text: String,
) -> StoreResult<()> {
    scoped_query(PUBLISH_DIGEST, &scope)
        .bind(lineage)
        .bind(text)
        .execute(conn)
        .await?;
    Ok(())
}

/// The digests of the latest conversations, at most `$5`. Leaves out some lineages (`$3`), those with a
/// thread key (`$4`), and branches of the families of `$3`: a branch holds what came before it in the
/// request anyway. A lineage that branched off after at most `$6` messages stays in, because it may share
/// only a greeting. Reads an index in order under a LIMIT, so the cost does not grow with the number of
/// conversations.
const PEER_DIGESTS: &str = "
SELECT d.lineage, l.thread_key, l.title, d.at_ms, d.text
FROM digests AS d CROSS JOIN lineages AS l
WHERE d.tenant = $1 AND d.resource = $2
  AND d.lineage NOT IN (SELECT p.value FROM json_each($3) AS p)
  AND l.tenant = $1 AND l.resource = $2 AND l.id = d.lineage
  AND ($4 IS NULL OR l.thread_key IS NOT $4)
  AND NOT (
      EXISTS (SELECT 1 FROM json_each($3) AS p CROSS JOIN lineages AS f
              WHERE f.tenant = $1 AND f.resource = $2 AND f.id = p.value AND f.family = l.family)
      AND $6 < (SELECT min(n.count) - 1 FROM nodes AS n
                WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = d.lineage))
ORDER BY d.at_ms DESC LIMIT $5";

pub(super) async fn peer_digests(
    conn: &mut SqliteConnection,
    scope: Scope,
    except: Vec<i64>,
    key: Option<String>,
) -> StoreResult<Vec<Digest>> {
    let rows = scoped_query(PEER_DIGESTS, &scope)
        .bind(rows::number_list(&except))
        .bind(key)
        .bind(MAX_CONVERSATIONS)
        .bind(MAX_CHANCE_PREFIX as i64)
        .fetch_all(conn)
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Digest {
                lineage: get(row, 0)?,
                key: get(row, 1)?,
                title: get(row, 2)?,
                at_ms: get(row, 3)?,
                text: get(row, 4)?,
            })
        })
        .collect()
}

/// How many of some lineages (`$3`) are recorded under this owner.
const COUNT_LINEAGES: &str = "
SELECT count(*) FROM json_each($3) AS p CROSS JOIN lineages AS l
WHERE l.tenant = $1 AND l.resource = $2 AND l.id = p.value";

/// Whether every conversation in the peer memory of `new` is still recorded. One may have been forgotten
/// while the snapshot was written; then the snapshot must not be stored.
pub(super) async fn are_peers_recorded(
    conn: &mut SqliteConnection,
    scope: &Scope,
    new: &NewSnapshot,
) -> StoreResult<bool> {
    let Some(others) = &new.peer_memory else {
        return Ok(true);
    };
    let recorded: i64 = scoped_scalar(COUNT_LINEAGES, scope)
        .bind(rows::number_list(&others.lineages))
        .fetch_one(conn)
        .await?;
    Ok(recorded == rows::count(others.lineages.len()))
}

/// Records that a snapshot (`$4`) contains text of some lineages (`$3`).
const NEW_SNAPSHOT_PEERS: &str = "
INSERT INTO told (tenant, resource, lineage, snapshot)
SELECT $1, $2, p.value, $4 FROM json_each($3) AS p WHERE true";

/// Deletes peer intros that were made before `$3` and that no recorded request was sent with, except the
/// latest (`$4`).
const DROP_PEER_INTROS: &str = "
DELETE FROM snapshots WHERE tenant = $1 AND resource = $2 AND id IN (
    SELECT s.id FROM snapshots AS s
    WHERE s.tenant = $1 AND s.resource = $2 AND s.unused = 1 AND s.at_ms < $3 AND s.id <> $4
    ORDER BY s.at_ms LIMIT 64)";

/// Records which conversations the snapshot `id` contains text of. A new peer intro also deletes old ones
/// that were never used.
pub(super) async fn record_peers(
    conn: &mut SqliteConnection,
    scope: &Scope,
    new: &NewSnapshot,
    id: i64,
) -> StoreResult<()> {
    let Some(others) = &new.peer_memory else {
        return Ok(());
    };
    scoped_query(NEW_SNAPSHOT_PEERS, scope)
        .bind(rows::number_list(&others.lineages))
        .bind(id)
        .execute(&mut *conn)
        .await?;
    if new.to_count == 0 {
        scoped_query(DROP_PEER_INTROS, scope)
            .bind(new.at_ms - UNUSED_INTRO_TTL_MS)
            .bind(id)
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// The latest peer intro (`$3`: the root), with its text.
const NEWEST_PEER_INTRO: &str = "
SELECT 0, s.id, s.to_link, s.to_count, s.eligible_from, s.pin, s.parts, s.tokens, s.cause,
       s.placement, s.segments, s.others
FROM snapshots AS s WHERE s.tenant = $1 AND s.resource = $2 AND s.to_link = $3
ORDER BY s.id DESC LIMIT 1";

/// The latest peer intro, if it sends the same as `new`. Older ones are not compared, because their number
/// grows with the number of conversations.
pub(super) async fn equal_peer_intro(
    conn: &mut SqliteConnection,
    scope: &Scope,
    new: &NewSnapshot,
) -> StoreResult<Option<Snapshot>> {
    let newest = scoped_query(NEWEST_PEER_INTRO, scope)
        .bind(new.to.as_bytes().as_slice())
        .fetch_optional(conn)
        .await?
        .map(|row| rows::snapshot(&row))
        .transpose()?;
    Ok(newest.filter(|newest| {
        let others = newest.meta.peer_memory.as_deref();
        newest.segments == new.segments
            && newest.meta.placement == new.placement
            && others == new.peer_memory.as_deref()
    }))
}

/// Marks a snapshot (`$3`) as used by a recorded request.
const USE_PEER_INTRO: &str = "
UPDATE snapshots SET unused = 0
WHERE tenant = $1 AND resource = $2 AND id = $3 AND unused = 1";

/// Keeps a peer intro as long as the request that was recorded with it. Only owners with a resource have
/// peer intros.
pub(super) async fn mark_peer_intro_used(
    conn: &mut SqliteConnection,
    scope: &Scope,
    snapshot: Option<SnapshotId>,
) -> StoreResult<()> {
    let Some(id) = snapshot.filter(|_| scope.resource.is_some()) else {
        return Ok(());
    };
    scoped_query(USE_PEER_INTRO, scope)
        .bind(id.0)
        .execute(conn)
        .await?;
    Ok(())
}

/// Whether `new` is a peer intro: a snapshot that covers no message. It must end at the root and contain
/// peer memory.
///
/// # Errors
/// [`StoreError::Forgotten`] if it covers no message and is not a valid peer intro.
pub(super) fn is_peer_intro(scope: &Scope, new: &NewSnapshot) -> Result<bool, StoreError> {
    if new.to_count > 0 {
        return Ok(false);
    }
    if new.to != Link::root(scope) || new.peer_memory.is_none() {
        return Err(StoreError::Forgotten);
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
