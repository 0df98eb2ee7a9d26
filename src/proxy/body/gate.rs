//! A body that is not read before its gate opens: the client waits for `100 Continue`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::upstream::{BoxError, RequestBody};

/// A body that is not polled before its gate opens. hyper sends `100 Continue` to the client when it polls the
/// body first, so the gate opens when the upstream has agreed.
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
