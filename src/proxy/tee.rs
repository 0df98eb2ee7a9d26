//! Copies a response for Diarist to read, while the client gets the original.
//!
//! [`tee`] puts a tap on a response body. Every frame goes to the client as it came; a counted reference goes into a
//! bounded queue that a tracked task reads. The tap never parses and never fails: if the reader is slow, stuck or
//! broken, the capture is incomplete, and nothing else happens. Before a frame that may be the last, the tap waits
//! until the reader has read everything, but no longer than [`FLUSH_TIMEOUT`]: so the model's answer is known before
//! the client can send it back. One [`ObservedAnswer`] is sent at the end: when the body has ended or failed, or the
//! client has disconnected. Called by `chat_completions`.

use std::future::Future as _;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Sleep;

use super::decode::Encoding;
use super::usage_filter::UsageFilter;
pub use crate::audit::EndReason;
use crate::tasks::Tasks;
use crate::wire::usage::Usage;
use capture::Capture;

mod answer_message;
mod capture;

pub use self::answer_message::AnswerMessage;

/// How many frames the reader may be behind. An event is a frame; a thousand of them are seconds of the fastest
/// model.
const QUEUE_FRAMES: usize = 1024;
/// How many bytes the reader may be behind.
const QUEUE_BYTES: usize = 8 * 1024 * 1024;
/// A longer body is parsed on a blocking thread: at about 100 MB/s, this takes 3 ms.
const PARSE_INLINE: usize = 256 * 1024;

/// How long the last frame of an answer waits for the reader, which has read everything before and needs some
/// microseconds.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(100);

/// Texts by which a client may take an answer as complete before its stream ends: the end mark, or a choice's finish
/// reason. A match that means something else costs a short wait.
const END_MARKERS: [&[u8]; 3] = [b"[DONE]", b"\"finish_reason\":\"", b"\"finish_reason\": \""];

/// Gets what the model has said: first before the frame goes to the client that may be the last, and again when the
/// answer has ended.
pub type OnAnswer = Box<dyn Fn(&[AnswerMessage]) + Send + Sync>;

/// What is known of a response before its body.
#[derive(Clone, Copy, Debug)]
pub struct TeeSpec {
    /// The content type is `text/event-stream`.
    pub streaming: bool,
    pub encoding: Encoding,
    /// Take the usage report out, because the client has not asked for it. Ignored if the body is still compressed,
    /// in a coding that is not supported here.
    pub filter_usage: bool,
}

/// What an answer was, as far as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedAnswer {
    pub ended: EndReason,
    /// The model had finished: the stream had `[DONE]`, or every choice had a finish reason.
    pub saw_done: bool,
    /// One for each choice, in their order.
    pub finish_reasons: Vec<String>,
    /// The model refused, or a content filter did.
    pub refusal: bool,
    /// The error in the answer, whatever its status: `too_long`, or `error` for anything else.
    pub error: Option<&'static str>,
    pub usage: Option<Usage>,
    /// The text of the first choice, if it was read whole.
    pub text: Option<String>,
    /// When the first byte of the body came; `None` if the body is empty.
    pub first_byte: Option<Instant>,
    /// Bytes of the body at the tap: as the upstream sent them, or decoded for the client.
    pub bytes: u64,
    /// Whether every byte was read. If not, anything missing above may have been there.
    pub capture_complete: bool,
}

/// The body that goes to the client in place of the upstream's.
pub type Teed<B> = UsageFilter<Tap<B>>;

/// Taps `body`. The receiver gets one [`ObservedAnswer`]; it may be dropped at any time.
pub fn tee<B>(
    body: B,
    spec: TeeSpec,
    on_answer: OnAnswer,
    tasks: &Tasks,
) -> (Teed<B>, oneshot::Receiver<ObservedAnswer>)
where
    B: Body<Data = Bytes> + Unpin,
{
    let (queue, pieces) = mpsc::channel(QUEUE_FRAMES);
    let (ending, ended) = oneshot::channel();
    let (result, observed) = oneshot::channel();
    let queued_bytes = Arc::new(AtomicUsize::new(0));
    let tap = Tap {
        body,
        queue: Some(queue),
        queued_bytes: Arc::clone(&queued_bytes),
        ending: Some(ending),
        stats: TapStats::default(),
        held: None,
    };
    tasks.spawn("response-reader", async move {
        let observed = read(pieces, &queued_bytes, ended, spec, on_answer).await;
        // If the receiver was dropped, nobody needs the result.
        let _ = result.send(observed);
    });
    let filter = spec.filter_usage && spec.streaming && spec.encoding == Encoding::Identity;
    (UsageFilter::new(tap, filter), observed)
}

