//! Who is who: from the configuration, and from what the store says while the process runs.
//!
//! Requests are served by what was last heard; nobody waits for it. Called by `app`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::config::{self, Config};
use crate::proxy::identify::IdentityRules;
use crate::proxy::identify::token::{VerificationKey, Verifier};
use crate::proxy::identify::users::{Proof, Users};
use crate::store::cache::SnapshotCache;
use crate::store::{Aliases, LIVE_MS, SqliteStore, Tenants as _};

/// How often the store is asked. Other processes write there: the command line, other replicas.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);

/// What the configuration says of it, in a process that listens at `listen` and has heard of `aliases`.
pub(super) fn from_config(config: &Config, listen: SocketAddr, aliases: Aliases) -> IdentityRules {
    let users = config.identity.resource.as_ref().map(|users| Users {
        header: users.header.clone(),
        proof: match &users.set_by {
            config::SetBy::TrustedProxy | config::SetBy::Application => Proof::TrustedHeader,
            config::SetBy::Signed(signature) => Proof::Token(verifier(signature)),
        },
    });
    IdentityRules {
        anonymous: listen.ip().is_loopback(),
        users,
        subjects: config.identity.token.as_ref().map(verifier),
        aliases,
    }
}

fn verifier(signature: &config::TokenVerification) -> Verifier {
    let keys = signature.keys.iter().map(|key| VerificationKey {
        id: key.id.clone(),
        key: key.key.clone(),
        algorithms: key.algorithms.clone(),
    });
    Verifier {
        keys: keys.collect(),
        issuer: signature.issuer.clone(),
        audience: signature.audience.clone(),
        claim: signature.claim.clone(),
        leeway: signature.leeway,
    }
}

/// What the store says of owners, and where that is heard.
pub(super) struct AliasRefresher {
    store: Arc<SqliteStore>,
    aliases: Aliases,
    recall: Arc<SnapshotCache>,
    shared_keys_loaded: bool,
}

impl AliasRefresher {
    pub(super) fn new(
        store: &Arc<SqliteStore>,
        owners: &IdentityRules,
        recall: &Arc<SnapshotCache>,
    ) -> Self {
        Self {
            store: Arc::clone(store),
            aliases: owners.aliases.clone(),
            recall: Arc::clone(recall),
            shared_keys_loaded: false,
        }
    }

    /// Takes over who is served as whom. A store that does not answer changes nothing, and is told of
    /// elsewhere.
    async fn refresh_aliases(&self) {
        if let Ok(aliases) = self.store.aliases().await
            && self.aliases.replace(&aliases)
        {
            tracing::info!(
                aliases = aliases.len(),
                "who is served as whom was read anew"
            );
        }
    }

    /// Names that stand for many conversations, as far as the processes before this one found out. Later
    /// ones the recorder finds.
    async fn load_shared_thread_keys(&mut self) {
        let since = Timestamp::now().as_millisecond() - LIVE_MS;
        if let Ok(shared_keys) = self.store.shared_thread_keys(since).await {
            for (scope, key) in &shared_keys {
                self.recall.add_shared_thread_key(scope, key);
            }
            self.shared_keys_loaded = true;
        }
    }

    /// Hears all there is.
    pub(super) async fn refresh(&mut self) {
        self.refresh_aliases().await;
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
