//! Where a process can be stopped: before and after every verb of its store.
//!
//! A closed gate lets one verb through for each permit, so two processes can be woven into each other
//! verb by verb, always in the same way. A process that is to die does so between two verbs, before
//! or after one took effect: the verb never returns, and whoever waits for it is dropped.

use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::task::Poll;

use tokio::sync::{Notify, Semaphore};

use crate::support::dice::Dice;

/// One process's gate.
#[derive(Debug)]
pub struct Gate {
    closed: AtomicBool,
    waiting: AtomicBool,
    permits: Semaphore,
    /// Passages until the process dies; negative for never.
    left: AtomicI64,
    died: Notify,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            closed: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            permits: Semaphore::new(0),
            left: AtomicI64::new(-1),
            died: Notify::new(),
        }
    }
}

impl Gate {
    /// The process will die at its `passages`-th passage from now.
    pub fn die_after(&self, passages: i64) {
        self.left.store(passages, Ordering::SeqCst);
    }

    /// Before a verb.
    pub async fn enter(&self) {
        if self.closed.load(Ordering::SeqCst) {
            self.waiting.store(true, Ordering::SeqCst);
            self.permits.acquire().await.unwrap().forget();
            self.waiting.store(false, Ordering::SeqCst);
        }
        self.pass().await;
    }

    /// Between what a verb did and its answer.
    pub async fn leave(&self) {
        self.pass().await;
    }

    async fn pass(&self) {
        match self.left.load(Ordering::SeqCst) {
            left if left < 0 => {}
            0 => {
                self.died.notify_one();
                pending::<()>().await;
            }
            left => self.left.store(left - 1, Ordering::SeqCst),
        }
    }

    /// `step`, or `None` where the process died in the midst of it.
    pub async fn or_death<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = step => Some(done),
            () = self.died.notified() => None,
        }
    }

    fn is_blocked(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) && self.permits.available_permits() == 0
    }

    fn close(&self, closed: bool) {
        self.closed.store(closed, Ordering::SeqCst);
    }
}

/// Runs two steps of two processes, one verb at a time, in an order the dice say.
pub async fn weave<A, B>(
    a: (&Gate, impl Future<Output = A>),
    b: (&Gate, impl Future<Output = B>),
    dice: &mut Dice,
) -> (A, B) {
    let ((gate_a, a), (gate_b, b)) = (a, b);
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut done_a, mut done_b) = (None, None);
    gate_a.close(true);
    gate_b.close(true);
    while done_a.is_none() || done_b.is_none() {
        let first = match (&done_a, &done_b) {
            (None, None) => dice.chance(50),
            (None, _) => true,
            _ => false,
        };
        let gate = if first { gate_a } else { gate_b };
        gate.permits.add_permits(1);
        poll_fn(|cx| {
            if done_a.is_none()
                && let Poll::Ready(done) = a.as_mut().poll(cx)
            {
                done_a = Some(done);
            }
            if done_b.is_none()
                && let Poll::Ready(done) = b.as_mut().poll(cx)
            {
                done_b = Some(done);
            }
            let over = if first {
                done_a.is_some()
            } else {
                done_b.is_some()
            };
            if over || gate.is_blocked() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
    for gate in [gate_a, gate_b] {
        gate.close(false);
        // A step that ended without using its last permit leaves none behind.
        gate.permits.forget_permits(usize::MAX >> 8);
    }
    (done_a.unwrap(), done_b.unwrap())
}
