//! Decodes a stream from an upstream that compresses it although it was asked not to.
//!
//! Used only if Diarist asked for plain bytes on the client's behalf: it has to take its own event out of the stream,
//! or the stream has to follow a head that named no coding. Each frame is decoded and forwarded at once. Never holds
//! a whole answer. A stream in an unsupported coding passes as it came.
//!
//! A stream that cannot be decoded any further breaks off behind what was decoded, as it would in the client's own
//! decoder, so that nobody takes it for complete. If only the end of the coding is missing, nothing is lost, and
//! the answer ends as the upstream ended it. Both are logged. Called by [`super::retry`].

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderName};
use http::{Extensions, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;

use super::body::ProxyBody;
use super::decode::{Decoder, Encoding};
use super::sse::is_event_stream;
use crate::upstream::BoxError;

/// Bytes decoded at once. In the coding used most, they never become more than 8.5 MB.
const DECODE_CHUNK: usize = 8 * 1024;

/// Headers that describe the encoded body, and are wrong for the decoded one.
const ENCODED_BODY_HEADERS: [HeaderName; 5] = [
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
];

/// Marks a response that came compressed.
#[derive(Clone, Copy, Debug)]
struct WasCompressed;

/// Whether the response with these extensions came compressed, and is plain now.
pub(super) fn was_compressed(extensions: &Extensions) -> bool {
    extensions.get::<WasCompressed>().is_some()
}

/// `response` in plain bytes, if it is a stream that can be decoded.
pub(super) fn decode_stream(response: Response<ProxyBody>) -> Response<ProxyBody> {
    let encoding = Encoding::from_header(response.headers().get(CONTENT_ENCODING));
    let is_plain = matches!(encoding, Encoding::Identity | Encoding::Other);
    if is_plain || !is_event_stream(response.headers()) {
        return response;
    }
    let mut response = response.map(|body| DecodedBody::new(body, encoding).boxed_unsync());
    for name in ENCODED_BODY_HEADERS {
        response.headers_mut().remove(name);
    }
    response.extensions_mut().insert(WasCompressed);
    response
}

/// A body that is decoded while it arrives.
struct DecodedBody {
    body: ProxyBody,
    decoder: Decoder,
    /// Bytes received and not decoded yet.
    rest: Bytes,
    /// Trailers, which follow what the decoder still holds.
    trailers: Option<Frame<Bytes>>,
    ended: bool,
}

impl DecodedBody {
    fn new(body: ProxyBody, encoding: Encoding) -> Self {
        Self {
            body,
            decoder: Decoder::for_stream(encoding),
            rest: Bytes::new(),
            trailers: None,
            ended: false,
        }
    }

    /// The next decoded piece of `rest`; `None` if nothing is left of it.
    fn decode(&mut self) -> Option<Result<Bytes, BoxError>> {
        while !self.rest.is_empty() {
            let piece = self.rest.split_to(self.rest.len().min(DECODE_CHUNK));
            match self.decoder.push(piece) {
                Ok(plain) if plain.is_empty() => {}
                Ok(plain) => return Some(Ok(plain)),
                Err(error) => {
                    tracing::warn!(
                        "a compressed stream of the upstream cannot be decoded any further; the answer breaks off here"
                    );
                    (self.ended, self.rest) = (true, Bytes::new());
                    return Some(Err(error.into()));
                }
            }
        }
        None
    }

    /// What the decoder held back until the end.
    fn finish(&mut self) -> Option<Frame<Bytes>> {
        let held = self.decoder.finish().unwrap_or_else(|_| {
            tracing::warn!("a compressed stream of the upstream ended without the end of its coding; nothing was lost");
            Bytes::new()
        });
        (!held.is_empty()).then(|| Frame::data(held))
    }
}

impl Body for DecodedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        loop {
            if let Some(decoded) = this.decode() {
                return Poll::Ready(Some(decoded.map(Frame::data)));
            }
            if let Some(last) = this.trailers.take() {
                return Poll::Ready(Some(Ok(last)));
            }
            if this.ended {
                return Poll::Ready(None);
            }
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(trailers) => {
                        this.trailers = Some(trailers);
                        if let Some(held) = this.finish() {
                            return Poll::Ready(Some(Ok(held)));
                        }
                    }
                },
                Some(Err(error)) => {
                    this.ended = true;
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    this.ended = true;
                    return Poll::Ready(this.finish().map(Ok));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
