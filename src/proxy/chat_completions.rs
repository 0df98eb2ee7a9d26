//! The path of a chat completion, from top to bottom: read, select, send, stream back, finish.
//!
//! Whatever memory does or fails to do, the request goes to the upstream and its answer to the client
//! (INV-OPEN). Nothing here counts tokens, decides by a clock, or waits for a model (INV-FREE). Called by
//! [`super::flow`] for POST to `/v1/chat/completions` and `/chat/completions`.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use http::request::Parts;
use http::{Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};

use super::abort::Abort;
use super::answer_position::AnswerPosition;
use super::audit_entry::AuditEntry;
use super::body::{self, IdleTimeout, ProxyBody};
use super::body_budget::Reservation;
use super::cache_verdict::{self, PromptSource, SentForm};
use super::decode::Encoding;
use super::decoded_stream::was_compressed;
use super::memory::{Memory, MemoryRequest, PendingAnswer};
use super::outgoing_request::OutgoingRequest;
use super::parsed_prefixes::PrefixHashes;
use super::places::Peer;
use super::read_request::{ReadRequest, read_request};
use super::received_body::ReceivedBody;
use super::rejections::Rejection;
use super::retry::{self, SentRequest, SharedStreamOutcome, StreamRetry, UpstreamAnswer};
use super::select_memory::{SelectionGuard, select_memory};
use super::shared::Shared;
use super::tee::{ObservedAnswer, OnAnswer, TeeSpec, tee};
use super::{headers, sse, upstream_route};
use crate::audit::{Audit, RequestKind};
use crate::jobs::Exchange;
use crate::store::SentWith;

/// Answers one chat completion.
///
/// # Errors
/// If the client gets an answer of Diarist instead of the upstream's. A failure of memory is no reason.
pub(super) async fn handle(
    shared: &Arc<Shared>,
    memory: &Arc<Memory>,
    mut parts: Parts,
    (body, mut reserved): (Incoming, Reservation),
    abort: Abort,
) -> Result<Response<ProxyBody>, Rejection> {
    let audit = memory.audit.as_ref();
    let span = Audit::begin_span(audit, &mut parts.headers, RequestKind::Chat);
    // Boxed, since it is large and moves with the request.
    let mut entry = Box::new(AuditEntry::new(audit, span));
    let limits = &shared.limits;
    let mut hasher = memory.parsed_prefixes.hasher(body.size_hint().exact());
    let mut incoming = IdleTimeout::paced(body, limits.request_idle, limits.body_pace);
    let has_room = |bytes| reserved.grow_to(bytes);
    let on_data = |read: &[u8]| hasher.read(read, || memory.credential_hash(&parts));
    let reading = body::read_bounded(&mut incoming, limits.max_body_bytes, has_room, on_data);
    let received = match reading.await {
        Ok(body) => ReceivedBody {
            body,
            prefix_hashes: hasher.finish(),
        },
        Err(error) => {
            body::Discard::new(&shared.tasks, &parts).run(incoming);
            return Err(entry.refuse(error));
        }
    };
    entry.set_received(&received.body);
    let peer = parts.extensions.get::<Peer>().copied();
    let place = shared
        .places
        .take(peer)
        .map_err(|error| entry.refuse(error))?;
    let Decided {
        request,
        mut answer_position,
        prompt,
        outgoing,
        guard,
    } = decide(shared, memory, &parts, &received, &mut entry).await;
    if request.as_ref().is_some_and(|request| request.writes)
        && let Some(position) = &mut answer_position
    {
        position.hold_answers();
    }
    let answer = retry::send(
        shared,
        memory,
        &parts,
        request.as_deref(),
        outgoing,
        &mut entry,
    )
    .await
    .map_err(|error| entry.refuse(error))?;
    entry.set_status(answer.response.status());
    let route_hash = upstream_route::register_route(
        memory,
        &parts,
        request.as_deref(),
        shared,
        &answer.response,
    );
    let mut in_flight = InFlight {
        tenant: match &request {
            Some(request) => Some(request.identity.scope.tenant),
            None => memory.owner(&parts).map(|owner| owner.tenant),
        },
        sent_with: answer.sent.outgoing.sent_with().clone(),
        asks_usage: answer.sent.outgoing.asks_usage,
        answer_position: answer_position.map(Arc::new),
        prompt: prompt.map(|prompt| (prompt, SentForm::new(&answer.sent.outgoing))),
        request,
        outcome: SharedStreamOutcome::default(),
        to_accept: None,
        route_hash,
        prefix_hashes: received.prefix_hashes,
        _reserved: reserved,
    };
    let response = handle_head(shared, memory, parts, answer, guard, &mut in_flight);
    let response = stream_back(shared, memory, response, in_flight, entry, abort);
    Ok(response.map(|body| body::with_guard(body, place)))
}

