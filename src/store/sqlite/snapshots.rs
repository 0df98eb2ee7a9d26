//! Committing a snapshot: when it becomes eligible is decided in the transaction that stores it.

use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_scalar};

use super::{Answer, others, read};
use crate::history::Scope;
use crate::memory::{Part, PartId, Rendering, Snapshot, SnapshotId, SnapshotMeta};
use crate::store::rows::{self, corrupt, count, id_list};
use crate::store::{NewSnapshot, StoreError, sql};

pub(super) async fn commit(
    conn: &mut SqliteConnection,
    scope: Scope,
    new: NewSnapshot,
) -> Answer<Snapshot> {
    let parts = id_list(&new.parts);
    let opens = others::opens(&scope, &new)?;
    if !others::stands(conn, &scope, &new).await?
        || !opens && !stands(conn, &scope, &new, &parts).await?
    {
        return Err(StoreError::Forgotten);
    }
    if opens && let Some(equal) = others::equal_opener(conn, &scope, &new).await? {
        return Ok(equal);
    }
    let eligible_from = if new.at_once {
        new.tip_count
    } else {
        // Beyond every chain that was sent without it: their repetitions keep their bytes.
        longest(conn, &scope, &new).await? + 1
    };
    let segments = serde_json::to_string(&new.segments)
        .map_err(|_| corrupt("the text of a snapshot cannot be written"))?;
    let told = new.others.as_deref().map(rows::others_text).transpose()?;
    if !opens
        && let Some(meta) = equal(conn, &scope, &new, &parts, &segments, eligible_from).await?
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
        .bind(&new.made_with)
        .bind(told)
        .bind(opens)
        .fetch_one(&mut *conn)
        .await?;
    others::note(conn, &scope, &new, id).await?;
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
            others: new.others,
        },
        segments: new.segments,
    })
}

/// Both or neither; without `bound` where one that it tells of was forgotten.
pub(super) async fn commit_both(
    conn: &mut SqliteConnection,
    scope: Scope,
    new: NewSnapshot,
    bound: NewSnapshot,
) -> Answer<(Snapshot, Option<Snapshot>)> {
    let told = match commit(conn, scope.clone(), bound).await {
        Err(StoreError::Forgotten) => None,
        told => Some(told?),
    };
    Ok((commit(conn, scope, new).await?, told))
}

/// Fixes how `parts` are written where no block held them yet, and reads them.
pub(super) async fn freeze(
    conn: &mut SqliteConnection,
    scope: Scope,
    parts: Vec<PartId>,
    rendering: Rendering,
) -> Answer<Vec<Part>> {
    query(sql::FREEZE_PARTS)
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
async fn stands(
    conn: &mut SqliteConnection,
    scope: &Scope,
    new: &NewSnapshot,
    parts: &str,
) -> Answer<bool> {
    let node: i64 = query_scalar(sql::NODE_EXISTS)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(new.to.as_bytes().as_slice())
        .fetch_one(&mut *conn)
        .await?;
    let held: i64 = query_scalar(sql::COUNT_PARTS)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(parts)
        .fetch_one(conn)
        .await?;
    Ok(node != 0 && held == count(new.parts.len()))
}

async fn longest(conn: &mut SqliteConnection, scope: &Scope, new: &NewSnapshot) -> Answer<usize> {
    let row = query(sql::LONGEST)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(new.tip.as_bytes().as_slice())
        .bind(count(new.tip_count))
        .fetch_one(conn)
        .await?;
    rows::int(&row, 0)
}

async fn equal(
    conn: &mut SqliteConnection,
    scope: &Scope,
    new: &NewSnapshot,
    parts: &str,
    segments: &str,
    eligible_from: usize,
) -> Answer<Option<SnapshotMeta>> {
    query(sql::EQUAL_SNAPSHOT)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(new.to.as_bytes().as_slice())
        .bind(parts)
        .bind(segments)
        .bind(new.pin.map(count))
        .bind(count(eligible_from))
        .bind(&new.placement)
        .bind(new.others.as_deref().map(rows::others_text).transpose()?)
        .fetch_optional(conn)
        .await?
        .map(|row| rows::snapshot_meta(&row))
        .transpose()
}
