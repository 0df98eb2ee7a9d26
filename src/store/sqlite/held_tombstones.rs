//! The tombstones as this process holds them, and when they were read. Another process writes them: the command
//! line. Every recording compares first, inside its own transaction, so nothing that was forgotten is recorded.

use std::sync::{Mutex, PoisonError};

use sqlx::sqlite::SqliteConnection;

use super::forgotten;
use crate::history::{Pepper, Scope};
use crate::store::{RequestRecord, StoreResult, TombstoneVersion, Tombstones};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HeldTombstones {
    pub(super) tombstones: Tombstones,
    /// Their version when they were read.
    version: Mutex<TombstoneVersion>,
}

impl HeldTombstones {
    /// None yet, of a database with this pepper.
    pub(super) fn new(pepper: Pepper) -> Self {
        Self {
            tombstones: Tombstones::new(pepper),
            version: Mutex::default(),
        }
    }

    /// Reads the tombstones, if they have changed. Returns their version.
    pub(super) async fn refresh(
        &self,
        conn: &mut SqliteConnection,
    ) -> StoreResult<TombstoneVersion> {
        let now = forgotten::tombstone_version(&mut *conn).await?;
        if now != *self.version.lock().unwrap_or_else(PoisonError::into_inner) {
            self.tombstones.replace(&forgotten::tombstones(conn).await?);
            *self.version.lock().unwrap_or_else(PoisonError::into_inner) = now;
        }
        Ok(now)
    }

    /// Which of these requests belong to something that was forgotten.
    pub(super) fn covered(&self, batch: &[(Scope, RequestRecord)]) -> Vec<bool> {
        let covers =
            |(scope, record): &(Scope, RequestRecord)| self.tombstones.cover_record(scope, record);
        batch.iter().map(covers).collect()
    }
}
