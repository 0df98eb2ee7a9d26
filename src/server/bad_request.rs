//! Answers to requests whose head could not be read: hyper refuses them by itself, with a status and no word.
//!
//! Decides which of the bytes that hyper writes are such an answer, and puts one in its place that says what to
//! do. What that is, `proxy::respond` says, as for every error. Never touches an answer to a request that was
//! read: hyper writes its own only where nothing of those is left to be written. Called by the client's stream.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;

use super::activity::Activity;
use crate::proxy::respond;

/// The bare answers of one connection.
#[derive(Debug)]
pub(super) struct BadRequestAnswer {
    activity: Arc<Activity>,
    max_head_bytes: usize,
}

impl BadRequestAnswer {
    pub(super) fn new(activity: Arc<Activity>, max_head_bytes: usize) -> Self {
        Self {
            activity,
            max_head_bytes,
        }
    }

    /// What goes out instead of `written`, where that is an answer of hyper's own.
    pub(super) fn replacement_for(&self, written: &[u8]) -> Option<Bytes> {
        let status = bare_status(written)?;
        if self.activity.may_be_answer() {
            return None;
        }
        respond::bad_request(status, self.max_head_bytes)
    }

    /// Everything that hyper had to write is written.
    pub(super) fn flushed(&self) {
        self.activity.flushed();
    }
}

/// The status of an answer that is nothing but a head and closes the connection, if `written` is one.
fn bare_status(written: &[u8]) -> Option<StatusCode> {
    let line = written.strip_prefix(b"HTTP/1.1 ")?;
    let ends = written.ends_with(b"\r\ncontent-length: 0\r\n\r\n");
    StatusCode::from_bytes(line.get(..3)?).ok().filter(|_| ends)
}
