//! Recording an accepted request: its lineage, its new messages, the messages it confirms, and what it
//! was sent with. All in one transaction. If a second process records the same request at the same time,
//! it finds everything recorded and changes almost nothing. Called through [`super::SqliteStore`] by the
//! recorder.

use sqlx::sqlite::SqliteConnection;

use super::scoped::{scoped_query, scoped_scalar};
use super::{message_archive, observer_allowance, peer_memory, read, timers};
use crate::history::{History, Link, Scope, ScopedHash};
use crate::memory::Node;
use crate::store::StoreResult;
use crate::store::rows::{count, link, link_list, node_list, proof_list, route_bytes, run_list};
use crate::store::{RequestRecord, StoreError};

pub(super) async fn record(
    conn: &mut SqliteConnection,
    scope: &Scope,
    record: &RequestRecord,
) -> StoreResult<i64> {
    let lineage = record_messages(conn, scope, record).await?;
    record_request(conn, scope, lineage, record).await?;
    Ok(lineage)
}

/// New messages (`$4`: an array of arrays) of a lineage (`$3`). A message that is recorded stays as it is.
const NEW_NODES: &str = "
INSERT INTO nodes (tenant, resource, lineage, link, parent, count, role, tokens, closed, turn_end,
                   born, confirmed, seen_ms, live, content, ids, weight, anchor, origin, given,
                   summary_start)
SELECT $1, $2, $3, unhex(p.value ->> 0), unhex(p.value ->> 1), p.value ->> 2, p.value ->> 3,
       p.value ->> 4, p.value ->> 5, p.value ->> 6, p.value ->> 7, p.value ->> 8, p.value ->> 9,
       p.value ->> 10, unhex(p.value ->> 11), unhex(p.value ->> 12), p.value ->> 13,
       unhex(p.value ->> 14), p.value ->> 15, p.value ->> 16, p.value ->> 17
FROM json_each($4) AS p WHERE true
ON CONFLICT (tenant, resource, link) DO NOTHING";

/// Records the messages of the request and confirms those it carries again. Returns its lineage.
pub(super) async fn record_messages(
    conn: &mut SqliteConnection,
    scope: &Scope,
    record: &RequestRecord,
) -> StoreResult<i64> {
    if !is_parent_recorded(conn, scope, record).await? {
        return Err(StoreError::Forgotten);
    }
    let lineage = find_or_create_lineage(conn, scope, record).await?;
    if !record.new_nodes.is_empty() {
        scoped_query(NEW_NODES, scope)
            .bind(lineage)
            .bind(node_list(
                &record.new_nodes,
                &record.lookup_entries.marks,
                record.parent,
            ))
            .execute(&mut *conn)
            .await?;
    }
    confirm(conn, scope, record).await?;
    observer_allowance::add_confirmed(conn, scope, lineage, record).await?;
    Ok(lineage)
}

/// The request itself. A repetition for the same model keeps what the first one was sent with (INV-SAME).
const RECORD_REQUEST: &str = "
INSERT INTO requests (tenant, resource, tip, count, lineage, snapshot, placement, model, times,
                      first_ms, last_ms, asked_usage, trimmed_to, trim_pin, trim_wording, system, cache_key,
                      cache_breakpoint)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 1, $9, $9, $10, $11, $12, $13, $14, $15, $16)
ON CONFLICT (tenant, resource, tip, model)
DO UPDATE SET times = requests.times + 1, last_ms = max(requests.last_ms, excluded.last_ms)";

/// Counts one more request of a lineage (`$3`).
const TOUCH_LINEAGE: &str = "
UPDATE lineages SET requests = requests + 1, last_ms = max(last_ms, $4), model = $5,
                    thread_key = coalesce(thread_key, $6),
                    way = CASE WHEN $7 = x'' THEN way ELSE $7 END, zone = coalesce($8, zone)
WHERE tenant = $1 AND resource = $2 AND id = $3";

