//! Sending, and what is done when the upstream refuses (INV-OPEN).
//!
//! A changed request that is refused goes out once more as the client made it; what does not fit its
//! model is shortened, step by step ([`super::overflow`]). What a refusal means reads `wire::usage`, what
//! follows it stands in [`super::declined`]; any other answer passes at once. Called by `remember`.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response, header};
use http_body_util::BodyExt as _;

use super::audit_entry::AuditEntry;
use super::body::OutBody;
use super::declined_request::DeclinedRequest;
use super::decode::{Decoder, Encoding};
use super::decoded_stream::decode_stream;
use super::memory::{Memory, MemoryRequest};
use super::outgoing_request::{Fallback, OutgoingRequest};
use super::overflow::{OverflowAttempts, OverflowRetries};
use super::stream_head::{self, FirstEvent, KeepAliveSender};
use super::{Proxy, ProxyBody, ProxyError, body, forward, upstream_route};
use crate::llm::UpstreamRoute;
use crate::wire::usage::{
    Blame, Excess, RefusalReason, is_change_refusal_status, is_refusal_status, refusal_reason,
};

/// The upstream's answer and what it is the answer to.
pub(super) struct UpstreamAnswer {
    pub(super) response: Response<ProxyBody>,
    pub(super) outgoing: OutgoingRequest,
    /// What was tried because it did not fit.
    pub(super) attempts: OverflowAttempts,
}

/// A refused request.
#[derive(Debug)]
pub(super) struct RefusedRequest {
    pub(super) outgoing: OutgoingRequest,
    /// How much was too much, where the refusal says it.
    pub(super) excess: Option<Excess>,
    /// What was tried because of that already.
    pub(super) attempts: OverflowAttempts,
}

/// Sends `choice`, and again what a refusal asks for.
pub(super) async fn send(
    proxy: &Proxy,
    memory: &Memory,
    parts: &Parts,
    request: Option<&MemoryRequest>,
    outgoing: OutgoingRequest,
    entry: &mut AuditEntry,
) -> Result<UpstreamAnswer, ProxyError> {
    let answer = send_once(proxy, parts, &outgoing, AnswerForm::Answer).await?;
    let Some(request) = request.filter(|_| is_possible_refusal(&answer, &outgoing)) else {
        return Ok(outgoing.into_answer(answer));
    };
    let (mut outgoing, (mut answer, mut reason)) = (outgoing, read_refusal(answer).await);
    // Where there is no second answer, the first is the client's.
    if let Some(RefusalReason::Declined(blame)) = reason
        && let Some(again) = fall_back_to_original(memory, request, &outgoing, blame).await
        && let Ok(second) = send_once(proxy, parts, &again, AnswerForm::Answer).await
    {
        entry.set_outgoing(&again);
        (answer, reason) = if is_possible_refusal(&second, &again) {
            read_refusal(second).await
        } else {
            (second, None)
        };
        outgoing = again;
    }
    let Some(RefusalReason::TooLong(excess)) = reason else {
        return Ok(outgoing.into_answer(answer));
    };
    let refused = RefusedRequest {
        outgoing: outgoing.clone(),
        excess,
        attempts: OverflowAttempts::default(),
    };
    let mut on_send = |outgoing: &OutgoingRequest| entry.set_outgoing(outgoing);
    let form = AnswerForm::Answer;
    let shorter = retry_shorter(proxy, memory, parts, request, refused, form, &mut on_send).await;
    // Else the client hears that its own prompt is too long, which is something it can act on; not what
    // is wrong with words it never wrote.
    Ok(shorter.unwrap_or_else(|| outgoing.into_answer(answer)))
}

/// Whether `answer` may refuse `choice`: what the client made may be too long, anything else that is refused
/// of it is the client's to hear.
fn is_possible_refusal(answer: &Response<ProxyBody>, outgoing: &OutgoingRequest) -> bool {
    let status = answer.status().as_u16();
    is_refusal_status(status) || outgoing.is_changed() && is_change_refusal_status(status)
}

/// What goes out after `choice` was refused for what it holds, if anything does.
pub(super) async fn fall_back_to_original(
    memory: &Memory,
    request: &MemoryRequest,
    outgoing: &OutgoingRequest,
    blame: Blame,
) -> Option<OutgoingRequest> {
    if !outgoing.is_changed() {
        return None;
    }
    let original = OutgoingRequest::new(request, None, false, outgoing.why, Fallback::Refused);
    let declined = DeclinedRequest::new(memory, request, outgoing, blame);
    let original_request = match_equal_request(memory, request, outgoing, original).await;
    Some(original_request.with_declined(Some(Arc::new(declined))))
}

/// A request that does not fit its model, shorter with every step.
pub(super) struct OverflowShortening<'a> {
    memory: &'a Memory,
    request: &'a MemoryRequest,
    retries: OverflowRetries<'a>,
    first: OutgoingRequest,
    last: OutgoingRequest,
}

