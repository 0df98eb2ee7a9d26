//! A body of which the beginning was read before: it is what it was again.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// What was read, and then the rest.
///
/// It knows its end as the rest does: a server drops a body of announced length when that is written, and does not
/// ask for its end. A body that cannot tell would look like one whose client has left.
pub(super) struct PrependedBody<B> {
    read: Option<Bytes>,
    rest: B,
}

impl<B> PrependedBody<B> {
    pub(super) fn new(read: Bytes, rest: B) -> Self {
        let read = Some(read).filter(|read| !read.is_empty());
        Self { read, rest }
    }
}

impl<B> Body for PrependedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.read.take() {
            Some(read) => Poll::Ready(Some(Ok(Frame::data(read)))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.read.as_ref().map_or(0, |read| read.len() as u64);
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(read));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(read));
        }
        hint
    }
}
