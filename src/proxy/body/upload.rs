//! The body of a request that is forwarded unread, frame by frame.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::IdleTimeout;
use super::discard::Discard;
use crate::upstream::{BoxError, UploadClock};

/// A body on its way from the client to the upstream. If the upstream answers before it has read all of it, or cannot be
/// reached, the rest is thrown away, so that the client gets the answer.
#[derive(Debug)]
pub struct Upload {
    /// `None` when it has ended or failed.
    body: Option<IdleTimeout<Incoming>>,
    clock: UploadClock,
    discard: Option<Discard>,
}

impl Upload {
    pub(in crate::proxy) fn new(body: IdleTimeout<Incoming>, discard: Discard) -> Self {
        Self {
            body: Some(body),
            clock: UploadClock::default(),
            discard: Some(discard),
        }
    }

    /// Whether it is the client that is waited for, and since when it is not.
    pub(in crate::proxy) fn clock(&self) -> UploadClock {
        self.clock.clone()
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = Pin::new(body).poll_frame(cx);
        self.clock.set(frame.is_pending());
        let frame = ready!(frame);
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.body.as_ref();
        body.map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(body) = self.body.take()
            && !body.is_end_stream()
            && let Some(discard) = self.discard.take()
        {
            discard.run(body);
        }
    }
}
