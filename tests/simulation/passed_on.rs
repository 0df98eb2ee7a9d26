//! The verbs of operators and tenants, which a run only passes on: no planted bug changes them.

use async_trait::async_trait;
use diarist::history::{Link, Scope};
use diarist::memory::Span;
use diarist::store::{
    AddAliasOutcome, Admin, Alias, Cost, Event, LongestChain, OperatorRequest, TenantBacklog,
    TenantRow, Tenants, ThreadDetail, ThreadRow,
};

use super::{Answer, Watched};

#[async_trait]
impl Admin for Watched {
    async fn append_events(
        &self,
        scope: &Scope,
        tip: Link,
        events: &[Event],
    ) -> Answer<Vec<Event>> {
        through!(self, append_events(scope, tip, events))
    }

    async fn threads(&self, limit: u32) -> Answer<Vec<ThreadRow>> {
        self.store.threads(limit).await
    }

    async fn thread(&self, lineage: i64) -> Answer<Option<ThreadDetail>> {
        self.store.thread(lineage).await
    }

    async fn longest_chain(&self, lineage: i64) -> Answer<Option<LongestChain>> {
        self.store.longest_chain(lineage).await
    }

    async fn put_operator_request(
        &self,
        scope: &Scope,
        lineage: i64,
        wanted: &OperatorRequest,
    ) -> Answer<bool> {
        self.store
            .put_operator_request(scope, lineage, wanted)
            .await
    }

    async fn operator_request(
        &self,
        scope: &Scope,
        lineage: i64,
    ) -> Answer<Option<OperatorRequest>> {
        through!(self, operator_request(scope, lineage))
    }

    async fn complete_operator_request(&self, scope: &Scope, lineage: i64) -> Answer<()> {
        through!(self, complete_operator_request(scope, lineage))
    }

    async fn pending_texts(&self, lineage: i64) -> Answer<Vec<(Span, String)>> {
        self.store.pending_texts(lineage).await
    }

    async fn forget(&self, scope: &Scope, lineage: i64) -> Answer<u64> {
        self.store.forget(scope, lineage).await
    }

    async fn ping(&self) -> Answer<()> {
        self.store.ping().await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

#[async_trait]
impl Tenants for Watched {
    async fn record_cost(&self, scope: &Scope, tip: Link, cost: Cost, at_ms: i64) -> Answer<u64> {
        through!(self, record_cost(scope, tip, cost, at_ms))
    }

    async fn spent_tokens(&self, scope: &Scope, at_ms: i64) -> Answer<u64> {
        through!(self, spent_tokens(scope, at_ms))
    }

    async fn tenant_backlogs(&self, at_ms: i64) -> Answer<Vec<TenantBacklog>> {
        self.store.tenant_backlogs(at_ms).await
    }

    async fn shared_thread_keys(&self, since_ms: i64) -> Answer<Vec<(Scope, String)>> {
        through!(self, shared_thread_keys(since_ms))
    }

    async fn aliases(&self) -> Answer<Vec<Alias>> {
        through!(self, aliases())
    }

    async fn add_alias(
        &self,
        name: [u8; 32],
        tenant: [u8; 32],
        at_ms: i64,
    ) -> Answer<AddAliasOutcome> {
        self.store.add_alias(name, tenant, at_ms).await
    }

    async fn remove_alias(&self, name: [u8; 32]) -> Answer<bool> {
        self.store.remove_alias(name).await
    }

    async fn tenants(&self) -> Answer<Vec<TenantRow>> {
        through!(self, tenants())
    }
}
