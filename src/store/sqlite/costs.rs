//! What model calls cost, by conversation and by day, and what happened, for the timeline.

use serde_json::{Map, Value};
use sqlx::query;
use sqlx::sqlite::SqliteConnection;

use crate::store::StoreResult;
use crate::history::{Link, Scope};
use crate::store::rows::{self, get, token_count};
use crate::store::{Cost, Event, MAX_EVENTS_PER_KIND, TenantBacklog, sql, utc_day};

/// Days that spending is kept for: a budget asks for today, people for a month.
const SPENDING_DAYS: i64 = 31;

pub(super) async fn record_cost(
    conn: &mut SqliteConnection,
    scope: Scope,
    tip: Link,
    cost: Cost,
    at_ms: i64,
) -> StoreResult<u64> {
    let today = utc_day(at_ms);
    query(sql::ADD_COST)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(tip.as_bytes().as_slice())
        .bind(cost.kind.name())
        .bind(token_count(cost.prompt_tokens))
        .bind(token_count(cost.cached_tokens))
        .bind(token_count(cost.completion_tokens))
        .bind(token_count(cost.estimated_tokens))
        .execute(&mut *conn)
        .await?;
    query(sql::ADD_SPENDING)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(today)
        .bind(token_count(
            cost.prompt_tokens.saturating_add(cost.completion_tokens),
        ))
        .execute(&mut *conn)
        .await?;
    query(sql::FORGET_SPENDING)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(today - SPENDING_DAYS)
        .execute(&mut *conn)
        .await?;
    spent_tokens(conn, scope, at_ms).await
}

pub(super) async fn spent_tokens(
    conn: &mut SqliteConnection,
    scope: Scope,
    at_ms: i64,
) -> StoreResult<u64> {
    let row = query(sql::SPENT_TOKENS)
        .bind(scope.tenant.as_slice())
        .bind(utc_day(at_ms))
        .fetch_one(conn)
        .await?;
    rows::int(&row, 0)
}

pub(super) async fn append_events(
    conn: &mut SqliteConnection,
    scope: Scope,
    tip: Link,
    mut events: Vec<Event>,
) -> StoreResult<Vec<Event>> {
    let row = query(sql::THREAD_OF_LINK)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(tip.as_bytes().as_slice())
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = row else {
        return Ok(Vec::new());
    };
    let (lineage, key) = (get::<i64>(&row, 0)?, get::<Option<String>>(&row, 1)?);
    for event in &mut events {
        event.body = with_thread_ids(&event.body, lineage, key.as_deref());
        query(sql::NEW_EVENT)
            .bind(scope.tenant.as_slice())
            .bind(scope.resource_key())
            .bind(lineage)
            .bind(&event.kind)
            .bind(event.at_ms)
            .bind(&event.body)
            .execute(&mut *conn)
            .await?;
        query(sql::TRIM_EVENTS)
            .bind(scope.tenant.as_slice())
            .bind(scope.resource_key())
            .bind(lineage)
            .bind(&event.kind)
            .bind(MAX_EVENTS_PER_KIND)
            .execute(&mut *conn)
            .await?;
    }
    Ok(events)
}

/// The body with whose it is, under the published names.
fn with_thread_ids(body: &str, lineage: i64, key: Option<&str>) -> String {
    let Ok(mut body) = serde_json::from_str::<Map<String, Value>>(body) else {
        return body.to_owned();
    };
    let record = lineage.to_string();
    let thread = key.unwrap_or(&record);
    if body.contains_key("startedAt") {
        // A list, since others observe several at once.
        body.insert("threadIds".to_owned(), Value::from(vec![thread]));
    }
    body.insert("threadId".to_owned(), Value::from(thread));
    body.insert("recordId".to_owned(), Value::from(record.as_str()));
    Value::Object(body).to_string()
}

pub(super) async fn tenant_backlogs(
    conn: &mut SqliteConnection,
    at_ms: i64,
) -> StoreResult<Vec<TenantBacklog>> {
    query(sql::TENANT_BACKLOGS)
        .bind(utc_day(at_ms))
        .fetch_all(conn)
        .await?
        .iter()
        .map(rows::tenant_backlog)
        .collect()
}
