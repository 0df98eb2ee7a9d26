//! Looking up: what a chain means, what its parts and snapshots say. Changes nothing.

use std::collections::HashMap;

use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_scalar};

use super::Answer;
use crate::history::{Link, Scope};
use crate::memory::advance::Work;
use crate::memory::place::{Answered, LineageName, Origin, Step};
use crate::memory::{Part, PartId, PartKind, Snapshot, SnapshotId};
use crate::store::rows::{self, corrupt, get};
use crate::store::{Begun, Carried, Elsewhere, Found, Known, Probes, sql};

/// A request as `FIND` takes it.
pub(super) struct Request {
    links: String,
    tip: Link,
    root: Link,
    length: usize,
    anchors: String,
    answers: String,
    model: Option<String>,
    system: Option<Vec<u8>>,
}

impl Request {
    pub(super) fn of(scope: &Scope, chain: &[Link], probes: &Probes) -> Option<Self> {
        Some(Self {
            links: rows::probes(chain),
            tip: *chain.last()?,
            root: Link::root(scope),
            length: chain.len(),
            anchors: rows::mark_list(&probes.anchors),
            answers: rows::mark_list(&probes.answers),
            model: probes.model.clone(),
            system: probes.system.map(|mark| mark.as_bytes().to_vec()),
        })
    }
}

pub(super) async fn find(
    conn: &mut SqliteConnection,
    scope: Scope,
    request: Request,
) -> Answer<Found> {
    let rows = query(sql::FIND)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(request.links)
        .bind(request.tip.as_bytes().as_slice())
        .bind(request.anchors)
        .bind(request.answers)
        .bind(rows::count(request.length))
        .bind(request.root.as_bytes().as_slice())
        .bind(request.model)
        .bind(request.system)
        .fetch_all(conn)
        .await?;
    let mut found = Found::default();
    let (mut path, mut base, mut answered) = (Vec::new(), Vec::new(), Vec::new());
    let mut hit = None;
    let mut answer: Option<Answered> = None;
    for row in &rows {
        match get::<i64>(row, 0)? {
            0 => {
                let meta = rows::snapshot_meta(row)?;
                if found.snapshots.iter().all(|known| known.id != meta.id) {
                    found.snapshots.push(meta);
                }
            }
            1 => found.used = Some(rows::used(row)?),
            2 => {
                found.depth = rows::int(row, 1)?;
                found.own = get(row, 2)?;
                found.followed = get(row, 3)?;
                found.depth_origin = Origin(get::<Option<i64>>(row, 4)?.unwrap_or_default());
            }
            3 => {
                found.view = Some(rows::view(row)?);
                found.view_holds = !get::<bool>(row, 12)?;
            }
            4 => base.push(rows::step(row)?),
            5 => path.push(rows::step(row)?),
            6 => answered.push(rows::step(row)?),
            7 => found.used_as_view = Some(rows::used(row)?),
            8 => hit = Some(rows::int(row, 1)?),
            9 => {
                answer = Some(Answered {
                    place: rows::int(row, 1)?,
                    mark: rows::mark(row, 6)?.ok_or_else(|| corrupt("an answer without a mark"))?,
                    path: Vec::new(),
                    same_system: get(row, 3)?,
                    alone: true,
                });
            }
            10 => {
                let model = get(row, 9)?;
                let carried = rows::trim(row)?.map(|trim| Carried { trim, model });
                found.carried.extend(carried);
            }
            11 => found.path_used = Some(rows::used(row)?),
            12 => {
                let elsewhere = get::<i64>(row, 1)? != 0;
                let tip = elsewhere.then(|| rows::link(row, 2)).transpose()?;
                let begun = Begun {
                    shared: rows::int(row, 3)?,
                    snapshot: get::<Option<i64>>(row, 4)?.map(SnapshotId),
                    key: get(row, 5)?,
                };
                found.begun.push((tip, begun));
            }
            13 => found.newest_opener = Some(rows::snapshot_meta(row)?),
            14 => {
                let (tip, model) = (rows::link(row, 2)?, get(row, 9)?);
                let carried = rows::trim(row)?.map(|trim| Carried { trim, model });
                found
                    .path_carried
                    .extend(carried.map(|carried| (tip, carried)));
            }
            15 => found.openers.push(rows::snapshot_meta(row)?),
            16 => {
                let name = LineageName {
                    key: get(row, 5)?,
                    only: get(row, 3)?,
                };
                found.names.push((get(row, 1)?, name));
            }
            _ => return Err(corrupt("an unknown kind of row")),
        }
    }
    found.tip_known = found.depth == request.length;
    found.snapshots.sort_unstable_by_key(|s| (s.to_count, s.id));
    found.base = whole(base);
    found.path = hit.map(|place| (place, whole(path)));
    found.answered = answer.map(|answer| Answered {
        path: whole(answered),
        ..answer
    });
    Ok(found)
}

