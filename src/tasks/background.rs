//! A runtime for the work that no client waits for, on threads of a lower priority.
//!
//! The recorder, the workers and the database's writer use as much processor time as a request does, or more. On the
//! threads of the requests they would delay them. Here the system gives them the time that requests leave. If requests
//! leave none, a background thread still gets about a quarter of a core that it shares with one busy thread of
//! requests. Made by `cli`, used through [`super::Tasks::spawn_background`].

use std::io;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

use super::yielding::yield_to_requests;
use crate::steps::call_after_steps;

/// The threads' nice value, on Linux: a third of the weight of a thread with the usual value 0. With 10, a tenth, hardly
/// anything was observed on a machine that was busy with something else.
#[cfg(target_os = "linux")]
const NICE: i32 = 5;

/// The runtime. It ends with this value.
#[derive(Debug)]
pub struct Background(Runtime);

impl Background {
    /// Starts the runtime. Other systems than Linux know no priority of a single thread: there it has the usual one.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn start() -> io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let runtime = Builder::new_multi_thread()
            // One core is enough for what the recorder and the workers do between two calls; long work has threads
            // of its own.
            .worker_threads(cores.min(2))
            .thread_name("background")
            .on_thread_start(let_requests_go_first)
            .enable_all()
            .build()?;
        Ok(Self(runtime))
    }

    /// The handle by which tasks are started on it.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.0.handle().clone()
    }

    /// Ends the runtime. Waits at most `limit` for what cannot be interrupted.
    pub fn shut_down(self, limit: Duration) {
        self.0.shutdown_timeout(limit);
    }
}

/// Lowers the priority of this thread, and of the threads that it starts: those of SQLite. Lets it offer its core between the
/// steps of computations.
fn let_requests_go_first() {
    call_after_steps(yield_to_requests);
    #[cfg(target_os = "linux")]
    {
        // 0 is this thread, not the process. A system that forbids it leaves the priority as it is.
        let _ = rustix::process::setpriority_process(None, NICE);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::steps::end_step;
    use crate::tasks::Tasks;
    use crate::tasks::yielding::has_yielded;

    #[expect(clippy::expect_used, reason = "called on threads of a test")]
    fn nice() -> i32 {
        rustix::process::getpriority_process(None).expect("a priority")
    }

    /// Also on a thread for blocking work, and on a thread that one of these starts, as SQLite's are.
    #[test]
    fn only_background_threads_have_a_low_priority() {
        let background = Background::start().expect("a runtime");
        let tasks = Tasks::new().with_background(background.handle());
        let front = Builder::new_multi_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let usual = nice();
        let (sender, found) = std::sync::mpsc::channel();
        front.block_on(async {
            let sender = sender.clone();
            let started = tasks.spawn_background("measures", async move {
                let blocking = tokio::task::spawn_blocking(nice).await.expect("it ends");
                let own = thread::spawn(nice).join().expect("it ends");
                sender.send([nice(), blocking, own]).expect("received");
            });
            started.await.expect("it ends");
        });
        assert_eq!(found.recv(), Ok([NICE; 3]));
        front.block_on(async {
            let started = tasks.spawn("measures", async move {
                let blocking = tokio::task::spawn_blocking(nice).await.expect("it ends");
                sender.send([nice(), blocking, usual]).expect("received");
            });
            started.await.expect("it ends");
        });
        assert_eq!(found.recv(), Ok([usual; 3]));
        background.shut_down(Duration::from_secs(1));
    }

    #[test]
    fn only_background_threads_yield_their_core_between_steps() {
        let background = Background::start().expect("a runtime");
        let work = || {
            end_step();
            has_yielded()
        };
        let blocking = background.handle().spawn_blocking(work);
        let found = background.handle().block_on(blocking);
        assert!(found.expect("it ends"));
        assert!(!work());
        background.shut_down(Duration::from_secs(1));
    }
}
