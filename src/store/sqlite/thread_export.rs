//! One conversation as JSON, to keep it or to move it to another database: its messages (hashes and counts, no text),
//! observations, snapshots, requests, costs and events. Called through [`super::verbs_forget`].
//!
//! Hashes are keyed by the pepper and the owner, so the conversation serves the same tenant and user in another database
//! with the same pepper, and is refused by any other one. Sections about other conversations of the user are left out, and so is text that waits for the Observer.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use sqlx::sqlite::SqliteConnection;

use super::admin;
use super::pepper;
use super::scoped::{lineage_rows, scoped_query, scoped_scalar};
use crate::history::{Link, Scope};
use crate::store::forgotten::EXPORT_FORMAT;
use crate::store::rows::{self, corrupt, get, hex_text, link_list};
use crate::store::{ImportOutcome, LookupKeys, StoreError, StoreResult, Tombstones};

/// The lineage (`$3`) itself.
const EXPORT_LINEAGE: &str = "
SELECT json_array(thread_key, model, requests, first_ms, last_ms, title, zone)
FROM lineages WHERE tenant = $1 AND resource = $2 AND id = $3";

/// The account of the family of a lineage (`$3`).
const EXPORT_ACCOUNT: &str = "
SELECT json_array(a.confirmed_tokens, a.shown_tokens) FROM lineages AS l CROSS JOIN accounts AS a
WHERE l.tenant = $1 AND l.resource = $2 AND l.id = $3
  AND a.tenant = $1 AND a.resource = $2 AND a.family = l.family";

/// The contents that a lineage (`$3`) confirmed.
const EXPORT_CONTENTS: &str = "
SELECT json_array(hex(content)) FROM contents WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// The costs of a lineage (`$3`).
const EXPORT_COSTS: &str = "
SELECT json_array(kind, calls, sent, cached, written, guessed) FROM costs
WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// The timeline of a lineage (`$3`).
const EXPORT_EVENTS: &str = "
SELECT json_array(kind, place, body) FROM events
WHERE tenant = $1 AND resource = $2 AND lineage = $3 ORDER BY place";

/// The messages of a chain (`$3`: links).
const EXPORT_NODES: &str = "
SELECT json_array(hex(n.link), hex(n.parent), n.count, n.role, n.tokens, n.closed, n.turn_end, n.born,
                  n.confirmed, n.seen_ms, n.live, nullif(hex(n.content), ''), nullif(hex(n.ids), ''),
                  n.weight, nullif(hex(n.anchor), ''), n.origin, n.given,
                  n.summary_start)
FROM json_each($3) AS p CROSS JOIN nodes AS n
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = unhex(p.value)";

/// The parts of a chain (`$3`: links).
const EXPORT_PARTS: &str = "
SELECT json_array(t.id, t.sources, t.kind, hex(t.from_link), t.from_count, hex(t.to_link), t.to_count,
                  t.text, t.tokens, t.message_tokens, t.current_task, t.suggested_response, t.model,
                  t.at_ms, t.origins, t.retention, t.asked, t.preamble, t.as_of, t.stopgap,
                  t.lost)
FROM json_each($3) AS p CROSS JOIN parts AS t
WHERE t.tenant = $1 AND t.resource = $2 AND t.to_link = unhex(p.value) ORDER BY t.id";

/// The snapshots of a chain (`$3`: links), without those that tell of other conversations.
const EXPORT_SNAPSHOTS: &str = "
SELECT json_array(s.id, s.parts, hex(s.to_link), s.to_count, s.eligible_from, s.pin, s.tokens, s.cause,
                  s.segments, s.at_ms, s.placement, s.made_with)
FROM json_each($3) AS p CROSS JOIN snapshots AS s
WHERE s.tenant = $1 AND s.resource = $2 AND s.to_link = unhex(p.value) AND s.others IS NULL
ORDER BY s.id";