impl<'a> OverflowShortening<'a> {
    /// `whole` was refused as too long, after so much was `tried`; `way` is how it went to the upstream.
    pub(super) fn new(
        memory: &'a Memory,
        request: &'a MemoryRequest,
        route: &'a (dyn Fn() -> Option<UpstreamRoute> + Sync),
        first: OutgoingRequest,
        attempts: OverflowAttempts,
    ) -> Self {
        Self {
            memory,
            request,
            retries: OverflowRetries::new(memory, request, route, &first, attempts),
            last: first.clone(),
            first,
        }
    }

    /// What goes out instead of what went out last, which was refused with this `excess`; `None` where
    /// nothing is left to do.
    pub(super) async fn next(&mut self, excess: Option<Excess>) -> Option<OutgoingRequest> {
        let again = self.retries.next(&self.last, excess).await?;
        Some(self.record_next(again).await)
    }

    /// The same, where what went out last was refused for what it holds.
    pub(super) async fn other_placement(&mut self, blame: Blame) -> Option<OutgoingRequest> {
        let again = self.retries.other_placement(&self.last, blame)?;
        Some(self.record_next(again).await)
    }

    async fn record_next(&mut self, again: OutgoingRequest) -> OutgoingRequest {
        let declined = again.declined.clone();
        let again = match_equal_request(self.memory, self.request, &self.last, again).await;
        self.last = again.with_declined(declined);
        self.last.clone()
    }

    /// What went out last was taken.
    #[cfg(feature = "testing")]
    pub(super) fn record_accepted(&self) {
        record_accepted(self.memory, self.request, &self.last);
    }

    /// What was tried so far.
    fn attempts(&self) -> OverflowAttempts {
        self.retries.attempts.clone()
    }

    /// Nothing helped: it is decided anew when it comes again; until then as it went out first.
    pub(super) fn give_up(self) -> OutgoingRequest {
        if let Some(tip) = self.request.history.tip() {
            let (scope, last) = (&self.request.identity.scope, self.last.sent_with());
            let (cache, first) = (&self.memory.cache, self.first.sent_with().clone());
            cache.replace_refused_pin(scope, (tip, &self.request.model), last, first);
        }
        self.first
    }
}

/// `accepted` was taken, maybe where something else was refused: what is learned from it.
pub(super) fn record_accepted(
    memory: &Memory,
    request: &MemoryRequest,
    accepted: &OutgoingRequest,
) {
    if let Some(snapshot) = accepted.snapshot() {
        memory
            .capabilities
            .record_accepted_snapshot(&request.model, snapshot.meta.id);
    }
    match &accepted.declined {
        Some(declined) => declined.learn(memory, request, accepted),
        None if accepted.is_changed() => memory
            .capabilities
            .record_accepted_change(request.tenant_model()),
        None => {}
    }
}

/// As what the answer goes on to the client.
#[derive(Clone, Copy, Debug)]
pub(super) enum AnswerForm<'a> {
    /// As whatever it is.
    Answer,
    /// As the rest of a stream whose head has gone: only another stream is of use. What keeps the connection
    /// alive passes meanwhile.
    ContinuedStream(&'a KeepAliveSender),
}

/// What is too long, shorter with every step, until it is taken or nothing is left to do. `tell` is told of whatever goes out, and at last of what went out first where
/// nothing helped.
pub(super) async fn retry_shorter(
    proxy: &Proxy,
    memory: &Memory,
    parts: &Parts,
    request: &MemoryRequest,
    refused: RefusedRequest,
    form: AnswerForm<'_>,
    on_send: &mut (dyn FnMut(&OutgoingRequest) + Send),
) -> Option<UpstreamAnswer> {
    let RefusedRequest {
        outgoing,
        excess,
        attempts,
    } = refused;
    let asks_usage = outgoing.asks_usage;
    let route = || upstream_route::route_for_request(proxy, parts);
    let mut shortening = OverflowShortening::new(memory, request, &route, outgoing, attempts);
    let mut next = shortening.next(excess).await;
    while let Some(again) = next {
        if matches!(form, AnswerForm::ContinuedStream(_)) && again.asks_usage && !asks_usage {
            // The report would reach a client that has not asked for it.
            break;
        }
        on_send(&again);
        let Ok(answer) = send_once(proxy, parts, &again, form).await else {
            break;
        };
        let (answer, result) = classify_answer(answer, &again, form).await;
        match result {
            RetryResult::Accepted => {
                let attempts = shortening.attempts();
                return Some(UpstreamAnswer {
                    attempts,
                    ..again.into_answer(answer)
                });
            }
            RetryResult::TooLong(more) => next = shortening.next(more).await,
            RetryResult::Declined(blame) => next = shortening.other_placement(blame).await,
            RetryResult::Unusable | RetryResult::Empty => break,
        }
    }
    on_send(&shortening.give_up());
    None
}

