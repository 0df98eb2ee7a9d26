//! What the conversations of one user are told of each other: kept, read, and sent.

use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_scalar};

use crate::store::StoreResult;
use crate::history::{Link, Scope};
use crate::memory::peer_memory::{Digest, MAX_CHANCE_PREFIX, MAX_CONVERSATIONS};
use crate::memory::{Snapshot, SnapshotId};
use crate::store::rows::{self, get};
use crate::store::{NewSnapshot, StoreError, sql};

/// How long one that covers nothing is kept though no request was recorded with it: a request may be
/// under way with it. Far longer than any answer takes.
const UNUSED_INTRO_TTL_MS: i64 = 24 * 60 * 60 * 1_000;

pub(super) async fn publish_digest(
    conn: &mut SqliteConnection,
    scope: Scope,
    lineage: i64,
    text: String,
) -> StoreResult<()> {
    query(sql::PUBLISH_DIGEST)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .bind(text)
        .execute(conn)
        .await?;
    Ok(())
}

pub(super) async fn peer_digests(
    conn: &mut SqliteConnection,
    scope: Scope,
    except: Vec<i64>,
    key: Option<String>,
) -> StoreResult<Vec<Digest>> {
    let rows = query(sql::PEER_DIGESTS)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
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

/// Whether every conversation that `new` tells of is still there. One that was forgotten while it was
/// written must not be told of.
pub(super) async fn are_peers_recorded(
    conn: &mut SqliteConnection,
    scope: &Scope,
    new: &NewSnapshot,
) -> StoreResult<bool> {
    let Some(others) = &new.peer_memory else {
        return Ok(true);
    };
    let recorded: i64 = query_scalar(sql::COUNT_LINEAGES)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(rows::number_list(&others.lineages))
        .fetch_one(conn)
        .await?;
    Ok(recorded == rows::count(others.lineages.len()))
}

/// Writes down what the snapshot `id` tells of.
pub(super) async fn record_peers(
    conn: &mut SqliteConnection,
    scope: &Scope,
    new: &NewSnapshot,
    id: i64,
) -> StoreResult<()> {
    let Some(others) = &new.peer_memory else {
        return Ok(());
    };
    query(sql::NEW_SNAPSHOT_PEERS)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(rows::number_list(&others.lineages))
        .bind(id)
        .execute(&mut *conn)
        .await?;
    if new.to_count == 0 {
        query(sql::DROP_PEER_INTROS)
            .bind(scope.tenant.as_slice())
            .bind(scope.resource_key())
            .bind(new.at_ms - UNUSED_INTRO_TTL_MS)
            .bind(id)
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// The latest snapshot that covers nothing, if it says what `new` says. Older ones are not looked
/// through: their number grows with that of the conversations.
pub(super) async fn equal_peer_intro(
    conn: &mut SqliteConnection,
    scope: &Scope,
    new: &NewSnapshot,
) -> StoreResult<Option<Snapshot>> {
    let newest = query(sql::NEWEST_PEER_INTRO)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
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

/// A request was recorded with `snapshot`: it is kept as long as the request.
pub(super) async fn mark_peer_intro_used(
    conn: &mut SqliteConnection,
    scope: &Scope,
    snapshot: Option<SnapshotId>,
) -> StoreResult<()> {
    let Some(id) = snapshot.filter(|_| scope.resource.is_some()) else {
        return Ok(());
    };
    query(sql::USE_PEER_INTRO)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(id.0)
        .execute(conn)
        .await?;
    Ok(())
}

/// What a snapshot that covers nothing must be: it stands before the first message.
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
