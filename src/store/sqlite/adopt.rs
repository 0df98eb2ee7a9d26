//! An accepted request together with what was observed for it while its client waited: all of it, or
//! nothing.

use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_scalar};

use super::{Answer, queue, record, snapshots};
use crate::history::Scope;
use crate::memory::{NewPart, PartId, PartKind};
use crate::store::{Adopted, Adoption, NewSnapshot, Record, Used, sql};

pub(super) async fn adopt(
    conn: &mut SqliteConnection,
    scope: Scope,
    record: Record,
    adoption: Adoption,
) -> Answer<Adopted> {
    let at_ms = record.at_ms;
    let lineage = record::history(conn, &scope, &record).await?;
    let mut parts = Vec::with_capacity(adoption.parts.len());
    for part in adoption.parts {
        parts.push(chunk(conn, &scope, part, at_ms).await?);
    }
    // Those that come first are stored; the others were numbered from -1 downwards.
    let number = |id: &PartId| match usize::try_from(-id.0 - 1) {
        Ok(new) => parts.get(new).copied().unwrap_or(*id),
        Err(_) => *id,
    };
    let all: Vec<PartId> = adoption.snapshot.parts.iter().map(number).collect();
    snapshots::freeze(conn, scope.clone(), all.clone(), adoption.rendering).await?;
    let numbered = |new: NewSnapshot| NewSnapshot {
        parts: all.clone(),
        ..new
    };
    let (own, bound) = (numbered(adoption.snapshot), adoption.bound.map(numbered));
    let (snapshot, bound) = match bound {
        Some(bound) => snapshots::commit_both(conn, scope.clone(), own, bound).await?,
        None => (snapshots::commit(conn, scope.clone(), own).await?, None),
    };
    let used = Used {
        snapshot: Some(bound.as_ref().unwrap_or(&snapshot).meta.id),
        ..record.used.clone()
    };
    record::request(conn, &scope, lineage, &Record { used, ..record }).await?;
    Ok(Adopted {
        lineage,
        parts,
        snapshot,
        bound,
    })
}

/// Stores a chunk, unless the queue has brought one of the same range meanwhile; what waits to be done
/// for that range is done.
async fn chunk(
    conn: &mut SqliteConnection,
    scope: &Scope,
    part: NewPart,
    at_ms: i64,
) -> Answer<PartId> {
    let (span, tokens) = (part.span, part.message_tokens);
    if let Some(id) = queue::new_part(conn, scope, part, at_ms).await? {
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
