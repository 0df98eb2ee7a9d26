//! Costs, accounts and aliases: the gate, and the real store.

use async_trait::async_trait;
use diarist::history::{Link, Scope};
use diarist::store::{
    AddAliasOutcome, Alias, Cost, Spent, TenantAccount, TenantBacklog, TenantRow, Tenants,
};

use super::{Answer, Watched};

#[async_trait]
impl Tenants for Watched {
    async fn record_cost(&self, scope: &Scope, tip: Link, cost: Cost, at_ms: i64) -> Answer<Spent> {
        through!(self, record_cost(scope, tip, cost, at_ms))
    }

    async fn spent_tokens(&self, scope: &Scope, at_ms: i64) -> Answer<Spent> {
        through!(self, spent_tokens(scope, at_ms))
    }

    async fn set_account(&self, member: TenantAccount) -> Answer<()> {
        self.store.set_account(member).await
    }

    async fn tenant_accounts(&self) -> Answer<Vec<TenantAccount>> {
        self.store.tenant_accounts().await
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
