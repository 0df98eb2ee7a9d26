//! Reads a response for Diarist while the client gets the original.
//!
//! [`tee`] puts a tap on a response body. Every frame goes to the client as it came. On its way the tap reads it: a
//! short, linear scan, some microseconds for an event, which may fail without harm. So the model's answer is known
//! before the client can send it back. One [`ObservedAnswer`] is sent at the end: when the body has ended or failed,
//! or the client has disconnected. Called by `chat_completions`.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use memchr::memmem::Finder;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;

use super::decode::Encoding;
use super::usage_filter::UsageFilter;
pub use crate::audit::EndReason;
use crate::wire::usage::{RawUsage, Usage};
use capture::{Capture, NO_REASONS, Summary};

mod answer_fields;
mod answer_message;
mod capture;

pub use self::answer_message::AnswerMessage;

/// While a longer body is parsed, other threads take over the tasks of this one: at about 100 MB/s, it takes 3 ms.
const PARSE_INLINE: usize = 256 * 1024;

/// Finds the end of a stream.
static END_MARKER: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("[DONE]"));

/// Find the beginning of a choice's finish reason.
static FINISH_REASONS: LazyLock<[Finder<'_>; 2]> =
    LazyLock::new(|| ["\"finish_reason\":\"", "\"finish_reason\": \""].map(Finder::new));

/// Whether a client that gets `data` may take the answer as complete, although the stream goes on: at the end mark, or
/// at a choice's finish reason. A match that means something else costs some microseconds.
fn may_end_answer(data: &[u8]) -> bool {
    let has_reason = |name: &Finder<'_>| {
        let mut values = name
            .find_iter(data)
            .map(|at| &data[at + name.needle().len()..]);
        values.any(|value| {
            let is_none = |none: &&str| {
                value
                    .strip_prefix(none.as_bytes())
                    .is_some_and(|rest| rest.starts_with(b"\""))
            };
            !NO_REASONS.iter().any(is_none)
        })
    };
    END_MARKER.find(data).is_some() || FINISH_REASONS.iter().any(has_reason)
}

/// Gets what the model has said: before the frame goes to the client that may be the last, and once more if it has
/// said more by the end.
pub type OnAnswer = Box<dyn Fn(&[&AnswerMessage]) + Send + Sync>;

/// What is known of a response before its body.
#[derive(Clone, Copy, Debug)]
pub struct TeeSpec {
    /// The content type is `text/event-stream`.
    pub streaming: bool,
    pub encoding: Encoding,
    /// Take the usage report out: the client has not asked for it, and this may be a stream. Ignored if the body is
    /// still compressed, in a coding that is not supported here.
    pub filter_usage: bool,
}

/// What an answer was, as far as it was read.
#[derive(Clone, Debug, PartialEq)]
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
    /// The same as the provider wrote it.
    pub raw_usage: Option<RawUsage>,
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
) -> (Teed<B>, oneshot::Receiver<ObservedAnswer>)
where
    B: Body<Data = Bytes> + Unpin,
{
    let (result, observed) = oneshot::channel();
    let reader = Reader {
        capture: Some(Capture::new(spec.streaming, spec.encoding)),
        on_answer,
        reported: None,
        result,
    };
    let tap = Tap {
        body,
        reader: Some(reader),
        stats: TapStats::default(),
    };
    let filter = spec.filter_usage && spec.encoding == Encoding::Identity;
    (UsageFilter::new(tap, filter), observed)
}

/// What the tap itself measures: complete even if the capture is not.
#[derive(Clone, Copy, Debug, Default)]
struct TapStats {
    first_byte: Option<Instant>,
    bytes: u64,
    trailers: bool,
}

