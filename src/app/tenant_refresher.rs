//! Keeps the aliases of tenants, their accounts, and the names that many conversations share, up to date with the store.
//!
//! Requests use the last known state and never wait for this. Called by `app`.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::lookup::SnapshotCache;
use crate::store::{Aliases, LIVE_MS, SqliteStore, TenantAccounts, Tenants as _};

/// How often the store is read. The command line and other processes write there.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);

/// Reads aliases, accounts and shared names from the store.
pub(super) struct TenantRefresher {
    store: Arc<SqliteStore>,
    aliases: Aliases,
    accounts: TenantAccounts,
    accounts_loaded: bool,
    cache: Arc<SnapshotCache>,
    shared_keys_loaded: bool,
}

impl TenantRefresher {
    pub(super) fn new(
        store: &Arc<SqliteStore>,
        aliases: &Aliases,
        accounts: &TenantAccounts,
        cache: &Arc<SnapshotCache>,
    ) -> Self {
        Self {
            store: Arc::clone(store),
            aliases: aliases.clone(),
            accounts: accounts.clone(),
            accounts_loaded: false,
            cache: Arc::clone(cache),
            shared_keys_loaded: false,
        }
    }

    /// If the store does not answer, nothing changes; `database::watch` reports it.
    async fn refresh_aliases(&self) {
        if let Ok(aliases) = self.store.aliases().await
            && self.aliases.replace(&aliases)
        {
            tracing::info!(
                aliases = aliases.len(),
                "the aliases of tenants have changed"
            );
        }
    }

    /// Accounts that earlier processes stored. The recorder adds later ones.
    async fn load_accounts(&mut self) {
        if let Ok(stored) = self.store.tenant_accounts().await {
            self.accounts.load(&stored);
            self.accounts_loaded = true;
        }
    }

    /// Names that many conversations share, found by earlier processes. The recorder finds later ones.
    async fn load_shared_thread_keys(&mut self) {
        let since = Timestamp::now().as_millisecond() - LIVE_MS;
        if let Ok(shared_keys) = self.store.shared_thread_keys(since).await {
            for (scope, key) in &shared_keys {
                self.cache.add_shared_thread_key(scope, key);
            }
            self.shared_keys_loaded = true;
        }
    }

    /// Reads everything once. Accounts and shared names are read until that succeeds.
    pub(super) async fn refresh(&mut self) {
        self.refresh_aliases().await;
        if !self.accounts_loaded {
            self.load_accounts().await;
        }
        if !self.shared_keys_loaded {
            self.load_shared_thread_keys().await;
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        while stop
            .run_until_cancelled(tokio::time::sleep(REFRESH_INTERVAL))
            .await
            .is_some()
        {
            self.refresh().await;
        }
    }
}
