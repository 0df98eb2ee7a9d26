//! Turns for the look-ups of large requests. Each takes a connection for up to a second. Without turns those of
//! one account would take all connections of the request path, and nobody else would be found. A tenant is not enough to
//! count by: one key makes many of them, with headers that the upstream ignores. Used by [`super::database`] only.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// At most so many at once: half of the connections of the request path.
const AT_ONCE: usize = 2;

/// One look-up of each account at a time, and a few of all. Accounts take turns: each has at most one that waits for
/// the places of all, and who waits longest comes first.
#[derive(Debug)]
pub(super) struct LargeReads {
    all: Arc<Semaphore>,
    accounts: Mutex<HashMap<[u8; 32], Arc<Semaphore>>>,
}

/// The turn of one look-up, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl LargeReads {
    pub(super) fn new() -> Self {
        Self {
            all: Arc::new(Semaphore::new(AT_ONCE)),
            accounts: Mutex::default(),
        }
    }

    /// Waits for the turn of a look-up of this account. `None` never happens while the store is open.
    pub(super) async fn turn(&self, account: [u8; 32]) -> Option<Turn> {
        let own = self.of_account(account).acquire_owned().await.ok()?;
        let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(Turn {
            _own: own,
            _all: all,
        })
    }

    fn of_account(&self, account: [u8; 32]) -> Arc<Semaphore> {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever waits or has its turn holds a second handle.
        accounts.retain(|_, turns| Arc::strong_count(turns) > 1);
        let turns = accounts.entry(account);
        Arc::clone(turns.or_insert_with(|| Arc::new(Semaphore::new(1))))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn an_account_has_at_most_one_large_read_at_a_time() {
        let reads = LargeReads::new();
        let first = reads.turn([1; 32]).now_or_never().flatten();
        assert!(first.is_some());
        for _ in 0..100 {
            assert!(reads.turn([1; 32]).now_or_never().is_none());
        }
        let mut waiting = Box::pin(reads.turn([1; 32]));
        assert!((&mut waiting).now_or_never().is_none());
        let other = reads.turn([2; 32]).now_or_never().flatten();
        assert!(other.is_some());
        assert!(
            reads.turn([3; 32]).now_or_never().is_none(),
            "as many as may"
        );
        drop(other);
        assert!(
            (&mut waiting).now_or_never().is_none(),
            "the other one of its account still runs"
        );
        drop(first);
        assert!(waiting.now_or_never().flatten().is_some());
        let all: Vec<_> = [4, 5, 6]
            .map(|account| reads.turn([account; 32]).now_or_never().flatten())
            .into();
        assert_eq!(all.iter().flatten().count(), AT_ONCE);
        assert_eq!(reads.accounts.lock().expect("its lock").len(), 3);
    }

    /// However many of one account wait, another one is next.
    #[tokio::test]
    async fn accounts_take_turns() {
        let reads = LargeReads::new();
        let first = reads.turn([1; 32]).now_or_never().flatten();
        let second = reads.turn([2; 32]).now_or_never().flatten();
        let mut flood: Vec<_> = (0..50).map(|_| Box::pin(reads.turn([1; 32]))).collect();
        for waiting in &mut flood {
            assert!(waiting.now_or_never().is_none());
        }
        let mut other = Box::pin(reads.turn([3; 32]));
        assert!((&mut other).now_or_never().is_none());
        drop(first);
        let mut started = 0;
        for waiting in &mut flood {
            started += usize::from(waiting.now_or_never().is_some());
        }
        assert_eq!(started, 0, "the other one came first to the places of all");
        assert!(other.now_or_never().flatten().is_some());
        drop(second);
    }
}
