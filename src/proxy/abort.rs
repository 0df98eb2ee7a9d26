//! Makes a broken transfer visible to a client whose protocol cannot show it.
//!
//! HTTP/1.1 and HTTP/2 mark the end of a body, so a missing mark shows the break. An HTTP/1.0 client reads until
//! the connection closes, so only a reset shows that the answer broke off. `server` makes one [`ResetOnClose`] for each
//! connection and passes it along with every request. In both cases, the client first gets what came before the
//! break: see [`Abort::guard`].

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Version;
use http::request::Parts;
use http_body::{Body, Frame, SizeHint};

use crate::upstream::BoxError;

/// Says that a connection is to be closed with a reset. Travels in the extensions of its requests.
#[derive(Clone, Debug, Default)]
pub struct ResetOnClose(Arc<AtomicBool>);

impl ResetOnClose {
    /// Whether the connection must be reset.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What to do if a response breaks off.
#[derive(Debug)]
pub(super) struct Abort(Option<ResetOnClose>);

impl Abort {
    pub(super) fn for_client(parts: &Parts) -> Self {
        let needs_reset = parts.version < Version::HTTP_11;
        Self(parts.extensions.get().filter(|_| needs_reset).cloned())
    }

    /// `body`, with its failure delayed until what came before could be written.
    ///
    /// As soon as a body fails, a server drops what it has not written yet, the head included; it writes when a body
    /// is pending. So a failure is held back for one poll. A client that reads slowly can still lose what did not
    /// fit into the buffers.
    pub(super) fn guard<B>(self, body: B) -> AbortOnError<B> {
        AbortOnError {
            body,
            abort: self,
            failure: None,
        }
    }

    fn request_reset(&self) {
        if let Some(ResetOnClose(requested)) = &self.0 {
            requested.store(true, Ordering::Release);
        }
    }
}

/// See [`Abort::guard`].
#[derive(Debug)]
pub(super) struct AbortOnError<B> {
    body: B,
    abort: Abort,
    failure: Option<BoxError>,
}

impl<B> Body for AbortOnError<B>
where
    B: Body<Data = Bytes, Error = BoxError> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(failure) = self.failure.take() {
            self.abort.request_reset();
            return Poll::Ready(Some(Err(failure)));
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Err(failure))) => {
                self.failure = Some(failure);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            other => other,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.failure.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http::Response;
    use http_body_util::StreamBody;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    // Piece and failure are both ready when the server polls: the failure would overtake the piece.
    #[tokio::test]
    async fn data_before_a_failure_is_sent_to_the_client() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        client
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let service = service_fn(|_| async {
            let piece = Ok(Frame::data(Bytes::from_static(b"abc")));
            let body = stream::iter([piece, Err(BoxError::from("cut"))]);
            let body = Abort(None).guard(StreamBody::new(body));
            Ok::<_, Infallible>(Response::new(body))
        });
        hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(server), service)
            .await
            .unwrap_err();
        let mut written = String::new();
        client.read_to_string(&mut written).await.unwrap();
        assert!(written.starts_with("HTTP/1.1 200 OK\r\n"), "{written:?}");
        assert!(written.ends_with("\r\n3\r\nabc\r\n"), "{written:?}");
    }
}
