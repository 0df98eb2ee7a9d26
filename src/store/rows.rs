//! Rows to types and back. A value that Diarist cannot have written is [`Corrupt`](crate::store::StoreError::Corrupt), never a
//! default: a guess here could send text to the model that nobody wrote.
//!
//! Columns are read by position, in the order of the statements in `sqlite`.

mod column;
mod lists;
mod peer_memory;

use serde::de::DeserializeOwned;
use sqlx::sqlite::SqliteRow;

use crate::history::align::{MessageOrigin, Run};
use crate::history::{Link, MessageKey, PathMessage, PositionMap, Role, Scope, ScopedHash};
use crate::memory::provenance::LineSources;
use crate::memory::retention::{LostItems, Retention};
use crate::memory::{
    NewPart, Node, Part, PartAnalysis, PartId, PartKind, PartMeta, Rendering, Snapshot,
    SnapshotCause, SnapshotId, SnapshotMeta, Span, Trim,
};

use super::{
    Alarms, CallTotals, Event, Job, LineageCosts, NewJob, SentWith, StoreResult, TenantBacklog,
    Timer,
};
use crate::memory::advance::{ChainJob, JobState};
use crate::memory::alignment::{
    Origin, PathEntry, StoredAlignment, SummaryStart, Withheld, Witness,
};

pub(super) use column::{corrupt, get, int};
pub(super) use lists::{
    answer_list, content_list, count, hex_bytes, hex_list, hex_text, id_list, link_list, mark_list,
    message_list, node_list, number_list, pair_list, proof_list, route_bytes, run_list,
    token_count,
};
pub(super) use peer_memory::{peer_memory, peer_memory_json};

fn flag(row: &SqliteRow, column: usize) -> StoreResult<bool> {
    Ok(get::<i64>(row, column)? != 0)
}

pub(super) fn link(row: &SqliteRow, column: usize) -> StoreResult<Link> {
    Link::from_slice(get::<&[u8]>(row, column)?).ok_or_else(|| corrupt("a link has a wrong length"))
}

pub(super) fn tenant(row: &SqliteRow, column: usize) -> StoreResult<[u8; 32]> {
    let bytes: &[u8] = get(row, column)?;
    bytes
        .try_into()
        .map_err(|_| corrupt("an owner has a wrong length"))
}

fn json<T: DeserializeOwned>(row: &SqliteRow, column: usize) -> StoreResult<T> {
    serde_json::from_str(get(row, column)?).map_err(|_| corrupt("a list is not valid JSON"))
}

fn part_ids(row: &SqliteRow, column: usize) -> StoreResult<Vec<PartId>> {
    Ok(json::<Vec<i64>>(row, column)?
        .into_iter()
        .map(PartId)
        .collect())
}

/// A span from four columns: from, from_count, to, to_count.
pub(super) fn span(row: &SqliteRow, first: usize) -> StoreResult<Span> {
    Ok(Span {
        from: link(row, first)?,
        from_count: int(row, first + 1)?,
        to: link(row, first + 2)?,
        to_count: int(row, first + 3)?,
    })
}

/// A message: rows of kind 0 of `CHAIN`, and the first ten columns of `LONGEST_CHAIN`.
pub(super) fn node(row: &SqliteRow) -> StoreResult<Node> {
    Ok(Node {
        link: link(row, 0)?,
        count: int(row, 1)?,
        role: Role::from_name(get(row, 2)?).ok_or_else(|| corrupt("an unknown role"))?,
        tokens: int(row, 3)?,
        closed: flag(row, 4)?,
        turn_end: flag(row, 5)?,
        first_length: int(row, 6)?,
        confirmed: flag(row, 7)?,
        received_ms: int(row, 8)?,
        live: flag(row, 9)?,
    })
}

/// The first ten columns of every statement about parts.
pub(super) fn part_meta(row: &SqliteRow) -> StoreResult<PartMeta> {
    Ok(PartMeta {
        id: PartId(int(row, 0)?),
        kind: part_kind(get(row, 1)?)?,
        span: span(row, 2)?,
        tokens: int(row, 6)?,
        message_tokens: int(row, 7)?,
        requested: flag(row, 8)?,
        code_reflection: flag(row, 9)?,
    })
}

const LOST_UNREADABLE: &str = "the lost items of a part are not readable";

/// All twenty columns of a part.
pub(super) fn part(row: &SqliteRow) -> StoreResult<Part> {
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
            requested: meta.requested,
            code_reflection: meta.code_reflection,
            analysis: PartAnalysis {
                line_sources: LineSources::from_json(get(row, 15)?)
                    .ok_or_else(|| corrupt("the origins of a part are not readable"))?,
                retention: Retention::from_json(get(row, 16)?)
                    .ok_or_else(|| corrupt("the retention of a part is not readable"))?,
                lost: get::<Option<&str>>(row, 19)?
                    .map(|lost| LostItems::from_json(lost).ok_or_else(|| corrupt(LOST_UNREADABLE)))
                    .transpose()?,
            },
        },
    })
}