/// A body that reads each frame before it passes it on.
#[derive(Debug)]
pub struct Tap<B: Body> {
    body: B,
    /// `None` after the end.
    reader: Option<Reader>,
    stats: TapStats,
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
                self.body.is_end_stream()
                    || self.body.size_hint().exact() == Some(0)
                    || frame.is_trailers()
                    || frame.data_ref().is_some_and(|data| may_end_answer(data))
            }
        }
    }

    fn read_frame(&mut self, frame: &Frame<Bytes>) {
        let Some(data) = frame.data_ref() else {
            self.stats.trailers = true;
            return;
        };
        if data.is_empty() {
            return;
        }
        self.stats.first_byte.get_or_insert_with(Instant::now);
        self.stats.bytes = self.stats.bytes.saturating_add(data.len() as u64);
        if let Some(reader) = &mut self.reader {
            reader.push(data);
        }
    }
}

impl<B: Body> Tap<B> {
    fn end(&mut self, ended: EndReason) {
        if let Some(reader) = self.reader.take() {
            reader.finish(ended, self.stats);
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
        let polled = ready!(Pin::new(&mut tap.body).poll_frame(cx));
        if let Some(Ok(frame)) = &polled {
            tap.read_frame(frame);
        }
        if tap.is_last(polled.as_ref())
            && let Some(reader) = &mut tap.reader
        {
            reader.read_answers();
        }
        match &polled {
            Some(Ok(_)) => {}
            Some(Err(_)) => tap.end(EndReason::UpstreamError),
            None => tap.end(EndReason::Complete),
        }
        Poll::Ready(polled)
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
        // A server does not poll a body for its end once the announced length, or the trailers, are written. It
        // just drops it.
        let is_complete = self.stats.trailers || self.body.is_end_stream();
        self.end(if is_complete {
            EndReason::Complete
        } else {
            EndReason::HungUp
        });
    }
}

/// Reads the frames, and reports what the model has said.
struct Reader {
    /// `None` after a panic.
    capture: Option<Capture>,
    on_answer: OnAnswer,
    /// What [`Summary::changes`] was when `on_answer` was called last.
    reported: Option<u64>,
    result: oneshot::Sender<ObservedAnswer>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

impl Reader {
    fn push(&mut self, data: &Bytes) {
        self.capture = self.capture.take().and_then(|mut capture| {
            guarded(move || {
                capture.push(data.clone());
                capture
            })
        });
    }

    /// Reports what the model has said so far.
    fn read_answers(&mut self) {
        self.capture = self.capture.take().and_then(|mut capture| {
            let bytes = capture.unparsed_bytes();
            let read = move || {
                capture.read_json();
                capture
            };
            guarded(|| in_place(bytes, read))
        });
        if let Some(capture) = &self.capture {
            self.reported = self.report(capture.summary());
        }
    }

    /// Reports what the model has said, if that has changed since the last report. Returns the state that is reported now.
    fn report(&self, summary: &Summary) -> Option<u64> {
        let changes = Some(summary.changes());
        if changes != self.reported {
            guarded(|| (self.on_answer)(&summary.messages()));
        }
        changes
    }

    fn finish(mut self, ended: EndReason, stats: TapStats) {
        let read = self.capture.take().and_then(|capture| {
            let bytes = capture.unparsed_bytes();
            guarded(|| in_place(bytes, || capture.finish()))
        });
        if let Some(summary) = &read {
            self.report(summary);
        }
        let mut summary = read.unwrap_or_default();
        let observed = ObservedAnswer {
            ended,
            saw_done: summary.is_done(),
            finish_reasons: summary.finish_reasons(),
            refusal: summary.refusal,
            error: summary.error,
            text: summary.take_text(),
            usage: summary.usage.map(Usage::checked),
            raw_usage: summary.raw_usage,
            first_byte: stats.first_byte,
            bytes: stats.bytes,
            capture_complete: summary.complete,
        };
        // If the receiver was dropped, nobody needs the result.
        let _ = self.result.send(observed);
    }
}

/// Runs `work` on `bytes`. If that takes long, other threads take over the tasks of this one.
fn in_place<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let has_other_threads = || {
        let runtime = Handle::try_current();
        runtime.is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
    };
    if bytes > PARSE_INLINE && has_other_threads() {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}

/// Catches a panic. The parser of events has panicked on some input before, and the client must not notice.
fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).ok()
}
