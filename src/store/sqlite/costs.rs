//! What memory's model calls cost, for each conversation and each day, and the events of the timeline.

use std::sync::LazyLock;

use serde_json::{Map, Value};
use sqlx::query;
use sqlx::sqlite::SqliteConnection;

use super::scoped::scoped_query;
use super::tenant_accounts::account_of;
use crate::history::{Link, Scope};
use crate::store::StoreResult;
use crate::store::rows::{self, get, token_count};
use crate::store::{Cost, Event, MAX_EVENTS_PER_KIND, Spent, TenantBacklog, utc_day};

/// Spending is kept for this many days: the budget needs today, people look at a month.
const SPENDING_DAYS: i64 = 31;

/// Adds one call to the costs of the conversation of a message (`$3`).
const ADD_COST: &str = "
INSERT INTO costs (tenant, resource, lineage, kind, calls, sent, cached, written, guessed)
SELECT $1, $2, n.lineage, $4, 1, $5, $6, $7, $8
FROM nodes AS n WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $3
ON CONFLICT (tenant, resource, lineage, kind)
DO UPDATE SET calls = costs.calls + 1, sent = costs.sent + excluded.sent,
              cached = costs.cached + excluded.cached, written = costs.written + excluded.written,
              guessed = costs.guessed + excluded.guessed;";

/// Adds tokens (`$10`) to the spending of a day (`$9`), which an account (`$11`) pays.
const ADD_SPENDING: &str = "
INSERT INTO spending (tenant, resource, day, tokens, account)
VALUES ($1, $2, $9, $10, $11)
ON CONFLICT (tenant, day, resource)
DO UPDATE SET tokens = spending.tokens + excluded.tokens, account = excluded.account;";

/// Deletes the spending of days before `$12`.
const FORGET_SPENDING: &str =
    "DELETE FROM spending WHERE tenant = $1 AND resource = $2 AND day < $12;";

/// All that is written of a cost, as one script: it is sent to SQLite once.
static RECORD_COST: LazyLock<String> =
    LazyLock::new(|| [ADD_COST, ADD_SPENDING, FORGET_SPENDING].concat());

pub(super) async fn record_cost(
    conn: &mut SqliteConnection,
    scope: Scope,
    tip: Link,
    cost: Cost,
    at_ms: i64,
) -> StoreResult<Spent> {
    let today = utc_day(at_ms);
    let account = account_of(conn, &scope.tenant).await?;
    scoped_query(RECORD_COST.as_str(), &scope)
        .bind(tip.as_bytes().as_slice())
        .bind(cost.kind.name())
        .bind(token_count(cost.prompt_tokens))
        .bind(token_count(cost.cached_tokens))
        .bind(token_count(cost.completion_tokens))
        .bind(token_count(cost.estimated_tokens))
        .bind(today)
        .bind(token_count(
            cost.prompt_tokens.saturating_add(cost.completion_tokens),
        ))
        .bind(account.as_slice())
        .bind(today - SPENDING_DAYS)
        .execute(&mut *conn)
        .await?;
    spent_by_account(conn, account, at_ms).await
}

/// What an account (`$1`) spent on a day (`$2`), over all its tenants and their resources, and what all spent.
const SPENT_TOKENS: &str = "
SELECT coalesce((SELECT sum(s.tokens) FROM spending AS s WHERE s.day = $2 AND s.account = $1), 0),
       coalesce((SELECT sum(s.tokens) FROM spending AS s WHERE s.day = $2), 0)";

pub(super) async fn spent_tokens(
    conn: &mut SqliteConnection,
    scope: Scope,
    at_ms: i64,
) -> StoreResult<Spent> {
    let account = account_of(conn, &scope.tenant).await?;
    spent_by_account(conn, account, at_ms).await
}

async fn spent_by_account(
    conn: &mut SqliteConnection,
    account: [u8; 32],
    at_ms: i64,
) -> StoreResult<Spent> {
    let row = query(SPENT_TOKENS)
        .bind(account.as_slice())
        .bind(utc_day(at_ms))
        .fetch_one(conn)
        .await?;
    Ok(Spent {
        account: rows::int(&row, 0)?,
        all: rows::int(&row, 1)?,
    })
}

