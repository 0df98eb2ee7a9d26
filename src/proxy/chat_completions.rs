//! A memory request, read from top to bottom.
//!
//! Whatever memory does or fails to do, the request goes to the upstream and its answer to the
//! client (INV-OPEN). Nothing here counts tokens, reads a clock to decide, or waits for a model
//! (INV-FREE).

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::abort::Abort;
use super::answer_position::{AnswerPosition, SUMMARY_BYTES};
use super::audit_entry::AuditEntry;
use super::body::{self, IdleTimeout, ProxyBody};
use super::decode::Encoding;
use super::decoded_stream::was_compressed;
use super::identify::{OffReason, find_thread, identify, identify_owner};
use super::memory::{Memory, MemoryRequest, PendingAnswer};
use super::mode::{self, DecidedBy, Mode};
use super::outgoing_request::OutgoingRequest;
use super::retry;
use super::select_memory::{SelectionGuard, select_memory};
use super::stream_head;
use super::stream_retry::{SharedStreamOutcome, StreamRetry};
use super::tee::{ObservedAnswer, OnAnswer, TeeSpec, tee};
use super::{Proxy, ProxyError, headers, peer_memory, upstream_route};
use crate::history::{History, MessageKey, Scope, ScopedHash};
use crate::jobs::Exchange;
use crate::memory::alignment;
use crate::store::SentWith;
use crate::store::cache::LookupParams;
use crate::wire::chat::{self, ChatRequest, ParseError};

/// read body → parse → identify → select → splice → forward → stream back, tee.
///
/// # Errors
/// Whatever keeps the upstream's answer from being the client's; never anything of memory.
pub(super) async fn handle(
    proxy: &Arc<Proxy>,
    memory: &Arc<Memory>,
    parts: Parts,
    body: Incoming,
    abort: Abort,
) -> Result<Response<ProxyBody>, ProxyError> {
    let mut entry = AuditEntry::new(memory.audit.as_ref());
    let received = IdleTimeout::new(body, proxy.limits.request_idle);
    let received = body::read_bounded(received, proxy.limits.max_body_bytes)
        .await
        .inspect_err(|error| entry.set_failed(error))?;
    entry.set_received(&received);
    let ReadRequest {
        request,
        answer_position,
    } = read_request(memory, &parts, &received, &mut entry).await;
    let (outgoing, guard) = match &request {
        Some(request) => select_memory(memory, request).await,
        None => (OutgoingRequest::verbatim(received.clone()), None),
    };
    entry.set_outgoing(&outgoing);
    let answer = retry::send(
        proxy,
        memory,
        &parts,
        request.as_ref(),
        outgoing,
        &mut entry,
    )
    .await
    .inspect_err(|error| entry.set_failed(error))?;
    entry.set_status(answer.response.status());
    let route_hash =
        upstream_route::register_route(memory, &parts, request.as_ref(), proxy, &answer.response);
    let in_flight = InFlight {
        sent_with: answer.outgoing.sent_with().clone(),
        asks_usage: answer.outgoing.asks_usage,
        request: request.map(Arc::new),
        outcome: SharedStreamOutcome::default(),
        route_hash,
        answer_position,
    };
    let response = handle_head(proxy, memory, parts, answer, guard, &in_flight);
    Ok(stream_back(
        proxy, memory, response, in_flight, entry, abort,
    ))
}

/// A request whose answer has begun.
struct InFlight {
    request: Option<Arc<MemoryRequest>>,
    sent_with: SentWith,
    asks_usage: bool,
    outcome: SharedStreamOutcome,
    route_hash: Option<[u8; 32]>,
    /// Where its answer stands in its conversation.
    answer_position: Option<AnswerPosition>,
}

