//! How the provider misbehaves: slow, failing, cutting streams, or writing them in unusual ways.
//!
//! A [`Behaviour`] is plain data; [`Schedule`] says which one the next request of a caller gets.
//! Applied by [`super::chat`], [`super::routes`] and [`super::sending`]; tests can set it at any time.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::caller::CallerKind;

/// How one answer is given. The default answers at once, in ordinary frames.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent oddities of real providers"
)]
pub struct Behaviour {
    /// Time between the end of the request and the head of the answer.
    pub before_head: Duration,
    /// Never answer; the client has to leave.
    pub silent: bool,
    /// Time before each event of a stream, or before the body of another answer.
    pub before_event: Duration,
    /// Each event (or the body of another answer) takes one permit. With this, a test can hold a
    /// stream between two events and look at what has arrived.
    pub gate: Option<Arc<Semaphore>>,
    /// Let [`Behaviour::before_event`] and [`Behaviour::gate`] hold every frame instead of every
    /// event. With [`Behaviour::frame_bytes`], this stops a stream in the middle of an event.
    pub pace_frames: bool,
    /// After the last event of a stream, keep it open until the client leaves.
    pub hold_open: bool,
    /// Fail instead of answering.
    pub fail: Option<Failure>,
    /// With [`Behaviour::fail`]: answer before the request's body has been read.
    pub early: bool,
    /// Break the answer off.
    pub cut: Option<Cut>,
    /// The size of the frames of the answer's body; otherwise one frame for each event.
    pub frame_bytes: Option<usize>,
    /// Characters of one streamed delta; 24 if not set.
    pub delta_chars: Option<usize>,
    /// The line endings of a stream.
    pub line_end: LineEnd,
    /// Begin the stream with a byte-order mark.
    pub byte_order_mark: bool,
    /// Put comment lines between events, as keep-alives are.
    pub comments: bool,
    /// Spread each event's data over several `data:` lines.
    pub multi_line: bool,
    /// Leave out the final `[DONE]`.
    pub omit_done: bool,
    /// Send the usage chunk although it was not asked for.
    pub unrequested_usage: bool,
    /// Report an error in the first event of a stream, under status 200, if the request asks for a
    /// stream.
    pub refuse_in_stream: bool,
    /// Compress the answer with gzip, flushed at every event.
    pub gzip: bool,
    /// Leave out the content type of the answer, as some small servers do.
    pub omit_content_type: bool,
    /// More headers of the answer, such as `x-ratelimit-remaining-requests`.
    pub headers: Vec<(&'static str, String)>,
}

impl Behaviour {
    /// Fails with `status`.
    pub fn failing(status: u16) -> Self {
        Self {
            fail: Some(Failure {
                status,
                retry_after: None,
                body: None,
            }),
            ..Self::default()
        }
    }

    /// Fails with 429 and a `Retry-After` of this many seconds.
    pub fn rate_limited(retry_after: u32) -> Self {
        Self {
            fail: Some(Failure {
                status: 429,
                retry_after: Some(retry_after),
                body: None,
            }),
            ..Self::default()
        }
    }

    /// Breaks the answer off at `cut`.
    pub fn cutting(cut: Cut) -> Self {
        Self {
            cut: Some(cut),
            ..Self::default()
        }
    }

    /// Waits this long before the head of the answer.
    pub fn slow(before_head: Duration) -> Self {
        Self {
            before_head,
            ..Self::default()
        }
    }

    /// Sends each event only when `gate` has a permit for it.
    pub fn gated(gate: &Arc<Semaphore>) -> Self {
        Self {
            gate: Some(Arc::clone(gate)),
            ..Self::default()
        }
    }
}

/// A scripted failure.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Status to answer with.
    pub status: u16,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u32>,
    /// Content type and body; if not set, the API's usual error object for the status. With the
    /// content type of a stream, it is sent as a stream.
    pub body: Option<(&'static str, String)>,
}

/// Where an answer is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Close the connection instead of answering.
    BeforeHead,
    /// After this many bytes of the answer's body.
    AfterBytes(usize),
    /// After this many events.
    AfterEvents(usize),
    /// After this many events, by a TCP reset instead of a close.
    ResetAfterEvents(usize),
}

/// The line endings of an event stream; the standard allows all three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineEnd {
    /// `\n`
    #[default]
    Lf,
    /// `\r\n`
    CrLf,
    /// `\r`
    Cr,
}

impl LineEnd {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Lf => "\n",
            Self::CrLf => "\r\n",
            Self::Cr => "\r",
        }
    }
}

/// The behaviour for the next request of each caller: queued ones first, then the default.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    defaults: HashMap<CallerKind, Behaviour>,
    queued: HashMap<CallerKind, VecDeque<Behaviour>>,
}

impl Schedule {
    pub(super) fn set_default(&mut self, caller: CallerKind, behaviour: Behaviour) {
        self.defaults.insert(caller, behaviour);
    }

    pub(super) fn queue(&mut self, caller: CallerKind, times: usize, behaviour: &Behaviour) {
        let queue = self.queued.entry(caller).or_default();
        queue.extend(std::iter::repeat_n(behaviour, times).cloned());
    }

    pub(super) fn take(&mut self, caller: CallerKind) -> Behaviour {
        self.queued
            .get_mut(&caller)
            .and_then(VecDeque::pop_front)
            .or_else(|| self.defaults.get(&caller).cloned())
            .unwrap_or_default()
    }

    /// The next behaviour of the actor if it answers before the body is read. The caller is not
    /// known before that.
    pub(super) fn take_early(&mut self) -> Option<Behaviour> {
        let next = self
            .queued
            .get(&CallerKind::Actor)
            .and_then(VecDeque::front)
            .or_else(|| self.defaults.get(&CallerKind::Actor))?;
        (next.early && next.fail.is_some()).then(|| self.take(CallerKind::Actor))
    }
}