/// What is sent for a request, and what is known of it.
struct Decided {
    request: Option<Arc<MemoryRequest>>,
    answer_position: Option<AnswerPosition>,
    prompt: Option<PromptSource>,
    outgoing: OutgoingRequest,
    guard: Option<SelectionGuard>,
}

/// Reads a request and selects its memory. If that panics, the request goes out as it came.
async fn decide(
    shared: &Shared,
    memory: &Memory,
    parts: &Parts,
    received: &ReceivedBody,
    entry: &mut AuditEntry,
) -> Decided {
    let deciding = async {
        shared.tasks.fault_point_quoting("request", &received.body);
        let ReadRequest {
            request,
            answer_position,
            prompt,
        } = read_request(memory, parts, received, entry).await;
        let (outgoing, guard) = match &request {
            Some(request) => select_memory(memory, request).await,
            None => (OutgoingRequest::verbatim(received.body.clone()), None),
        };
        entry.set_outgoing(&outgoing);
        Decided {
            request,
            answer_position,
            prompt,
            outgoing,
            guard,
        }
    };
    if let Ok(decided) = AssertUnwindSafe(deciding).catch_unwind().await {
        return decided;
    }
    // The payload of a panic may quote the request, so it is not logged. The panic hook has written the place.
    tracing::error!(
        "a fault in the program: no memory could be selected for a request, and it goes out as the client sent it"
    );
    let outgoing = OutgoingRequest::verbatim(received.body.clone());
    entry.set_outgoing(&outgoing);
    entry.set_bypass("fault".to_owned());
    Decided {
        request: None,
        answer_position: None,
        prompt: None,
        outgoing,
        guard: None,
    }
}

/// A request whose answer has begun.
struct InFlight {
    /// Whose it is, also if it has no memory.
    tenant: Option<[u8; 32]>,
    request: Option<Arc<MemoryRequest>>,
    sent_with: SentWith,
    asks_usage: bool,
    /// What the audit compares with the conversation's previous request.
    prompt: Option<(PromptSource, SentForm)>,
    outcome: SharedStreamOutcome,
    /// What counts as accepted if the answer holds no error. An error under status 200 is known when it was read.
    to_accept: Option<(SentRequest, Option<SelectionGuard>)>,
    /// The route that the jobs of this conversation may borrow.
    route_hash: Option<[u8; 32]>,
    /// Where the answer stands in its conversation.
    answer_position: Option<Arc<AnswerPosition>>,
    /// The hashes by which the beginning of its body is found once it was parsed.
    prefix_hashes: PrefixHashes,
    /// The room of its body, which is held until the exchange is handed to the recorder.
    _reserved: Reservation,
}

/// Decides what shows whether the upstream accepted the request: the first event of a stream if it can be read,
/// otherwise the status and, in [`finish`], the answer.
fn handle_head(
    shared: &Arc<Shared>,
    memory: &Arc<Memory>,
    parts: Parts,
    answer: UpstreamAnswer,
    guard: Option<SelectionGuard>,
    in_flight: &mut InFlight,
) -> Response<ProxyBody> {
    if let Some(request) = &in_flight.request
        && retry::is_readable_stream(&answer.response)
    {
        let retry = StreamRetry {
            shared: Arc::clone(shared),
            memory: Arc::clone(memory),
            request: Arc::clone(request),
            sent: answer.sent,
            outcome: in_flight.outcome.clone(),
            guard,
            parts,
        };
        return retry.watch_head(answer.response);
    }
    // Without memory there is nothing to accept, and the body need not be held until the answer ends.
    if answer.response.status().is_success() && in_flight.request.is_some() {
        in_flight.to_accept = Some((answer.sent, guard));
    }
    answer.response
}