/// The answer. Where its beginning can be looked at, what that says decides whether the request was
/// taken; else its status does.
fn handle_head(
    proxy: &Arc<Proxy>,
    memory: &Arc<Memory>,
    parts: Parts,
    answer: retry::UpstreamAnswer,
    guard: Option<SelectionGuard>,
    in_flight: &InFlight,
) -> Response<ProxyBody> {
    if let Some(request) = &in_flight.request
        && stream_head::is_readable_stream(&answer.response)
    {
        let retry = StreamRetry {
            proxy: Arc::clone(proxy),
            memory: Arc::clone(memory),
            request: Arc::clone(request),
            outgoing: answer.outgoing,
            attempts: answer.attempts,
            outcome: in_flight.outcome.clone(),
            guard,
            parts,
        };
        return retry.watch_head(answer.response);
    }
    if answer.response.status().is_success() {
        if let Some(request) = &in_flight.request {
            retry::record_accepted(memory, request, &answer.outgoing);
        }
        if let Some(guard) = guard {
            guard.accept();
        }
    }
    answer.response
}

/// A request that was read.
#[derive(Default)]
pub(super) struct ReadRequest {
    /// What memory does with it; `None` where it gets none.
    pub(super) request: Option<MemoryRequest>,
    /// Where its answer stands; `None` where it could not be read.
    pub(super) answer_position: Option<AnswerPosition>,
}

impl ReadRequest {
    /// A request of `scope` that gets no memory. Where it cannot be read its answer is heard alone.
    async fn parse_without_memory(memory: &Memory, received: &Bytes, scope: &Scope) -> Self {
        let history = match parse(received, scope).await {
            Ok((_, history)) => history,
            Err(_) => History::chain(scope, Vec::new()),
        };
        Self::without_memory(memory, history)
    }

    /// A request that gets no memory, and is heard all the same.
    fn without_memory(memory: &Memory, history: History) -> Self {
        Self {
            request: None,
            answer_position: Some(AnswerPosition::without_memory(&memory.cache, history)),
        }
    }
}