/// The requests that ended on a chain (`$3`: links).
const EXPORT_REQUESTS: &str = "
SELECT json_array(r.snapshot, hex(r.tip), r.count, r.placement, r.model, r.times, r.first_ms, r.last_ms,
                  r.asked_usage, r.trimmed_to, r.trim_pin, r.trim_wording, nullif(hex(r.system), ''),
                  r.cache_key, r.cache_breakpoint)
FROM json_each($3) AS p CROSS JOIN requests AS r
WHERE r.tenant = $1 AND r.resource = $2 AND r.tip = unhex(p.value)";

/// Everything of the longest chain of a lineage, as JSON. `None` if there is no such lineage.
pub(super) async fn export(
    conn: &mut SqliteConnection,
    lineage: i64,
) -> StoreResult<Option<Value>> {
    let Some(row) = admin::lineage_row(conn, lineage).await? else {
        return Ok(None);
    };
    let scope = rows::scope(&row, 1)?;
    let mut links = Vec::new();
    for row in &lineage_rows(conn, admin::LONGEST_CHAIN, &scope, lineage).await? {
        links.push(rows::node(row)?.link);
    }
    links.reverse();
    let chain = link_list(&links);
    let mut file = Map::new();
    file.insert("format".to_owned(), EXPORT_FORMAT.into());
    file.insert("pepper".to_owned(), pepper::check_value(conn).await?.into());
    file.insert("tenant".to_owned(), hex_text(&scope.tenant).into());
    file.insert("resource".to_owned(), hex_text(scope.resource_key()).into());
    for (name, statement) in [
        ("conversation", EXPORT_LINEAGE),
        ("account", EXPORT_ACCOUNT),
        ("contents", EXPORT_CONTENTS),
        ("costs", EXPORT_COSTS),
        ("events", EXPORT_EVENTS),
    ] {
        let query = scoped_scalar::<String>(statement, &scope).bind(lineage);
        file.insert(name.to_owned(), parse(&query.fetch_all(&mut *conn).await?)?);
    }
    for (name, statement) in [
        ("messages", EXPORT_NODES),
        ("parts", EXPORT_PARTS),
        ("snapshots", EXPORT_SNAPSHOTS),
        ("requests", EXPORT_REQUESTS),
    ] {
        let query = scoped_scalar::<String>(statement, &scope).bind(&chain);
        file.insert(name.to_owned(), parse(&query.fetch_all(&mut *conn).await?)?);
    }
    Ok(Some(Value::Object(file)))
}

fn parse(rows: &[String]) -> StoreResult<Value> {
    let rows = rows.iter().map(|row| serde_json::from_str(row));
    let rows = rows.collect::<Result<Vec<Value>, _>>();
    rows.map(Value::Array)
        .map_err(|_| corrupt("a row is not JSON"))
}

/// A new lineage (`$3`: a row of [`EXPORT_LINEAGE`]), which starts a family.
const IMPORT_LINEAGE: &str = "
INSERT INTO lineages (tenant, resource, thread_key, model, requests, first_ms, last_ms, title, zone)
SELECT $1, $2, $3 ->> 0, $3 ->> 1, $3 ->> 2, $3 ->> 3, $3 ->> 4, $3 ->> 5, $3 ->> 6
RETURNING id";

/// A lineage (`$3`) starts a family.
const START_FAMILY: &str =
    "UPDATE lineages SET family = id WHERE tenant = $1 AND resource = $2 AND id = $3";

/// How many of these messages (`$3`) are stored.
const STORED_NODES: &str = "
SELECT count(*) FROM json_each($3) AS p CROSS JOIN nodes AS n
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = unhex(p.value ->> 0)";

/// Rows (`$4`) of a lineage (`$3`), as exported.
const IMPORT_ACCOUNT: &str = "
INSERT INTO accounts (tenant, resource, family, confirmed_tokens, shown_tokens)
SELECT $1, $2, $3, p.value ->> 0, p.value ->> 1 FROM json_each($4) AS p";

