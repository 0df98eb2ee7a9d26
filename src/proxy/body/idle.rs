//! A body with a limit for pauses between frames.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::upstream::BoxError;

/// Forwards frames, and fails with [`Stalled`] if the next one takes longer than the limit.
///
/// The pause is measured from the moment somebody polls for a frame, so a slow reader is not counted against
/// the writer.
#[derive(Debug)]
pub struct IdleTimeout<B> {
    body: B,
    limit: Duration,
    pause: Option<Pin<Box<Sleep>>>,
    waiting: bool,
}

/// A body paused for too long.
#[derive(Debug, thiserror::Error)]
#[error("no data arrived for {0:?}")]
pub struct Stalled(pub Duration);

impl<B> IdleTimeout<B> {
    pub fn new(body: B, limit: Duration) -> Self {
        Self {
            body,
            limit,
            pause: None,
            waiting: false,
        }
    }

    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit;
        let pause = self
            .pause
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        if !self.waiting {
            self.waiting = true;
            pause.as_mut().reset(Instant::now() + limit);
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
            self.waiting = false;
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

    #[tokio::test(start_paused = true)]
    async fn each_frame_starts_the_pause_anew_and_the_first_long_one_fails() {
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
