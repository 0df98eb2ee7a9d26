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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::fault_tests;
    use super::*;
    use crate::history::{AnswerHash, History, Link};
    use crate::store::forgotten::{Tombstone, link_mark};

    /// A model may say the same in a forgotten conversation and in a new one. The new one is recorded.
    #[test]
    fn a_repeated_answer_is_recorded_although_a_forgotten_conversation_has_it() {
        let held = HeldTombstones::default();
        let (scope, _, mut record) = fault_tests::request("hello", 1);
        let root = Link::root(&scope);
        let text = "I am the assistant of Example. ".repeat(10);
        let greeting = AnswerHash::from_text(&Pepper::NONE, &root, &text);
        let history = Arc::new(History::chain(&scope, Vec::new()));
        record.lookup_entries.answer = Some((greeting, history));
        let forgotten = Link::root(&Scope::new(b"forgotten", None));
        held.tombstones.replace(&[Tombstone {
            owner: *root.as_bytes(),
            mark: Some(link_mark(&forgotten)),
            receipt: 1,
        }]);
        held.tombstones.add_answer(&scope, &greeting.text, 1);
        let batch = [(scope, record)];
        assert_eq!(held.covered(&batch), [false]);
        let parent = RequestRecord {
            parent: forgotten,
            ..batch[0].1.clone()
        };
        assert_eq!(held.covered(&[(batch[0].0.clone(), parent)]), [true]);
    }
}
