//! Who is who: from the configuration, and from what the store says while the process runs.
//!
//! Requests are served by what was last heard; nobody waits for it. Called by `app`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::config::{self, Config};
use crate::proxy::identify::Owners;
use crate::proxy::identify::token::{Key, Verifier};
use crate::proxy::identify::users::{Proof, Users};
use crate::store::recall::Recall;
use crate::store::{Aliases, LIVE_MS, Reopening, Store as _};

/// How often the store is asked. Other processes write there: the command line, other replicas.
const KEEP_UP: Duration = Duration::from_secs(2);

/// What the configuration says of it, in a process that listens at `listen` and has heard of `aliases`.
pub(super) fn of(config: &Config, listen: SocketAddr, aliases: Aliases) -> Owners {
    let users = config.identity.resource.as_ref().map(|users| Users {
        header: users.header.clone(),
        proof: match &users.set_by {
            config::SetBy::TrustedProxy | config::SetBy::Application => Proof::Word,
            config::SetBy::Signed(signature) => Proof::Token(verifier(signature)),
        },
    });
    Owners {
        anonymous: listen.ip().is_loopback(),
        users,
        subjects: config.identity.token.as_ref().map(verifier),
        aliases,
    }
}

fn verifier(signature: &config::Signature) -> Verifier {
    let keys = signature.keys.iter().map(|key| Key {
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
pub(super) struct Heard {
    store: Arc<Reopening>,
    aliases: Aliases,
    recall: Arc<Recall>,
    crowds_known: bool,
}

impl Heard {
    pub(super) fn new(store: &Arc<Reopening>, owners: &Owners, recall: &Arc<Recall>) -> Self {
        Self {
            store: Arc::clone(store),
            aliases: owners.aliases.clone(),
            recall: Arc::clone(recall),
            crowds_known: false,
        }
    }

    /// Takes over who is served as whom. A store that does not answer changes nothing, and is told of
    /// elsewhere.
    async fn follow(&self) {
        if let Ok(said) = self.store.aliases().await
            && self.aliases.replace(&said)
        {
            tracing::info!(aliases = said.len(), "who is served as whom was read anew");
        }
    }

    /// Names that stand for many conversations, as far as the processes before this one found out. Later
    /// ones the recorder finds.
    async fn remember_crowds(&mut self) {
        let since = Timestamp::now().as_millisecond() - LIVE_MS;
        if let Ok(crowds) = self.store.crowds(since).await {
            for (scope, key) in &crowds {
                self.recall.crowd(scope, key);
            }
            self.crowds_known = true;
        }
    }

    /// Hears all there is.
    pub(super) async fn listen(&mut self) {
        self.follow().await;
        if !self.crowds_known {
            self.remember_crowds().await;
        }
    }

    pub(super) async fn keep_up(mut self, stop: CancellationToken) {
        while stop
            .run_until_cancelled(tokio::time::sleep(KEEP_UP))
            .await
            .is_some()
        {
            self.listen().await;
        }
    }
}
