//! What model calls cost, by conversation and by day, and what happened, for the timeline.

use serde_json::{Map, Value};
use sqlx::query;
use sqlx::sqlite::SqliteConnection;

use super::Answer;
use crate::history::{Link, Scope};
use crate::store::rows::{self, get, whole};
use crate::store::{Cost, EVENTS_KEPT, Event, Waiting, day, sql};

/// Days that spending is kept for: a budget asks for today, people for a month.
const DAYS: i64 = 31;

pub(super) async fn pay(
    conn: &mut SqliteConnection,
    scope: Scope,
    tip: Link,
    cost: Cost,
    at_ms: i64,
) -> Answer<u64> {
    let today = day(at_ms);
    query(sql::COST)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(tip.as_bytes().as_slice())
        .bind(cost.kind.name())
        .bind(whole(cost.sent))
        .bind(whole(cost.cached))
        .bind(whole(cost.written))
        .bind(whole(cost.guessed))
        .execute(&mut *conn)
        .await?;
    query(sql::SPEND)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(today)
        .bind(whole(cost.sent.saturating_add(cost.written)))
        .execute(&mut *conn)
        .await?;
    query(sql::FORGET_SPENDING)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(today - DAYS)
        .execute(&mut *conn)
        .await?;
    spent(conn, scope, at_ms).await
}

pub(super) async fn spent(conn: &mut SqliteConnection, scope: Scope, at_ms: i64) -> Answer<u64> {
    let row = query(sql::SPENT)
        .bind(scope.tenant.as_slice())
        .bind(day(at_ms))
        .fetch_one(conn)
        .await?;
    rows::int(&row, 0)
}

pub(super) async fn note(
    conn: &mut SqliteConnection,
    scope: Scope,
    tip: Link,
    mut events: Vec<Event>,
) -> Answer<Vec<Event>> {
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
        event.body = signed(&event.body, lineage, key.as_deref());
        query(sql::NEW_EVENT)
            .bind(scope.tenant.as_slice())
            .bind(scope.resource_key())
            .bind(lineage)
            .bind(&event.kind)
            .bind(event.at_ms)
            .bind(&event.body)
            .execute(&mut *conn)
            .await?;
        query(sql::BOUND_EVENTS)
            .bind(scope.tenant.as_slice())
            .bind(scope.resource_key())
            .bind(lineage)
            .bind(&event.kind)
            .bind(EVENTS_KEPT)
            .execute(&mut *conn)
            .await?;
    }
    Ok(events)
}

/// The body with whose it is, under the published names.
fn signed(body: &str, lineage: i64, key: Option<&str>) -> String {
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

pub(super) async fn waiting(conn: &mut SqliteConnection, at_ms: i64) -> Answer<Vec<Waiting>> {
    query(sql::WAITING)
        .bind(day(at_ms))
        .fetch_all(conn)
        .await?
        .iter()
        .map(rows::waiting)
        .collect()
}