/// Parses and identifies; nothing is asked where the request gets no memory, with the reason on the line.
pub(super) async fn read_request(
    memory: &Memory,
    parts: &Parts,
    received: &Bytes,
    entry: &mut AuditEntry,
) -> ReadRequest {
    if !memory.enabled {
        entry.set_off(OffReason::Disabled);
        return ReadRequest::default();
    }
    // Once: a reload meanwhile is for the next request.
    let policy = memory.policy.current();
    let off_by_header = mode::from_header(&parts.headers) == Some(Mode::Off);
    let identity = identify(&parts.headers, parts.uri.query(), &policy.identity);
    let mut identity = match identity {
        Ok(identity) => identity,
        Err(off) => {
            entry.set_off(if off_by_header {
                OffReason::ByHeader
            } else {
                off
            });
            let Ok(owner) = identify_owner(&parts.headers, parts.uri.query(), &policy.identity)
            else {
                return ReadRequest::default();
            };
            return ReadRequest::parse_without_memory(memory, received, &owner.scope).await;
        }
    };
    entry.set_tenant(&identity);
    let off = match off_by_header {
        true => Some(OffReason::ByHeader),
        false if memory.capabilities.is_signing(&identity.scope.tenant) => Some(OffReason::Signed),
        false => None,
    };
    if let Some(off) = off {
        entry.set_off(off);
        return ReadRequest::parse_without_memory(memory, received, &identity.scope).await;
    }
    let (parsed, history) = match parse(received, &identity.scope).await {
        Ok(read) => read,
        Err(reason) => {
            entry.set_bypass(reason.to_string());
            let nothing = History::chain(&identity.scope, Vec::new());
            return ReadRequest::without_memory(memory, nothing);
        }
    };
    identity.thread = find_thread(&parts.headers, &parsed, &policy.sources);
    if let Some(token_error) = identity.token_error {
        // A token that does not hold is a credential like any other; whose it might have been is unknown.
        let ignored = format!("authorization:{}", token_error.name());
        identity.thread.ignored.push(ignored);
    }
    let is_shared = |key: &String| memory.cache.is_shared_thread_key(&identity.scope, key);
    if identity.thread.key.as_ref().is_some_and(is_shared) {
        identity.thread.drop_key();
    }
    entry.set_parsed(&identity, &parsed, &history);
    if history.is_empty() {
        entry.set_bypass("no_history".to_owned());
        return ReadRequest::without_memory(memory, history);
    }
    let model = parsed.model().unwrap_or_default().to_owned();
    let mut decided = mode::decide(
        &policy.rules,
        policy.read_only.is_read_only(&model),
        parts,
        &model,
    );
    entry.set_mode(decided);
    if decided.mode == Mode::Off {
        entry.set_off(match decided.by {
            DecidedBy::Rule(_) => OffReason::Rule,
            _ => OffReason::ByHeader,
        });
        return ReadRequest::without_memory(memory, history);
    }
    let client_history = Arc::new(history);
    let answer_marks = || possible_answer_marks(&parsed, &client_history);
    let first = parsed.leading_messages().messages().first();
    let system =
        first.map(|message| MessageKey::from_message(&client_history.root(), message).content);
    let asking = LookupParams {
        model: &model,
        thread_key: identity.thread.key.as_deref(),
        system,
        level: policy.evidence,
    };
    let pending_lookup =
        memory
            .cache
            .look_up(&identity.scope, &client_history, asking, answer_marks);
    let (mut lookup, alignment) = pending_lookup.await;
    let history = alignment.as_ref().map_or_else(
        || Arc::clone(&client_history),
        |alignment| Arc::clone(&alignment.history),
    );
    let origins = lookup.origins.clone();
    let answer_position = AnswerPosition::new(&memory.cache, &client_history, origins, &history);
    entry.set_parsed(&identity, &parsed, &history);
    if identity.thread.child && alignment.is_some() && decided.mode == Mode::On {
        // It does not continue the conversation it works for, and would write into it all the same.
        (decided.mode, decided.by) = (Mode::Read, DecidedBy::Child);
        entry.set_mode(decided);
    }
    let writes = decided.mode == Mode::On;
    peer_memory::filter_candidates(memory, &identity, writes, &mut lookup);
    let request = MemoryRequest {
        writes,
        policy,
        identity,
        parsed: Arc::new(parsed),
        history,
        alignment: alignment.map(Arc::new),
        lookup,
        system,
        model,
    };
    ReadRequest {
        request: Some(request),
        answer_position: Some(answer_position),
    }
}

/// Where in a message clients put the answer to a request for a summary: it is all of it, or stands behind a
/// few lines of their own.
const SUMMARY_START_LINES: usize = 6;

/// What an answer of the model would be known by, if one stands in the place of what it summarises.
fn possible_answer_marks(parsed: &ChatRequest, history: &History) -> Vec<(ScopedHash, usize)> {
    let root = history.root();
    let mut marks = Vec::new();
    for (position, text) in parsed.first_texts(alignment::summary_positions(history)) {
        let breaks = text.match_indices('\n').map(|(at, _)| at + 1);
        marks.extend(
            std::iter::once(0)
                .chain(breaks)
                .take(SUMMARY_START_LINES)
                .map(|at| &text[at..])
                .filter(|text| SUMMARY_BYTES.contains(&text.len()))
                .map(|text| (ScopedHash::from_text(&root, text), position)),
        );
    }
    marks
}

/// Bodies from this size on are read on a thread of their own: at about a millisecond a megabyte, a
/// smaller one is read sooner than handed over, and a larger one would hold up other requests.
const PARSE_BLOCKING_BYTES: usize = 256 * 1024;

async fn parse(received: &Bytes, scope: &Scope) -> Result<(ChatRequest, History), ParseError> {
    let (body, owner) = (received.clone(), scope.clone());
    let read = move || {
        let parsed = chat::parse(&body)?;
        let history = parsed.history(&owner);
        Ok((parsed, history))
    };
    if received.len() < PARSE_BLOCKING_BYTES {
        return read();
    }
    // A thread that could not be had, or died: the request passes as one that was not understood.
    tokio::task::spawn_blocking(read)
        .await
        .unwrap_or(Err(ParseError::InvalidJson))
}

