//! Recording ordinary requests of one owner together: the same rows as [`super::record`] writes for each
//! of them, by a handful of statements for all. A statement costs two switches between threads, which is
//! more than most of them cost SQLite.
//!
//! Ordinary is what [`is_ordinary`] says and `Standing` confirms: a request that continues its lineage
//! or starts one, and that has nothing to do with another request of the group. All others are left to
//! [`super::record`]. Called by [`super::record_batch`] only.

use std::sync::LazyLock;

use serde_json::{Value, json};
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::record_standing::{Standing, standings_under_savepoint};
use super::savepoint::{RELEASE, roll_back};
use super::scoped::scoped_query;
use crate::history::{Link, Scope};
use crate::store::rows::{self, get};
use crate::store::{
    OperatorRequest, RecordedRequest, RequestRecord, SharedContent, StoreError, StoreResult,
};

/// Whether `record` may be written together with others. One that was aligned, whose messages are kept, or that was sent
/// with an introduction leaves rows that depend on what is stored.
pub(super) fn is_ordinary(scope: &Scope, record: &RequestRecord) -> bool {
    let entries = &record.lookup_entries;
    let starts_chain = record
        .new_nodes
        .first()
        .is_some_and(|first| first.count == 1);
    entries.alignment.is_none()
        && entries.kept_messages.is_empty()
        && (scope.resource.is_none() || record.sent_with.snapshot.is_none())
        && (record.lineage.is_some() || starts_chain)
}

/// New lineages (`$3`: id, thread key, model, time). Each starts a family.
const NEW_LINEAGES: &str = "
INSERT INTO lineages (tenant, resource, id, thread_key, family, model, requests, first_ms, last_ms)
SELECT $1, $2, p.value ->> 0, p.value ->> 1, p.value ->> 0, p.value ->> 2, 0, p.value ->> 3,
       p.value ->> 3
FROM json_each($3) AS p;";

/// New messages (`$4`: pairs of lineage and messages). A message that is recorded stays as it is.
///
/// `r` is materialised: otherwise SQLite writes the JSON of all messages of a request once for each of them, and ten
/// thousand messages take 20 seconds.
const NEW_NODES_OF_ALL: &str = "
WITH r AS MATERIALIZED (
    SELECT p.value ->> 0 AS lineage, p.value ->> 1 AS messages FROM json_each($4) AS p)
INSERT INTO nodes (tenant, resource, lineage, link, parent, count, role, tokens, closed, turn_end,
                   born, confirmed, seen_ms, live, content, ids, weight, anchor, origin, given,
                   summary_start)
SELECT $1, $2, r.lineage, unhex(p.value ->> 0), unhex(p.value ->> 1), p.value ->> 2,
       p.value ->> 3, p.value ->> 4, p.value ->> 5, p.value ->> 6, p.value ->> 7, p.value ->> 8,
       p.value ->> 9, p.value ->> 10, unhex(p.value ->> 11), unhex(p.value ->> 12), p.value ->> 13,
       unhex(p.value ->> 14), p.value ->> 15, p.value ->> 16, p.value ->> 17
FROM r CROSS JOIN json_each(r.messages) AS p WHERE true
ON CONFLICT (tenant, resource, link) DO NOTHING;";

/// Confirms messages (`$5`: links).
const CONFIRM_ALL: &str = "
UPDATE nodes SET confirmed = 1
WHERE tenant = $1 AND resource = $2 AND confirmed = 0
  AND link IN (SELECT unhex(p.value) FROM json_each($5) AS p);";

/// Adds the tokens of contents (`$6`: lineage, family, content, tokens) that are new to their family. Must
/// run before [`NEW_CONTENTS_OF_ALL`].
const CREDIT_ALL: &str = "
INSERT INTO accounts (tenant, resource, family, confirmed_tokens, shown_tokens)
SELECT $1, $2, p.value ->> 1, sum(CASE WHEN EXISTS (
           SELECT 1 FROM contents AS c
           WHERE c.tenant = $1 AND c.resource = $2 AND c.content = unhex(p.value ->> 2)
             AND c.family = p.value ->> 1) THEN 0 ELSE p.value ->> 3 END), 0
FROM json_each($6) AS p WHERE true GROUP BY p.value ->> 1
ON CONFLICT (tenant, resource, family)
DO UPDATE SET confirmed_tokens = accounts.confirmed_tokens + excluded.confirmed_tokens;";