/// Records the request itself, and what later requests find it by.
pub(super) async fn record_request(
    conn: &mut SqliteConnection,
    scope: &Scope,
    lineage: i64,
    record: &RequestRecord,
) -> StoreResult<()> {
    scoped_query(RECORD_REQUEST, scope)
        .bind(record.tip.as_bytes().as_slice())
        .bind(count(record.count))
        .bind(lineage)
        .bind(record.sent_with.snapshot.map(|id| id.0))
        .bind(&record.sent_with.placement)
        .bind(&record.model)
        .bind(record.at_ms)
        .bind(record.sent_with.usage_requested)
        .bind(record.sent_with.trim.map(|trim| count(trim.to_count)))
        .bind(record.sent_with.trim.and_then(|trim| trim.pin).map(count))
        .bind(record.sent_with.trim.map(|trim| trim.wording))
        .bind(
            record
                .lookup_entries
                .system
                .map(|mark| mark.as_bytes().to_vec()),
        )
        .bind(record.sent_with.cache_key)
        .bind(record.sent_with.cache_breakpoint)
        .execute(&mut *conn)
        .await?;
    peer_memory::mark_peer_intro_used(conn, scope, record.sent_with.snapshot).await?;
    scoped_query(TOUCH_LINEAGE, scope)
        .bind(lineage)
        .bind(record.at_ms)
        .bind(&record.model)
        .bind(&record.thread_key)
        .bind(route_bytes(record.route_hash.as_ref()))
        .bind(&record.zone)
        .execute(&mut *conn)
        .await?;
    if let Some(timer) = &record.timer {
        timers::set(conn, scope, lineage, record, timer).await?;
    }
    insert_lookup_entries(conn, scope, lineage, record).await
}

/// An alignment: the positions of a request's messages (`$3`: the last link of what the client sent, `$4`:
/// their number) on a recorded chain (`$5`: its last link).
const NEW_VIEW: &str = "
INSERT INTO views (tenant, resource, tip, count, base, runs, client, path, lineage, proof,
                   held_from, held_since)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT (tenant, resource, tip) DO NOTHING";

/// An answer (`$3`: its hash, `$7`: that of its ending) to a chain (`$4`). If the chain continues the one that got the same answer
/// before (`$6`), the new chain replaces it. If another conversation got the same answer, the answer
/// identifies neither of them (a tip of zeros): models refuse, greet and say goodbye to everybody in the
/// same words.
const NEW_ANSWER: &str = "
INSERT INTO answers (tenant, resource, mark, tip, lineage, ending) VALUES ($1, $2, $3, $4, $5, $7)
ON CONFLICT (tenant, resource, mark) DO UPDATE SET tip = CASE
    WHEN $6 AND answers.tip <> zeroblob(32) THEN excluded.tip
    ELSE zeroblob(32) END";

