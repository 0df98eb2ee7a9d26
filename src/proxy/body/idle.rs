//! A body with a limit for pauses between frames, and a least rate.

use std::any::Any;
use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::upstream::BoxError;

/// How fast a body has to come: whole within `grace`, and a second longer for each `min_bytes_per_second` of it.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub grace: Duration,
    pub min_bytes_per_second: u64,
}

impl Pace {
    /// How much longer one may wait for a body of which `received` bytes have come, after `waited`.
    fn time_left(&self, received: u64, waited: Duration) -> Duration {
        let earned = Duration::from_secs(received / self.min_bytes_per_second.max(1));
        (self.grace + earned).saturating_sub(waited)
    }
}

/// Forwards frames, and fails with [`Stalled`] if the next one takes longer than the limit, or all of them longer than
/// the pace allows.
///
/// A pause is measured from the moment somebody polls for a frame, so a slow reader is not counted against
/// the writer.
#[derive(Debug)]
pub struct IdleTimeout<B> {
    body: B,
    limit: Duration,
    pace: Option<Pace>,
    received: u64,
    /// The sum of all pauses that have ended.
    waited: Duration,
    pause: Option<Pin<Box<Sleep>>>,
    waiting_since: Option<Instant>,
    /// Dropped when all of the body is in.
    guard: Option<Box<dyn Any + Send + Sync>>,
}

/// A body paused for too long, or came too slowly.
#[derive(Debug, thiserror::Error)]
#[error("no data arrived for {0:?}, or it came too slowly")]
pub struct Stalled(pub Duration);

impl<B> IdleTimeout<B> {
    pub fn new(body: B, limit: Duration) -> Self {
        Self {
            body,
            limit,
            pace: None,
            received: 0,
            waited: Duration::ZERO,
            pause: None,
            waiting_since: None,
            guard: None,
        }
    }

    /// The same, which keeps `guard` until all of the body is in.
    pub(in crate::proxy) fn guarded(self, guard: impl Any + Send + Sync) -> Self {
        Self {
            guard: Some(Box::new(guard)),
            ..self
        }
    }

    /// The same, which must also keep `pace`.
    pub(in crate::proxy) fn paced(body: B, limit: Duration, pace: Pace) -> Self {
        let pace = Some(pace);
        Self {
            pace,
            ..Self::new(body, limit)
        }
    }

    /// Keeps what it guarded no longer.
    pub(in crate::proxy) fn release_guard(&mut self) {
        self.guard = None;
    }

    /// Whether somebody has asked for its data. The client then knows, if it waited for `100 Continue`.
    pub(in crate::proxy) fn was_asked_for(&self) -> bool {
        self.received > 0 || self.waiting_since.is_some() || !self.waited.is_zero()
    }

    /// The bytes that have come.
    pub(in crate::proxy) fn received(&self) -> u64 {
        self.received
    }

    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let time_left = |pace: Pace| pace.time_left(self.received, self.waited);
        let limit = self
            .pace
            .map_or(self.limit, |pace| self.limit.min(time_left(pace)));
        let pause = self
            .pause
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        if self.waiting_since.is_none() {
            let now = Instant::now();
            self.waiting_since = Some(now);
            pause.as_mut().reset(now + limit);
        }
        pause.as_mut().poll(cx)
    }
}

impl<B> Body for IdleTimeout<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            if let Some(since) = self.waiting_since.take() {
                self.waited += since.elapsed();
            }
            if let Some(Ok(frame)) = &frame {
                self.received += frame.data_ref().map_or(0, |data| data.len() as u64);
            }
            if self.guard.is_some() && (frame.is_none() || self.body.is_end_stream()) {
                self.guard = None;
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        self.poll_pause(cx)
            .map(|()| Some(Err(Stalled(self.limit).into())))
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
    use http_body_util::{BodyExt as _, StreamBody};
    use tokio::sync::mpsc;

    use super::*;

    /// The bytes that come of a body of 100 with this pause in front of each.
    async fn bytes_within(pace: Pace, pause: Duration) -> (usize, bool) {
        let frames = futures_util::stream::unfold(0, |sent| async move {
            tokio::time::sleep(pause).await;
            let frame = Ok::<_, BoxError>(Frame::data(Bytes::from("x")));
            (sent < 100).then_some((frame, sent + 1))
        });
        let frames = Box::pin(frames);
        let mut body = IdleTimeout::paced(StreamBody::new(frames), Duration::from_mins(5), pace);
        while let Some(frame) = body.frame().await {
            if let Err(error) = frame {
                assert!(error.is::<Stalled>());
                return (usize::try_from(body.received()).unwrap(), false);
            }
        }
        (usize::try_from(body.received()).unwrap(), true)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_below_the_minimum_rate_ends_after_the_grace_time() {
        let pace = |min_bytes_per_second| Pace {
            grace: Duration::from_secs(10),
            min_bytes_per_second,
        };
        let second = Duration::from_secs(1);
        assert_eq!(bytes_within(pace(1_000), second * 3).await, (3, false));
        assert_eq!(bytes_within(pace(1), second).await, (100, true));
        assert_eq!(bytes_within(pace(2), second).await, (19, false));
    }

    #[tokio::test(start_paused = true)]
    async fn each_frame_restarts_the_idle_timer_and_a_long_pause_fails() {
        let (send, mut receive) = mpsc::channel::<Result<Frame<Bytes>, BoxError>>(1);
        let frames = futures_util::stream::poll_fn(move |cx| receive.poll_recv(cx));
        let mut body = IdleTimeout::new(StreamBody::new(frames), Duration::from_mins(1));
        let writer = async {
            for pause in [50, 50, 61] {
                tokio::time::sleep(Duration::from_secs(pause)).await;
                let _ = send.send(Ok(Frame::data(Bytes::from("x")))).await;
            }
        };
        let reader = async {
            assert!(body.frame().await.unwrap().is_ok());
            assert!(body.frame().await.unwrap().is_ok());
            body.frame().await.unwrap().unwrap_err()
        };
        let ((), error) = tokio::join!(writer, reader);
        assert!(error.is::<Stalled>());
    }
}
