//! The place of a request in a trace, if spans are exported.
//!
//! Made when the request comes, since its spans need their ids before the upstream sees it. The spans themselves are made
//! from the finished audit line, in the background.

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// Which spans a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// A chat completion: the request, and the call of the model in it.
    Chat,
    /// Any other request.
    Pass,
}

/// See the file.
#[derive(Clone, Debug, Default)]
pub struct RequestSpan {
    pub(super) ids: Option<Box<SpanIds>>,
}

/// The ids of a request's spans, and the span that it continues.
#[derive(Clone, Debug)]
pub(super) struct SpanIds {
    pub(super) parent: Option<SpanContext>,
    pub(super) trace: TraceId,
    pub(super) served: SpanId,
    pub(super) called: SpanId,
}

impl SpanIds {
    /// The span whose child a request to the upstream is.
    pub(super) fn innermost(&self, kind: RequestKind) -> SpanContext {
        match kind {
            RequestKind::Chat => self.context(self.called),
            RequestKind::Pass => self.context(self.served),
        }
    }

    pub(super) fn context(&self, span: SpanId) -> SpanContext {
        let state = self.parent.as_ref().map(|it| it.trace_state().clone());
        let state = state.unwrap_or(TraceState::NONE);
        SpanContext::new(self.trace, span, TraceFlags::SAMPLED, false, state)
    }
}
