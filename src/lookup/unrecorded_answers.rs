//! Answers that the client has and the store does not know yet. A client that summarises sends the summary back at once,
//! a few milliseconds after it got it, in place of what it summarises: the look-up waits until the exchange is recorded,
//! because only the store knows which conversation it continues.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::hash_tables::HashKeyMap;
use crate::history::ScopedHash;

/// The texts of these answers, each with the number of exchanges in progress that have it.
#[derive(Debug, Default)]
pub(super) struct UnrecordedAnswers {
    counts: Mutex<HashKeyMap<ScopedHash, u32>>,
    /// Wakes those who wait, whenever an exchange is done.
    changed: Notify,
    /// Whether somebody waited in vain and nothing was recorded since.
    is_recorder_slow: AtomicBool,
}

impl UnrecordedAnswers {
    fn counts(&self) -> MutexGuard<'_, HashKeyMap<ScopedHash, u32>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_recorder_slow(&self) -> bool {
        self.is_recorder_slow.load(Ordering::Relaxed)
    }

    pub(super) fn set_recorder_slow(&self, is_slow: bool) {
        self.is_recorder_slow.store(is_slow, Ordering::Relaxed);
    }

    /// Waits until none of `answers` belongs to an exchange in progress.
    pub(super) async fn wait_for(&self, answers: impl Iterator<Item = ScopedHash> + Clone) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            let is_in_progress = {
                let counts = self.counts();
                answers.clone().any(|answer| counts.contains_key(&answer))
            };
            if !is_in_progress {
                return;
            }
            changed.await;
        }
    }
}

/// The answers of one exchange, from before their last byte goes to the client until the exchange is recorded, or is
/// known not to be recorded: then the last clone is dropped.
#[derive(Clone, Debug)]
pub struct AnswersInProgress(Arc<Held>);

#[derive(Debug)]
struct Held {
    all: Arc<UnrecordedAnswers>,
    own: Mutex<Vec<ScopedHash>>,
}

impl AnswersInProgress {
    pub(super) fn new(all: &Arc<UnrecordedAnswers>) -> Self {
        Self(Arc::new(Held {
            all: Arc::clone(all),
            own: Mutex::default(),
        }))
    }

    /// Adds an answer.
    pub fn add(&self, answer: ScopedHash) {
        let mut own = self.0.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.push(answer);
        *self.0.all.counts().entry(answer).or_default() += 1;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let own = self.own.get_mut().unwrap_or_else(PoisonError::into_inner);
        if own.is_empty() {
            return;
        }
        let mut counts = self.all.counts();
        for answer in own.drain(..) {
            if let Some(count) = counts.get_mut(&answer) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&answer);
                }
            }
        }
        drop(counts);
        self.all.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;
    use crate::history::{Link, Pepper, Scope};

    fn hash(text: &str) -> ScopedHash {
        let root = Link::root(&Scope::new(b"alice", None));
        ScopedHash::from_text(&Pepper::NONE, &root, text)
    }

    #[tokio::test]
    async fn a_lookup_waits_until_every_exchange_with_the_answer_is_recorded() {
        let all = Arc::new(UnrecordedAnswers::default());
        let [first, second] = [(); 2].map(|()| AnswersInProgress::new(&all));
        first.add(hash("summary"));
        second.add(hash("summary"));
        second.add(hash("other"));
        all.wait_for([hash("unknown")].into_iter()).await;
        let mut waits = std::pin::pin!(all.wait_for([hash("summary")].into_iter()));
        assert!(poll!(waits.as_mut()).is_pending());
        let clone = first.clone();
        drop(first);
        assert!(poll!(waits.as_mut()).is_pending(), "a clone is left");
        drop(clone);
        assert!(
            poll!(waits.as_mut()).is_pending(),
            "the second one is in progress"
        );
        drop(second);
        assert!(poll!(waits.as_mut()).is_ready());
        assert!(all.counts().is_empty());
    }
}
