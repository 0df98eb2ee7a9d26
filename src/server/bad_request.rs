//! Replaces the answers that hyper gives to a request whose head it cannot read: a status without a body.
//!
//! Decides which written bytes are such an answer. The replacement, with an explanation, comes from `proxy::respond`,
//! as for every error. Never touches an answer to a request that was read: hyper writes its own only if no such answer
//! is left to be written. Called by the client's stream.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;

use super::activity::Activity;
use crate::proxy::{Proxy, respond};

/// Recognises the bodiless answers of one connection.
#[derive(Debug)]
pub(super) struct BadRequestAnswer {
    activity: Arc<Activity>,
    max_head_bytes: usize,
    /// Notes them in its audit; `None` on the admin port.
    proxy: Option<Arc<Proxy>>,
}

impl BadRequestAnswer {
    pub(super) fn new(
        activity: Arc<Activity>,
        max_head_bytes: usize,
        proxy: Option<Arc<Proxy>>,
    ) -> Self {
        Self {
            activity,
            max_head_bytes,
            proxy,
        }
    }

    /// The bytes to write instead of `written`, if that is an answer of hyper's own.
    pub(super) fn replacement_for(&self, written: &[u8]) -> Option<Bytes> {
        let status = bare_status(written)?;
        if self.activity.may_be_answer() {
            return None;
        }
        let error = respond::unreadable_head(status, self.max_head_bytes)?;
        let (answer, body_bytes) = respond::bad_request(&error);
        if let Some(proxy) = &self.proxy {
            proxy.note_unreadable_head(&error, body_bytes);
        }
        Some(answer)
    }

    /// hyper has written everything.
    pub(super) fn flushed(&self) {
        self.activity.flushed();
    }
}

/// The status, if `written` is an answer with only a head, which closes the connection.
fn bare_status(written: &[u8]) -> Option<StatusCode> {
    let line = written.strip_prefix(b"HTTP/1.1 ")?;
    let ends = written.ends_with(b"\r\ncontent-length: 0\r\n\r\n");
    StatusCode::from_bytes(line.get(..3)?).ok().filter(|_| ends)
}
