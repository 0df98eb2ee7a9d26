//! Rows to types and back. A row that cannot be understood is [`StoreError::Corrupt`], never a
//! default: guessing here would send words to the model that nobody said.
//!
//! Columns are read by position; the statements in `sql` say which stands where.

mod lists;
mod others;

use serde::de::DeserializeOwned;
use sqlx::sqlite::SqliteRow;
use sqlx::{Decode, Row as _, Sqlite, Type};

use crate::history::align::{Run, Standing};
use crate::history::{Item, Link, Mark, Role, Scope, Stand, View};
use crate::memory::faithful::Retention;
use crate::memory::provenance::Origins;
use crate::memory::{
    Cause, Evidence, NewPart, Node, Part, PartId, PartKind, PartMeta, Rendering, Snapshot,
    SnapshotId, SnapshotMeta, Span, Trim,
};

use super::{Alarms, Costs, Event, Job, NewJob, Spent, StoreError, Timer, Used, Waiting};
use crate::memory::advance::{Work, WorkState};
use crate::memory::place::{Held, Origin, Step, StoredView, Witness};

pub(super) use lists::{
    content_list, count, id_list, mark_list, node_list, number_list, pair_list, probes, proof_list,
    run_list, way, whole, word_list,
};
pub(super) use others::{others, others_text};

type Read<T> = Result<T, StoreError>;

pub(super) fn corrupt(what: &str) -> StoreError {
    StoreError::Corrupt(what.to_owned())
}

/// A column as SQLite gives it.
pub(super) fn get<'r, T>(row: &'r SqliteRow, column: usize) -> Read<T>
where
    T: Decode<'r, Sqlite> + Type<Sqlite>,
{
    row.try_get(column).map_err(StoreError::from)
}

/// An integer that fits.
pub(super) fn int<T: TryFrom<i64>>(row: &SqliteRow, column: usize) -> Read<T> {
    T::try_from(get::<i64>(row, column)?).map_err(|_| corrupt("a number is out of range"))
}

fn flag(row: &SqliteRow, column: usize) -> Read<bool> {
    Ok(get::<i64>(row, column)? != 0)
}

pub(super) fn link(row: &SqliteRow, column: usize) -> Read<Link> {
    Link::from_slice(get::<&[u8]>(row, column)?).ok_or_else(|| corrupt("a link has a wrong length"))
}

pub(super) fn tenant(row: &SqliteRow, column: usize) -> Read<[u8; 32]> {
    let bytes: &[u8] = get(row, column)?;
    bytes
        .try_into()
        .map_err(|_| corrupt("an owner has a wrong length"))
}

fn json<T: DeserializeOwned>(row: &SqliteRow, column: usize) -> Read<T> {
    serde_json::from_str(get(row, column)?).map_err(|_| corrupt("a list is not valid JSON"))
}

fn part_ids(row: &SqliteRow, column: usize) -> Read<Vec<PartId>> {
    Ok(json::<Vec<i64>>(row, column)?
        .into_iter()
        .map(PartId)
        .collect())
}

/// Four columns: from, from_count, to, to_count.
pub(super) fn span(row: &SqliteRow, first: usize) -> Read<Span> {
    Ok(Span {
        from: link(row, first)?,
        from_count: int(row, first + 1)?,
        to: link(row, first + 2)?,
        to_count: int(row, first + 3)?,
    })
}

/// The columns of `NODES_OF_CHAIN` and of the longest chain.
pub(super) fn node(row: &SqliteRow) -> Read<Node> {
    Ok(Node {
        link: link(row, 0)?,
        count: int(row, 1)?,
        role: Role::from_name(get(row, 2)?).ok_or_else(|| corrupt("an unknown role"))?,
        tokens: int(row, 3)?,
        closed: flag(row, 4)?,
        turn_end: flag(row, 5)?,
        born: int(row, 6)?,
        confirmed: flag(row, 7)?,
        seen_ms: int(row, 8)?,
        live: flag(row, 9)?,
    })
}

/// The first ten columns of every statement about parts.
pub(super) fn part_meta(row: &SqliteRow) -> Read<PartMeta> {
    Ok(PartMeta {
        id: PartId(int(row, 0)?),
        kind: part_kind(get(row, 1)?)?,
        span: span(row, 2)?,
        tokens: int(row, 6)?,
        message_tokens: int(row, 7)?,
        asked: flag(row, 8)?,
        stopgap: flag(row, 9)?,
    })
}

/// All nineteen columns of a part.
pub(super) fn part(row: &SqliteRow) -> Read<Part> {
    let meta = part_meta(row)?;
    Ok(Part {
        id: meta.id,
        rendering: rendering(row)?,
        body: NewPart {
            kind: meta.kind,
            span: meta.span,
            text: get(row, 10)?,
            tokens: meta.tokens,
            message_tokens: meta.message_tokens,
            current_task: get(row, 11)?,
            suggested_response: get(row, 12)?,
            sources: part_ids(row, 13)?,
            model: get(row, 14)?,
            asked: meta.asked,
            stopgap: meta.stopgap,
            evidence: Evidence {
                origins: Origins::from_json(get(row, 15)?)
                    .ok_or_else(|| corrupt("the origins of a part are not readable"))?,
                retention: Retention::from_json(get(row, 16)?)
                    .ok_or_else(|| corrupt("the retention of a part is not readable"))?,
            },
        },
    })
}

