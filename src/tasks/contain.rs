//! A panic ends the task that it happens in, and nothing else.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;

/// Runs `future`. If it panics, `name` is logged.
// Not an `async fn`: that has room for its argument twice, once as it is passed and once as it runs.
pub(super) fn contain(
    name: &'static str,
    future: impl Future<Output = ()>,
) -> impl Future<Output = ()> {
    AssertUnwindSafe(future).catch_unwind().map(move |ended| {
        // The payload of a panic may quote a request, so only the name is logged. The panic hook has already
        // written the place.
        if ended.is_err() {
            tracing::error!(task = name, "the task `{name}` panicked and was ended");
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task of an HTTP/2 request once took 143 KB, since each `async fn` around its future had room for it twice.
    #[test]
    fn a_contained_future_has_no_second_copy_in_memory() {
        const BYTES: usize = 4096;
        let future = async {
            let bytes = [1_u8; BYTES];
            std::future::ready(()).await;
            assert!(bytes.iter().all(|byte| *byte == 1));
        };
        let alone = size_of_val(&future);
        assert!(alone > BYTES);
        assert!(size_of_val(&contain("name", future)) < alone + 100);
    }
}
