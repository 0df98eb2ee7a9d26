//! Looking up: what a chain means, what its parts and snapshots say. Changes nothing.

use std::collections::HashMap;

use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_scalar};

use crate::store::StoreResult;
use crate::history::{Link, Scope};
use crate::memory::advance::ChainJob;
use crate::memory::alignment::{LineageName, Origin, PathEntry, SummaryCandidate};
use crate::memory::{Part, PartId, PartKind, Snapshot, SnapshotId};
use crate::store::rows::{self, corrupt, get};
use crate::store::{
    Candidates, LookupKeys, PrefixTrim, RecordedChain, SentPrefix, SharedContent, sql,
};

/// A request as `FIND` takes it.
pub(super) struct FindQuery {
    links: String,
    tip: Link,
    root: Link,
    length: usize,
    anchors: String,
    answers: String,
    model: Option<String>,
    system: Option<Vec<u8>>,
}

impl FindQuery {
    pub(super) fn new(scope: &Scope, chain: &[Link], keys: &LookupKeys) -> Option<Self> {
        Some(Self {
            links: rows::link_list(chain),
            tip: *chain.last()?,
            root: Link::root(scope),
            length: chain.len(),
            anchors: rows::mark_list(&keys.anchors),
            answers: rows::mark_list(&keys.answers),
            model: keys.model.clone(),
            system: keys.system.map(|mark| mark.as_bytes().to_vec()),
        })
    }
}

pub(super) async fn find_candidates(
    conn: &mut SqliteConnection,
    scope: Scope,
    query_values: FindQuery,
) -> StoreResult<Candidates> {
    let rows = query(sql::FIND)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(query_values.links)
        .bind(query_values.tip.as_bytes().as_slice())
        .bind(query_values.anchors)
        .bind(query_values.answers)
        .bind(rows::count(query_values.length))
        .bind(query_values.root.as_bytes().as_slice())
        .bind(query_values.model)
        .bind(query_values.system)
        .fetch_all(conn)
        .await?;
    let mut candidates = Candidates::default();
    let (mut path, mut base, mut answered) = (Vec::new(), Vec::new(), Vec::new());
    let mut hit = None;
    let mut answer: Option<SummaryCandidate> = None;
    for row in &rows {
        match get::<i64>(row, 0)? {
            0 => {
                let meta = rows::snapshot_meta(row)?;
                if candidates.snapshots.iter().all(|known| known.id != meta.id) {
                    candidates.snapshots.push(meta);
                }
            }
            1 => candidates.sent_with = Some(rows::sent_with(row)?),
            2 => {
                candidates.depth = rows::int(row, 1)?;
                candidates.lineage = get(row, 2)?;
                candidates.continued_elsewhere = get(row, 3)?;
                candidates.depth_origin = Origin(get::<Option<i64>>(row, 4)?.unwrap_or_default());
            }
            3 => {
                candidates.alignment = Some(rows::stored_alignment(row)?);
                candidates.alignment_holds = !get::<bool>(row, 12)?;
            }
            4 => base.push(rows::step(row)?),
            5 => path.push(rows::step(row)?),
            6 => answered.push(rows::step(row)?),
            7 => candidates.aligned_sent_with = Some(rows::sent_with(row)?),
            8 => hit = Some(rows::int(row, 1)?),
            9 => {
                answer = Some(SummaryCandidate {
                    count: rows::int(row, 1)?,
                    hash: rows::mark(row, 6)?.ok_or_else(|| corrupt("an answer without a mark"))?,
                    path: Vec::new(),
                    same_system: get(row, 3)?,
                    is_unique: true,
                });
            }
            10 => {
                let model = get(row, 9)?;
                let carried = rows::trim(row)?.map(|trim| PrefixTrim { trim, model });
                candidates.prefix_trims.extend(carried);
            }
            11 => candidates.path_sent_with = Some(rows::sent_with(row)?),
            12 => {
                let on_other_chain = get::<i64>(row, 1)? != 0;
                let tip = on_other_chain.then(|| rows::link(row, 2)).transpose()?;
                let sent_prefix = SentPrefix {
                    shared_messages: rows::int(row, 3)?,
                    snapshot: get::<Option<i64>>(row, 4)?.map(SnapshotId),
                    thread_key: get(row, 5)?,
                };
                candidates.sent_prefixes.push((tip, sent_prefix));
            }
            13 => candidates.newest_peer_intro = Some(rows::snapshot_meta(row)?),
            14 => {
                let (tip, model) = (rows::link(row, 2)?, get(row, 9)?);
                let carried = rows::trim(row)?.map(|trim| PrefixTrim { trim, model });
                candidates
                    .path_trims
                    .extend(carried.map(|carried| (tip, carried)));
            }
            15 => candidates.peer_intros.push(rows::snapshot_meta(row)?),
            16 => {
                let name = LineageName {
                    key: get(row, 5)?,
                    is_unique: get(row, 3)?,
                };
                candidates.lineage_names.push((get(row, 1)?, name));
            }
            _ => return Err(corrupt("an unknown kind of row")),
        }
    }
    candidates.tip_recorded = candidates.depth == query_values.length;
    candidates
        .snapshots
        .sort_unstable_by_key(|s| (s.to_count, s.id));
    candidates.base_chain = complete_path(base);
    candidates.path = hit.map(|place| (place, complete_path(path)));
    candidates.answered = answer.map(|answer| SummaryCandidate {
        path: complete_path(answered),
        ..answer
    });
    Ok(candidates)
}

