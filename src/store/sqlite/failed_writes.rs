//! A full disk: decides when the journal is copied into the database after a write has failed.
//!
//! SQLite writes each commit behind the end of the journal, until the whole journal is copied. On a full disk the journal never
//! reaches the size at which SQLite copies it. Under steady traffic there is no pause in which [`super::database`] copies it. So the
//! journal would take all the room that the operator frees, and nothing would be recorded any more. Never waits for a connection,
//! and never reports an error. Called by [`super::database`] around each write.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::connections::Connections;
use super::shrink;
use crate::store::{StoreError, StoreResult};

/// While writes succeed again, the journal is copied once in this time: steady traffic then needs little more room than the database.
const COPY_EACH: Duration = Duration::from_secs(1);

/// Whether writes have failed since the journal was last emptied. Outlives one opening of the database, because after such an error
/// it is opened again.
#[derive(Debug, Default)]
pub(super) struct FailedWrites {
    /// When the journal is to be copied; `None` if no write has failed.
    next_copy: Mutex<Option<Instant>>,
}

impl FailedWrites {
    /// Notes how a write has ended. After a failed one the journal is copied before the next: later there may be no room for
    /// what the database has to grow by.
    pub(super) fn note<T>(&self, done: &StoreResult<T>) {
        if matches!(done, Err(StoreError::Unavailable(_))) {
            *self.next_copy() = Some(Instant::now());
        }
    }

    /// Notes that the journal is empty: its room is free.
    pub(super) fn end(&self) {
        *self.next_copy() = None;
    }

    /// Whether a write has failed since.
    pub(super) fn have_happened(&self) -> bool {
        self.next_copy().is_some()
    }

    /// Before a write: copies the journal if that is due. Waits for nobody: the next write tries again.
    pub(super) async fn copy_journal(&self, writer: &Connections) {
        let now = Instant::now();
        if self.next_copy().is_none_or(|next_copy| now < next_copy) {
            return;
        }
        let Some(mut conn) = writer.try_acquire() else {
            return;
        };
        *self.next_copy() = Some(now + COPY_EACH);
        // An error is that of the next write too, and is reported there.
        if shrink::copy_journal(&mut conn).await.is_ok() {
            conn.keep();
        }
    }

    fn next_copy(&self) -> MutexGuard<'_, Option<Instant>> {
        self.next_copy
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
