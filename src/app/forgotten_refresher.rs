//! Makes this process honour what an operator has forgotten: the command line deletes in the database, and another
//! process cannot reach the caches of this one.
//!
//! The table of tombstones decides for requests. A recording compares with the database itself, so nothing comes
//! back in the meantime. Also writes the audit lines of deletions. Called by `app`.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::conversation_caches::ConversationCaches;
use crate::audit::{Audit, ForgottenRecord};
use crate::store::{Forgetting as _, Receipt, SqliteStore, TombstoneVersion};

/// How often the store is read.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Reads tombstones and receipts from the store.
pub(super) struct ForgottenRefresher {
    store: Arc<SqliteStore>,
    caches: ConversationCaches,
    audit: Option<Audit>,
    /// The version of the tombstones that the caches know of. A recording may have read a newer one.
    known_version: TombstoneVersion,
    /// Whether the caches are to be dropped once more: a read that began before the deletion may have ended after
    /// it.
    clear_again: bool,
}

impl ForgottenRefresher {
    pub(super) fn new(
        store: &Arc<SqliteStore>,
        caches: &ConversationCaches,
        audit: Option<Audit>,
    ) -> Self {
        Self {
            store: Arc::clone(store),
            caches: caches.clone(),
            audit,
            known_version: TombstoneVersion::default(),
            clear_again: false,
        }
    }

    /// If the store does not answer, nothing changes; `database::watch` reports it.
    pub(super) async fn refresh(&mut self) {
        // What is not stored is tried again with the next refresh.
        let _unsaved = self.store.save_tombstones().await;
        let Ok(version) = self.store.refresh_tombstones().await else {
            return;
        };
        let changed = std::mem::replace(&mut self.known_version, version) != version;
        if changed || self.clear_again {
            self.caches.clear();
        }
        self.clear_again = changed;
        if changed {
            self.audit_receipts().await;
        }
    }

    async fn audit_receipts(&self) {
        let receipts = self.store.receipts().await.unwrap_or_default();
        let new = receipts
            .into_iter()
            .filter(|receipt| receipt.done && !receipt.audited);
        for receipt in new {
            let (id, line) = (receipt.id, record(receipt));
            tracing::info!(
                receipt = id,
                subject = line.subject,
                lifted = line.lifted,
                "an operator has had a {} forgotten",
                line.forgot
            );
            if let Some(audit) = &self.audit {
                audit.forgotten(line);
                audit.flush().await;
            }
            // If this fails, the line is written again with the next change.
            let _unmarked = self.store.mark_audited(id).await;
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
        let _lost = self.store.save_tombstones().await;
    }
}

fn record(receipt: Receipt) -> ForgottenRecord {
    let at_ms = receipt.lifted_ms.unwrap_or(receipt.at_ms);
    ForgottenRecord {
        time: Timestamp::from_millisecond(at_ms).unwrap_or_default(),
        forgot: receipt.kind,
        receipt: receipt.id,
        subject: receipt.subject,
        tenant: receipt.tenant,
        deleted: receipt.counts,
        lifted: receipt.lifted_ms.is_some(),
    }
}
