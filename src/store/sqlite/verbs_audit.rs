//! The verbs of audit lines and of figures of token counts. Like [`super::verbs`], it says which function each one runs.

use async_trait::async_trait;

use super::{SqliteStore, audit_lines};
use crate::history::Scope;
use crate::memory::SnapshotId;
use crate::store::{
    AuditLines, AuditPage, AuditRequest, NewAuditLine, StoreResult, StoredTokenRatio,
};

#[async_trait]
impl AuditLines for SqliteStore {
    async fn append_audit_lines(&self, lines: Vec<NewAuditLine>) -> StoreResult<()> {
        let pepper = self.pepper;
        self.write("store audit_lines::append", move |conn| {
            Box::pin(async move { audit_lines::append(conn, lines, &pepper).await })
        })
        .await
    }

    async fn audit_page(&self, after: i64, limit: u32) -> StoreResult<Option<AuditPage>> {
        self.read("store audit_lines::page", move |conn| {
            Box::pin(audit_lines::page(conn, after, limit))
        })
        .await
    }

    async fn audit_range(&self) -> StoreResult<(i64, i64)> {
        self.read("store audit_lines::range", |conn| {
            Box::pin(audit_lines::range(conn))
        })
        .await
    }

    async fn audit_request(&self, request_id: &str) -> StoreResult<Option<AuditRequest>> {
        let request_id = request_id.to_owned();
        self.read("store audit_lines::request", move |conn| {
            Box::pin(audit_lines::request(conn, request_id))
        })
        .await
    }

    async fn audit_page_of(
        &self,
        request: &AuditRequest,
        after: i64,
        limit: u32,
    ) -> StoreResult<Option<AuditPage>> {
        let request = request.clone();
        self.read("store audit_lines::page_of", move |conn| {
            Box::pin(audit_lines::page_of(conn, request, after, limit))
        })
        .await
    }

    async fn snapshot_origin(&self, snapshot: SnapshotId) -> StoreResult<Option<(Scope, i64)>> {
        self.read("store audit_lines::snapshot_origin", move |conn| {
            Box::pin(audit_lines::snapshot_origin(conn, snapshot))
        })
        .await
    }

    async fn expire_audit_lines(&self, before_ms: i64, limit: u32) -> StoreResult<u64> {
        self.write("store audit_lines::expire", move |conn| {
            Box::pin(audit_lines::expire(conn, before_ms, limit))
        })
        .await
    }

    async fn token_ratios(&self) -> StoreResult<Vec<StoredTokenRatio>> {
        self.read("store audit_lines::token_ratios", |conn| {
            Box::pin(audit_lines::token_ratios(conn))
        })
        .await
    }

    async fn put_token_ratios(
        &self,
        ratios: Vec<StoredTokenRatio>,
        at_ms: i64,
        keep: u32,
    ) -> StoreResult<()> {
        self.write("store audit_lines::put_token_ratios", move |conn| {
            Box::pin(audit_lines::put_token_ratios(conn, ratios, at_ms, keep))
        })
        .await
    }
}