/// The contents (`$6`) themselves. The lineage that confirmed a content first keeps it.
const NEW_CONTENTS_OF_ALL: &str = "
INSERT INTO contents (tenant, resource, family, lineage, content)
SELECT $1, $2, p.value ->> 1, p.value ->> 0, unhex(p.value ->> 2) FROM json_each($6) AS p WHERE true
ON CONFLICT (tenant, resource, content, family) DO NOTHING;";

/// The requests (`$7`), as `RECORD_REQUEST` writes one.
const NEW_REQUESTS: &str = "
INSERT INTO requests (tenant, resource, tip, count, lineage, snapshot, placement, model, times,
                      first_ms, last_ms, asked_usage, trimmed_to, trim_pin, trim_wording, system,
                      cache_key, cache_breakpoint)
SELECT $1, $2, unhex(p.value ->> 0), p.value ->> 1, p.value ->> 2, p.value ->> 3, p.value ->> 4,
       p.value ->> 5, 1, p.value ->> 6, p.value ->> 6, p.value ->> 7, p.value ->> 8, p.value ->> 9,
       p.value ->> 10, unhex(p.value ->> 11), p.value ->> 12, p.value ->> 13
FROM json_each($7) AS p WHERE true
ON CONFLICT (tenant, resource, tip, model)
DO UPDATE SET times = requests.times + 1, last_ms = max(requests.last_ms, excluded.last_ms);";

/// Counts one more request of each lineage (`$8`: id, time, model, thread key, route, zone).
const TOUCH_LINEAGES: &str = "
UPDATE lineages SET requests = requests + 1, last_ms = max(last_ms, p.value ->> 1),
                    model = p.value ->> 2, thread_key = coalesce(thread_key, p.value ->> 3),
                    way = CASE WHEN p.value ->> 4 = '' THEN way ELSE unhex(p.value ->> 4) END,
                    zone = coalesce(p.value ->> 5, zone)
FROM json_each($8) AS p
WHERE tenant = $1 AND resource = $2 AND lineages.id = p.value ->> 0;";

/// Moves the timers of lineages (`$9`), as `SET_TIMER` does.
const SET_TIMERS: &str = "
INSERT INTO timers (tenant, resource, lineage, tip, model, zone, activate_ms, reflect_ms, due_ms,
                    fence)
SELECT $1, $2, p.value ->> 0, unhex(p.value ->> 1), p.value ->> 2, p.value ->> 3, p.value ->> 4,
       p.value ->> 5, p.value ->> 6, 0
FROM json_each($9) AS p WHERE true
ON CONFLICT (tenant, resource, lineage)
DO UPDATE SET tip = excluded.tip, model = excluded.model, zone = excluded.zone,
              activate_ms = excluded.activate_ms, reflect_ms = excluded.reflect_ms,
              due_ms = excluded.due_ms, fence = timers.fence + 1;";

/// The answers (`$11`), which nobody got before, as `NEW_ANSWER` writes one.
const NEW_ANSWERS: &str = "
INSERT INTO answers (tenant, resource, mark, tip, lineage, ending)
SELECT $1, $2, unhex(p.value ->> 0), unhex(p.value ->> 1), p.value ->> 2, unhex(p.value ->> 3)
FROM json_each($11) AS p;";

/// What the recorder needs to know of each lineage (`$8`), as `LINEAGE_STATE` and `LINEAGES_NAMED` say it.
const LINEAGE_STATES: &str = "
SELECT p.key, l.observe_asked, l.observe_focus, l.thread_key IS NOT NULL AND 1 < (
           SELECT count(*) FROM (
               SELECT 1 FROM lineages AS o
               WHERE o.tenant = $1 AND o.resource = $2 AND o.thread_key = l.thread_key LIMIT 2))
FROM json_each($8) AS p CROSS JOIN lineages AS l
WHERE l.tenant = $1 AND l.resource = $2 AND l.id = p.value ->> 0;";

