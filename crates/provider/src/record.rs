//! What the provider received: one [`RecordedRequest`] for each request, for tests, the demo and
//! replays.
//!
//! Everything that is reported about Diarist's effect is read from here, never from the proxy itself.
//! Written by [`super::request_handler`] and the routes while a request is served; read through
//! [`super::Provider::record`]. Decides nothing.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method};
use serde_json::Value;
use tokio::sync::watch;

use super::cache::PromptUsage;
use super::caller::CallerKind;
use super::refusal::Refusal;

/// One request as it arrived, and its outcome.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// Position in the record, from 0.
    pub number: usize,
    /// The TCP connection that it came on, from 0.
    pub connection: u64,
    /// When its head had been read.
    pub at: Instant,
    /// Request method.
    pub method: Method,
    /// Path and query, as received.
    pub target: String,
    /// Every header. Credentials are marked sensitive, so `Debug` hides them.
    pub headers: HeaderMap,
    /// The presented credential.
    pub credential: Credential,
    /// The body as received, whole unless the client left early. Empty when
    /// [`super::Options::keep_bodies`] is off.
    pub body: Bytes,
    /// The size of the body in bytes, also if the body was not kept.
    pub body_bytes: usize,
    /// Who sent it: the conversation, an Observer, a Reflector, or none of them.
    pub caller: CallerKind,
    /// The model in the body, if there is one.
    pub model: Option<String>,
    /// How many messages the body had.
    pub messages: usize,
    /// What the provider decided.
    pub verdict: Verdict,
    /// Prompt and cached tokens; absent for anything but an accepted chat request.
    pub prompt_usage: Option<PromptUsage>,
    /// Tokens of the whole answer, for all choices together, as reported in `usage`.
    pub completion_tokens: Option<u32>,
    /// The assistant message of the first choice.
    pub reply: Option<Value>,
    /// How the exchange ended, if it has.
    pub ending: Ending,
}

impl RecordedRequest {
    /// The body as JSON; `None` if it does not parse or was not kept.
    pub fn json(&self) -> Option<Value> {
        std::str::from_utf8(&self.body).ok()?.parse().ok()
    }

    /// Whether the model answered this chat request.
    pub fn is_accepted(&self) -> bool {
        self.verdict == Verdict::Accepted
    }

    /// The refusal of the provider, if there was one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match &self.verdict {
            Verdict::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// The stage at which the client left, if it did.
    pub fn hang_up_stage(&self) -> Option<Stage> {
        match self.ending {
            Ending::HungUp { stage, .. } => Some(stage),
            _ => None,
        }
    }
}

/// A presented credential: comparable, usable as a cache owner, hidden in `Debug`.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Credential(String);

impl Credential {
    /// Reads `authorization`, `api-key` or `x-api-key`; empty if there is none.
    pub(super) fn from_headers(headers: &HeaderMap) -> Self {
        let value = ["authorization", "api-key", "x-api-key"]
            .into_iter()
            .find_map(|name| headers.get(name))
            .and_then(|value| value.to_str().ok());
        Self(value.unwrap_or_default().to_owned())
    }

    /// The credential in plain text, with its scheme: `"Bearer sk-…"`.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() {
            "none"
        } else {
            "[hidden]"
        })
    }
}

/// What the provider decided about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not decided yet: the body is still arriving.
    Pending,
    /// A chat request that was answered.
    Accepted,
    /// A chat request that was refused.
    Refused(Refusal),
    /// Failed because a [`super::Behaviour`] said so, with this status.
    Failed(u16),
    /// No chat request, so nothing was judged.
    NotJudged,
}

