//! Tasks that end after all others: connections to the upstream, whose end would look to a task like a fault of the
//! upstream, and the writer of the audit, which still gets lines while tasks end. Kept by [`super::Tasks`].

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::contain::contain;

/// A cheap handle to the outlasting tasks and to their signal.
#[derive(Clone, Debug, Default)]
pub struct Outlasting {
    tracker: TaskTracker,
    ended: CancellationToken,
}

impl Outlasting {
    /// Starts a task on the current runtime. If it panics, `name` is logged.
    pub fn spawn<F>(&self, name: &'static str, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tracker.spawn(contain(name, future));
    }

    /// Cancelled when all other tasks have ended, or have had their time.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// Gives the signal and waits for every outlasting task, at most `grace`. Returns the number of those that did not
    /// end.
    pub(super) async fn end(&self, grace: Duration) -> usize {
        self.ended.cancel();
        self.tracker.close();
        let waited = tokio::time::timeout(grace, self.tracker.wait()).await;
        if waited.is_ok() {
            0
        } else {
            self.tracker.len()
        }
    }
}

/// Lets hyper start the tasks of its pooled connections.
impl<F> hyper::rt::Executor<F> for Outlasting
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        let ended = self.token();
        self.spawn("upstream connection", async move {
            ended.run_until_cancelled_owned(future).await;
        });
    }
}
