//! An accepted request together with what was observed for it while its client waited: all of it, or
//! nothing.

use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_scalar};

use super::{queue, record, snapshots};
use crate::store::StoreResult;
use crate::history::Scope;
use crate::memory::{NewPart, PartId, PartKind};
use crate::store::{
    NewOverflowObservation, NewSnapshot, RequestRecord, SentWith, StoredOverflowObservation, sql,
};

pub(super) async fn record_overflow_observation(
    conn: &mut SqliteConnection,
    scope: Scope,
    record: RequestRecord,
    observation: NewOverflowObservation,
) -> StoreResult<StoredOverflowObservation> {
    let at_ms = record.at_ms;
    let lineage = record::record_messages(conn, &scope, &record).await?;
    let mut parts = Vec::with_capacity(observation.parts.len());
    for part in observation.parts {
        parts.push(insert_chunk(conn, &scope, part, at_ms).await?);
    }
    // Those that come first are stored; the others were numbered from -1 downwards.
    let stored_id = |id: &PartId| match usize::try_from(-id.0 - 1) {
        Ok(new) => parts.get(new).copied().unwrap_or(*id),
        Err(_) => *id,
    };
    let all: Vec<PartId> = observation.snapshot.parts.iter().map(stored_id).collect();
    snapshots::fix_rendering(conn, scope.clone(), all.clone(), observation.rendering).await?;
    let with_stored_parts = |new: NewSnapshot| NewSnapshot {
        parts: all.clone(),
        ..new
    };
    let (snapshot, peer_snapshot) = (
        with_stored_parts(observation.snapshot),
        observation.peer_snapshot.map(with_stored_parts),
    );
    let (snapshot, peer_snapshot) = match peer_snapshot {
        Some(peer_snapshot) => {
            snapshots::commit_pair(conn, scope.clone(), snapshot, peer_snapshot).await?
        }
        None => (
            snapshots::commit(conn, scope.clone(), snapshot).await?,
            None,
        ),
    };
    let sent_with = SentWith {
        snapshot: Some(peer_snapshot.as_ref().unwrap_or(&snapshot).meta.id),
        ..record.sent_with.clone()
    };
    record::record_request(
        conn,
        &scope,
        lineage,
        &RequestRecord {
            sent_with,
            ..record
        },
    )
    .await?;
    Ok(StoredOverflowObservation {
        lineage,
        parts,
        snapshot,
        peer_snapshot,
    })
}

/// Stores a chunk, unless the queue has brought one of the same range meanwhile; what waits to be done
/// for that range is done.
async fn insert_chunk(
    conn: &mut SqliteConnection,
    scope: &Scope,
    part: NewPart,
    at_ms: i64,
) -> StoreResult<PartId> {
    let (span, tokens) = (part.span, part.message_tokens);
    if let Some(id) = queue::insert_part(conn, scope, part, at_ms).await? {
        query(sql::CHARGE)
            .bind(scope.tenant.as_slice())
            .bind(scope.resource_key())
            .bind(tokens)
            .bind(span.to.as_bytes().as_slice())
            .execute(&mut *conn)
            .await?;
        query(sql::DROP_JOB)
            .bind(scope.tenant.as_slice())
            .bind(scope.resource_key())
            .bind(PartKind::Chunk.name())
            .bind(span.from.as_bytes().as_slice())
            .bind(span.to.as_bytes().as_slice())
            .execute(conn)
            .await?;
        return Ok(id);
    }
    let id: i64 = query_scalar(sql::CHUNK_OF_SPAN)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(span.from.as_bytes().as_slice())
        .bind(span.to.as_bytes().as_slice())
        .fetch_one(conn)
        .await?;
    Ok(PartId(id))
}
