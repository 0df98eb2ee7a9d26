//! How the provider misbehaves: slow, failing, cutting streams, writing them in odd ways.
//!
//! A [`Behaviour`] is plain data; [`Schedule`] says which one the next request of a part gets.
//! Carried out by [`super::server`] and [`super::sending`]; set at any time by tests.

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
    /// Never answers at all; the client has to leave.
    pub silent: bool,
    /// Time before each event of a stream (or before the body of a plain answer).
    pub before_event: Duration,
    /// Each event (or the body of a plain answer) takes one permit: lets a test hold a stream
    /// between two events and see what has arrived.
    pub gate: Option<Arc<Semaphore>>,
    /// Let [`Behaviour::before_event`] and [`Behaviour::gate`] hold every frame instead of every
    /// event; with [`Behaviour::frame_bytes`] that stops a stream in the middle of an event.
    pub pace_frames: bool,
    /// After the last event of a stream, keep it open until the client leaves.
    pub hold_open: bool,
    /// Fail instead of answering.
    pub fail: Option<Failure>,
    /// With [`Behaviour::fail`]: answer before the request's body has been read.
    pub early: bool,
    /// Break the answer off.
    pub cut: Option<Cut>,
    /// Size of the frames the answer's body is written in; otherwise one frame per event.
    pub frame_bytes: Option<usize>,
    /// How long the text of one streamed delta is, in characters; 24 when not given.
    pub delta_chars: Option<usize>,
    /// What ends the lines of a stream.
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
    /// Say what is wrong with a request that asks for a stream in the first event of one, under status
    /// 200.
    pub refuse_in_stream: bool,
    /// Compress the answer with gzip, flushed at every event.
    pub gzip: bool,
    /// Further headers of the answer, such as `x-ratelimit-remaining-requests`.
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

    /// Fails with 429 and a `Retry-After` of so many seconds.
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

    /// Waits so long before the head of the answer.
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
    /// Content type and body; the API's usual error object for the status when not given. Of the type of
    /// a stream it is sent as one.
    pub body: Option<(&'static str, String)>,
}

/// Where an answer breaks off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Close the connection instead of answering.
    BeforeHead,
    /// After so many bytes of the answer's body.
    AfterBytes(usize),
    /// After so many events.
    AfterEvents(usize),
    /// After so many events, by a TCP reset instead of a close.
    ResetAfterEvents(usize),
}

/// What ends the lines of an event stream; the standard allows all three.
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

/// Which behaviour the next request of each part gets: queued ones first, then the standing one.
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

    /// The next behaviour of the actor if it answers before the body is read: who asks is not
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