/// The new messages (`$10`: pairs of request and link) that another conversation holds too, as
/// `SHARED_MESSAGES` says it.
const SHARED_MESSAGES_OF_ALL: &str = "
SELECT -1 - (p.value ->> 0), n.link FROM json_each($10) AS p CROSS JOIN nodes AS n
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = unhex(p.value ->> 1)
  AND CASE WHEN n.ids IS NULL
      THEN EXISTS (
          SELECT 1 FROM nodes AS o
          WHERE o.tenant = $1 AND o.resource = $2 AND o.content = n.content AND o.origin < n.origin)
        OR EXISTS (
          SELECT 1 FROM nodes AS o
          WHERE o.tenant = $1 AND o.resource = $2 AND o.content = n.content AND o.origin > n.origin)
      ELSE EXISTS (
          SELECT 1 FROM nodes AS o
          WHERE o.tenant = $1 AND o.resource = $2 AND o.ids = n.ids AND o.origin < n.origin)
        OR EXISTS (
          SELECT 1 FROM nodes AS o
          WHERE o.tenant = $1 AND o.resource = $2 AND o.ids = n.ids AND o.origin > n.origin)
      END;";

/// All that is written of a group, to the end of its savepoint, as one script: it is sent to SQLite once.
static WRITE: LazyLock<String> = LazyLock::new(|| {
    [
        NEW_LINEAGES,
        NEW_NODES_OF_ALL,
        CONFIRM_ALL,
        CREDIT_ALL,
        NEW_CONTENTS_OF_ALL,
        NEW_REQUESTS,
        TOUCH_LINEAGES,
        SET_TIMERS,
        NEW_ANSWERS,
        LINEAGE_STATES,
        SHARED_MESSAGES_OF_ALL,
        RELEASE,
    ]
    .concat()
});

/// Records those of `requests` that can be written together. The answer is in their order; `None` stands for a
/// request that must be written by itself, after the others: all of them, if they could not be written together.
///
/// # Errors
/// The transaction cannot go on.
pub(super) async fn record_group(
    conn: &mut SqliteConnection,
    scope: &Scope,
    requests: &[&RequestRecord],
) -> StoreResult<Vec<Option<RecordedRequest>>> {
    match try_group(&mut *conn, scope, requests).await {
        Ok(recorded) => Ok(recorded),
        Err(error) => {
            roll_back(conn, error).await?;
            Ok(requests.iter().map(|_| None).collect())
        }
    }
}

async fn try_group(
    conn: &mut SqliteConnection,
    scope: &Scope,
    requests: &[&RequestRecord],
) -> StoreResult<Vec<Option<RecordedRequest>>> {
    let standings = standings_under_savepoint(conn, scope, requests).await?;
    let members: Vec<(usize, &RequestRecord, Standing)> = standings
        .into_iter()
        .enumerate()
        .filter_map(|(index, standing)| Some((index, requests[index], standing?)))
        .collect();
    let mut results: Vec<Option<RecordedRequest>> = requests.iter().map(|_| None).collect();
    if members.is_empty() {
        sqlx::query(RELEASE).execute(conn).await?;
        return Ok(results);
    }
    let rows = write(conn, scope, &members).await?;
    for (index, _, standing) in &members {
        results[*index] = Some(RecordedRequest {
            lineage: standing.lineage,
            shared: SharedContent::default(),
            operator_request: None,
        });
    }
    for row in &rows {
        let key: i64 = get(row, 0)?;
        let place = if key < 0 { -1 - key } else { key };
        let index = usize::try_from(place)
            .ok()
            .and_then(|place| members.get(place))
            .map(|(index, ..)| *index);
        let recorded = index.and_then(|index| results[index].as_mut());
        let Some(recorded) = recorded else {
            return Err(StoreError::Corrupt("a row of no request".to_owned()));
        };
        if key < 0 {
            recorded.shared.messages.push(rows::link(row, 1)?);
        } else {
            recorded.operator_request = OperatorRequest::from_number(get(row, 1)?, get(row, 2)?);
            recorded.shared.thread_key_shared = get(row, 3)?;
        }
    }
    Ok(results)
}

/// Writes the `members` of a group.
async fn write(
    conn: &mut SqliteConnection,
    scope: &Scope,
    members: &[(usize, &RequestRecord, Standing)],
) -> StoreResult<Vec<SqliteRow>> {
    let mut group = GroupRows::default();
    for (place, (_, record, standing)) in members.iter().enumerate() {
        group.add(place, record, standing);
    }
    let text = |list: Vec<Value>| Value::from(list).to_string();
    let query = scoped_query(WRITE.as_str(), scope)
        .bind(text(group.lineages))
        .bind(format!("[{}]", group.nodes.join(",")))
        .bind(rows::link_list(&group.confirmed))
        .bind(text(group.contents))
        .bind(text(group.requests))
        .bind(text(group.touched))
        .bind(text(group.timers))
        .bind(text(group.new_links))
        .bind(text(group.answers));
    Ok(query.fetch_all(conn).await?)
}