/// As [`IMPORT_ACCOUNT`].
const IMPORT_CONTENTS: &str = "
INSERT INTO contents (tenant, resource, family, lineage, content)
SELECT $1, $2, $3, $3, unhex(p.value ->> 0) FROM json_each($4) AS p";

/// As [`IMPORT_ACCOUNT`].
const IMPORT_COSTS: &str = "
INSERT INTO costs (tenant, resource, lineage, kind, calls, sent, cached, written, guessed)
SELECT $1, $2, $3, p.value ->> 0, p.value ->> 1, p.value ->> 2, p.value ->> 3, p.value ->> 4,
       p.value ->> 5
FROM json_each($4) AS p";

/// As [`IMPORT_ACCOUNT`].
const IMPORT_EVENTS: &str = "
INSERT INTO events (tenant, resource, lineage, kind, place, body)
SELECT $1, $2, $3, p.value ->> 0, p.value ->> 1, p.value ->> 2 FROM json_each($4) AS p";

/// As [`IMPORT_ACCOUNT`].
const IMPORT_NODES: &str = "
INSERT INTO nodes (tenant, resource, lineage, link, parent, count, role, tokens, closed, turn_end,
                   born, confirmed, seen_ms, live, content, ids, weight, anchor, origin, given,
                   summary_start)
SELECT $1, $2, $3, unhex(p.value ->> 0), unhex(p.value ->> 1), p.value ->> 2, p.value ->> 3,
       p.value ->> 4, p.value ->> 5, p.value ->> 6, p.value ->> 7, p.value ->> 8, p.value ->> 9,
       p.value ->> 10, unhex(p.value ->> 11), unhex(p.value ->> 12), p.value ->> 13,
       unhex(p.value ->> 14), p.value ->> 15, p.value ->> 16, coalesce(p.value ->> 17, 0)
FROM json_each($4) AS p";

/// A part (`$3`: a row of [`EXPORT_PARTS`]) with the new ids of its sources (`$4`).
const IMPORT_PART: &str = "
INSERT INTO parts (tenant, resource, sources, kind, from_link, from_count, to_link, to_count, text,
                   tokens, message_tokens, current_task, suggested_response, model, at_ms, origins,
                   retention, asked, preamble, as_of, stopgap, lost)
SELECT $1, $2, $4, $3 ->> 2, unhex($3 ->> 3), $3 ->> 4, unhex($3 ->> 5), $3 ->> 6, $3 ->> 7, $3 ->> 8,
       $3 ->> 9, $3 ->> 10, $3 ->> 11, $3 ->> 12, $3 ->> 13, $3 ->> 14, $3 ->> 15, $3 ->> 16,
       $3 ->> 17, $3 ->> 18, $3 ->> 19, $3 ->> 20
RETURNING id";

/// A snapshot (`$3`: a row of [`EXPORT_SNAPSHOTS`]) with the new ids of its parts (`$4`).
const IMPORT_SNAPSHOT: &str = "
INSERT INTO snapshots (tenant, resource, parts, to_link, to_count, eligible_from, pin, tokens, cause,
                       segments, at_ms, placement, made_with)
SELECT $1, $2, $4, unhex($3 ->> 2), $3 ->> 3, $3 ->> 4, $3 ->> 5, $3 ->> 6, $3 ->> 7, $3 ->> 8,
       $3 ->> 9, $3 ->> 10, $3 ->> 11
RETURNING id";

/// A request (`$4`: a row of [`EXPORT_REQUESTS`]) of a lineage (`$3`), with the new id of its snapshot (`$5`).
const IMPORT_REQUEST: &str = "
INSERT INTO requests (tenant, resource, lineage, snapshot, tip, count, placement, model, times,
                      first_ms, last_ms, asked_usage, trimmed_to, trim_pin, trim_wording, system,
                      cache_key, cache_breakpoint)
