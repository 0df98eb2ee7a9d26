//! A bounded queue with a share for each account. Nobody waits to put something in.
//!
//! An account may hold as much as it leaves free for others: one alone half of the queue, two a third each, and so on.
//! So one account alone cannot fill the queue: others find half of it free. No share has to be set. Takes out in turn,
//! one of each account, and keeps the order within an account. Knows nothing of what it holds. Used by
//! [`super::intake`].

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

type Account = [u8; 32];

struct Entry<T> {
    item: T,
    size: usize,
}

struct State<T> {
    /// The accounts with something to take out, the next one first.
    turns: VecDeque<Account>,
    waiting: HashMap<Account, VecDeque<Entry<T>>>,
    /// What each account holds: what waits, and what was taken out and is not given back.
    held: HashMap<Account, usize>,
    /// The items whose room is not free again.
    count: u64,
    free: usize,
    closed: bool,
}

/// The queue. Clones share it.
pub(super) struct FairQueue<T> {
    state: Arc<Mutex<State<T>>>,
    filled: Arc<Notify>,
}

impl<T> Clone for FairQueue<T> {
    fn clone(&self) -> Self {
        Self {
            state: Arc::clone(&self.state),
            filled: Arc::clone(&self.filled),
        }
    }
}

impl<T> std::fmt::Debug for FairQueue<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FairQueue")
            .field("free", &self.lock().free)
            .finish_non_exhaustive()
    }
}

/// The room of one item. It is free again when this is dropped.
pub(super) struct Slot<T> {
    queue: FairQueue<T>,
    account: Account,
    pub(super) size: usize,
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.free += self.size;
        state.count -= 1;
        if let Some(held) = state.held.get_mut(&self.account) {
            *held -= self.size;
            if *held == 0 {
                state.held.remove(&self.account);
            }
        }
    }
}