/// Columns 17 and 18 of a part.
fn rendering(row: &SqliteRow) -> Read<Option<Rendering>> {
    let Some(as_of) = get::<Option<&str>>(row, 18)? else {
        return Ok(None);
    };
    let as_of = as_of
        .parse()
        .map_err(|_| corrupt("the day of a part is not readable"))?;
    let preamble = int(row, 17)?;
    Ok(Some(Rendering { preamble, as_of }))
}

fn pin(row: &SqliteRow, column: usize) -> Read<Option<usize>> {
    get::<Option<i64>>(row, column)?
        .map(usize::try_from)
        .transpose()
        .map_err(|_| corrupt("a pin is out of range"))
}

/// Columns 1 to 9 and 11 of every statement about snapshots (column 0 tells rows of `FIND` apart).
pub(super) fn snapshot_meta(row: &SqliteRow) -> Read<SnapshotMeta> {
    Ok(SnapshotMeta {
        id: SnapshotId(int(row, 1)?),
        to: link(row, 2)?,
        to_count: int(row, 3)?,
        eligible_from: int(row, 4)?,
        pin: pin(row, 5)?,
        parts: part_ids(row, 6)?,
        tokens: int(row, 7)?,
        cause: Cause::from_name(get(row, 8)?).ok_or_else(|| corrupt("an unknown cause"))?,
        placement: get(row, 9)?,
        others: others(row, 11)?.map(Into::into),
    })
}

/// A snapshot with its text in column 10.
pub(super) fn snapshot(row: &SqliteRow) -> Read<Snapshot> {
    Ok(Snapshot {
        meta: snapshot_meta(row)?,
        segments: json(row, 10)?,
    })
}

/// What a request was sent with: the row of kind 1 of `FIND`.
pub(super) fn used(row: &SqliteRow) -> Read<Used> {
    Ok(Used {
        snapshot: get::<Option<i64>>(row, 1)?.map(SnapshotId),
        placement: get(row, 9)?,
        asked_usage: get(row, 3)?,
        trimmed: trim(row)?,
    })
}

/// Columns 4 to 6 of the rows of `FIND` about requests.
pub(super) fn trim(row: &SqliteRow) -> Read<Option<Trim>> {
    let Some(to_count) = get::<Option<i64>>(row, 4)? else {
        return Ok(None);
    };
    let wrong = |_| corrupt("a trim is out of range");
    Ok(Some(Trim {
        to_count: usize::try_from(to_count).map_err(wrong)?,
        pin: pin(row, 5)?,
        wording: int(row, 6)?,
    }))
}

pub(super) fn mark(row: &SqliteRow, column: usize) -> Read<Option<Mark>> {
    get::<Option<&[u8]>>(row, column)?
        .map(|bytes| Mark::from_slice(bytes).ok_or_else(|| corrupt("a mark has a wrong length")))
        .transpose()
}

/// A message of a path as `FIND` gives it, and its place.
pub(super) fn step(row: &SqliteRow) -> Read<(usize, Step)> {
    let link = link(row, 2)?;
    let role = Role::from_name(get(row, 8)?).ok_or_else(|| corrupt("an unknown role"))?;
    let item = match (mark(row, 6)?, get::<Option<i64>>(row, 3)?) {
        (Some(content), Some(_)) => Some(Item {
            role,
            content,
            ids: mark(row, 7)?,
            weight: int(row, 3)?,
        }),
        _ => None,
    };
    // 1: a range ends here, 2: its words are kept.
    let known: i64 = get(row, 5)?;
    // 1: said while somebody watched, 2: given by the upstream, 4: held by another conversation too.
    let flags: i64 = get(row, 11)?;
    let step = Step {
        stand: Stand { link, role },
        parent: self::link(row, 10)?,
        item,
        anchor: mark(row, 9)?,
        taken: known & 1 != 0,
        kept: known & 2 != 0,
        live: flags & 1 != 0,
        lineage: int(row, 4)?,
        origin: Origin(get(row, 12)?),
        standing: Standing {
            given: flags & 2 != 0,
            alone: flags & 4 == 0,
        },
        pending: false,
    };
    Ok((int(row, 1)?, step))
}

/// A view as `FIND` gives it.
pub(super) fn view(row: &SqliteRow) -> Read<StoredView> {
    let runs = json::<Vec<[usize; 3]>>(row, 8)?
        .into_iter()
        .map(|[client, path, len]| Run { client, path, len })
        .collect();
    Ok(StoredView {
        count: int(row, 1)?,
        base: link(row, 2)?,
        view: View::from_parts(runs, int(row, 3)?, int(row, 4)?)
            .ok_or_else(|| corrupt("the runs of a view are out of order"))?,
        proof: json::<Vec<(String, i64)>>(row, 11)?
            .iter()
            .map(|(mark, origin)| witness(mark, *origin))
            .collect::<Option<_>>()
            .ok_or_else(|| corrupt("the proof of a view is not readable"))?,
        held: match get::<Option<i64>>(row, 5)? {
            None => None,
            Some(_) => Some(Held {
                from: int(row, 5)?,
                since: int(row, 6)?,
            }),
        },
    })
}

