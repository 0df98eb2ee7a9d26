//! Bodies of requests and responses: streamed, read whole, or guarded. Never changes a byte.

mod discard;
mod gate;
mod idle;
mod prepend;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{Empty, Full, StreamBody};
use hyper::body::Incoming;

pub(super) use self::discard::discard;
pub(super) use self::gate::GatedBody;
pub use self::idle::{IdleTimeout, Pace, Stalled};
use self::prepend::PrependedBody;
use super::error::ProxyError;
use crate::upstream::{BoxError, RequestBody, cause};

/// A body on its way to the client. An error aborts the transfer: the client never sees a clean end.
pub type ProxyBody = UnsyncBoxBody<Bytes, BoxError>;

/// A request's body on its way to the upstream.
#[derive(Debug)]
pub enum OutBody {
    /// Streamed from the client, frame by frame, with trailers.
    Stream(IdleTimeout<Incoming>),
    /// Read before; sent in pieces, with an exact length.
    Segments(Vec<Bytes>),
    /// No body, and no header about one.
    Empty,
}

impl OutBody {
    /// Whether there is nothing to send.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Stream(body) => body.is_end_stream(),
            Self::Segments(segments) => segments.iter().all(Bytes::is_empty),
            Self::Empty => true,
        }
    }

    pub(super) fn boxed(self) -> RequestBody {
        match self {
            Self::Stream(body) => body.boxed_unsync(),
            Self::Segments(segments) => SegmentsBody::new(segments)
                .map_err(|never| match never {})
                .boxed_unsync(),
            Self::Empty => empty(),
        }
    }
}

/// A body of one piece.
pub fn full(bytes: Bytes) -> ProxyBody {
    Full::new(bytes)
        .map_err(|never| match never {})
        .boxed_unsync()
}

pub fn empty() -> ProxyBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// Keeps `guard` until the body has ended or is dropped.
pub fn with_guard<T: Send + Unpin + 'static>(body: ProxyBody, guard: T) -> ProxyBody {
    GuardedBody {
        body,
        _guard: guard,
    }
    .boxed_unsync()
}

/// Reads a body whole. Never holds more than `limit` bytes and one frame. `has_room` is asked before it holds more
/// than was announced, with the number of bytes in all. `on_data` gets what was
/// read so far, after every piece.
///
/// # Errors
/// [`ProxyError::BodyWithoutRoom`] if there is no room; [`ProxyError::BodyTooLarge`] as soon as the limit is exceeded, or at once if the announced length exceeds it;
/// [`ProxyError::BodyStalled`] or [`ProxyError::BodyBroken`] if the body does not end.
pub async fn read_bounded<B>(
    body: B,
    limit: usize,
    mut has_room: impl FnMut(usize) -> bool,
    mut on_data: impl FnMut(&[u8]),
) -> Result<Bytes, ProxyError>
where
    B: Body<Data = Bytes, Error = BoxError>,
{
    let announced = body.size_hint().lower();
    if announced > limit as u64 {
        return Err(ProxyError::BodyTooLarge { limit });
    }
    let mut body = std::pin::pin!(body);
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(body_error)?.into_data() else {
            continue;
        };
        if read.len() + data.len() > limit {
            return Err(ProxyError::BodyTooLarge { limit });
        }
        if !has_room(read.len() + data.len()) {
            return Err(ProxyError::BodyWithoutRoom);
        }
        if read.is_empty() && body.is_end_stream() {
            on_data(&data);
            return Ok(data);
        }
        if read.is_empty() {
            // The system gives the pages only as bytes arrive. To grow step by step would hold the body twice.
            read.reserve(usize::try_from(announced).unwrap_or_default());
        }
        read.extend_from_slice(&data);
        on_data(&read);
    }
    Ok(read.freeze())
}

/// Reads about `limit` bytes of a body, or all of it. Returns the bytes read, and the rest; [`prepend()`] makes the
/// body of both again.
pub(super) async fn peek(mut body: ProxyBody, limit: usize) -> (Bytes, Option<ProxyBody>) {
    let mut read = BytesMut::new();
    while read.len() < limit {
        match body.frame().await {
            None => return (read.freeze(), None),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => read.extend_from_slice(&data),
                Err(trailers) => {
                    let rest = futures_util::stream::iter([Ok(trailers)]);
                    return (read.freeze(), Some(StreamBody::new(rest).boxed_unsync()));
                }
            },
            Some(Err(error)) => {
                let rest = futures_util::stream::iter([Err(error)]);
                return (read.freeze(), Some(StreamBody::new(rest).boxed_unsync()));
            }
        }
    }
    (read.freeze(), Some(body))
}