SELECT $1, $2, $3, $5, unhex($4 ->> 1), $4 ->> 2, $4 ->> 3, $4 ->> 4, $4 ->> 5, $4 ->> 6, $4 ->> 7,
       $4 ->> 8, $4 ->> 9, $4 ->> 10, $4 ->> 11, unhex($4 ->> 12), coalesce($4 ->> 13, 0),
       coalesce($4 ->> 14, 0)";

/// Stores what [`export`] returned.
///
/// # Errors
/// [`StoreError::Corrupt`] if `file` is not an export, or a damaged one. Then nothing is stored.
pub(super) async fn import(
    conn: &mut SqliteConnection,
    file: &Value,
    tombstones: &Tombstones,
) -> StoreResult<ImportOutcome> {
    let scope = scope(file)?;
    if file["pepper"].as_str() != pepper::check_value(conn).await?.as_deref() {
        return Ok(ImportOutcome::OtherPepper);
    }
    let messages = rows_of(file, "messages")?;
    if !is_chain(&scope, messages) || !stand_on_chain(file, messages)? {
        return Err(wrong());
    }
    let links = messages
        .iter()
        .filter_map(|row| Link::from_slice(&bytes(&row[0])?));
    if tombstones.covers(&scope, links, LookupKeys::default) {
        return Ok(ImportOutcome::Forgotten);
    }
    let stored: i64 = scoped_scalar(STORED_NODES, &scope)
        .bind(json!(messages).to_string())
        .fetch_one(&mut *conn)
        .await?;
    if stored > 0 {
        return Ok(ImportOutcome::AlreadyStored);
    }
    let conversation = rows_of(file, "conversation")?;
    let [conversation] = conversation else {
        return Err(wrong());
    };
    let lineage: i64 = scoped_scalar(IMPORT_LINEAGE, &scope)
        .bind(conversation.to_string())
        .fetch_one(&mut *conn)
        .await?;
    let family = scoped_query(START_FAMILY, &scope).bind(lineage);
    family.execute(&mut *conn).await?;
    for (name, statement) in [
        ("account", IMPORT_ACCOUNT),
        ("contents", IMPORT_CONTENTS),
        ("costs", IMPORT_COSTS),
        ("events", IMPORT_EVENTS),
        ("messages", IMPORT_NODES),
    ] {
        let rows = json!(rows_of(file, name)?).to_string();
        let import = scoped_query(statement, &scope).bind(lineage).bind(rows);
        import.execute(&mut *conn).await?;
    }
    let parts = import_with_parts(conn, &scope, IMPORT_PART, (file, "parts"), None).await?;
    let held = (file, "snapshots");
    let snapshots = import_with_parts(conn, &scope, IMPORT_SNAPSHOT, held, Some(&parts)).await?;
    for row in rows_of(file, "requests")? {
        let snapshot = row[0].as_i64();
        let new = snapshot.and_then(|id| snapshots.get(&id).copied());
        if snapshot.is_some() && new.is_none() {
            // It was sent with a snapshot that is not in the file.
            continue;
        }
        let import = scoped_query(IMPORT_REQUEST, &scope).bind(lineage);
        let import = import.bind(row.to_string()).bind(new);
        import.execute(&mut *conn).await?;
    }
    // What `threads show` cannot read back is not kept.
    admin::thread(conn, lineage).await?.ok_or_else(wrong)?;
    Ok(ImportOutcome::Imported(lineage))
}

/// Whether each of `messages` follows the one before it, from the root of the owner on.
fn is_chain(scope: &Scope, messages: &[Value]) -> bool {
    let mut parent = Link::root(scope).as_bytes().to_vec();
    messages.iter().enumerate().all(|(index, row)| {
        let follows = bytes(&row[1]).is_some_and(|bytes| bytes == parent);
        parent = bytes(&row[0]).unwrap_or_default();
        follows && parent.len() == 32 && row[2].as_u64() == Some(index as u64 + 1)
    })
}