/// Columns 17 and 18 of a part.
fn rendering(row: &SqliteRow) -> StoreResult<Option<Rendering>> {
    let Some(as_of) = get::<Option<&str>>(row, 18)? else {
        return Ok(None);
    };
    let as_of = as_of
        .parse()
        .map_err(|_| corrupt("the day of a part is not readable"))?;
    let preamble = int(row, 17)?;
    Ok(Some(Rendering { preamble, as_of }))
}

fn pin(row: &SqliteRow, column: usize) -> StoreResult<Option<usize>> {
    get::<Option<i64>>(row, column)?
        .map(usize::try_from)
        .transpose()
        .map_err(|_| corrupt("a pin is out of range"))
}

/// Columns 1 to 9 and 11 of every statement about snapshots. Column 0 is the kind of a row of `FIND`.
pub(super) fn snapshot_meta(row: &SqliteRow) -> StoreResult<SnapshotMeta> {
    Ok(SnapshotMeta {
        id: SnapshotId(int(row, 1)?),
        to: link(row, 2)?,
        to_count: int(row, 3)?,
        eligible_from: int(row, 4)?,
        pin: pin(row, 5)?,
        parts: part_ids(row, 6)?,
        tokens: int(row, 7)?,
        cause: SnapshotCause::from_name(get(row, 8)?).ok_or_else(|| corrupt("an unknown cause"))?,
        placement: get(row, 9)?,
        peer_memory: peer_memory(row, 11)?.map(Into::into),
    })
}

/// A snapshot with its text in column 10.
pub(super) fn snapshot(row: &SqliteRow) -> StoreResult<Snapshot> {
    Ok(Snapshot {
        meta: snapshot_meta(row)?,
        segments: json(row, 10)?,
    })
}

/// What a request was sent with: rows of kind 1, 7 and 11 of `FIND`.
pub(super) fn sent_with(row: &SqliteRow) -> StoreResult<SentWith> {
    Ok(SentWith {
        snapshot: get::<Option<i64>>(row, 1)?.map(SnapshotId),
        placement: get(row, 9)?,
        usage_requested: get(row, 3)?,
        cache_key: get(row, 7)?,
        cache_breakpoint: get(row, 8)?,
        trim: trim(row)?,
    })
}

