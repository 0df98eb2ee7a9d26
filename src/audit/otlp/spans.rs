//! Makes spans and measurements of finished audit lines. Holds what the lines hold: names, counts, sizes and times.
//!
//! A request is two spans: one for the HTTP request that Diarist served, and below it one for the call of the model. A
//! request that passed through unread is the first one only. A model call of memory is a span of its own.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::names::{Attribute as A, Names};
use crate::audit::span::SpanIds;
use crate::audit::{AuditRecord, CallOutcome, CallRecord, EndReason, MemoryState, PassRecord};

/// What is the same for all spans.
#[derive(Clone, Debug)]
pub(super) struct SpanMaker {
    pub(super) names: Names,
    pub(super) provider: &'static str,
    pub(super) upstream: String,
    pub(super) scope: InstrumentationScope,
}

/// Attributes by what they say; what is unknown is left out.
struct Attributes(Names, Vec<KeyValue>);

impl Attributes {
    fn add(&mut self, attribute: A, value: Option<impl Into<Value>>) {
        let name = self.0.attribute(attribute);
        self.1.extend(value.map(|value| KeyValue::new(name, value)));
    }

    fn count(&mut self, attribute: A, number: Option<u64>) {
        self.add(
            attribute,
            number.and_then(|number| i64::try_from(number).ok()),
        );
    }

    fn text(&mut self, attribute: A, text: Option<&str>) {
        self.add(attribute, text.map(str::to_owned));
    }
}

/// A span that is done, and what its measurements need.
struct Done {
    context: SpanContext,
    parent: Option<SpanContext>,
    kind: SpanKind,
    name: Cow<'static, str>,
    start: SystemTime,
    took: Duration,
    error: Option<String>,
}

impl SpanMaker {
    fn attributes(&self) -> Attributes {
        Attributes(self.names, Vec::new())
    }

    fn finish(&self, done: Done, mut attributes: Attributes) -> SpanData {
        attributes.text(A::ErrorType, done.error.as_deref());
        let parent = done.parent.as_ref();
        SpanData {
            span_context: done.context,
            parent_span_id: parent.map_or(SpanId::INVALID, SpanContext::span_id),
            parent_span_is_remote: parent.is_some_and(SpanContext::is_remote),
            span_kind: done.kind,
            name: done.name,
            start_time: done.start,
            end_time: done.start + done.took,
            attributes: attributes.1,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: match done.error {
                Some(_) => Status::error(""),
                None => Status::Unset,
            },
            instrumentation_scope: self.scope.clone(),
        }
    }

    /// The two spans of a request.
    pub(super) fn of_request(&self, line: &AuditRecord, ids: &SpanIds) -> [SpanData; 2] {
        let (start, took) = (line.time.into(), Duration::from_millis(line.total_ms));
        let error = request_error(line.status, line.ended, line.error.as_deref());
        let mut served = self.attributes();
        served.text(A::HttpMethod, Some("POST"));
        served.text(A::UrlPath, Some("/v1/chat/completions"));
        served.count(A::HttpStatus, line.status.map(u64::from));
        served.text(A::RequestId, Some(&line.request_id));
        let served = self.finish(
            Done {
                context: ids.context(ids.served),
                parent: ids.parent.clone(),
                kind: SpanKind::Server,
                name: "POST /v1/chat/completions".into(),
                start,
                took,
                // An error that the client caused is no error of the server.
                error: error.clone().filter(|_| is_server_error(line)),
            },
            served,
        );
        let called = self.finish(
            Done {
                context: ids.context(ids.called),
                parent: Some(ids.context(ids.served)),
                kind: SpanKind::Client,
                name: chat_name(line.model.as_deref()),
                start,
                took,
                error,
            },
            self.of_model_call(line),
        );
        [served, called]
    }

    fn of_model_call(&self, line: &AuditRecord) -> Attributes {
        let mut all = self.attributes();
        self.add_model(&mut all, line.model.as_deref());
        all.add(A::Stream, Some(line.stream));
        all.text(A::ConversationId, line.thread.as_deref());
        let compacted = line.memory == MemoryState::Active && line.cut.is_some_and(|cut| cut > 0);
        all.add(A::Compacted, compacted.then_some(true));
        all.count(A::InputTokens, line.prompt_tokens);
        all.count(A::CacheRead, line.cached_tokens);
        all.count(A::CacheWrite, line.cache_write_tokens);
        all.count(A::OutputTokens, line.completion_tokens);
        all.count(A::Reasoning, line.reasoning_tokens);
        let first = line.ttfb_ms.filter(|_| line.stream);
        all.add(
            A::FirstChunk,
            first.map(|ms| Duration::from_millis(ms).as_secs_f64()),
        );
        all.count(A::HttpStatus, line.status.map(u64::from));
        all.text(A::RequestId, Some(&line.request_id));
        all.text(
            A::Tenant,
            Some(&*line.tenant).filter(|tenant| !tenant.is_empty()),
        );
        all.text(A::Memory, Some(memory_name(line.memory)));
        all.text(A::Reason, line.reason.as_deref());
        all.text(A::Rung, line.rung.as_deref());
        all.text(A::Snapshot, line.snapshot.as_deref());
        all.count(A::Replaced, line.cut.map(u64::from));
        all.text(A::Cause, line.cause.as_deref());
        all.text(A::Verdict, line.verdict.as_deref());
        all.text(A::VerdictCause, line.verdict_cause.as_deref());
        all.count(A::ExpectedCached, line.expected_cached_tokens);
        all.text(A::Added, line.added.as_deref());
        all
    }