/// Stores what later requests find this one by if they do not continue its chain.
async fn insert_lookup_entries(
    conn: &mut SqliteConnection,
    scope: &Scope,
    lineage: i64,
    record: &RequestRecord,
) -> StoreResult<()> {
    message_archive::keep_messages(
        conn,
        scope,
        lineage,
        &record.lookup_entries.kept_messages,
        record.at_ms,
    )
    .await?;
    if let Some((tip, stored)) = &record.lookup_entries.alignment {
        let (client, path) = stored.positions.open_start();
        scoped_query(NEW_VIEW, scope)
            .bind(tip.as_bytes().as_slice())
            .bind(count(stored.count))
            .bind(stored.base.as_bytes().as_slice())
            .bind(run_list(&stored.positions))
            .bind(count(client))
            .bind(count(path))
            .bind(lineage)
            .bind(proof_list(&stored.proof))
            .bind(stored.withheld.map(|held| count(held.from)))
            .bind(stored.withheld.map(|held| count(held.client_len)))
            .execute(&mut *conn)
            .await?;
    }
    if let Some((answer, chain)) = &record.lookup_entries.answer {
        let continues_answered = continues_answered(conn, scope, answer.text, chain).await?;
        scoped_query(NEW_ANSWER, scope)
            .bind(answer.text.as_bytes().as_slice())
            .bind(record.tip.as_bytes().as_slice())
            .bind(lineage)
            .bind(continues_answered)
            .bind(answer.ending.as_bytes().as_slice())
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// The chain that got an answer (`$3`: its hash) before: its last link, and the one before it.
const ANSWERED_BEFORE: &str = "
SELECT a.tip, n.parent FROM answers AS a CROSS JOIN nodes AS n
WHERE a.tenant = $1 AND a.resource = $2 AND a.mark = $3
  AND n.tenant = $1 AND n.resource = $2 AND n.link = a.tip";

/// Whether `chain` is, or continues, the one that got the same answer before. A model may give the same
/// answer twice in one conversation.
async fn continues_answered(
    conn: &mut SqliteConnection,
    scope: &Scope,
    mark: ScopedHash,
    chain: &History,
) -> StoreResult<bool> {
    let before = scoped_query(ANSWERED_BEFORE, scope)
        .bind(mark.as_bytes().as_slice())
        .fetch_optional(conn)
        .await?;
    let Some(row) = before else { return Ok(false) };
    let (tip, parent) = (link(&row, 0)?, link(&row, 1)?);
    let mut links = chain.messages().iter().map(|chained| chained.link);
    Ok(links.any(|link| link == tip || link == parent))
}

/// Whether the message before the new ones is recorded; if none is new, the last message. The caller may
/// remember a conversation that was forgotten, or that another database held. A chain with a gap would
/// never be found from its first message.
async fn is_parent_recorded(
    conn: &mut SqliteConnection,
    scope: &Scope,
    record: &RequestRecord,
) -> StoreResult<bool> {
    let required = match record.new_nodes.first() {
        Some(first) if first.count == 1 => return Ok(true),
        Some(_) => record.parent,
        None => record.tip,
    };
    read::is_recorded(conn, scope, required).await
}

/// Whether a lineage (`$3`) is this owner's.
const LINEAGE_EXISTS: &str = "
SELECT EXISTS (SELECT 1 FROM lineages WHERE tenant = $1 AND resource = $2 AND id = $3)";

/// The lineage of the deepest of some links (`$3`).
const LINEAGE_OF_LINKS: &str = "
SELECT n.lineage FROM json_each($3) AS p CROSS JOIN nodes AS n
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = unhex(p.value)
ORDER BY n.count DESC LIMIT 1";

/// A new lineage. It belongs to the family of the message that its first one follows (`$6`), if any.
const NEW_LINEAGE: &str = "
INSERT INTO lineages (tenant, resource, thread_key, family, model, requests, first_ms, last_ms)
VALUES ($1, $2, $3,
        (SELECT l.family FROM nodes AS n CROSS JOIN lineages AS l
         WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $6
           AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage),
        $4, 0, $5, $5)
RETURNING id";

/// A lineage (`$3`) that follows no other starts a family.
const OWN_FAMILY: &str = "
UPDATE lineages SET family = id
WHERE tenant = $1 AND resource = $2 AND id = $3 AND family IS NULL";

/// The lineage the request belongs to. The caller looked before this transaction began. Since then its
/// lineage may have been forgotten, or another process may have recorded the messages.
async fn find_or_create_lineage(
    conn: &mut SqliteConnection,
    scope: &Scope,
    record: &RequestRecord,
) -> StoreResult<i64> {
    if let Some(lineage) = record.lineage {
        let exists: i64 = scoped_scalar(LINEAGE_EXISTS, scope)
            .bind(lineage)
            .fetch_one(&mut *conn)
            .await?;
        if exists != 0 {
            return Ok(lineage);
        }
    }
    let new_links = record.new_nodes.iter().map(|node| &node.link);
    let joined: Option<i64> = scoped_scalar(LINEAGE_OF_LINKS, scope)
        .bind(link_list(new_links.chain([&record.tip])))
        .fetch_optional(&mut *conn)
        .await?;
    if let Some(lineage) = joined {
        return Ok(lineage);
    }
    let lineage: i64 = scoped_scalar(NEW_LINEAGE, scope)
        .bind(&record.thread_key)
        .bind(&record.model)
        .bind(record.at_ms)
        .bind(record.parent.as_bytes().as_slice())
        .fetch_one(&mut *conn)
        .await?;
    scoped_query(OWN_FAMILY, scope)
        .bind(lineage)
        .execute(conn)
        .await?;
    Ok(lineage)
}

/// Confirms messages (`$3`: links): a longer request carried them again.
const CONFIRM: &str = "
UPDATE nodes SET confirmed = 1
WHERE tenant = $1 AND resource = $2 AND confirmed = 0
  AND link IN (SELECT unhex(p.value) FROM json_each($3) AS p)";

/// Confirms the messages that the caller names. Also confirms its new messages that count as confirmed,
/// because another process may have recorded them first without that.
async fn confirm(
    conn: &mut SqliteConnection,
    scope: &Scope,
    record: &RequestRecord,
) -> StoreResult<()> {
    let new = record.new_nodes.iter().filter(|node| node.confirmed);
    let links: Vec<&Link> = record
        .newly_confirmed
        .iter()
        .chain(new.map(|node: &Node| &node.link))
        .collect();
    if links.is_empty() {
        return Ok(());
    }
    scoped_query(CONFIRM, scope)
        .bind(link_list(links))
        .execute(conn)
        .await?;
    Ok(())
}