/// Whether the parts, snapshots and requests of the file end at its messages, at the places that they name.
fn stand_on_chain(file: &Value, messages: &[Value]) -> StoreResult<bool> {
    let places: HashMap<&str, u64> = messages
        .iter()
        .filter_map(|row| Some((row[0].as_str()?, row[2].as_u64()?)))
        .collect();
    let is_at = |link: &Value, count: &Value| {
        let place = link.as_str().and_then(|link| places.get(link));
        place.is_some() && place.copied() == count.as_u64()
    };
    let is_below = |index: &Value, end: &Value| {
        let index = index.as_u64();
        index.is_some() && index < end.as_u64()
    };
    let is_part = |row: &Value| {
        let (from_link, from_count, to_link, to_count) = (&row[3], &row[4], &row[5], &row[6]);
        let begins = from_count.as_u64() == Some(0) || is_at(from_link, from_count);
        begins && is_at(to_link, to_count) && is_below(from_count, to_count)
    };
    let is_snapshot = |row: &Value| {
        let (to_link, to_count, pin) = (&row[2], &row[3], &row[5]);
        is_at(to_link, to_count) && (pin.is_null() || is_below(pin, to_count))
    };
    let is_request = |row: &Value| {
        let (tip, count) = (&row[1], &row[2]);
        is_at(tip, count)
    };
    Ok(rows_of(file, "parts")?.iter().all(is_part)
        && rows_of(file, "snapshots")?.iter().all(is_snapshot)
        && rows_of(file, "requests")?.iter().all(is_request))
}

/// Stores rows that begin with an id and a list of ids of parts. Returns the new id of each. If `parts` is `None`, the
/// rows are the parts themselves.
async fn import_with_parts(
    conn: &mut SqliteConnection,
    scope: &Scope,
    statement: &'static str,
    (file, name): (&Value, &str),
    parts: Option<&HashMap<i64, i64>>,
) -> StoreResult<HashMap<i64, i64>> {
    let mut ids = HashMap::new();
    for row in rows_of(file, name)? {
        let list = row[1].as_str().unwrap_or_default();
        let old: Vec<i64> = serde_json::from_str(list).map_err(|_| wrong())?;
        let known = parts.unwrap_or(&ids);
        let new: Option<Vec<i64>> = old.iter().map(|id| known.get(id).copied()).collect();
        let Some(new) = new else {
            // It is made of parts that are not in the file.
            continue;
        };
        let import = scoped_query(statement, scope)
            .bind(row.to_string())
            .bind(json!(new).to_string());
        let stored = import.fetch_one(&mut *conn).await?;
        ids.insert(row[0].as_i64().ok_or_else(wrong)?, get(&stored, 0)?);
    }
    Ok(ids)
}

fn rows_of<'a>(file: &'a Value, name: &str) -> StoreResult<&'a [Value]> {
    let rows = file[name].as_array().map(Vec::as_slice);
    rows.ok_or_else(wrong)
}

fn wrong() -> StoreError {
    corrupt("this is not an exported conversation")
}

/// The owner in `file`.
fn scope(file: &Value) -> StoreResult<Scope> {
    if file["format"] != EXPORT_FORMAT {
        return Err(wrong());
    }
    let tenant = bytes(&file["tenant"]).and_then(|bytes| bytes.try_into().ok());
    let resource = match bytes(&file["resource"]) {
        Some(bytes) if bytes.is_empty() => Some(None),
        Some(bytes) => bytes.try_into().ok().map(Some),
        None => None,
    };
    match (tenant, resource) {
        (Some(tenant), Some(resource)) => Ok(Scope { tenant, resource }),
        _ => Err(wrong()),
    }
}

