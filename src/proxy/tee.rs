//! The copy of a response that Diarist looks at.
//!
//! [`tee`] puts a tap on a response body: every frame goes to the client as it came, and a
//! refcounted clone goes into a bounded queue that a tracked task reads. The tap never parses,
//! never waits and never fails; a reader that is slow, stuck or broken costs an incomplete capture
//! and nothing else. Exactly one [`Observed`] comes out, when the body has ended, has failed or has
//! been dropped by a client that hung up. Called by the flow of a memory request.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::{mpsc, oneshot};

use super::decode::Encoding;
use super::usage_filter::UsageFilter;
pub use crate::audit::Ended;
use crate::tasks::Tasks;
use crate::wire::usage::Usage;
use capture::Capture;

mod capture;

/// Frames a reader may fall behind by. An event is a frame; a burst of a thousand is seconds of the
/// fastest model.
const QUEUE_FRAMES: usize = 1024;
/// Bytes a reader may fall behind by.
const QUEUE_BYTES: usize = 8 * 1024 * 1024;
/// From here on a body is parsed on a thread that may block: at some 100 MB/s this is 3 ms.
const PARSE_INLINE: usize = 256 * 1024;

/// What is known of a response before its body comes.
#[derive(Clone, Copy, Debug)]
pub struct TeeSpec {
    /// The content type is `text/event-stream`.
    pub streaming: bool,
    pub encoding: Encoding,
    /// Take out the usage report that the client has not asked for. Ignored where the body is still
    /// compressed: that is a coding nobody here reads.
    pub filter_usage: bool,
}

/// What one answer was, as far as it was seen.
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about one answer"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    pub ended: Ended,
    /// The model had finished: `[DONE]` was seen, or a finish reason on every choice.
    pub saw_done: bool,
    /// In the order of the choices.
    pub finish_reasons: Vec<String>,
    /// The model refused, or a content filter did.
    pub refusal: bool,
    /// The answer carries an error, whatever its status said.
    pub error: bool,
    pub usage: Option<Usage>,
    /// What the first choice says, if it was read whole.
    pub words: Option<String>,
    /// When the first byte of the body came; `None` if there was none.
    pub first_byte: Option<Instant>,
    /// Bytes of the body as they were tapped: as the upstream sent them, or decoded for the client.
    pub bytes: u64,
    /// Every byte was read. If not, what is missing above may have been there.
    pub capture_complete: bool,
}

/// The body that goes to the client in place of the upstream's.
pub type Teed<B> = UsageFilter<Tap<B>>;

/// Taps `body`. The receiver yields one [`Observed`]; it may be dropped at any time.
pub fn tee<B>(body: B, spec: TeeSpec, tasks: &Tasks) -> (Teed<B>, oneshot::Receiver<Observed>)
where
    B: Body<Data = Bytes> + Unpin,
{
    let (queue, pieces) = mpsc::channel(QUEUE_FRAMES);
    let (ending, ended) = oneshot::channel();
    let (result, observed) = oneshot::channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let tap = Tap {
        body,
        queue: Some(queue),
        waiting: Arc::clone(&waiting),
        ending: Some(ending),
        seen: Seen::default(),
    };
    tasks.spawn("response-reader", async move {
        let observed = read(pieces, &waiting, ended, spec).await;
        // The flow may have lost interest; then there is nobody to tell.
        let _ = result.send(observed);
    });
    let filter = spec.filter_usage && spec.streaming && spec.encoding == Encoding::Identity;
    (UsageFilter::new(tap, filter), observed)
}

/// What the tap itself knows; complete even where the capture is not.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    first_byte: Option<Instant>,
    bytes: u64,
    overflow: bool,
    trailers: bool,
}

/// A body that hands a copy of each frame to the reader.
#[derive(Debug)]
pub struct Tap<B: Body> {
    body: B,
    queue: Option<mpsc::Sender<Bytes>>,
    /// Bytes in the queue.
    waiting: Arc<AtomicUsize>,
    ending: Option<oneshot::Sender<(Ended, Seen)>>,
    seen: Seen,
}

impl<B: Body> Tap<B> {
    fn copy(&mut self, data: &Bytes) {
        if data.is_empty() {
            return;
        }
        self.seen.first_byte.get_or_insert_with(Instant::now);
        self.seen.bytes = self.seen.bytes.saturating_add(data.len() as u64);
        let Some(queue) = &self.queue else { return };
        let waiting = self.waiting.fetch_add(data.len(), Ordering::Relaxed) + data.len();
        if waiting > QUEUE_BYTES || queue.try_send(data.clone()).is_err() {
            self.seen.overflow = true;
            self.queue = None;
        }
    }

    fn end(&mut self, ended: Ended) {
        self.queue = None;
        if let Some(ending) = self.ending.take() {
            // Only a reader that was ended by a shutdown is not there to hear it.
            let _ = ending.send((ended, self.seen));
        }
    }
}

impl<B> Body for Tap<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Pending => {}
            Poll::Ready(Some(Ok(frame))) => match frame.data_ref() {
                Some(data) => self.copy(data),
                None => self.seen.trailers = true,
            },
            Poll::Ready(Some(Err(_))) => self.end(Ended::UpstreamError),
            Poll::Ready(None) => self.end(Ended::Complete),
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: Body> Drop for Tap<B> {
    fn drop(&mut self) {
        // A server drops a body without asking for its end once the length it promised is written,
        // or once the trailers are.
        let complete = self.seen.trailers || self.body.is_end_stream();
        self.end(if complete {
            Ended::Complete
        } else {
            Ended::HungUp
        });
    }
}

async fn read(
    mut pieces: mpsc::Receiver<Bytes>,
    waiting: &AtomicUsize,
    ending: oneshot::Receiver<(Ended, Seen)>,
    spec: TeeSpec,
) -> Observed {
    let mut capture = Some(Capture::new(spec.streaming, spec.encoding));
    while let Some(piece) = pieces.recv().await {
        waiting.fetch_sub(piece.len(), Ordering::Relaxed);
        // The parser of events has panicked on input before. That must not cost the one value the
        // flow is waiting for.
        capture = capture.and_then(|mut capture| {
            let taken = std::panic::catch_unwind(AssertUnwindSafe(|| capture.take(piece)));
            taken.is_ok().then_some(capture)
        });
    }
    let (ended, seen) = ending.await.unwrap_or((Ended::HungUp, Seen::default()));
    let summary = match capture {
        Some(capture) if capture.held() > PARSE_INLINE => {
            tokio::task::spawn_blocking(|| capture.finish()).await.ok()
        }
        Some(capture) => std::panic::catch_unwind(AssertUnwindSafe(|| capture.finish())).ok(),
        None => None,
    };
    let capture_complete =
        summary.as_ref().is_some_and(|summary| summary.complete) && !seen.overflow;
    let mut summary = summary.unwrap_or_default();
    Observed {
        ended,
        saw_done: summary.is_done(),
        finish_reasons: summary.finish_reasons(),
        refusal: summary.refusal,
        error: summary.error,
        words: summary.take_words().filter(|_| capture_complete),
        usage: summary.usage,
        first_byte: seen.first_byte,
        bytes: seen.bytes,
        capture_complete,
    }
}
