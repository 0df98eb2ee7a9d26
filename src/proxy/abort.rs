//! Telling a client that a transfer was cut where its protocol has no word for it.
//!
//! HTTP/1.1 and 2 mark the end of a body, so that a missing mark tells of the cut. An HTTP/1.0
//! client reads until the connection closes; only a reset distinguishes a cut from an end. `server`
//! makes one [`ResetOnClose`] for each connection and hands it along with every request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Version;
use http::request::Parts;

/// A connection's wish to be closed with a reset. Travels in the extensions of its requests.
#[derive(Clone, Debug, Default)]
pub struct ResetOnClose(Arc<AtomicBool>);

impl ResetOnClose {
    /// Whether the connection has to be reset.
    #[must_use]
    pub fn is_wished(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What to do when a response breaks off.
#[derive(Debug)]
pub(super) struct Abort(Option<ResetOnClose>);

impl Abort {
    pub(super) fn for_client(parts: &Parts) -> Self {
        let needs_reset = parts.version < Version::HTTP_11;
        Self(parts.extensions.get().filter(|_| needs_reset).cloned())
    }

    pub(super) fn now(&self) {
        if let Some(ResetOnClose(wish)) = &self.0 {
            wish.store(true, Ordering::Release);
        }
    }
}
