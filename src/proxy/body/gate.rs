//! A body nobody may read yet: the client waits for `100 Continue`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::upstream::{BoxError, RequestBody};

/// A body that is not asked for a frame before its gate opens. hyper sends the client a
/// `100 Continue` with the first question, so this is what carries the upstream's consent back.
pub(in crate::proxy) struct GatedBody {
    body: RequestBody,
    gate: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl GatedBody {
    pub(in crate::proxy) fn new(
        body: RequestBody,
        gate: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        Self {
            body,
            gate: Some(Box::pin(gate)),
        }
    }
}

impl Body for GatedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(gate) = &mut self.gate {
            ready!(gate.as_mut().poll(cx));
            self.gate = None;
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