/// What the tap itself measures: complete even if the capture is not.
#[derive(Clone, Copy, Debug, Default)]
struct TapStats {
    first_byte: Option<Instant>,
    bytes: u64,
    overflow: bool,
    trailers: bool,
}

/// A body that hands a copy of each frame to the reader.
#[derive(Debug)]
pub struct Tap<B: Body> {
    body: B,
    queue: Option<mpsc::Sender<Piece>>,
    /// Bytes in the queue.
    queued_bytes: Arc<AtomicUsize>,
    ending: Option<oneshot::Sender<(EndReason, TapStats)>>,
    stats: TapStats,
    /// A frame that may be the last. It waits until the reader has read everything.
    held: Option<Box<Held<B::Error>>>,
}

/// What the queue carries.
#[derive(Debug)]
enum Piece {
    Bytes(Bytes),
    /// A question to the reader: answer when everything before it is read.
    Flush(oneshot::Sender<()>),
}

/// A frame that waits, or the end of the body.
type Polled<E> = Option<Result<Frame<Bytes>, E>>;

#[derive(Debug)]
struct Held<E> {
    frame: Polled<E>,
    flushed: oneshot::Receiver<()>,
    timeout: Pin<Box<Sleep>>,
}

impl<B> Tap<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    /// Whether the client has the whole answer once it gets `polled`.
    fn is_last(&self, polled: Option<&Result<Frame<Bytes>, B::Error>>) -> bool {
        match polled {
            None => true,
            Some(Err(_)) => false,
            Some(Ok(frame)) => {
                let holds = |data: &Bytes, text: &[u8]| memchr::memmem::find(data, text).is_some();
                let says_done = |data: &Bytes| END_MARKERS.iter().any(|text| holds(data, text));
                self.body.is_end_stream()
                    || self.body.size_hint().exact() == Some(0)
                    || frame.is_trailers()
                    || frame.data_ref().is_some_and(says_done)
            }
        }
    }

    /// Asks the reader to answer when it has read everything so far. `None` if there is no reader.
    fn request_flush(&mut self) -> Option<oneshot::Receiver<()>> {
        let (flushed_sender, flushed) = oneshot::channel();
        let queue = self.queue.as_ref()?;
        queue.try_send(Piece::Flush(flushed_sender)).ok()?;
        Some(flushed)
    }

    fn copy_frame(&mut self, polled: Option<&Result<Frame<Bytes>, B::Error>>) {
        match polled {
            Some(Ok(frame)) => match frame.data_ref() {
                Some(data) => self.copy(data),
                None => self.stats.trailers = true,
            },
            Some(Err(_)) => self.end(EndReason::UpstreamError),
            None => {}
        }
    }
}

impl<B: Body> Tap<B> {
    fn copy(&mut self, data: &Bytes) {
        if data.is_empty() {
            return;
        }
        self.stats.first_byte.get_or_insert_with(Instant::now);
        self.stats.bytes = self.stats.bytes.saturating_add(data.len() as u64);
        let Some(queue) = &self.queue else { return };
        let queued = self.queued_bytes.fetch_add(data.len(), Ordering::Relaxed) + data.len();
        if queued > QUEUE_BYTES || queue.try_send(Piece::Bytes(data.clone())).is_err() {
            self.stats.overflow = true;
            self.queue = None;
        }
    }

    /// `polled` goes to the client now. `None` ends the body.
    fn pass<E>(&mut self, polled: Polled<E>) -> Polled<E> {
        if polled.is_none() {
            self.end(EndReason::Complete);
        }
        polled
    }

