//! The verbs of what processes have seen. Like [`super::verbs`], it says which function each one runs.

use async_trait::async_trait;

use super::{SqliteStore, seen_messages};
use crate::store::{SeenMessages, SeenMessagesStore, StoreResult};

#[async_trait]
impl SeenMessagesStore for SqliteStore {
    async fn put_seen_messages(
        &self,
        entries: Vec<SeenMessages>,
        times: (i64, i64),
        max_bytes: usize,
    ) -> StoreResult<()> {
        self.write("store seen_messages::put", move |conn| {
            Box::pin(seen_messages::put(conn, entries, times, max_bytes))
        })
        .await
    }

    async fn seen_messages(&self) -> StoreResult<Vec<SeenMessages>> {
        self.read("store seen_messages::all", |conn| {
            Box::pin(seen_messages::all(conn))
        })
        .await
    }

    async fn expire_seen_messages(&self, before_ms: i64) -> StoreResult<()> {
        self.write("store seen_messages::expire", move |conn| {
            Box::pin(seen_messages::expire(conn, before_ms))
        })
        .await
    }
}