/// The upstream's answer, tapped. When it has ended, one way or the other, the exchange is audited
/// and, if it was accepted, recorded.
fn stream_back(
    proxy: &Proxy,
    memory: &Arc<Memory>,
    response: Response<ProxyBody>,
    in_flight: InFlight,
    entry: AuditEntry,
    abort: Abort,
) -> Response<ProxyBody> {
    let (mut parts, body) = response.into_parts();
    let spec = TeeSpec {
        streaming: stream_head::is_event_stream(&parts.headers),
        encoding: Encoding::from_header(parts.headers.get(header::CONTENT_ENCODING)),
        filter_usage: in_flight.asks_usage,
    };
    parts.version = http::Version::HTTP_11;
    parts.headers = headers::towards_client(parts.headers);
    entry.write_headers(&mut parts.headers);
    if spec.filter_usage && spec.streaming {
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    let compressed = spec.encoding != Encoding::Identity || was_compressed(&parts.extensions);
    if spec.filter_usage
        && compressed
        && let Some(request) = &in_flight.request
    {
        // It compressed although it was asked not to. Its report is taken out where that could be
        // decoded, which costs its clients their compression: it is not asked again.
        memory
            .capabilities
            .record_usage_refused(request.tenant_model());
    }
    let status = parts.status;
    let answer_position = in_flight.answer_position.clone();
    let on_answer: OnAnswer = Box::new(move |messages| {
        if let Some(answer_position) = &answer_position {
            answer_position.record_answers(messages);
        }
    });
    let (body, observed) = tee(body, spec, on_answer, &proxy.tasks);
    let body = body.stop_when(in_flight.outcome.stop_usage_filter());
    let memory = Arc::clone(memory);
    let unfinished = PendingAnswer::new(&memory);
    // The drain waits until what was answered is audited and handed over.
    let hold = proxy.tasks.hold();
    proxy.tasks.spawn("exchange", async move {
        let _hold = (hold, unfinished);
        if let Ok(observed) = observed.await {
            finish(&memory, in_flight, entry, status, observed);
        }
    });
    Response::from_parts(parts, abort.guard(body).boxed_unsync())
}

/// The answer has ended: what is left of it.
fn finish(
    memory: &Memory,
    mut in_flight: InFlight,
    mut entry: AuditEntry,
    status: StatusCode,
    observed: ObservedAnswer,
) {
    let (at_ms, answered_ms) = (entry.received_ms(), jiff::Timestamp::now().as_millisecond());
    if let Some(request) = &in_flight.request {
        entry.check_time_zone(&request.identity);
    }
    let outcome = in_flight.outcome.take();
    if let Some(sent) = &outcome.last_sent {
        entry.set_outgoing(sent);
        in_flight.sent_with = sent.sent_with().clone();
        in_flight.asks_usage = sent.asks_usage;
    }
    let failed = outcome.failure.or(observed.error.then_some("error"));
    if status.is_success() {
        entry.set_error(failed);
    }
    entry.finish(&observed);
    let accepted =
        status.is_success() && failed.is_none() && observed.saw_done && !observed.refusal;
    let Some(request) = in_flight.request.filter(|_| accepted) else {
        return;
    };
    if request.parsed.stream() && request.parsed.requested_usage() == Some(true) {
        memory
            .capabilities
            .record_usage_accepted(request.tenant_model());
    }
    if in_flight.asks_usage && observed.usage.is_some() {
        memory.capabilities.record_usage_reported(&request.model);
    }
    let answer = observed
        .text
        .filter(|words| SUMMARY_BYTES.contains(&words.len()))
        .map(|words| ScopedHash::from_text(&request.history.root(), &words));
    if request.writes {
        let request = Arc::unwrap_or_clone(request);
        memory.jobs.intake().offer(Exchange {
            answer,
            answered_ms,
            ..request.into_exchange(in_flight.sent_with, in_flight.route_hash, at_ms)
        });
    }
}
