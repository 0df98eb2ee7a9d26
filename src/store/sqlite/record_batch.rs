//! Recording several accepted requests in one transaction, so that they share its COMMIT. One that cannot be
//! recorded leaves the others: it goes back to a savepoint. Called through [`super::SqliteStore`] by the
//! recorder.

use std::collections::HashMap;

use sqlx::sqlite::SqliteConnection;

use super::record_group::{is_ordinary, record_group};
use super::savepoint::under_savepoint;
use super::scoped::scoped_query;
use super::{read, record};
use crate::history::{Link, Scope};
use crate::store::rows::get;
use crate::store::{
    OperatorRequest, RecordedRequest, RequestRecord, SharedContent, StoreError, StoreResult,
};

/// Records the requests. Those of one owner that have to do with each other stay in their order.
///
/// # Errors
/// The transaction cannot go on, and nothing of the batch may be committed.
pub(super) async fn record_batch(
    conn: &mut SqliteConnection,
    batch: Vec<(Scope, RequestRecord)>,
) -> StoreResult<Vec<StoreResult<RecordedRequest>>> {
    let mut results: Vec<Option<StoreResult<RecordedRequest>>> =
        batch.iter().map(|_| None).collect();
    for segment in segments(&batch) {
        record_segment(conn, &batch, &segment, &mut results).await?;
    }
    let missing = || Err(StoreError::Corrupt("a request was left out".to_owned()));
    Ok(results
        .into_iter()
        .map(|result| result.unwrap_or_else(missing))
        .collect())
}

/// As [`record_batch`], without the requests that belong to something that was forgotten (`covered`).
pub(super) async fn record_uncovered(
    conn: &mut SqliteConnection,
    batch: Vec<(Scope, RequestRecord)>,
    covered: &[bool],
) -> StoreResult<Vec<StoreResult<RecordedRequest>>> {
    let allowed = batch.into_iter().zip(covered);
    let allowed = allowed.filter(|(_, covered)| !**covered);
    let allowed: Vec<_> = allowed.map(|(request, _)| request).collect();
    let mut recorded = record_batch(conn, allowed).await?.into_iter();
    Ok(covered
        .iter()
        .map(|covered| match covered {
            true => Err(StoreError::Forgotten),
            false => recorded.next().unwrap_or(Err(StoreError::Forgotten)),
        })
        .collect())
}

/// Parts the batch into what may be written together: ordinary requests of one owner, between two that are not
/// ordinary. The requests of one owner stay in their order.
fn segments(batch: &[(Scope, RequestRecord)]) -> Vec<Vec<usize>> {
    let mut segments: Vec<Vec<usize>> = Vec::new();
    let mut open: HashMap<&Scope, usize> = HashMap::new();
    for (index, (scope, record)) in batch.iter().enumerate() {
        if !is_ordinary(scope, record) {
            open.remove(scope);
            segments.push(vec![index]);
            continue;
        }
        let segment = *open.entry(scope).or_insert_with(|| {
            segments.push(Vec::new());
            segments.len() - 1
        });
        segments[segment].push(index);
    }
    segments
}

/// Records one segment: together what can be, and each of the others under a savepoint of its own.
async fn record_segment(
    conn: &mut SqliteConnection,
    batch: &[(Scope, RequestRecord)],
    segment: &[usize],
    results: &mut [Option<StoreResult<RecordedRequest>>],
) -> StoreResult<()> {
    let Some((scope, first)) = segment.first().map(|index| &batch[*index]) else {
        return Ok(());
    };
    if is_ordinary(scope, first) {
        let requests: Vec<&RequestRecord> = segment.iter().map(|index| &batch[*index].1).collect();
        let together = record_group(conn, scope, &requests).await?;
        for (index, recorded) in segment.iter().zip(together) {
            results[*index] = recorded.map(Ok);
        }
    }
    for index in segment {
        if results[*index].is_none() {
            let record = &batch[*index].1;
            let alone = under_savepoint(conn, async |conn| record_one(conn, scope, record).await);
            results[*index] = Some(alone.await?);
        }
    }
    Ok(())
}

async fn record_one(
    conn: &mut SqliteConnection,
    scope: &Scope,
    record: &RequestRecord,
) -> StoreResult<RecordedRequest> {
    let lineage = record::record(conn, scope, record).await?;
    let (thread_key, operator_request) = lineage_state(conn, scope, lineage).await?;
    let new: Vec<Link> = record.new_nodes.iter().map(|node| node.link).collect();
    let shared = match (new.is_empty(), &thread_key) {
        (true, None) => SharedContent::default(),
        _ => read::find_shared_content(conn, scope.clone(), new, thread_key).await?,
    };
    Ok(RecordedRequest {
        lineage,
        shared,
        operator_request,
    })
}

/// The thread key of a lineage (`$3`), and what an operator asks of it.
const LINEAGE_STATE: &str = "
SELECT thread_key, observe_asked, observe_focus FROM lineages
WHERE tenant = $1 AND resource = $2 AND id = $3";

async fn lineage_state(
    conn: &mut SqliteConnection,
    scope: &Scope,
    lineage: i64,
) -> StoreResult<(Option<String>, Option<OperatorRequest>)> {
    let row = scoped_query(LINEAGE_STATE, scope)
        .bind(lineage)
        .fetch_optional(conn)
        .await?
        .ok_or(StoreError::Forgotten)?;
    let request = OperatorRequest::from_number(get(&row, 1)?, get(&row, 2)?);
    Ok((get(&row, 0)?, request))
}
