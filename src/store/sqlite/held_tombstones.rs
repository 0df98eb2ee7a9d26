//! The tombstones as this process holds them, and when they were read. Another process writes them: the command
//! line. Every recording compares first, inside its own transaction, so nothing that was forgotten is recorded.

use std::sync::{Mutex, PoisonError};

use sqlx::sqlite::SqliteConnection;

use super::forgotten::{self, TombstoneState};
use crate::history::Scope;
use crate::store::{RequestRecord, StoreResult, Tombstones};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HeldTombstones {
    pub(super) tombstones: Tombstones,
    /// The state of the receipts when they were read.
    state: Mutex<TombstoneState>,
}

impl HeldTombstones {
    /// Reads the tombstones, if they have changed. Returns whether that is so.
    pub(super) async fn refresh(&self, conn: &mut SqliteConnection) -> StoreResult<bool> {
        let now = forgotten::tombstone_state(&mut *conn).await?;
        if now == *self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(false);
        }
        self.tombstones.replace(forgotten::tombstones(conn).await?);
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = now;
        Ok(true)
    }

    /// Which of these requests belong to something that was forgotten.
    pub(super) fn covered(&self, batch: &[(Scope, RequestRecord)]) -> Vec<bool> {
        let covers =
            |(scope, record): &(Scope, RequestRecord)| self.tombstones.cover_record(scope, record);
        batch.iter().map(covers).collect()
    }
}
