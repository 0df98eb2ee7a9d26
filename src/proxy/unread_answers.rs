//! Answers that their clients do not read. A client of HTTP/2 says for each stream how many bytes may come (its window,
//! RFC 9113, 5.2).
//!
//! While a window is shut, nobody asks the answer's body for more. No limit inside of the body notices, and none of the
//! socket does: the connection goes on with its other streams, and with pings. So the body notes here since when it was
//! not asked, and the task of the stream, see [`limited`], ends the stream. [`super::places`] ends it sooner where others
//! need its place. HTTP/1 has one answer at a time: there the limit of the socket is enough.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, Sleep, sleep_until};

use super::body::ProxyBody;
use crate::telemetry;
use crate::upstream::BoxError;

/// A body gives at most so many bytes at a time, as many as a frame of HTTP/2 holds. It is asked for more only when the
/// client has let these through, so a slow client counts as one that reads.
const PIECE_BYTES: usize = 16 << 10;

tokio::task_local! {
    /// The `Reading` of the stream that this task serves.
    static READING: Arc<Reading>;
}

/// How far the client of one HTTP/2 stream is with its answer.
#[derive(Debug, Default)]
pub(super) struct Reading(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Since when nobody has asked the body for more. If that is long ago, the client does not read. `None` while the
    /// body is asked and waits for the upstream, and after its end.
    unread_since: Option<Instant>,
    ended: bool,
    /// The task of the stream, if it waits for the client.
    task: Option<Waker>,
}

impl Reading {
    /// The `Reading` of the stream that the running task serves. `None` in HTTP/1.
    pub(super) fn current() -> Option<Arc<Self>> {
        READING.try_with(Arc::clone).ok()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_unread_since(&self, since: Option<Instant>) {
        self.lock().unread_since = since;
    }

    /// How long the client has read nothing of what is there for it.
    pub(super) fn unread_for(&self) -> Option<Duration> {
        self.lock().unread_since.map(|since| since.elapsed())
    }

    /// Ends the stream.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Ready with the reason when the stream is to end.
    fn poll_end(
        &self,
        cx: &mut Context<'_>,
        limit: Duration,
        timer: &mut Option<Pin<Box<Sleep>>>,
    ) -> Poll<&'static str> {
        let mut state = self.lock();
        if state.ended {
            return Poll::Ready("full");
        }
        let Some(since) = state.unread_since else {
            return Poll::Pending;
        };
        state.task = Some(cx.waker().clone());
        drop(state);
        // Set once and not with each pause: a window is often shut for a moment.
        let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(since + limit)));
        while timer.as_mut().poll(cx).is_ready() {
            if since.elapsed() >= limit {
                return Poll::Ready("time");
            }
            timer.as_mut().reset(since + limit);
        }
        Poll::Pending
    }
}

/// Runs the task of an HTTP/2 stream. If its client reads nothing for `limit`, the stream is reset.
pub async fn limited(stream: impl Future<Output = ()>, limit: Duration) {
    let reading = Arc::new(Reading::default());
    let mut stream = pin!(READING.scope(Arc::clone(&reading), stream));
    let mut timer = None;
    let reason = poll_fn(|cx| {
        if stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        reading.poll_end(cx, limit, &mut timer).map(Some)
    });
    if let Some(reason) = reason.await {
        metrics::counter!(telemetry::ANSWERS_UNREAD, "reason" => reason).increment(1);
        tracing::debug!(
            reason,
            "a client does not read its answer: the stream is reset"
        );
    }
}

/// `body`, which notes whether its client reads. To be called in the task that sends it.
pub fn watch(body: ProxyBody) -> ProxyBody {
    match Reading::current() {
        Some(reading) => {
            reading.set_unread_since(Some(Instant::now()));
            let rest = Bytes::new();
            WatchedBody {
                body,
                rest,
                reading,
            }
            .boxed_unsync()
        }
        None => body,
    }
}

struct WatchedBody {
    body: ProxyBody,
    /// What is left of a frame of `body`.
    rest: Bytes,
    reading: Arc<Reading>,
}

impl WatchedBody {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.rest.is_empty() {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        let piece = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let piece = self.poll_piece(cx);
        let is_unread = matches!(piece, Poll::Ready(Some(_)));
        self.reading.set_unread_since(is_unread.then(Instant::now));
        piece
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let mut hint = self.body.size_hint();
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::StreamBody;

    use super::*;
    use crate::proxy::body;
    use crate::tasks::Tasks;

    const LIMIT: Duration = Duration::from_mins(5);

    /// How long the stream of an answer lives whose frames the client asks for after these pauses, and whether it came
    /// to its end. Each piece comes `upstream` after it was asked for.
    async fn ends_after(bytes: usize, upstream: Duration, pauses: &[u64]) -> (u64, bool) {
        let started = Instant::now();
        let mut whole = false;
        let stream = async {
            let frames = futures_util::stream::unfold(Some(bytes), move |bytes| async move {
                tokio::time::sleep(upstream).await;
                let frame = Frame::data(Bytes::from(vec![b'x'; bytes?]));
                Some((Ok(frame), None))
            });
            let mut body = watch(StreamBody::new(frames).boxed_unsync());
            for pause in pauses {
                tokio::time::sleep(Duration::from_secs(*pause)).await;
                whole = body.frame().await.is_none();
            }
        };
        limited(stream, LIMIT).await;
        (started.elapsed().as_secs(), whole)
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_if_the_client_reads_nothing_until_the_limit() {
        let at_once = Duration::ZERO;
        assert_eq!(ends_after(5, at_once, &[400]).await, (300, false));
        assert_eq!(ends_after(5, at_once, &[0, 400]).await, (300, false));
        assert_eq!(ends_after(5, at_once, &[299, 299]).await, (598, true));
        assert_eq!(ends_after(5, at_once, &[200, 400]).await, (500, false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_upstream_does_not_end_the_stream() {
        let hour = Duration::from_hours(1);
        assert_eq!(ends_after(5, hour, &[0, 0]).await, (7200, true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_a_large_frame_slowly_counts_as_reading() {
        let pauses = [200; 5];
        let ended = ends_after(4 * PIECE_BYTES, Duration::ZERO, &pauses).await;
        assert_eq!(ended, (1000, true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_at_once_when_its_end_is_requested() {
        let started = Instant::now();
        let stream = async {
            let _body = watch(body::full(Bytes::from("x")));
            let reading = Reading::current().expect("a stream");
            Tasks::new().spawn("end", async move {
                tokio::time::sleep(Duration::from_secs(7)).await;
                assert_eq!(reading.unread_for(), Some(Duration::from_secs(7)));
                reading.end();
            });
            std::future::pending::<()>().await;
        };
        limited(stream, LIMIT).await;
        assert_eq!(started.elapsed().as_secs(), 7);
    }

    #[tokio::test]
    async fn the_pieces_of_a_watched_body_equal_the_body() {
        let bytes = Bytes::from(vec![b'y'; 3 * PIECE_BYTES + 5]);
        let sent = bytes.clone();
        let stream = async {
            let mut body = watch(body::full(sent));
            let first = body.frame().await.expect("a frame").expect("data");
            let mut all = first.into_data().expect("data").to_vec();
            assert_eq!(all.len(), PIECE_BYTES);
            assert_eq!(body.size_hint().exact(), Some(2 * 16_384 + 5));
            assert!(!body.is_end_stream());
            all.extend(body.collect().await.expect("the rest").to_bytes());
            assert_eq!(all, bytes);
        };
        limited(stream, LIMIT).await;
    }
}