    fn end(&mut self, ended: EndReason) {
        self.queue = None;
        if let Some(ending) = self.ending.take() {
            // The reader is gone only after a shutdown.
            let _ = ending.send((ended, self.stats));
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
        let tap = &mut *self;
        if tap.held.is_none() {
            let polled = ready!(Pin::new(&mut tap.body).poll_frame(cx));
            tap.copy_frame(polled.as_ref());
            let last = tap.is_last(polled.as_ref());
            match last.then(|| tap.request_flush()).flatten() {
                None => return Poll::Ready(tap.pass(polled)),
                Some(flushed) => {
                    tap.held = Some(Box::new(Held {
                        frame: polled,
                        flushed,
                        timeout: Box::pin(tokio::time::sleep(FLUSH_TIMEOUT)),
                    }));
                }
            }
        }
        if let Some(held) = &mut tap.held {
            // The sender is dropped if the reader is gone: then there is nothing to wait for.
            let flushed = Pin::new(&mut held.flushed).poll(cx).is_ready();
            if !flushed && held.timeout.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        let frame = tap.held.take().and_then(|held| held.frame);
        Poll::Ready(tap.pass(frame))
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.held {
            None => self.body.size_hint(),
            Some(_) => SizeHint::default(),
        }
    }
}

impl<B: Body> Drop for Tap<B> {
    fn drop(&mut self) {
        // A server does not poll a body for its end once the announced length, or the trailers, are written. It
        // just drops it.
        let complete = self.held.is_none() && (self.stats.trailers || self.body.is_end_stream());
        self.end(if complete {
            EndReason::Complete
        } else {
            EndReason::HungUp
        });
    }
}

async fn read(
    mut pieces: mpsc::Receiver<Piece>,
    queued_bytes: &AtomicUsize,
    ending: oneshot::Receiver<(EndReason, TapStats)>,
    spec: TeeSpec,
    on_answer: OnAnswer,
) -> ObservedAnswer {
    let mut capture = Some(Capture::new(spec.streaming, spec.encoding));
    while let Some(piece) = pieces.recv().await {
        capture = match piece {
            Piece::Bytes(bytes) => {
                queued_bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
                capture.and_then(|mut capture| {
                    guarded(move || {
                        capture.push(bytes);
                        capture
                    })
                })
            }
            Piece::Flush(flushed_sender) => {
                let partial = read_messages(capture).await;
                let (capture, messages) = partial.unzip();
                if let Some(messages) = messages {
                    guarded(|| on_answer(&messages));
                }
                // The client may have disconnected meanwhile.
                let _ = flushed_sender.send(());
                capture
            }
        };
    }
    let (ended, stats) = ending
        .await
        .unwrap_or((EndReason::HungUp, TapStats::default()));
    let summary = match capture {
        Some(capture) if capture.unparsed_bytes() > PARSE_INLINE => {
            tokio::task::spawn_blocking(|| capture.finish()).await.ok()
        }
        Some(capture) => guarded(|| capture.finish()),
        None => None,
    };
    let (summary, messages) = summary.unzip();
    if let Some(messages) = messages {
        guarded(|| on_answer(&messages));
    }
    let capture_complete =
        summary.as_ref().is_some_and(|summary| summary.complete) && !stats.overflow;
    let mut summary = summary.unwrap_or_default();
    ObservedAnswer {
        ended,
        saw_done: summary.is_done(),
        finish_reasons: summary.finish_reasons(),
        refusal: summary.refusal,
        error: summary.error,
        text: summary.take_text().filter(|_| capture_complete),
        usage: summary.usage,
        first_byte: stats.first_byte,
        bytes: stats.bytes,
        capture_complete,
    }
}

/// Reads what has arrived, and returns what the model has said.
async fn read_messages(capture: Option<Capture>) -> Option<(Capture, Vec<AnswerMessage>)> {
    let mut capture = capture?;
    let held = capture.unparsed_bytes();
    let read = move || {
        let messages = capture.read_messages();
        (capture, messages)
    };
    if held > PARSE_INLINE {
        return tokio::task::spawn_blocking(read).await.ok();
    }
    guarded(read)
}

/// Catches a panic. The parser of events has panicked on some input before, and the caller still needs its result.
fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).ok()
}