/// How far an exchange has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The request's body was still arriving.
    Body,
    /// The request was complete, no answer had begun.
    BeforeHead,
    /// The head of the answer was out, no event (or body byte) was.
    BeforeFirstEvent,
    /// Part of the answer was out: whole events, and bytes in all.
    Streaming {
        /// Events that were passed to the socket completely.
        events: usize,
        /// Bytes of the answer's body that were passed to the socket.
        bytes: usize,
    },
    /// Everything was out except the end of the answer.
    AfterLastEvent,
}

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It has not ended.
    Open,
    /// The whole answer was passed to the socket.
    Complete {
        /// Time since the head of the request.
        after: Duration,
    },
    /// The client left.
    HungUp {
        /// How far the exchange had come.
        stage: Stage,
        /// Time since the head of the request.
        after: Duration,
    },
    /// The provider cut it off, as scripted.
    Cut {
        /// Time since the head of the request.
        after: Duration,
    },
}

/// The record: append, change, wait.
#[derive(Debug)]
pub(super) struct Record {
    entries: Mutex<Vec<Arc<RecordedRequest>>>,
    changed: watch::Sender<()>,
}

impl Record {
    pub(super) fn new() -> Self {
        Self {
            entries: Mutex::default(),
            changed: watch::Sender::new(()),
        }
    }

    /// Appends an entry and returns the watch that follows it to its end.
    pub(super) fn open(self: &Arc<Self>, entry: RecordedRequest) -> RequestWatch {
        let at = entry.at;
        let mut entries = self.lock();
        let number = entries.len();
        entries.push(Arc::new(RecordedRequest { number, ..entry }));
        drop(entries);
        self.changed.send_replace(());
        RequestWatch {
            record: Arc::clone(self),
            number,
            at,
            stage: Stage::Body,
            ended: false,
        }
    }

    pub(super) fn snapshot(&self) -> Vec<Arc<RecordedRequest>> {
        self.lock().clone()
    }

    pub(super) fn forget_bodies(&self) {
        // Numbers are positions and watches hold them, so entries are never removed.
        for entry in self.lock().iter_mut() {
            Arc::make_mut(entry).body = Bytes::new();
        }
    }

    /// Waits until `condition` holds for the record.
    pub(super) async fn wait(
        &self,
        condition: impl Fn(&[Arc<RecordedRequest>]) -> bool,
    ) -> Vec<Arc<RecordedRequest>> {
        let mut changes = self.changed.subscribe();
        loop {
            changes.mark_unchanged();
            let entries = self.snapshot();
            // The sender is part of `self`, so waiting cannot fail.
            if condition(&entries) || changes.changed().await.is_err() {
                return entries;
            }
        }
    }

    fn amend(&self, number: usize, change: impl FnOnce(&mut RecordedRequest)) {
        if let Some(entry) = self.lock().get_mut(number) {
            change(Arc::make_mut(entry));
        }
        self.changed.send_replace(());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<RecordedRequest>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows one exchange to its end. If it is dropped earlier, it records that the client hung up: a
/// connection that dies drops the future or body that holds the watch.
#[derive(Debug)]
pub(super) struct RequestWatch {
    record: Arc<Record>,
    number: usize,
    at: Instant,
    stage: Stage,
    ended: bool,
}

impl RequestWatch {
    pub(super) fn number(&self) -> usize {
        self.number
    }

    pub(super) fn set_stage(&mut self, stage: Stage) {
        self.stage = stage;
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut RecordedRequest)) {
        self.record.amend(self.number, change);
    }

    pub(super) fn complete(&mut self) {
        let after = self.at.elapsed();
        self.end(Ending::Complete { after });
    }

    pub(super) fn cut(&mut self) {
        let after = self.at.elapsed();
        self.end(Ending::Cut { after });
    }

    fn end(&mut self, ending: Ending) {
        if !std::mem::replace(&mut self.ended, true) {
            self.update(|entry| entry.ending = ending);
        }
    }
}

impl Drop for RequestWatch {
    fn drop(&mut self) {
        let (stage, after) = (self.stage, self.at.elapsed());
        self.end(Ending::HungUp { stage, after });
    }
}