/// Steps in the order of their chain; nothing unless they reach from its first message on.
fn complete_path(mut steps: Vec<(usize, PathEntry)>) -> Vec<PathEntry> {
    steps.sort_unstable_by_key(|(count, _)| *count);
    let gapless = steps
        .iter()
        .enumerate()
        .all(|(index, (count, _))| *count == index + 1);
    if !gapless {
        return Vec::new();
    }
    steps.into_iter().map(|(_, step)| step).collect()
}

pub(super) async fn find_shared_content(
    conn: &mut SqliteConnection,
    scope: Scope,
    links: String,
    thread_key: Option<String>,
) -> StoreResult<SharedContent> {
    let rows = rows_of_chain(conn, sql::SHARED_MESSAGES, &scope, &links).await?;
    let messages = rows.iter().map(|row| rows::link(row, 0));
    let messages = messages.collect::<Result<_, _>>()?;
    let lineages: i64 = match thread_key {
        None => 0,
        Some(name) => {
            query_scalar(sql::LINEAGES_NAMED)
                .bind(scope.tenant.as_slice())
                .bind(scope.resource_key())
                .bind(name)
                .fetch_one(conn)
                .await?
        }
    };
    Ok(SharedContent {
        messages,
        thread_key_shared: lineages > 1,
    })
}

pub(super) async fn snapshot(
    conn: &mut SqliteConnection,
    scope: Scope,
    id: SnapshotId,
) -> StoreResult<Option<Snapshot>> {
    query(sql::SNAPSHOT)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(id.0)
        .fetch_optional(conn)
        .await?
        .map(|row| rows::snapshot(&row))
        .transpose()
}

pub(super) async fn load_chain(
    conn: &mut SqliteConnection,
    scope: Scope,
    chain: String,
) -> StoreResult<RecordedChain> {
    let mut recorded = RecordedChain::default();
    for row in rows_of_chain(conn, sql::NODES_OF_CHAIN, &scope, &chain).await? {
        let node = rows::node(&row)?;
        // The links drive the join, so rows come in the order of the chain; a gap ends the prefix.
        if node.count != recorded.nodes.len() + 1 {
            break;
        }
        recorded.nodes.push(node);
        let lineage = get(&row, 10)?;
        if recorded.lineage.replace(lineage) != Some(lineage) {
            recorded.lineages.retain(|(other, _)| *other != lineage);
            recorded.lineages.insert(0, (lineage, get(&row, 11)?));
            recorded.zone = get(&row, 12)?;
        }
    }
    let Some(deepest) = recorded.nodes.last() else {
        return Ok(recorded);
    };
    recorded.has_successor = query(sql::HAS_SUCCESSOR)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(deepest.link.as_bytes().as_slice())
        .fetch_one(&mut *conn)
        .await
        .map_err(Into::into)
        .and_then(|row| get::<i64>(&row, 0))?
        != 0;
    for row in rows_of_chain(conn, sql::PARTS_OF_CHAIN, &scope, &chain).await? {
        recorded.parts.push(rows::part_meta(&row)?);
    }
    recorded
        .parts
        .sort_unstable_by_key(|p| (p.span.to_count, p.id));
    for row in rows_of_chain(conn, sql::SNAPSHOTS_OF_CHAIN, &scope, &chain).await? {
        recorded.snapshots.push(rows::snapshot_meta(&row)?);
    }
    recorded
        .snapshots
        .sort_unstable_by_key(|s| (s.to_count, s.id));
    recorded.jobs = jobs_ending_at(conn, scope, chain).await?;
    Ok(recorded)
}

pub(super) async fn jobs_ending_at(
    conn: &mut SqliteConnection,
    scope: Scope,
    ends: String,
) -> StoreResult<Vec<ChainJob>> {
    let found = rows_of_chain(conn, sql::JOBS_OF_CHAIN, &scope, &ends).await?;
    found.iter().map(rows::work).collect()
}

async fn rows_of_chain(
    conn: &mut SqliteConnection,
    statement: &'static str,
    scope: &Scope,
    chain: &str,
) -> StoreResult<Vec<sqlx::sqlite::SqliteRow>> {
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
    ids: Vec<PartId>,
) -> StoreResult<Vec<Part>> {
    let rows = rows_of_chain(conn, sql::PARTS, &scope, &rows::id_list(&ids)).await?;
    let mut found = HashMap::with_capacity(rows.len());
    for row in &rows {
        let part = rows::part(row)?;
        found.insert(part.id, part);
    }
    Ok(ids.iter().filter_map(|id| found.get(id).cloned()).collect())
}

pub(super) async fn part_ending(
    conn: &mut SqliteConnection,
    scope: Scope,
    kind: PartKind,
    to: Link,
) -> StoreResult<Option<Part>> {
    query(sql::PART_ENDING)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(to.as_bytes().as_slice())
        .bind(kind.name())
        .fetch_optional(conn)
        .await?
        .map(|row| rows::part(&row))
        .transpose()
}

/// Reads a page of the file: a connection alone would answer without one.
pub(super) async fn ping(conn: &mut SqliteConnection) -> StoreResult<()> {
    query(sql::PING).fetch_one(conn).await?;
    Ok(())
}

pub(super) async fn chain_links(
    conn: &mut SqliteConnection,
    scope: Scope,
    tip: Link,
) -> StoreResult<Vec<Link>> {
    let rows = query(sql::CHAIN_TO)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(tip.as_bytes().as_slice())
        .fetch_all(conn)
        .await?;
    rows.iter().map(|row| rows::link(row, 0)).collect()
}

pub(super) async fn count_live_conversations(
    conn: &mut SqliteConnection,
    scope: Scope,
    key: String,
    since_ms: i64,
) -> StoreResult<u32> {
    let found = query_scalar(sql::COUNT_LIVE_CONVERSATIONS)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(key)
        .bind(since_ms)
        .fetch_one(conn)
        .await?;
    Ok(found)
}