/// The rows of a group, one list for each parameter of [`WRITE`].
#[derive(Default)]
struct GroupRows {
    lineages: Vec<Value>,
    /// The lineage of each request with new messages, and these messages, as JSON.
    nodes: Vec<String>,
    confirmed: Vec<Link>,
    contents: Vec<Value>,
    requests: Vec<Value>,
    touched: Vec<Value>,
    timers: Vec<Value>,
    new_links: Vec<Value>,
    answers: Vec<Value>,
}

impl GroupRows {
    /// Adds a request, which stands at `place` in its group.
    fn add(&mut self, place: usize, record: &RequestRecord, standing: &Standing) {
        let hex = |link: &Link| rows::hex_text(link.as_bytes());
        let lineage = standing.lineage;
        if standing.is_new {
            self.lineages.push(json!([
                lineage,
                record.thread_key,
                record.model,
                record.at_ms
            ]));
        }
        if !record.new_nodes.is_empty() {
            let marks = &record.lookup_entries.marks;
            let new = rows::node_list(&record.new_nodes, marks, record.parent);
            self.nodes.push(format!("[{lineage},{new}]"));
        }
        let new_links = record.new_nodes.iter();
        self.new_links
            .extend(new_links.map(|node| json!([place, hex(&node.link)])));
        let at_once = record.new_nodes.iter().filter(|node| node.confirmed);
        self.confirmed
            .extend(record.newly_confirmed.iter().copied());
        self.confirmed.extend(at_once.map(|node| node.link));
        for content in &record.contents {
            let key = rows::hex_text(content.key.as_bytes());
            self.contents
                .push(json!([lineage, standing.family, key, content.tokens]));
        }
        self.requests.push(request_row(lineage, record));
        if let Some((answer, _)) = &record.lookup_entries.answer {
            let (text, ending) = (answer.text.as_bytes(), answer.ending.as_bytes());
            self.answers.push(json!([
                rows::hex_text(text),
                hex(&record.tip),
                lineage,
                rows::hex_text(ending),
            ]));
        }
        self.touched.push(json!([
            lineage,
            record.at_ms,
            record.model,
            record.thread_key,
            record
                .route_hash
                .map(|route| rows::hex_text(&route))
                .unwrap_or_default(),
            record.zone,
        ]));
        if let Some(timer) = &record.timer {
            self.timers.push(json!([
                lineage,
                hex(&record.tip),
                record.model,
                timer.zone.as_deref().unwrap_or_default(),
                timer.alarms.activate_ms,
                timer.alarms.reflect_ms,
                timer.alarms.next(),
            ]));
        }
    }
}

/// A row of [`NEW_REQUESTS`].
fn request_row(lineage: i64, record: &RequestRecord) -> Value {
    let (sent, trim) = (&record.sent_with, record.sent_with.trim);
    let system = record.lookup_entries.system;
    json!([
        rows::hex_text(record.tip.as_bytes()),
        record.count,
        lineage,
        sent.snapshot.map(|id| id.0),
        sent.placement,
        record.model,
        record.at_ms,
        sent.usage_requested.map(i64::from),
        trim.map(|trim| trim.to_count),
        trim.and_then(|trim| trim.pin),
        trim.map(|trim| trim.wording),
        system.map(|mark| rows::hex_text(mark.as_bytes())),
        i64::from(sent.cache_key),
        i64::from(sent.cache_breakpoint),
    ])
}

#[cfg(test)]
mod tests {
    use sqlx::{AssertSqlSafe, Row as _};

    use super::*;
    use crate::store::SqliteStore;

    /// Otherwise SQLite writes the JSON of a request's messages once for each of them.
    #[tokio::test]
    async fn the_messages_of_a_request_are_parsed_only_once() {
        let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
        let mut conn = store.writer().await;
        let plan = format!("EXPLAIN QUERY PLAN {NEW_NODES_OF_ALL}");
        let plan = sqlx::query(AssertSqlSafe(plan)).fetch_all(&mut *conn);
        let plan = plan.await.expect("a plan");
        let mut steps = plan.iter().map(|row| row.get::<String, _>("detail"));
        assert!(steps.any(|step| step == "MATERIALIZE r"));
    }
}