fn witness(mark: &str, origin: i64) -> Option<Witness> {
    let digits = mark.as_bytes().chunks_exact(2);
    let bytes = digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    Some(Witness {
        mark: Mark::from_slice(&bytes.collect::<Option<Vec<u8>>>()?)?,
        origin: Origin(origin),
    })
}

/// The columns of `JOBS_OF_CHAIN`.
pub(super) fn work(row: &SqliteRow) -> Read<Work> {
    let waits_after_a_try = get::<bool>(row, 6)?;
    let state = match get(row, 5)? {
        "open" if waits_after_a_try => WorkState::Retrying,
        "open" => WorkState::Fresh,
        "abandoned" => WorkState::Abandoned,
        _ => return Err(corrupt("an unknown state of a job")),
    };
    let (kind, span) = (part_kind(get(row, 0)?)?, span(row, 1)?);
    Ok(Work { kind, span, state })
}

/// The columns of `CLAIM`.
pub(super) fn job(row: &SqliteRow) -> Read<Job> {
    Ok(Job {
        id: int(row, 0)?,
        scope: scope(row, 1)?,
        work: NewJob {
            kind: part_kind(get(row, 3)?)?,
            span: span(row, 4)?,
            message_tokens: int(row, 8)?,
            payload: get(row, 9)?,
            parts: part_ids(row, 10)?,
            model: get(row, 11)?,
            tip: link(row, 12)?,
            tip_count: int(row, 13)?,
            way: match get::<&[u8]>(row, 17)? {
                [] => None,
                bytes => Some(
                    bytes
                        .try_into()
                        .map_err(|_| corrupt("a way has a wrong length"))?,
                ),
            },
            urgency: int(row, 18)?,
        },
        attempts: int(row, 14)?,
        empty_answers: int(row, 15)?,
        fence: int(row, 16)?,
    })
}

/// The columns of `CLAIM_TIMER`.
pub(super) fn timer(row: &SqliteRow) -> Read<Timer> {
    let zone: String = get(row, 5)?;
    Ok(Timer {
        scope: scope(row, 0)?,
        lineage: int(row, 2)?,
        tip: link(row, 3)?,
        model: get(row, 4)?,
        zone: (!zone.is_empty()).then_some(zone),
        alarms: Alarms {
            activate_ms: get(row, 6)?,
            reflect_ms: get(row, 7)?,
        },
        fence: int(row, 8)?,
    })
}

/// Two columns: tenant and resource (empty for none).
pub(super) fn scope(row: &SqliteRow, first: usize) -> Read<Scope> {
    let wrong = |_| corrupt("an owner has a wrong length");
    let resource: &[u8] = get(row, first + 1)?;
    Ok(Scope {
        tenant: get::<&[u8]>(row, first)?.try_into().map_err(wrong)?,
        resource: match resource {
            [] => None,
            bytes => Some(bytes.try_into().map_err(wrong)?),
        },
    })
}

fn part_kind(name: &str) -> Read<PartKind> {
    [PartKind::Chunk, PartKind::Reflection]
        .into_iter()
        .find(|kind| kind.name() == name)
        .ok_or_else(|| corrupt("an unknown kind of part"))
}

/// What the calls for a lineage cost: the rows of `COSTS_OF_LINEAGE`.
pub(super) fn costs(rows: &[SqliteRow]) -> Read<Costs> {
    let mut costs = Costs::default();
    for row in rows {
        let of_kind = match part_kind(get(row, 0)?)? {
            PartKind::Chunk => &mut costs.observing,
            PartKind::Reflection => &mut costs.reflecting,
        };
        *of_kind = Spent {
            calls: int(row, 1)?,
            sent: int(row, 2)?,
            cached: int(row, 3)?,
            written: int(row, 4)?,
            guessed: int(row, 5)?,
        };
    }
    Ok(costs)
}

/// The columns of `EVENTS_OF_LINEAGE`.
pub(super) fn event(row: &SqliteRow) -> Read<Event> {
    Ok(Event {
        kind: get(row, 0)?,
        at_ms: get(row, 1)?,
        body: get(row, 2)?,
    })
}

/// The columns of `WAITING`.
pub(super) fn waiting(row: &SqliteRow) -> Read<Waiting> {
    let tenant: &[u8] = get(row, 0)?;
    let tenant = tenant.try_into();
    let owner = Scope {
        tenant: tenant.map_err(|_| corrupt("an owner has a wrong length"))?,
        resource: None,
    };
    Ok(Waiting {
        tenant: owner.tenant_label(),
        jobs: int(row, 1)?,
        tokens: int(row, 2)?,
    })
}
