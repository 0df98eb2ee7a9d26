//! Runs work that takes milliseconds of processor time on the threads for blocking work. In one pool, at most half as
//! many long texts as the machine has cores are worked on at the same time, and as many short ones. The rest waits,
//! first come, first served.
//!
//! Without these bounds, a few large bodies, also with a bad key, would take all cores, and a gigabyte for what they
//! are parsed into. And work for many Observers would leave requests a small share of the processor, because each
//! thread gets a share of its own, however low its priority is. Short texts do not wait for long ones: otherwise one
//! account with large bodies would make the work of all others wait for seconds. `proxy` has one pool for bodies,
//! `jobs` another for what it does with what models write.

use std::sync::Arc;
use std::thread;

use tokio::sync::Semaphore;

/// The longest text, in bytes, that is short. Counting its tokens, the slowest work of the pool, takes about 10 ms.
const SHORT_BYTES: usize = 64 * 1_024;

/// The bounds on what runs at the same time.
#[derive(Clone, Debug)]
pub struct ComputePool {
    short_turns: Arc<Semaphore>,
    long_turns: Arc<Semaphore>,
}

impl Default for ComputePool {
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self::new(cores.div_ceil(2))
    }
}

impl ComputePool {
    fn new(threads: usize) -> Self {
        Self {
            short_turns: Arc::new(Semaphore::new(threads)),
            long_turns: Arc::new(Semaphore::new(threads)),
        }
    }

    /// Runs `work`, which reads about `bytes` of text, on a thread for blocking work of this runtime, when it is its turn.
    /// `None` if it panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let turns = if bytes <= SHORT_BYTES {
            &self.short_turns
        } else {
            &self.long_turns
        };
        let turn = Arc::clone(turns).acquire_owned().await.ok()?;
        let running = tokio::task::spawn_blocking(move || {
            // Held by the thread: the client may leave, but the work goes on.
            let _turn = turn;
            work()
        });
        running.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn the_pool_never_runs_more_work_than_it_has_threads() {
        let pool = ComputePool::new(2);
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut clients = Vec::new();
        for _ in 0..20 {
            let (pool, running, most) = (pool.clone(), Arc::clone(&running), Arc::clone(&most));
            clients.push(async move {
                let work = move || {
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    // Long enough that more of them would run at the same time if they could.
                    thread::park_timeout(std::time::Duration::from_millis(5));
                    running.fetch_sub(1, Ordering::SeqCst);
                };
                pool.run(0, work).await
            });
        }
        // One client leaves while its work waits or runs.
        let left = tokio::time::timeout(std::time::Duration::ZERO, clients.remove(0)).await;
        drop(left);
        let done = futures_util::future::join_all(clients).await;
        assert!(done.iter().all(Option::is_some));
        assert_eq!(most.load(Ordering::SeqCst), 2);
        assert_eq!(pool.run(0, || panic!("a fault")).await, None::<()>);
        assert_eq!(pool.run(0, || 1).await, Some(1), "its turn was given back");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn work_on_a_short_text_does_not_wait_for_work_on_long_ones() {
        let pool = ComputePool::new(1);
        let (begun, running) = tokio::sync::oneshot::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let long = pool.run(SHORT_BYTES + 1, move || {
            let _ = begun.send(());
            ended.recv()
        });
        let short = async {
            assert!(running.await.is_ok());
            let done = pool.run(SHORT_BYTES, || 1).await;
            drop(end);
            done
        };
        // If the short one waits for the long one, neither ends.
        let both = async { tokio::join!(long, short) };
        let done = tokio::time::timeout(std::time::Duration::from_mins(1), both).await;
        let (long, short) = done.unwrap();
        assert!(long.is_some());
        assert_eq!(short, Some(1));
    }
}