/// Columns 4 to 6 of the rows of `FIND` about requests.
pub(super) fn trim(row: &SqliteRow) -> StoreResult<Option<Trim>> {
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

pub(super) fn mark(row: &SqliteRow, column: usize) -> StoreResult<Option<ScopedHash>> {
    get::<Option<&[u8]>>(row, column)?
        .map(|bytes| {
            ScopedHash::from_slice(bytes).ok_or_else(|| corrupt("a hash has a wrong length"))
        })
        .transpose()
}

/// A message of another chain (rows of kind 4 to 6 of `FIND`), and its position there.
pub(super) fn step(row: &SqliteRow) -> StoreResult<(usize, PathEntry)> {
    let link = link(row, 2)?;
    let role = Role::from_name(get(row, 8)?).ok_or_else(|| corrupt("an unknown role"))?;
    let item = match (mark(row, 6)?, get::<Option<i64>>(row, 3)?) {
        (Some(content), Some(_)) => Some(MessageKey {
            role,
            content,
            ids: mark(row, 7)?,
            distinctive_bytes: int(row, 3)?,
        }),
        _ => None,
    };
    // 1: an observed or queued range ends here; 2: its text is kept.
    let range_flags: i64 = get(row, 5)?;
    // 1: it came in a live request; 2: the upstream gave it; 4: another conversation holds it too; from 8 on: the
    // start of a summary.
    let origin_flags: i64 = get(row, 11)?;
    let step = PathEntry {
        message: PathMessage { link, role },
        parent: self::link(row, 10)?,
        message_key: item,
        anchor: mark(row, 9)?,
        range_end: range_flags & 1 != 0,
        text_kept: range_flags & 2 != 0,
        live: origin_flags & 1 != 0,
        lineage: int(row, 4)?,
        origin: Origin(get(row, 12)?),
        message_origin: MessageOrigin {
            from_upstream: origin_flags & 2 != 0,
            unshared: origin_flags & 4 == 0,
        },
        summary_start: SummaryStart::from_stored(origin_flags >> 3),
        pending: false,
    };
    Ok((int(row, 1)?, step))
}

/// A stored alignment: the row of kind 3 of `FIND`.
pub(super) fn stored_alignment(row: &SqliteRow) -> StoreResult<StoredAlignment> {
    let runs = json::<Vec<[usize; 3]>>(row, 8)?
        .into_iter()
        .map(|[client, path, len]| Run { client, path, len })
        .collect();
    Ok(StoredAlignment {
        count: int(row, 1)?,
        base: link(row, 2)?,
        positions: PositionMap::from_parts(runs, int(row, 3)?, int(row, 4)?)
            .ok_or_else(|| corrupt("the runs of a view are out of order"))?,
        proof: json::<Vec<(String, i64)>>(row, 11)?
            .iter()
            .map(|(mark, origin)| witness(mark, *origin))
            .collect::<Option<_>>()
            .ok_or_else(|| corrupt("the proof of a view is not readable"))?,
        withheld: match get::<Option<i64>>(row, 5)? {
            None => None,
            Some(_) => Some(Withheld {
                from: int(row, 5)?,
                client_len: int(row, 6)?,
            }),
        },
    })
}

fn witness(mark: &str, origin: i64) -> Option<Witness> {
    let digits = mark.as_bytes().chunks_exact(2);
    let bytes = digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    Some(Witness {
        hash: ScopedHash::from_slice(&bytes.collect::<Option<Vec<u8>>>()?)?,
        origin: Origin(origin),
    })
}

/// The columns of `JOBS_OF_CHAIN`, and rows of kind 4 of `CHAIN`.
pub(super) fn work(row: &SqliteRow) -> StoreResult<ChainJob> {
    let waits_after_a_try = get::<bool>(row, 6)?;
    let state = match get(row, 5)? {
        "open" if waits_after_a_try => JobState::Retrying,
        "open" => JobState::Fresh,
        "abandoned" => JobState::Abandoned,
        _ => return Err(corrupt("an unknown state of a job")),
    };
    let (kind, span) = (part_kind(get(row, 0)?)?, span(row, 1)?);
    Ok(ChainJob { kind, span, state })
}

/// The columns of `CLAIM`.
pub(super) fn job(row: &SqliteRow) -> StoreResult<Job> {
    Ok(Job {
        id: int(row, 0)?,
        scope: scope(row, 1)?,
        spec: NewJob {
            kind: part_kind(get(row, 3)?)?,
            span: span(row, 4)?,
            message_tokens: int(row, 8)?,
            payload: get(row, 9)?,
            parts: part_ids(row, 10)?,
            model: get(row, 11)?,
            tip: link(row, 12)?,
            tip_count: int(row, 13)?,
            route_hash: match get::<&[u8]>(row, 17)? {
                [] => None,
                bytes => Some(
                    bytes
                        .try_into()
                        .map_err(|_| corrupt("a route has a wrong length"))?,
                ),
            },
            urgency: int(row, 18)?,
        },
        attempts: int(row, 14)?,
        empty_answers: int(row, 15)?,
        fence: int(row, 16)?,
        unsettled: int(row, 19)?,
        conversation: get(row, 20)?,
    })
}

/// The columns of `CLAIM_TIMER`.
pub(super) fn timer(row: &SqliteRow) -> StoreResult<Timer> {
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

/// An owner from two columns: tenant and resource (empty for none).
pub(super) fn scope(row: &SqliteRow, first: usize) -> StoreResult<Scope> {
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

fn part_kind(name: &str) -> StoreResult<PartKind> {
    [PartKind::Chunk, PartKind::Reflection]
        .into_iter()
        .find(|kind| kind.name() == name)
        .ok_or_else(|| corrupt("an unknown kind of part"))
}

/// The costs of a lineage: the rows of `COSTS_OF_LINEAGE`.
pub(super) fn costs(rows: &[SqliteRow]) -> StoreResult<LineageCosts> {
    let mut costs = LineageCosts::default();
    for row in rows {
        let totals = match part_kind(get(row, 0)?)? {
            PartKind::Chunk => &mut costs.observer,
            PartKind::Reflection => &mut costs.reflector,
        };
        *totals = CallTotals {
            calls: int(row, 1)?,
            prompt_tokens: int(row, 2)?,
            cached_tokens: int(row, 3)?,
            completion_tokens: int(row, 4)?,
            estimated_tokens: int(row, 5)?,
        };
    }
    Ok(costs)
}

/// The columns of `EVENTS_OF_LINEAGE`.
pub(super) fn event(row: &SqliteRow) -> StoreResult<Event> {
    Ok(Event {
        kind: get(row, 0)?,
        at_ms: get(row, 1)?,
        body: get(row, 2)?,
    })
}

/// The columns of `TENANT_BACKLOGS`.
pub(super) fn tenant_backlog(row: &SqliteRow) -> StoreResult<TenantBacklog> {
    let tenant: &[u8] = get(row, 0)?;
    let tenant = tenant.try_into();
    let owner = Scope {
        tenant: tenant.map_err(|_| corrupt("an owner has a wrong length"))?,
        resource: None,
    };
    Ok(TenantBacklog {
        tenant: owner.tenant_label(),
        open_jobs: int(row, 1)?,
        spent_tokens: int(row, 2)?,
    })
}
