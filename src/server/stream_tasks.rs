//! Starts the tasks of HTTP/2 streams, one for each request, with the limit for answers that are not read. hyper calls
//! it; [`super::connection`] gives it to hyper.

use std::future::Future;
use std::time::Duration;

use hyper::rt::Executor;

use crate::proxy::unread_answers;
use crate::tasks::Tasks;

#[derive(Clone, Debug)]
pub(super) struct StreamTasks {
    tasks: Tasks,
    write_timeout: Duration,
}

impl StreamTasks {
    pub(super) fn new(tasks: &Tasks, write_timeout: Duration) -> Self {
        Self {
            tasks: tasks.clone(),
            write_timeout,
        }
    }
}

impl<F> Executor<F> for StreamTasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.tasks
            .execute(unread_answers::limited(stream, self.write_timeout));
    }
}