    fn add_model(&self, all: &mut Attributes, model: Option<&str>) {
        all.text(A::Operation, Some("chat"));
        all.text(A::Provider, Some(self.provider));
        all.text(A::RequestModel, model);
        all.text(A::ServerAddress, Some(&self.upstream));
    }

    /// The span of a request that passed through unread.
    pub(super) fn of_pass(&self, line: &PassRecord, ids: &SpanIds) -> SpanData {
        let mut all = self.attributes();
        all.text(A::HttpMethod, Some(&line.method));
        all.text(A::UrlPath, Some(&line.path));
        all.count(A::HttpStatus, line.status.map(u64::from));
        let server_error = line.status.is_none_or(|status| status >= 500);
        let error = request_error(line.status, line.ended, None).filter(|_| server_error);
        let done = Done {
            context: ids.context(ids.served),
            parent: ids.parent.clone(),
            kind: SpanKind::Server,
            // Not the path, which has any number of values.
            name: line.method.clone().into(),
            start: line.time.into(),
            took: Duration::from_millis(line.total_ms),
            error,
        };
        self.finish(done, all)
    }

    /// The span of a model call of memory.
    pub(super) fn of_call(&self, line: &CallRecord, trace: TraceId, span: SpanId) -> SpanData {
        let mut all = self.attributes();
        all.text(A::Operation, Some("chat"));
        all.text(A::RequestModel, Some(&line.model));
        all.text(A::ConversationId, line.thread.as_deref());
        all.count(A::InputTokens, line.prompt_tokens);
        all.count(A::CacheRead, line.cached_tokens);
        all.count(A::CacheWrite, line.cache_write_tokens);
        all.count(A::OutputTokens, line.completion_tokens);
        all.count(A::Reasoning, line.reasoning_tokens);
        all.text(A::Tenant, Some(&line.tenant));
        all.text(A::Call, Some(line.call.name()));
        all.text(A::Outcome, Some(line.outcome.name()));
        let context = SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::NONE);
        let done = Done {
            context,
            parent: None,
            kind: SpanKind::Client,
            name: chat_name(Some(&line.model)),
            start: line.time.into(),
            took: Duration::from_millis(line.total_ms),
            error: call_error(line.outcome),
        };
        self.finish(done, all)
    }

    /// The attributes of a measurement: few, and none names a conversation or a tenant.
    pub(super) fn of_measurement(
        &self,
        model: Option<&str>,
        call: Option<&str>,
        error: Option<&str>,
    ) -> Vec<KeyValue> {
        let mut all = self.attributes();
        if call.is_some() {
            all.text(A::Operation, Some("chat"));
            all.text(A::RequestModel, model);
        } else {
            self.add_model(&mut all, model);
        }
        all.text(A::Call, call);
        all.text(A::ErrorType, error);
        all.1
    }
}

/// The kind of the error of a request: a status, or how the answer ended.
pub(super) fn request_error(
    status: Option<u16>,
    ended: EndReason,
    error: Option<&str>,
) -> Option<String> {
    if let Some(status) = status.filter(|status| *status >= 400) {
        return Some(status.to_string());
    }
    let ended = match ended {
        EndReason::UpstreamError => Some("upstream_error"),
        EndReason::Complete | EndReason::HungUp => None,
    };
    error.or(ended).map(str::to_owned)
}

fn is_server_error(line: &AuditRecord) -> bool {
    line.status
        .is_none_or(|status| !(400..500).contains(&status))
}

/// The kind of the error of a model call of memory.
pub(super) fn call_error(outcome: CallOutcome) -> Option<String> {
    match outcome {
        CallOutcome::Kept | CallOutcome::Retried => None,
        other => Some(other.name().to_owned()),
    }
}

fn chat_name(model: Option<&str>) -> Cow<'static, str> {
    match model {
        Some(model) => format!("chat {model}").into(),
        None => "chat".into(),
    }
}

fn memory_name(state: MemoryState) -> &'static str {
    match state {
        MemoryState::Off => "off",
        MemoryState::Watching => "watching",
        MemoryState::Active => "active",
        MemoryState::Bypass => "bypass",
    }
}
