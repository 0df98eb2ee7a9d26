//! Recording an accepted request: its lineage, its new messages, what it confirms, what it was sent
//! with. One transaction; a second process that records the same thing at the same time finds it
//! recorded.

use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_scalar};

use super::{message_archive, peer_memory, timers};
use crate::store::StoreResult;
use crate::history::{History, Link, Scope, ScopedHash};
use crate::memory::Node;
use crate::store::rows::{
    content_list, count, get, int, link, link_list, node_list, proof_list, route_bytes, run_list,
};
use crate::store::{RequestRecord, StoreError, sql};

pub(super) async fn record(
    conn: &mut SqliteConnection,
    scope: Scope,
    record: RequestRecord,
) -> StoreResult<i64> {
    let lineage = record_messages(conn, &scope, &record).await?;
    record_request(conn, &scope, lineage, &record).await?;
    Ok(lineage)
}

/// The messages of the request, and what it confirms; its lineage.
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
        query(sql::NEW_NODES)
            .bind(scope.tenant.as_slice())
            .bind(scope.resource_key())
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
    credit(conn, scope, lineage, record).await?;
    Ok(lineage)
}

/// The request itself.
pub(super) async fn record_request(
    conn: &mut SqliteConnection,
    scope: &Scope,
    lineage: i64,
    record: &RequestRecord,
) -> StoreResult<()> {
    query(sql::RECORD_REQUEST)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
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
        .execute(&mut *conn)
        .await?;
    peer_memory::mark_peer_intro_used(conn, scope, record.sent_with.snapshot).await?;
    query(sql::TOUCH_LINEAGE)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
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

/// What later requests find this one by that do not continue its chain.
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
        query(sql::NEW_VIEW)
            .bind(scope.tenant.as_slice())
            .bind(scope.resource_key())
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
    if let Some((mark, chain)) = &record.lookup_entries.answer {
        let continues_answered = continues_answered(conn, scope, *mark, chain).await?;
        query(sql::NEW_ANSWER)
            .bind(scope.tenant.as_slice())
            .bind(scope.resource_key())
            .bind(mark.as_bytes().as_slice())
            .bind(record.tip.as_bytes().as_slice())
            .bind(lineage)
            .bind(continues_answered)
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// Whether `chain` goes on from the one that was given the same answer before, or is that one: a client
/// may be told twice in the same words what it did.
async fn continues_answered(
    conn: &mut SqliteConnection,
    scope: &Scope,
    mark: ScopedHash,
    chain: &History,
) -> StoreResult<bool> {
    let before = query(sql::ANSWERED_BEFORE)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(mark.as_bytes().as_slice())
        .fetch_optional(conn)
        .await?;
    let Some(row) = before else { return Ok(false) };
    let (tip, parent) = (link(&row, 0)?, link(&row, 1)?);
    let mut links = chain.turns().iter().map(|turn| turn.link);
    Ok(links.any(|link| link == tip || link == parent))
}

/// Whether what the new messages follow is recorded (where none is new, the last message). The
/// caller may remember what was forgotten, or what another database held: a chain with a gap would
/// never be found again from its first message.
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
    let recorded: i64 = query_scalar(sql::NODE_EXISTS)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(required.as_bytes().as_slice())
        .fetch_one(conn)
        .await?;
    Ok(recorded != 0)
}

/// The lineage the request belongs to. The caller looked before this transaction began: what it
/// named may be forgotten by now, and what it found new may be recorded.
async fn find_or_create_lineage(
    conn: &mut SqliteConnection,
    scope: &Scope,
    record: &RequestRecord,
) -> StoreResult<i64> {
    if let Some(lineage) = record.lineage {
        let exists: i64 = query_scalar(sql::LINEAGE_EXISTS)
            .bind(scope.tenant.as_slice())
            .bind(scope.resource_key())
            .bind(lineage)
            .fetch_one(&mut *conn)
            .await?;
        if exists != 0 {
            return Ok(lineage);
        }
    }
    let new_links = record.new_nodes.iter().map(|node| &node.link);
    let joined: Option<i64> = query_scalar(sql::LINEAGE_OF_LINKS)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(link_list(new_links.chain([&record.tip])))
        .fetch_optional(&mut *conn)
        .await?;
    if let Some(lineage) = joined {
        return Ok(lineage);
    }
    let lineage: i64 = query_scalar(sql::NEW_LINEAGE)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(&record.thread_key)
        .bind(&record.model)
        .bind(record.at_ms)
        .bind(record.parent.as_bytes().as_slice())
        .fetch_one(&mut *conn)
        .await?;
    query(sql::OWN_FAMILY)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .execute(conn)
        .await?;
    Ok(lineage)
}

/// Confirms what the caller asked for, and its new messages too where another process recorded
/// them first, as not yet confirmed.
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
    query(sql::CONFIRM)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(link_list(links))
        .execute(conn)
        .await?;
    Ok(())
}

/// Raises the bound on what the Observer may be shown of a family of conversations by what it has
/// not confirmed before.
async fn credit(
    conn: &mut SqliteConnection,
    scope: &Scope,
    lineage: i64,
    record: &RequestRecord,
) -> StoreResult<()> {
    if record.contents.is_empty() {
        return Ok(());
    }
    let contents = content_list(&record.contents);
    let tokens = record.contents.iter().map(|c| u64::from(c.tokens)).sum();
    let family = find_or_join_family(conn, scope, lineage, &contents, tokens).await?;
    query(sql::CREDIT)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(&contents)
        .bind(family)
        .execute(&mut *conn)
        .await?;
    query(sql::NEW_CONTENTS)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .bind(&contents)
        .bind(family)
        .execute(conn)
        .await?;
    Ok(())
}

/// Contents that two families share below this many tokens may be chance, or a greeting all
/// conversations of an application begin with.
const MIN_SHARED_TOKENS: u64 = 256;

/// The family whose account a lineage's confirmations go to. It is settled with the first of them: a
/// chain that says largely what another family said (a client edited or pruned its history) is of
/// that family, so that the Observer is not shown the same words anew with every chain.
async fn find_or_join_family(
    conn: &mut SqliteConnection,
    scope: &Scope,
    lineage: i64,
    contents: &str,
    tokens: u64,
) -> StoreResult<i64> {
    let row = query(sql::FAMILY)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(lineage)
        .fetch_one(&mut *conn)
        .await?;
    let (own, settled) = (get::<i64>(&row, 0)?, get::<bool>(&row, 1)?);
    if settled {
        return Ok(own);
    }
    let likest = query(sql::LIKEST_FAMILY)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(contents)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = likest else { return Ok(own) };
    let (other, shared): (i64, u64) = (get(&row, 0)?, int(&row, 1)?);
    if shared < MIN_SHARED_TOKENS || shared * 2 < tokens {
        return Ok(own);
    }
    query(sql::JOIN_FAMILY)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(own)
        .bind(other)
        .execute(conn)
        .await?;
    Ok(other)
}
