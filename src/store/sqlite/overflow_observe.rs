//! Recording a request together with what was observed for it while its client waited (`overflow =
//! "observe"`). One transaction stores all of it or nothing.

use sqlx::sqlite::SqliteConnection;

use super::scoped::{scoped_query, scoped_scalar};
use super::{observer_allowance, queue, record, snapshots};
use crate::history::Scope;
use crate::memory::{NewPart, PartId, PartKind};
use crate::store::StoreResult;
use crate::store::{
    NewOverflowObservation, NewSnapshot, RequestRecord, SentWith, StoredOverflowObservation,
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
    // Parts that were stored before have their id; the new ones are numbered from -1 downwards.
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

/// Deletes the job of a span (`$3`: kind, `$4`: from, `$5`: to): its part is stored.
const DROP_JOB: &str = "
DELETE FROM jobs
WHERE tenant = $1 AND resource = $2 AND to_link = $5 AND from_link = $4 AND kind = $3";

/// The chunk of a range (`$3`: from, `$4`: to).
const CHUNK_OF_SPAN: &str = "
SELECT id FROM parts
WHERE tenant = $1 AND resource = $2 AND to_link = $4 AND from_link = $3 AND kind = 'chunk'";

/// Stores a chunk, unless a worker has stored one for the same range meanwhile. Deletes the job of that
/// range.
async fn insert_chunk(
    conn: &mut SqliteConnection,
    scope: &Scope,
    part: NewPart,
    at_ms: i64,
) -> StoreResult<PartId> {
    let (span, tokens) = (part.span, part.message_tokens);
    if let Some(id) = queue::insert_part(conn, scope, part, at_ms).await? {
        observer_allowance::add_shown(conn, scope, tokens, span.to).await?;
        scoped_query(DROP_JOB, scope)
            .bind(PartKind::Chunk.name())
            .bind(span.from.as_bytes().as_slice())
            .bind(span.to.as_bytes().as_slice())
            .execute(conn)
            .await?;
        return Ok(id);
    }
    let id: i64 = scoped_scalar(CHUNK_OF_SPAN, scope)
        .bind(span.from.as_bytes().as_slice())
        .bind(span.to.as_bytes().as_slice())
        .fetch_one(conn)
        .await?;
    Ok(PartId(id))
}