impl<T> FairQueue<T> {
    /// A queue that holds items of `size` in all.
    pub(super) fn new(size: usize) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                turns: VecDeque::new(),
                waiting: HashMap::new(),
                held: HashMap::new(),
                count: 0,
                free: size,
                closed: false,
            })),
            filled: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size of what may still be put in, by all together.
    pub(super) fn free(&self) -> usize {
        self.lock().free
    }

    /// How many items were put in and are not done.
    pub(super) fn count(&self) -> u64 {
        self.lock().count
    }

    /// Puts an item in. `false` if the account's share is used up, or the queue is closed.
    pub(super) fn push(&self, account: Account, size: usize, item: T) -> bool {
        let mut state = self.lock();
        let held = state.held.get(&account).copied().unwrap_or(0);
        if state.closed || size > state.free || held > 0 && held + size > state.free {
            return false;
        }
        state.free -= size;
        state.count += 1;
        *state.held.entry(account).or_default() += size;
        let waiting = state.waiting.entry(account).or_default();
        waiting.push_back(Entry { item, size });
        if waiting.len() == 1 {
            state.turns.push_back(account);
        }
        drop(state);
        self.filled.notify_one();
        true
    }

    /// Takes out up to `most` items, one of each account in turn. The one with which they reach `max_size` is the last.
    fn take(&self, most: usize, max_size: usize) -> Vec<(T, Slot<T>)> {
        let mut state = self.lock();
        let (mut taken, mut taken_size) = (Vec::new(), 0);
        while taken.len() < most
            && taken_size < max_size
            && let Some(account) = state.turns.pop_front()
        {
            let Some(waiting) = state.waiting.get_mut(&account) else {
                continue;
            };
            if let Some(Entry { item, size }) = waiting.pop_front() {
                let queue = self.clone();
                taken_size += size;
                taken.push((
                    item,
                    Slot {
                        queue,
                        account,
                        size,
                    },
                ));
            }
            if waiting.is_empty() {
                state.waiting.remove(&account);
            } else {
                state.turns.push_back(account);
            }
        }
        taken
    }

    /// Takes out up to `most` items, or as many as reach `max_size`, and waits until there is one. Empty only if the queue is
    /// closed. There is one reader.
    pub(super) async fn recv(&self, most: usize, max_size: usize) -> Vec<(T, Slot<T>)> {
        loop {
            // Before the look: what was put in before the queue was closed is still taken out.
            let closed = self.lock().closed;
            let taken = self.take(most, max_size);
            if !taken.is_empty() || closed {
                return taken;
            }
            // A push between the two is not missed: `notify_one` is remembered.
            self.filled.notified().await;
        }
    }

    /// Takes nothing in any more. What waits can still be taken out.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOD: Account = [1; 32];
    const OTHER: Account = [2; 32];

    fn items(taken: &[(u32, Slot<u32>)]) -> Vec<u32> {
        taken.iter().map(|(item, _)| *item).collect()
    }

    #[test]
    fn one_flooding_account_leaves_room_for_other_accounts() {
        let queue = FairQueue::new(12);
        let flooded = (0..100).filter(|item| queue.push(FLOOD, 1, *item)).count();
        assert_eq!(flooded, 6, "half of it");
        assert!(queue.push(OTHER, 6, 0), "even something large");
        assert!(!queue.push(OTHER, 1, 0));
        assert_eq!(queue.free(), 0);
    }

    #[test]
    fn many_flooding_accounts_leave_room_for_one_more() {
        let queue = FairQueue::new(1000);
        for account in 1..=9 {
            while queue.push([account; 32], 1, 0) {}
        }
        assert!(queue.free() > 0);
        assert!(queue.push([10; 32], 1, 0));
    }

    #[tokio::test]
    async fn accounts_take_turns_and_each_keeps_its_order() {
        let queue = FairQueue::new(100);
        for item in 0..5 {
            assert!(queue.push(FLOOD, 1, item));
        }
        for item in 10..12 {
            assert!(queue.push(OTHER, 1, item));
        }
        assert_eq!(items(&queue.recv(3, 100).await), [0, 10, 1]);
        assert_eq!(items(&queue.recv(100, 100).await), [11, 2, 3, 4]);
    }

    /// A flood of large items is no longer turn than one item.
    #[tokio::test]
    async fn a_batch_ends_when_it_reaches_its_size_limit() {
        let queue = FairQueue::new(100);
        for item in 0..3 {
            assert!(queue.push(FLOOD, 9, item));
        }
        assert!(queue.push(OTHER, 1, 10));
        assert_eq!(items(&queue.recv(100, 4).await), [0]);
        assert_eq!(items(&queue.recv(100, 4).await), [10, 1]);
        assert_eq!(items(&queue.recv(100, 4).await), [2]);
    }

    #[tokio::test]
    async fn room_is_held_until_the_item_is_done() {
        let queue = FairQueue::new(4);
        assert!(queue.push(FLOOD, 2, 1));
        assert!(!queue.push(FLOOD, 1, 2));
        let taken = queue.recv(1, 100).await;
        assert!(!queue.push(FLOOD, 1, 2), "it is being worked on");
        assert_eq!(queue.count(), 1);
        drop(taken);
        assert_eq!(queue.count(), 0);
        assert!(queue.push(FLOOD, 2, 2));
        queue.close();
        assert!(!queue.push(OTHER, 1, 3));
        assert_eq!(items(&queue.recv(9, 100).await), [2]);
        assert!(queue.recv(9, 100).await.is_empty(), "closed and empty");
    }

    #[tokio::test]
    async fn a_push_wakes_a_waiting_reader() {
        let queue = FairQueue::new(4);
        let (taken, pushed) = tokio::join!(queue.recv(1, 100), async {
            tokio::task::yield_now().await;
            queue.push(FLOOD, 1, 7)
        });
        assert!(pushed);
        assert_eq!(items(&taken), [7]);
    }
}