/// Steps in the order of their chain; nothing unless they reach from its first message on.
fn whole(mut steps: Vec<(usize, Step)>) -> Vec<Step> {
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

pub(super) async fn elsewhere(
    conn: &mut SqliteConnection,
    scope: Scope,
    links: String,
    name: Option<String>,
) -> Answer<Elsewhere> {
    let rows = rows_of_chain(conn, sql::SAID_ELSEWHERE, &scope, &links).await?;
    let messages = rows.iter().map(|row| rows::link(row, 0));
    let messages = messages.collect::<Result<_, _>>()?;
    let lineages: i64 = match name {
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
    Ok(Elsewhere {
        messages,
        name: lineages > 1,
    })
}

pub(super) async fn snapshot(
    conn: &mut SqliteConnection,
    scope: Scope,
    id: SnapshotId,
) -> Answer<Option<Snapshot>> {
    query(sql::SNAPSHOT)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(id.0)
        .fetch_optional(conn)
        .await?
        .map(|row| rows::snapshot(&row))
        .transpose()
}

pub(super) async fn known(
    conn: &mut SqliteConnection,
    scope: Scope,
    chain: String,
) -> Answer<Known> {
    let mut known = Known::default();
    for row in rows_of_chain(conn, sql::NODES_OF_CHAIN, &scope, &chain).await? {
        let node = rows::node(&row)?;
        // The links drive the join, so rows come in the order of the chain; a gap ends the prefix.
        if node.count != known.nodes.len() + 1 {
            break;
        }
        known.nodes.push(node);
        let lineage = get(&row, 10)?;
        if known.lineage.replace(lineage) != Some(lineage) {
            known.lineages.retain(|(other, _)| *other != lineage);
            known.lineages.insert(0, (lineage, get(&row, 11)?));
            known.zone = get(&row, 12)?;
        }
    }
    let Some(deepest) = known.nodes.last() else {
        return Ok(known);
    };
    known.branches = query(sql::HAS_SUCCESSOR)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(deepest.link.as_bytes().as_slice())
        .fetch_one(&mut *conn)
        .await
        .map_err(Into::into)
        .and_then(|row| get::<i64>(&row, 0))?
        != 0;
    for row in rows_of_chain(conn, sql::PARTS_OF_CHAIN, &scope, &chain).await? {
        known.parts.push(rows::part_meta(&row)?);
    }
    known
        .parts
        .sort_unstable_by_key(|p| (p.span.to_count, p.id));
    for row in rows_of_chain(conn, sql::SNAPSHOTS_OF_CHAIN, &scope, &chain).await? {
        known.snapshots.push(rows::snapshot_meta(&row)?);
    }
    known.snapshots.sort_unstable_by_key(|s| (s.to_count, s.id));
    known.jobs = work(conn, scope, chain).await?;
    Ok(known)
}

pub(super) async fn work(
    conn: &mut SqliteConnection,
    scope: Scope,
    ends: String,
) -> Answer<Vec<Work>> {
    let found = rows_of_chain(conn, sql::JOBS_OF_CHAIN, &scope, &ends).await?;
    found.iter().map(rows::work).collect()
}

async fn rows_of_chain(
    conn: &mut SqliteConnection,
    statement: &'static str,
    scope: &Scope,
    chain: &str,
) -> Answer<Vec<sqlx::sqlite::SqliteRow>> {
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
    wanted: Vec<PartId>,
) -> Answer<Vec<Part>> {
    let rows = rows_of_chain(conn, sql::PARTS, &scope, &rows::id_list(&wanted)).await?;
    let mut found = HashMap::with_capacity(rows.len());
    for row in &rows {
        let part = rows::part(row)?;
        found.insert(part.id, part);
    }
    Ok(wanted
        .iter()
        .filter_map(|id| found.get(id).cloned())
        .collect())
}

pub(super) async fn part_ending(
    conn: &mut SqliteConnection,
    scope: Scope,
    kind: PartKind,
    to: Link,
) -> Answer<Option<Part>> {
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
pub(super) async fn ping(conn: &mut SqliteConnection) -> Answer<()> {
    query(sql::PING).fetch_one(conn).await?;
    Ok(())
}

pub(super) async fn chain(
    conn: &mut SqliteConnection,
    scope: Scope,
    tip: Link,
) -> Answer<Vec<Link>> {
    let rows = query(sql::CHAIN_TO)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(tip.as_bytes().as_slice())
        .fetch_all(conn)
        .await?;
    rows.iter().map(|row| rows::link(row, 0)).collect()
}

pub(super) async fn namesakes(
    conn: &mut SqliteConnection,
    scope: Scope,
    key: String,
    since_ms: i64,
) -> Answer<u32> {
    let found = query_scalar(sql::NAMESAKES)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(key)
        .bind(since_ms)
        .fetch_one(conn)
        .await?;
    Ok(found)
}
