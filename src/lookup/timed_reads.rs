//! Reads of the store with a limit of time. A store that hangs would cost each request that limit, again and again: after
//! a few reads without an answer only one request at a time waits for it, until it answers. The others are served with
//! what this process knows (INV-OPEN). The look-up of a large request is slow by itself, so it says nothing of the store
//! if it has no answer in time. Used by [`super::query`] only.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::store::StoreError;

/// The store hangs after this many reads in a row without an answer in time. One slow read is not enough: a busy disk
/// has them.
const HANGS_AFTER: u32 = 3;

#[derive(Debug)]
pub(super) struct TimedReads {
    pub(super) timeout: Duration,
    /// Reads in a row that had no answer in time.
    unanswered: AtomicU32,
    /// A request waits for a store that hangs.
    probed: AtomicBool,
}

impl TimedReads {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            unanswered: AtomicU32::new(0),
            probed: AtomicBool::new(false),
        }
    }

    /// The result of `query`, which `is_large` if it may take long where the store does not hang.
    ///
    /// # Errors
    /// That of the query, or that there is none in time.
    pub(super) async fn read<T>(
        &self,
        is_large: bool,
        query: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let hangs = self.unanswered.load(Ordering::Relaxed) >= HANGS_AFTER;
        let _probe = if hangs {
            let probe = if is_large {
                None
            } else {
                Probe::begin(&self.probed)
            };
            Some(probe.ok_or_else(|| StoreError::Busy("the store hangs".to_owned()))?)
        } else {
            None
        };
        if let Ok(answer) = tokio::time::timeout(self.timeout, query).await {
            self.unanswered.store(0, Ordering::Relaxed);
            return answer;
        }
        if !is_large {
            self.unanswered.fetch_add(1, Ordering::Relaxed);
        }
        let timeout = self.timeout;
        Err(StoreError::Busy(format!("no answer within {timeout:?}")))
    }
}

/// The one request that waits for a store that hangs.
struct Probe<'a>(&'a AtomicBool);

impl<'a> Probe<'a> {
    /// `None` if another request waits already.
    fn begin(probed: &'a AtomicBool) -> Option<Self> {
        let was_probed = probed.swap(true, Ordering::AcqRel);
        (!was_probed).then_some(Self(probed))
    }
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::task::{Context, Poll, Waker};

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(250);

    #[tokio::test(start_paused = true)]
    async fn one_request_at_a_time_waits_for_a_store_that_hangs() {
        let reads = TimedReads::new(TIMEOUT);
        for _ in 0..HANGS_AFTER {
            assert!(reads.read(false, pending::<Result<(), _>>()).await.is_err());
        }
        // A large one is not the request that waits.
        let large = reads.read(true, ready(Ok(())));
        assert!(large.await.is_err());
        let mut waiting = Box::pin(reads.read(false, pending::<Result<(), _>>()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        // Its own query would have an answer, and is not made.
        let start = tokio::time::Instant::now();
        assert!(reads.read(false, ready(Ok(()))).await.is_err());
        assert_eq!(start.elapsed(), Duration::ZERO, "it does not wait");
        // A client that leaves lets the next one try.
        drop(waiting);
        assert!(reads.read(false, ready(Ok(()))).await.is_ok());
        assert!(
            reads.read(false, ready(Ok(()))).await.is_ok(),
            "the store is back"
        );
        let mut both = [
            reads.read(false, pending()),
            reads.read(false, pending::<Result<(), _>>()),
        ]
        .map(Box::pin);
        for read in &mut both {
            let polled: Poll<_> = read.as_mut().poll(&mut context);
            assert!(polled.is_pending(), "both wait again");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn large_reads_do_not_make_the_store_count_as_hanging() {
        let reads = TimedReads::new(TIMEOUT);
        for _ in 0..HANGS_AFTER * 10 {
            let large = reads.read(true, pending::<Result<(), _>>());
            assert!(large.await.is_err());
        }
        let others = [(); 2].map(|()| Box::pin(reads.read(false, pending::<Result<(), _>>())));
        let mut context = Context::from_waker(Waker::noop());
        for mut other in others {
            assert!(other.as_mut().poll(&mut context).is_pending());
        }
    }
}