/// `read`, followed by what is left of its body.
pub(super) fn prepend(read: Bytes, rest: Option<ProxyBody>) -> ProxyBody {
    match rest {
        None => full(read),
        Some(rest) => PrependedBody::new(read, rest).boxed_unsync(),
    }
}

/// The error of a request's body that failed.
pub(super) fn body_error(error: BoxError) -> ProxyError {
    if error.is::<Stalled>() {
        ProxyError::BodyStalled
    } else {
        ProxyError::BodyBroken(error)
    }
}

/// Like [`body_error`], for a failure that the client library has wrapped.
pub(super) fn wrapped_body_error(error: BoxError) -> ProxyError {
    match cause::<Stalled>(error.as_ref()) {
        Some(_) => ProxyError::BodyStalled,
        None => ProxyError::BodyBroken(error),
    }
}

/// Several pieces as one body of known length.
#[derive(Debug)]
struct SegmentsBody {
    remaining: std::vec::IntoIter<Bytes>,
    bytes_left: u64,
}

impl SegmentsBody {
    fn new(segments: Vec<Bytes>) -> Self {
        Self {
            bytes_left: segments.iter().map(|segment| segment.len() as u64).sum(),
            remaining: segments.into_iter(),
        }
    }
}

impl Body for SegmentsBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = self.remaining.find(|segment| !segment.is_empty());
        if let Some(segment) = &next {
            self.bytes_left -= segment.len() as u64;
        }
        Poll::Ready(next.map(|segment| Ok(Frame::data(segment))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes_left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes_left)
    }
}

struct GuardedBody<T> {
    body: ProxyBody,
    _guard: T,
}

impl<T: Unpin> Body for GuardedBody<T> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    fn frames(pieces: &[&'static str]) -> impl Body<Data = Bytes, Error = BoxError> {
        let frames: Vec<Result<_, BoxError>> = pieces
            .iter()
            .map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes()))))
            .collect();
        StreamBody::new(stream::iter(frames))
    }

    #[tokio::test]
    async fn a_body_up_to_the_limit_is_read_and_one_byte_more_is_refused() {
        let read = read_bounded(frames(&["ab", "", "cd"]), 4, |_| true, |_| {})
            .await
            .unwrap();
        assert_eq!(read, "abcd");
        let error = read_bounded(frames(&["ab", "cde"]), 4, |_| true, |_| {})
            .await
            .unwrap_err();
        assert!(matches!(error, ProxyError::BodyTooLarge { limit: 4 }));
    }

    #[tokio::test]
    async fn an_announced_length_above_the_limit_is_refused_before_anything_is_read() {
        let unread = Full::new(Bytes::from_static(b"12345")).map_err(|never| match never {});
        assert!(matches!(
            read_bounded(unread, 4, |_| true, |_| {}).await,
            Err(ProxyError::BodyTooLarge { .. })
        ));
    }

    #[tokio::test]
    async fn a_body_that_breaks_is_not_taken_for_a_short_one() {
        let broken: Vec<Result<Frame<Bytes>, BoxError>> = vec![
            Ok(Frame::data(Bytes::from_static(b"ab"))),
            Err("reset".into()),
        ];
        let error = read_bounded(StreamBody::new(stream::iter(broken)), 9, |_| true, |_| {})
            .await
            .unwrap_err();
        assert!(matches!(error, ProxyError::BodyBroken(_)));
    }

    #[tokio::test]
    async fn segments_are_sent_in_order_with_their_exact_length() {
        let body = SegmentsBody::new(vec![
            Bytes::new(),
            Bytes::from("ab"),
            Bytes::new(),
            Bytes::from("c"),
        ]);
        assert_eq!(body.size_hint().exact(), Some(3));
        assert_eq!(body.collect().await.unwrap().to_bytes(), "abc");
        assert!(SegmentsBody::new(vec![Bytes::new()]).is_end_stream());
    }
}