/// Streams the answer to the client, and reads it in passing. When the answer has ended, one way or the other, the
/// exchange is audited and, if it was accepted, recorded.
fn stream_back(
    shared: &Shared,
    memory: &Arc<Memory>,
    response: Response<ProxyBody>,
    in_flight: InFlight,
    entry: Box<AuditEntry>,
    abort: Abort,
) -> Response<ProxyBody> {
    let (mut parts, body) = response.into_parts();
    let streaming = sse::is_event_stream(&parts.headers);
    // Some servers stream without a content type.
    let is_untyped = parts.status.is_success() && !parts.headers.contains_key(header::CONTENT_TYPE);
    let may_stream = streaming || is_untyped;
    let spec = TeeSpec {
        streaming,
        encoding: Encoding::from_header(parts.headers.get(header::CONTENT_ENCODING)),
        filter_usage: in_flight.asks_usage && may_stream,
    };
    parts.version = http::Version::HTTP_11;
    parts.headers = headers::towards_client(parts.headers);
    entry.write_headers(&mut parts.headers);
    if spec.filter_usage {
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    let compressed = spec.encoding != Encoding::Identity || was_compressed(&parts.extensions);
    if spec.filter_usage
        && compressed
        && let Some(request) = &in_flight.request
    {
        // The upstream compressed although it was asked not to. The usage report can be taken out only
        // of a decoded stream, which costs the client its compression: usage is not asked for again.
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
    let (body, observed) = tee(body, spec, on_answer);
    let body = body.stop_when(in_flight.outcome.stop_usage_filter());
    let memory = Arc::clone(memory);
    let unfinished = PendingAnswer::new(&memory);
    // The drain waits until the exchange is audited and handed to the recorder.
    let hold = shared.tasks.hold();
    // Boxed, since a task's future is moved several times.
    let ended = Box::new((in_flight, entry));
    shared.tasks.spawn("exchange", async move {
        let _hold = (hold, unfinished);
        if let Ok(observed) = observed.await {
            let (in_flight, entry) = *ended;
            finish(&memory, in_flight, entry, status, observed);
        }
    });
    Response::from_parts(parts, abort.guard(body).boxed_unsync())
}

/// The answer has ended: completes the audit entry, learns about usage, and offers the exchange to the
/// recorder.
fn finish(
    memory: &Memory,
    mut in_flight: InFlight,
    mut entry: Box<AuditEntry>,
    status: StatusCode,
    mut observed: ObservedAnswer,
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
        if let Some((_, form)) = &mut in_flight.prompt {
            *form = SentForm::new(sent);
        }
    }
    let failed = outcome.failure.or(observed.error);
    if let Some((sent, guard)) = in_flight.to_accept.take()
        && let Some(request) = &in_flight.request
        && failed.is_none()
    {
        sent.record_accepted(memory, request);
        guard.inspect(SelectionGuard::accept);
    }
    if status.is_success() {
        entry.set_error(failed);
    }
    let usage = observed.usage.unwrap_or_default();
    cache_verdict::count_tokens(entry.model(), usage);
    let prompt = in_flight.prompt.take();
    // A refused request leaves nothing in the cache.
    let sent = prompt.filter(|_| status.is_success() && failed.is_none());
    let growth = sent.and_then(|(source, form)| {
        let policy = memory.policy.current();
        let cache = (&*memory.sent_prompts, &*policy.cache_rules);
        cache_verdict::record(cache, source, &form, &observed, &mut entry)
    });
    if let Some(request) = &in_flight.request {
        entry.set_token_ratio(memory.jobs.token_ratio(&request.model));
    }
    entry.set_raw_usage(observed.raw_usage.take());
    entry.finish(&observed);
    // Written before the exchange is recorded.
    drop(entry);
    let accepted =
        status.is_success() && failed.is_none() && observed.saw_done && !observed.refusal;
    if accepted && let Some(tenant) = in_flight.tenant {
        memory.accepted_tenants.insert(tenant);
    }
    let Some(request) = in_flight.request.filter(|_| accepted) else {
        return;
    };
    let tenant = &request.identity.scope.tenant;
    let read = |most| request.prefix(most);
    memory.parsed_prefixes.keep(
        tenant,
        &in_flight.prefix_hashes,
        request.parsed.body(),
        read,
    );
    if request.parsed.stream() && request.parsed.requested_usage() == Some(true) {
        memory
            .capabilities
            .record_usage_accepted(request.tenant_model());
    }
    if in_flight.asks_usage && observed.usage.is_some() {
        memory.capabilities.record_usage_reported(&request.model);
    }
    let position = in_flight.answer_position.as_ref();
    let answer = position
        .zip(observed.text)
        .and_then(|(position, text)| position.answer_hash(&text));
    let answers_in_progress = position.and_then(|position| position.in_progress());
    if request.writes && memory.join_account(&request.identity, &request.policy) {
        let request = Arc::unwrap_or_clone(request);
        memory.jobs.intake().offer(Exchange {
            answer,
            answers_in_progress,
            growth,
            answered_ms,
            ..request.into_exchange(in_flight.sent_with, in_flight.route_hash, at_ms)
        });
    }
}