/// The bytes that a text in hexadecimal stands for.
fn bytes(text: &Value) -> Option<Vec<u8>> {
    let digits = text.as_str()?.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::{is_chain, rows_of, scope, stand_on_chain};
    use crate::store::sqlite::fault_tests::request;
    use crate::store::testing::SingleRequest as _;
    use crate::store::{Forgetting as _, ImportOutcome, SqliteStore};

    /// The export of a conversation of three messages, with one value of a message changed.
    async fn damaged(
        message: usize,
        column: usize,
        value: serde_json::Value,
    ) -> (serde_json::Value, SqliteStore) {
        let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
        let (scope, _, record) = request("hello", 3);
        store.record(&scope, &record).await.expect("recorded");
        let file = store.export_thread(1).await.expect("read");
        let mut file = file.expect("a conversation");
        if !value.is_null() {
            file["messages"][message][column] = value;
        }
        let other = SqliteStore::open("sqlite::memory:").await.expect("a store");
        (file, other)
    }

    #[tokio::test]
    async fn a_damaged_export_is_refused_and_leaves_nothing() {
        let (file, store) = damaged(0, 0, serde_json::Value::Null).await;
        let last = file["messages"][2][0].clone();
        let imported = store.import_thread(file).await.expect("imported");
        assert!(matches!(imported, ImportOutcome::Imported(_)));
        for (message, column, value) in [
            (0, 1, last.clone()),
            (2, 1, last),
            (1, 2, 7.into()),
            (1, 2, (-2).into()),
            (1, 3, "nobody".into()),
            (1, 4, (-1).into()),
            (1, 0, "00".into()),
        ] {
            let (file, store) = damaged(message, column, value.clone()).await;
            let imported = store.import_thread(file).await;
            assert!(imported.is_err(), "{message} {column} {value}");
            assert!(store.export_thread(1).await.expect("read").is_none());
        }
        let (mut file, store) = damaged(0, 0, serde_json::Value::Null).await;
        let owner = scope(&file).expect("an owner");
        let mut messages = rows_of(&file, "messages").expect("messages").to_vec();
        assert!(is_chain(&owner, &messages));
        messages[2][0] = "00".into();
        assert!(!is_chain(&owner, &messages), "a link has 32 bytes");
        file["requests"][0][2] = 7.into();
        assert!(store.import_thread(file).await.is_err());
        assert!(store.export_thread(1).await.expect("read").is_none());
    }

    /// Otherwise the recorder looks for messages that are not there.
    #[test]
    fn parts_snapshots_and_requests_must_end_at_messages_of_the_export() {
        use serde_json::{Value, json};
        let messages = ["A", "B", "C"].iter().zip(1..);
        let messages: Vec<Value> = messages
            .map(|(link, count)| json!([link, "", count]))
            .collect();
        let is_whole = |section: &str, row: Value| {
            let mut file = json!({"parts": [], "snapshots": [], "requests": []});
            file[section] = json!([row]);
            stand_on_chain(&file, &messages).expect("sections")
        };
        let part = |from: (&str, i64), to: (&str, i64)| {
            is_whole(
                "parts",
                json!([1, "[]", "chunk", from.0, from.1, to.0, to.1]),
            )
        };
        assert!(part(("root", 0), ("B", 2)) && part(("A", 1), ("C", 3)));
        for (from, to) in [
            (("root", 0), ("B", 9_999)),
            (("root", 0), ("D", 2)),
            (("A", 2), ("C", 3)),
            (("D", 1), ("C", 3)),
            (("B", 2), ("B", 2)),
            (("root", -1), ("B", 2)),
        ] {
            assert!(!part(from, to), "{from:?} {to:?}");
        }
        let snapshot = |link: &str, count: i64, pin: Value| {
            is_whole("snapshots", json!([1, "[]", link, count, 0, pin]))
        };
        assert!(snapshot("B", 2, Value::Null) && snapshot("B", 2, json!(1)));
        assert!(!snapshot("B", 3, Value::Null) && !snapshot("D", 2, Value::Null));
        assert!(!snapshot("B", 2, json!(2)) && !snapshot("B", 2, json!(-1)));
        let request = |tip: &str, count: Value| is_whole("requests", json!([null, tip, count]));
        assert!(request("C", json!(3)) && !request("C", json!(2)) && !request("D", json!(3)));
        assert!(!request("D", Value::Null), "no message and no place");
    }
}
