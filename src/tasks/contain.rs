//! A panic ends the task that it happens in, and nothing else.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;

/// Runs `future`. If it panics, `name` is logged.
pub(super) async fn contain(name: &'static str, future: impl Future<Output = ()>) {
    // The payload of a panic may quote a request, so only the name is logged. The panic hook has already written the
    // place.
    if AssertUnwindSafe(future).catch_unwind().await.is_err() {
        tracing::error!(task = name, "the task `{name}` panicked and was ended");
    }
}
