//! Bodies of requests and responses: streamed, read whole, or guarded. Never changes a byte.

mod discard;
mod gate;
mod idle;
mod prepend;
mod upload;

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{Empty, Full, StreamBody};
use tokio::time::Instant;

pub(super) use self::discard::Discard;
pub(super) use self::gate::GatedBody;
pub use self::idle::{IdleTimeout, Pace, Stalled};
use self::prepend::PrependedBody;
pub use self::upload::Upload;
use super::error::ProxyError;
use crate::upstream::{BoxError, RequestBody, UploadClock, cause};

/// A body on its way to the client. An error aborts the transfer: the client never sees a clean end.
pub type ProxyBody = UnsyncBoxBody<Bytes, BoxError>;

/// A request's body on its way to the upstream.
#[derive(Debug)]
pub enum OutBody {
    /// Streamed from the client, frame by frame, with trailers.
    Stream(Box<Upload>),
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

    /// Of a body that comes from the client while it is sent.
    pub(super) fn clock(&self) -> Option<UploadClock> {
        match self {
            Self::Stream(body) => Some(body.clock()),
            Self::Segments(_) | Self::Empty => None,
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

/// Reads a body up to its first byte that is not white space. Behind the first white space it waits no longer than
/// `patience`: servers send white space so that the client does not give up, and then it must reach the client.
pub(super) async fn peek_blank(body: ProxyBody, patience: Duration) -> (Bytes, Option<ProxyBody>) {
    /// More is no white space in front of anything.
    const LIMIT: usize = 4_096;
    let is_blank = |read: &[u8]| read.len() < LIMIT && read.trim_ascii_start().is_empty();
    peek_while(body, is_blank, Some(patience)).await
}

/// Reads about `limit` bytes of a body, and waits no longer than `patience` behind its first data. Returns the bytes read,
/// and the rest; [`prepend()`] makes the body of both again.
pub(super) async fn peek_for(
    body: ProxyBody,
    limit: usize,
    patience: Duration,
) -> (Bytes, Option<ProxyBody>) {
    peek_while(body, |read| read.len() < limit, Some(patience)).await
}

/// Like [`peek_for`], but waits no longer than `patience` in all.
pub(super) async fn peek_within(
    body: ProxyBody,
    limit: usize,
    patience: Duration,
) -> (Bytes, Option<ProxyBody>) {
    let until = Instant::now() + patience;
    peek_until(body, |read| read.len() < limit, Some(until), None).await
}

/// Reads a body while `wants_more` says so of what was read, and no longer than `patience` behind the first data.
async fn peek_while(
    body: ProxyBody,
    wants_more: impl Fn(&[u8]) -> bool,
    patience: Option<Duration>,
) -> (Bytes, Option<ProxyBody>) {
    peek_until(body, wants_more, None, patience).await
}

/// Reads a body while `wants_more` says so of what was read, and no longer than `until`, or than `patience` behind the
/// first data.
async fn peek_until(
    mut body: ProxyBody,
    wants_more: impl Fn(&[u8]) -> bool,
    mut until: Option<Instant>,
    patience: Option<Duration>,
) -> (Bytes, Option<ProxyBody>) {
    let mut read = BytesMut::new();
    while wants_more(&read) {
        let frame = match until {
            // Nothing is lost if it is dropped: it has read no frame then.
            Some(until) => match tokio::time::timeout_at(until, body.frame()).await {
                Ok(frame) => frame,
                Err(_elapsed) => break,
            },
            None => body.frame().await,
        };
        if until.is_none() {
            until = patience.map(|patience| Instant::now() + patience);
        }
        match frame {
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

    /// A body that announces so many bytes, and that nobody may read.
    struct Announced(u64);

    impl Body for Announced {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            panic!("the body is read")
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(self.0)
        }
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
    async fn a_content_length_above_the_limit_is_refused() {
        let error = read_bounded(Announced(5), 4, |_| true, |_| {}).await;
        assert!(matches!(error, Err(ProxyError::BodyTooLarge { .. })));
    }

    #[tokio::test]
    async fn a_broken_body_is_an_error_and_not_a_short_body() {
        let broken: Vec<Result<Frame<Bytes>, BoxError>> = vec![
            Ok(Frame::data(Bytes::from_static(b"ab"))),
            Err("reset".into()),
        ];
        let error = read_bounded(StreamBody::new(stream::iter(broken)), 9, |_| true, |_| {})
            .await
            .unwrap_err();
        assert!(matches!(error, ProxyError::BodyBroken(_)));
    }

    /// As a server that works on its answer, and sends a line each second meanwhile.
    #[tokio::test(start_paused = true)]
    async fn white_space_in_front_of_an_answer_waits_for_a_second() {
        let frame = |text: &'static str| Ok(Frame::data(Bytes::from_static(text.as_bytes())));
        let lines = stream::unfold(0, move |sent| async move {
            tokio::time::sleep(Duration::from_millis(400)).await;
            let text = if sent < 9 { "\n" } else { "{}" };
            (sent < 10).then(|| (frame(text), sent + 1))
        });
        let lines = StreamBody::new(Box::pin(lines)).boxed_unsync();
        let begin = Instant::now();
        let (read, rest) = peek_blank(lines, Duration::from_secs(1)).await;
        assert_eq!(read, "\n\n\n");
        assert_eq!(begin.elapsed().as_millis(), 1_400);
        let whole = prepend(read, rest).collect().await.unwrap().to_bytes();
        assert_eq!(whole, "\n\n\n\n\n\n\n\n\n{}");

        let blank =
            frames(&["\n", " \n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n", "{}", "rest"]).boxed_unsync();
        let (read, _) = peek_blank(blank, Duration::from_secs(1)).await;
        assert!(read.ends_with(b"\n{}"), "{read:?}");
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