/// What came of another request.
pub(super) enum RetryResult {
    /// An answer for the client.
    Accepted,
    /// It is still too long.
    TooLong(Option<Excess>),
    /// It is refused for what it holds.
    Declined(Blame),
    /// Something that is of no use to a client that asked for something else.
    Unusable,
    /// A stream that ended, or broke off, before it said anything.
    Empty,
}

pub(super) async fn classify_answer(
    answer: Response<ProxyBody>,
    outgoing: &OutgoingRequest,
    form: AnswerForm<'_>,
) -> (Response<ProxyBody>, RetryResult) {
    if is_possible_refusal(&answer, outgoing) {
        let (answer, reason) = read_refusal(answer).await;
        let result = match reason {
            Some(RefusalReason::TooLong(excess)) => RetryResult::TooLong(excess),
            Some(RefusalReason::Declined(blame)) => RetryResult::Declined(blame),
            None if matches!(form, AnswerForm::Answer) => RetryResult::Accepted,
            None => RetryResult::Unusable,
        };
        return (answer, result);
    }
    match form {
        AnswerForm::Answer => (answer, RetryResult::Accepted),
        AnswerForm::ContinuedStream(_) if !stream_head::is_readable_stream(&answer) => {
            (answer, RetryResult::Unusable)
        }
        AnswerForm::ContinuedStream(keep_alive) => {
            let (answer, first_event) = stream_head::read_first_event(answer, keep_alive).await;
            let result = match first_event {
                FirstEvent::Answer => RetryResult::Accepted,
                FirstEvent::TooLong(excess) => RetryResult::TooLong(excess),
                FirstEvent::Declined(blame) => RetryResult::Declined(blame),
                FirstEvent::Error => RetryResult::Unusable,
                FirstEvent::Missing => RetryResult::Empty,
            };
            (answer, result)
        }
    }
}

/// `again`, which is to go out in the place of `refused`; or what an equal request has gone out with
/// meanwhile in the same place (INV-SAME).
async fn match_equal_request(
    memory: &Memory,
    request: &MemoryRequest,
    refused: &OutgoingRequest,
    again: OutgoingRequest,
) -> OutgoingRequest {
    let Some(tip) = request.history.tip() else {
        return again;
    };
    let (previous_send, next_send) = (refused.sent_with(), again.sent_with().clone());
    let request_key = (tip, request.model.as_str());
    let sent_with = memory.cache.replace_refused_pin(
        &request.identity.scope,
        request_key,
        previous_send,
        next_send,
    );
    if sent_with == *again.sent_with() || sent_with == *previous_send {
        return again;
    }
    let equal = OutgoingRequest::from_sent_with(memory, request, &sent_with, &again).await;
    equal.unwrap_or(again)
}

impl OutgoingRequest {
    fn into_answer(self, response: Response<ProxyBody>) -> UpstreamAnswer {
        UpstreamAnswer {
            response,
            outgoing: self,
            attempts: OverflowAttempts::default(),
        }
    }
}

pub(super) async fn send_once(
    proxy: &Proxy,
    parts: &Parts,
    outgoing: &OutgoingRequest,
    form: AnswerForm<'_>,
) -> Result<Response<ProxyBody>, ProxyError> {
    let mut parts = parts.clone();
    let needs_identity = outgoing.asks_usage || matches!(form, AnswerForm::ContinuedStream(_));
    if needs_identity {
        // The event that answers our own question is taken out again, which a compressed stream
        // would not allow; and a head that has gone said that there is none.
        parts.headers.insert(
            header::ACCEPT_ENCODING,
            HeaderValue::from_static("identity"),
        );
    }
    let out = OutBody::Segments(outgoing.frames.clone());
    let response = forward::send(&proxy.upstream, parts, out).await?;
    let response = response
        .map(|body| body::IdleTimeout::new(body, proxy.limits.response_idle).boxed_unsync());
    // Some compress all the same.
    Ok(if needs_identity {
        decode_stream(response)
    } else {
        response
    })
}

/// Reads what may be a refusal, and puts the answer together again as it was.
async fn read_refusal(
    response: Response<ProxyBody>,
) -> (Response<ProxyBody>, Option<RefusalReason>) {
    /// Error bodies are a few hundred bytes.
    const READ: usize = 64 * 1024;
    let (parts, rest) = response.into_parts();
    let (read, rest) = body::peek(rest, READ).await;
    let encoding = Encoding::from_header(parts.headers.get(header::CONTENT_ENCODING));
    // What cannot be read names nothing.
    let plain = plain(encoding, &read).unwrap_or_default();
    let reason = refusal_reason(parts.status.as_u16(), &plain);
    (
        Response::from_parts(parts, body::prepend(read, rest)),
        reason,
    )
}

fn plain(encoding: Encoding, read: &Bytes) -> Option<Bytes> {
    let mut decoder = Decoder::new(encoding);
    decoder.push(read.clone()).ok()
}
