//! Counts how requests end, each once, and logs it.

use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use metrics::{Counter, Gauge, Histogram};
use tokio::time::Instant;

use super::body::{ProxyBody, Stalled};
use super::respond::{self, with_causes};
use crate::telemetry::{self, kept};
use crate::upstream::BoxError;

static IN_FLIGHT: LazyLock<Gauge> =
    LazyLock::new(|| kept(|| metrics::gauge!(telemetry::REQUESTS_IN_FLIGHT)));
static DURATION: LazyLock<Histogram> =
    LazyLock::new(|| kept(|| metrics::histogram!(telemetry::REQUEST_DURATION)));
/// How nearly all requests end.
static ANSWERED: LazyLock<Counter> =
    LazyLock::new(|| kept(|| count_ended("2xx", RequestEnd::Complete.label())));

fn count_ended(status: &'static str, end: &'static str) -> Counter {
    metrics::counter!(telemetry::REQUESTS, "status" => status, "end" => end)
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestEnd {
    /// The client got the whole answer.
    Complete,
    /// The client disconnected, or the drain's deadline cut it off.
    HungUp,
    /// The upstream broke off.
    Broken,
    /// The upstream sent nothing for too long.
    Stalled,
}

/// Measures one request from its head to its end, wherever it is dropped.
#[derive(Debug)]
pub(super) struct RequestMetrics {
    started: Instant,
    method: http::Method,
    status: Option<StatusCode>,
    end: RequestEnd,
    /// The id of its audit line, from the head of the answer.
    request_id: Option<HeaderValue>,
}

impl RequestMetrics {
    pub(super) fn start<B>(request: &Request<B>) -> Self {
        IN_FLIGHT.increment(1.0);
        Self {
            started: Instant::now(),
            method: request.method().clone(),
            status: None,
            end: RequestEnd::HungUp,
            request_id: None,
        }
    }

    /// Continues to measure until the response's body has ended.
    pub(super) fn track_body(mut self, response: Response<ProxyBody>) -> Response<ProxyBody> {
        self.status = Some(response.status());
        self.request_id = response.headers().get(respond::REQUEST_ID).cloned();
        response.map(|body| {
            TrackedBody {
                body,
                metrics: self,
            }
            .boxed_unsync()
        })
    }

    fn request_id(&self) -> Option<&str> {
        self.request_id.as_ref()?.to_str().ok()
    }

    fn record_broken(&mut self, error: &BoxError) {
        self.end = if error.is::<Stalled>() {
            RequestEnd::Stalled
        } else {
            RequestEnd::Broken
        };
        let detail = with_causes(error.as_ref());
        tracing::warn!(
            request_id = self.request_id(),
            end = self.end.label(),
            "the upstream's answer broke off: {detail}"
        );
    }
}

impl Drop for RequestMetrics {
    fn drop(&mut self) {
        let end = self.end.label();
        let status = self.status.map_or("none", class);
        let elapsed = self.started.elapsed();
        IN_FLIGHT.decrement(1.0);
        if (status, self.end) == ("2xx", RequestEnd::Complete) {
            ANSWERED.increment(1);
        } else {
            count_ended(status, end).increment(1);
        }
        DURATION.record(elapsed);
        tracing::debug!(
            request_id = self.request_id(),
            method = %self.method,
            status = self.status.map(|status| status.as_u16()),
            end,
            duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            "a request ended"
        );
    }
}

impl RequestEnd {
    fn label(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::HungUp => "hung_up",
            Self::Broken => "broken",
            Self::Stalled => "stalled",
        }
    }
}

fn class(status: StatusCode) -> &'static str {
    match status.as_u16() / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        5 => "5xx",
        _ => "other",
    }
}

struct TrackedBody {
    body: ProxyBody,
    metrics: RequestMetrics,
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        match &frame {
            Poll::Ready(None) => self.metrics.end = RequestEnd::Complete,
            Poll::Ready(Some(Err(error))) => self.metrics.record_broken(error),
            // Nothing follows trailers, and a server does not ask.
            Poll::Ready(Some(Ok(frame))) if frame.is_trailers() => {
                self.metrics.end = RequestEnd::Complete;
            }
            Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        // If the length is known, nobody polls for a frame after the last.
        if self.metrics.end == RequestEnd::HungUp && self.body.is_end_stream() {
            self.metrics.end = RequestEnd::Complete;
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http_body_util::StreamBody;

    use super::*;

    /// How a request ends of whose answer the server writes these frames, and then drops the body.
    async fn end_after(frames: Vec<Frame<Bytes>>) -> RequestEnd {
        let written = frames.len();
        let frames = futures_util::stream::iter(frames.into_iter().map(Ok));
        let mut body = TrackedBody {
            body: StreamBody::new(frames).boxed_unsync(),
            metrics: RequestMetrics::start(&Request::new(())),
        };
        for _ in 0..written {
            body.frame().await.unwrap().unwrap();
        }
        body.metrics.end
    }

    #[tokio::test]
    async fn an_answer_with_trailers_is_complete_after_them() {
        let data = || Frame::data(Bytes::from_static(b"a"));
        assert_eq!(end_after(vec![data()]).await, RequestEnd::HungUp);
        let trailers = Frame::trailers(HeaderMap::new());
        assert_eq!(
            end_after(vec![data(), trailers]).await,
            RequestEnd::Complete
        );
    }
}
