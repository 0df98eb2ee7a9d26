//! A refusal in the first event of a stream: the client has the head already, so what follows must continue
//! the same stream.
//!
//! The requests that follow are those of [`super::attempt`], without the steps that were taken before the
//! head came. If none is accepted, the client gets the refusal that is about its own prompt, if that is a
//! stream too. The response headers keep naming what was sent first; audit and metric name what was sent
//! last. Called by `chat_completions` if the beginning of the answer can be read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Response;
use http::request::Parts;

use super::super::body::ProxyBody;
use super::super::memory::{Memory, MemoryRequest};
use super::super::outgoing_request::OutgoingRequest;
use super::super::select_memory::SelectionGuard;
use super::super::shared::Shared;
use super::answer::{AnswerForm, Outcome};
use super::attempt::{Attempt, Recovery};
use super::sent_request::SentRequest;
use super::stream_head::{self, FirstEvent, FirstEventHandler, KeepAliveSender};
use crate::wire::usage::RefusalReason;

/// What became of a stream after its head. The handler of the first event writes it, the audit reads it.
#[derive(Clone, Debug, Default)]
pub(in crate::proxy) struct SharedStreamOutcome {
    outcome: Arc<Mutex<StreamOutcome>>,
    /// Set if the rest of the stream answers a request that did not ask for usage, although the first one did. Then no
    /// usage report is taken out any more.
    stop_usage_filter: Arc<AtomicBool>,
}

#[derive(Clone, Debug, Default)]
pub(in crate::proxy) struct StreamOutcome {
    /// The last request, if it is not the one that the head answers.
    pub(in crate::proxy) last_sent: Option<OutgoingRequest>,
    /// The audit's `error`, if the client got an error instead of an answer.
    pub(in crate::proxy) failure: Option<&'static str>,
}

impl SharedStreamOutcome {
    fn lock(&self) -> MutexGuard<'_, StreamOutcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Set once no usage report may be taken out of the stream any more.
    pub(in crate::proxy) fn stop_usage_filter(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop_usage_filter)
    }

    pub(in crate::proxy) fn take(&self) -> StreamOutcome {
        std::mem::take(&mut self.lock())
    }
}

/// A request whose answer is a stream, until its first event.
pub(in crate::proxy) struct StreamRetry {
    pub(in crate::proxy) shared: Arc<Shared>,
    pub(in crate::proxy) memory: Arc<Memory>,
    pub(in crate::proxy) parts: Parts,
    pub(in crate::proxy) request: Arc<MemoryRequest>,
    pub(in crate::proxy) sent: SentRequest,
    pub(in crate::proxy) guard: Option<SelectionGuard>,
    pub(in crate::proxy) outcome: SharedStreamOutcome,
}

impl StreamRetry {
    /// The answer. Its first event is read before the client gets it.
    pub(in crate::proxy) fn watch_head(self, answer: Response<ProxyBody>) -> Response<ProxyBody> {
        answer.map(|body| stream_head::hold_first_event(body, self))
    }

    /// The upstream accepted `sent`.
    fn record_accepted(&self, sent: &SentRequest) {
        sent.record_accepted(&self.memory, &self.request);
        if let Some(guard) = &self.guard {
            guard.accept();
        }
    }

    /// Called before `outgoing` is sent, so that the audit entry is right if the client disconnects.
    fn record_sent(&self, outgoing: &OutgoingRequest) {
        self.outcome.lock().last_sent = Some(outgoing.clone());
    }

    fn record_failure(&self, failure: &'static str) {
        self.outcome.lock().failure = Some(failure);
    }

    /// The answer to `outgoing` continues the client's stream.
    fn continue_with(&self, outgoing: &OutgoingRequest, answer: Response<ProxyBody>) -> ProxyBody {
        let stop_usage_filter = self.sent.outgoing.asks_usage && !outgoing.asks_usage;
        self.outcome
            .stop_usage_filter
            .store(stop_usage_filter, Ordering::Relaxed);
        self.record_sent(outgoing);
        answer.into_body()
    }

    /// The client's stream continues as it began.
    fn keep_first_answer(&self, failure: &'static str) -> Option<ProxyBody> {
        self.outcome.lock().last_sent = None;
        self.record_failure(failure);
        None
    }

    /// The first event refused the request: the stream that continues instead, if there is one.
    async fn recover(
        &self,
        reason: RefusalReason,
        keep_alive: &KeepAliveSender,
    ) -> Option<ProxyBody> {
        let attempt = Attempt {
            shared: &self.shared,
            memory: &self.memory,
            request: &self.request,
            parts: &self.parts,
            form: AnswerForm::ContinuedStream(keep_alive),
        };
        let mut on_send = |outgoing: &OutgoingRequest| self.record_sent(outgoing);
        let recovery = attempt.recover(self.sent.clone(), reason, &mut on_send);
        match recovery.await {
            Recovery::Accepted(answer) => {
                self.record_accepted(&answer.sent);
                Some(self.continue_with(&answer.sent.outgoing, answer.response))
            }
            Recovery::Refused(answer, outcome) => {
                self.record_failure(failure(outcome));
                Some(self.continue_with(&answer.sent.outgoing, answer.response))
            }
            Recovery::FirstAnswer => self.keep_first_answer(failure(Outcome::Refused(reason))),
        }
    }
}

/// The audit's `error` for a client that gets this answer.
fn failure(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Refused(RefusalReason::TooLong(_)) => "too_long",
        _ => "error",
    }
}

impl FirstEventHandler for StreamRetry {
    async fn on_first_event(
        self,
        first_event: FirstEvent,
        keep_alive: KeepAliveSender,
    ) -> Option<ProxyBody> {
        match first_event {
            FirstEvent::Answer => {
                self.record_accepted(&self.sent);
                None
            }
            FirstEvent::Error => self.keep_first_answer("error"),
            // Nothing was said: no answer, but no error either.
            FirstEvent::Missing => self.keep_first_answer("empty"),
            FirstEvent::Refused(reason) => Box::pin(self.recover(reason, &keep_alive)).await,
        }
    }
}