/// The lineage of a message (`$3`), and its thread key.
const THREAD_OF_LINK: &str = "
SELECT n.lineage, l.thread_key FROM nodes AS n CROSS JOIN lineages AS l
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $3
  AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage";

/// An event of a lineage (`$3`) with its kind (`$4`) and time (`$5`). Two events of one kind never have the
/// same place; `place` is the time in microseconds, or one more than the last place.
const NEW_EVENT: &str = "
INSERT INTO events (tenant, resource, lineage, kind, place, body)
SELECT $1, $2, $3, $4, max($5 * 1000, coalesce((
           SELECT max(e.place) + 1 FROM events AS e
           WHERE e.tenant = $1 AND e.resource = $2 AND e.lineage = $3 AND e.kind = $4), 0)), $6;";

/// Deletes all but the newest `$7` events of a kind (`$4`) of a lineage (`$3`).
const TRIM_EVENTS: &str = "
DELETE FROM events
WHERE tenant = $1 AND resource = $2 AND lineage = $3 AND kind = $4 AND place <= (
    SELECT e.place FROM events AS e
    WHERE e.tenant = $1 AND e.resource = $2 AND e.lineage = $3 AND e.kind = $4
    ORDER BY e.place DESC LIMIT 1 OFFSET $7);";

/// Both, as one script: it is sent to SQLite once.
static ADD_EVENT: LazyLock<String> = LazyLock::new(|| [NEW_EVENT, TRIM_EVENTS].concat());

pub(super) async fn append_events(
    conn: &mut SqliteConnection,
    scope: Scope,
    tip: Link,
    mut events: Vec<Event>,
) -> StoreResult<Vec<Event>> {
    let row = scoped_query(THREAD_OF_LINK, &scope)
        .bind(tip.as_bytes().as_slice())
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = row else {
        return Ok(Vec::new());
    };
    let (lineage, key) = (get::<i64>(&row, 0)?, get::<Option<String>>(&row, 1)?);
    for event in &mut events {
        event.body = with_thread_ids(&event.body, lineage, key.as_deref());
        scoped_query(ADD_EVENT.as_str(), &scope)
            .bind(lineage)
            .bind(&event.kind)
            .bind(event.at_ms)
            .bind(&event.body)
            .bind(MAX_EVENTS_PER_KIND)
            .execute(&mut *conn)
            .await?;
    }
    Ok(events)
}

/// Adds the ids of the conversation to an event's body, under their published names.
fn with_thread_ids(body: &str, lineage: i64, key: Option<&str>) -> String {
    let Ok(mut body) = serde_json::from_str::<Map<String, Value>>(body) else {
        return body.to_owned();
    };
    let record = lineage.to_string();
    let thread = key.unwrap_or(&record);
    if body.contains_key("startedAt") {
        // The published format has a list, because other implementations observe several threads at once.
        body.insert("threadIds".to_owned(), Value::from(vec![thread]));
    }
    body.insert("threadId".to_owned(), Value::from(thread));
    body.insert("recordId".to_owned(), Value::from(record.as_str()));
    Value::Object(body).to_string()
}

/// Tenants with open jobs, the number of these jobs, and what their accounts spent on a day (`$1`).
const TENANT_BACKLOGS: &str = "
WITH busy (tenant) AS MATERIALIZED (SELECT tenant FROM jobs WHERE state = 'open')
SELECT busy.tenant, count(*),
       coalesce((SELECT sum(s.tokens) FROM spending AS s
                 WHERE s.day = $1
                   AND s.account = coalesce((SELECT t.account FROM tenant_accounts AS t
                                             WHERE t.tenant = busy.tenant), busy.tenant)), 0)
FROM busy GROUP BY busy.tenant";

pub(super) async fn tenant_backlogs(
    conn: &mut SqliteConnection,
    at_ms: i64,
) -> StoreResult<Vec<TenantBacklog>> {
    query(TENANT_BACKLOGS)
        .bind(utc_day(at_ms))
        .fetch_all(conn)
        .await?
        .iter()
        .map(rows::tenant_backlog)
        .collect()
}
