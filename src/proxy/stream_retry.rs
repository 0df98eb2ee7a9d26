//! A refusal that comes inside a stream: the head has gone to the client, so what helps has to go on as
//! the same stream.
//!
//! The same steps as for any refusal ([`super::ladder`]), but for those that were taken before the head came;
//! where none of them helps, the client hears the first one about its own prompt as it came, if that is a
//! stream too. The head keeps saying what was sent first; audit and metric say what was sent last. Called by
//! `remember` for answers whose beginning can be looked at.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Response;
use http::request::Parts;

use super::memory::{Memory, MemoryRequest};
use super::outgoing_request::OutgoingRequest;
use super::overflow::OverflowAttempts;
use super::retry::{self, AnswerForm, RefusedRequest, RetryResult};
use super::select_memory::SelectionGuard;
use super::stream_head::{self, FirstEvent, FirstEventHandler, KeepAliveSender};
use super::{Proxy, ProxyBody};
use crate::wire::usage::Blame;

/// What became of a stream after its head.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedStreamOutcome {
    outcome: Arc<Mutex<StreamOutcome>>,
    /// What goes on was not asked for its usage, whatever the head is the answer to.
    stop_usage_filter: Arc<AtomicBool>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct StreamOutcome {
    /// What was sent last, where that is not what the head is the answer to.
    pub(super) last_sent: Option<OutgoingRequest>,
    /// What the client was told instead of an answer.
    pub(super) failure: Option<&'static str>,
}

impl SharedStreamOutcome {
    fn lock(&self) -> MutexGuard<'_, StreamOutcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Set once nothing of the stream may be taken out any more.
    pub(super) fn stop_usage_filter(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop_usage_filter)
    }

    pub(super) fn take(&self) -> StreamOutcome {
        std::mem::take(&mut self.lock())
    }
}

/// A request whose stream has not begun.
pub(super) struct StreamRetry {
    pub(super) proxy: Arc<Proxy>,
    pub(super) memory: Arc<Memory>,
    pub(super) parts: Parts,
    pub(super) request: Arc<MemoryRequest>,
    pub(super) outgoing: OutgoingRequest,
    /// What was tried before, because it did not fit: none of it is tried, nor waited for, twice.
    pub(super) attempts: OverflowAttempts,
    pub(super) guard: Option<SelectionGuard>,
    pub(super) outcome: SharedStreamOutcome,
}

impl StreamRetry {
    /// The answer, listened to for as long as nothing of it was said.
    pub(super) fn watch_head(self, answer: Response<ProxyBody>) -> Response<ProxyBody> {
        answer.map(|body| stream_head::hold_first_event(body, self))
    }

    /// `choice` was taken.
    fn record_accepted(&self, outgoing: &OutgoingRequest) {
        retry::record_accepted(&self.memory, &self.request, outgoing);
        if let Some(guard) = &self.guard {
            guard.accept();
        }
    }

    /// `choice` goes out now: a client that leaves meanwhile leaves its line with that.
    fn record_sent(&self, outgoing: &OutgoingRequest) {
        self.outcome.lock().last_sent = Some(outgoing.clone());
    }

    fn record_failure(&self, failure: &'static str) {
        self.outcome.lock().failure = Some(failure);
    }

    /// `choice` is what the client's stream is the answer to from now on.
    fn continue_with(&self, outgoing: &OutgoingRequest, answer: Response<ProxyBody>) -> ProxyBody {
        let stop_usage_filter = self.outgoing.asks_usage && !outgoing.asks_usage;
        self.outcome
            .stop_usage_filter
            .store(stop_usage_filter, Ordering::Relaxed);
        self.record_sent(outgoing);
        answer.into_body()
    }

    /// The request was refused for what it holds, and what was changed of it may be at fault.
    async fn retry_declined(
        &self,
        blame: Blame,
        keep_alive: &KeepAliveSender,
    ) -> Option<ProxyBody> {
        let (form, outgoing) = (AnswerForm::ContinuedStream(keep_alive), &self.outgoing);
        let again =
            retry::fall_back_to_original(&self.memory, &self.request, outgoing, blame).await;
        let again = again.filter(|again| outgoing.asks_usage || !again.asks_usage);
        let Some(again) = again else {
            return self.keep_first_answer("error");
        };
        self.record_sent(&again);
        let Ok(answer) = retry::send_once(&self.proxy, &self.parts, &again, form).await else {
            return self.keep_first_answer("error");
        };
        let (answer, result) = retry::classify_answer(answer, &again, form).await;
        let failure = match result {
            RetryResult::Accepted => {
                self.record_accepted(&again);
                return Some(self.continue_with(&again, answer));
            }
            RetryResult::TooLong(excess) => {
                let refused = RefusedRequest {
                    outgoing: again.clone(),
                    excess,
                    attempts: self.attempts.clone().reset_placement(),
                };
                let shorter = self.retry_shorter(refused, keep_alive).await;
                if shorter.is_some() {
                    return shorter;
                }
                "too_long"
            }
            RetryResult::Declined(_) | RetryResult::Unusable => "error",
            // What was refused at first says more.
            RetryResult::Empty => return self.keep_first_answer("error"),
        };
        if !stream_head::is_readable_stream(&answer) {
            return self.keep_first_answer("error");
        }
        self.record_failure(failure);
        Some(self.continue_with(&again, answer))
    }

    /// Nothing goes on in the place of what the client was sent first.
    fn keep_first_answer(&self, failure: &'static str) -> Option<ProxyBody> {
        self.outcome.lock().last_sent = None;
        self.record_failure(failure);
        None
    }

    /// What was `refused` did not fit its model.
    async fn retry_shorter(
        &self,
        refused: RefusedRequest,
        keep_alive: &KeepAliveSender,
    ) -> Option<ProxyBody> {
        let mut on_send = |outgoing: &OutgoingRequest| self.record_sent(outgoing);
        let (proxy, memory, request) = (&self.proxy, &self.memory, &self.request);
        let form = AnswerForm::ContinuedStream(keep_alive);
        let shorter = retry::retry_shorter(
            proxy,
            memory,
            &self.parts,
            request,
            refused,
            form,
            &mut on_send,
        );
        let sent = shorter.await?;
        self.record_accepted(&sent.outgoing);
        Some(self.continue_with(&sent.outgoing, sent.response))
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
                self.record_accepted(&self.outgoing);
                None
            }
            FirstEvent::Error | FirstEvent::Missing => self.keep_first_answer("error"),
            FirstEvent::Declined(blame) => self.retry_declined(blame, &keep_alive).await,
            FirstEvent::TooLong(excess) => {
                let refused = RefusedRequest {
                    outgoing: self.outgoing.clone(),
                    excess,
                    attempts: self.attempts.clone(),
                };
                let shorter = self.retry_shorter(refused, &keep_alive).await;
                shorter.or_else(|| self.keep_first_answer("too_long"))
            }
        }
    }
}
