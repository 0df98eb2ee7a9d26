//! Exports finished audit lines as spans and metrics, over OTLP (HTTP with protobuf).
//!
//! The writer of the audit calls it in the background. The SDK keeps a bounded queue, drops what does not fit, and sends
//! from threads of its own, so a collector that fails or hangs touches no request.

mod client;
mod measurements;
mod names;
mod spans;

use std::collections::HashMap;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{SpanContext, TraceContextExt as _};
use opentelemetry::{Context, InstrumentationScope};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_otlp::{
    MetricExporter, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, IdGenerator as _, RandomIdGenerator, SpanProcessor as _,
};

use self::client::CollectorClient;
use self::measurements::{Instruments, Tokens};
use self::names::{Names, provider};
use self::spans::{SpanMaker, call_error, request_error};
use super::otlp_settings::{OtlpError, OtlpSettings};
use super::span::{RequestKind, SpanIds};
use super::{AuditRecord, CallRecord, PassRecord};
use crate::tasks::{Losses, Tasks};

/// How long the end of the process waits for the last export.
const SHUTDOWN: Duration = Duration::from_secs(3);

/// What systems on the way add to a trace.
const TRACE_STATE: &str = "tracestate";

/// What requests need of the export: ids.
#[derive(Clone, Debug)]
pub(super) struct SpanStart {
    propagate: bool,
}

impl SpanStart {
    /// The ids of a request's spans. `None` if the client's trace is not sampled. If the operator wants it, the headers
    /// name the new span from then on.
    pub(super) fn begin(&self, headers: &mut HeaderMap, kind: RequestKind) -> Option<SpanIds> {
        let propagator = TraceContextPropagator::new();
        let received = propagator.extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let parent = received.span().span_context().clone();
        let parent = parent.is_valid().then_some(parent);
        if parent.as_ref().is_some_and(|parent| !parent.is_sampled()) {
            return None;
        }
        let generator = RandomIdGenerator::default();
        let new_trace = || generator.new_trace_id();
        let ids = SpanIds {
            trace: parent
                .as_ref()
                .map_or_else(new_trace, SpanContext::trace_id),
            parent,
            served: generator.new_span_id(),
            called: generator.new_span_id(),
        };
        if self.propagate {
            let context = Context::new().with_remote_span_context(ids.innermost(kind));
            propagator.inject_context(&context, &mut HeaderInjector(headers));
            // The propagator writes one also if it is empty.
            if headers.get(TRACE_STATE).is_some_and(HeaderValue::is_empty) {
                headers.remove(TRACE_STATE);
            }
        }
        Some(ids)
    }
}

/// The exporter.
#[derive(Debug)]
pub(super) struct Otlp {
    maker: SpanMaker,
    spans: Option<BatchSpanProcessor>,
    metrics: Option<(SdkMeterProvider, Instruments)>,
}

impl Otlp {
    /// Starts the threads of the SDK.
    ///
    /// # Errors
    /// If the HTTP client or an exporter cannot be built.
    pub(super) fn start(settings: &OtlpSettings, tasks: &Tasks) -> Result<Self, OtlpError> {
        let losses = Losses::new("otlp", tasks.readiness());
        let client =
            || CollectorClient::new(tasks, &losses).map_err(|error| OtlpError(error.to_string()));
        let address = |signal: &str| {
            let base = settings.endpoint.as_str().trim_end_matches('/');
            format!("{base}/v1/{signal}")
        };
        let headers: HashMap<String, String> = settings
            .headers
            .iter()
            .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())))
            .collect();
        // Reads OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, which come before this name.
        let resource = Resource::builder();
        let resource = match Resource::builder()
            .build()
            .get(&"service.name".into())
            .filter(|name| !name.to_string().starts_with("unknown_service"))
        {
            Some(_) => resource,
            None => resource.with_service_name("diarist"),
        }
        .build();
        let names = if settings.latest_names {
            Names::Newest
        } else {
            Names::Today
        };
        let scope = InstrumentationScope::builder("diarist")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        let spans = if settings.traces {
            let exporter = SpanExporter::builder()
                .with_http()
                .with_http_client(client()?)
                .with_endpoint(address("traces"))
                .with_headers(headers.clone())
                .build()
                .map_err(|error| OtlpError(error.to_string()))?;
            let mut processor = BatchSpanProcessor::builder(exporter).build();
            processor.set_resource(&resource);
            Some(processor)
        } else {
            None
        };
        let metrics = if settings.metrics {
            let exporter = MetricExporter::builder()
                .with_http()
                .with_http_client(client()?)
                .with_endpoint(address("metrics"))
                .with_headers(headers)
                .build()
                .map_err(|error| OtlpError(error.to_string()))?;
            let provider = SdkMeterProvider::builder()
                .with_periodic_exporter(exporter)
                .with_resource(resource)
                .build();
            let meter = provider.meter_with_scope(scope.clone());
            Some((provider, Instruments::new(&meter, names)))
        } else {
            None
        };
        Ok(Self {
            maker: SpanMaker {
                names,
                provider: provider(&settings.upstream),
                upstream: settings.upstream.clone(),
                scope,
            },
            spans,
            metrics,
        })
    }

    /// What requests need to begin their spans.
    pub(super) fn span_start(&self, settings: &OtlpSettings) -> Option<SpanStart> {
        self.spans.as_ref().map(|_| SpanStart {
            propagate: settings.propagate,
        })
    }

    pub(super) fn request(&self, line: &AuditRecord, ids: Option<&SpanIds>) {
        if let (Some(spans), Some(ids)) = (&self.spans, ids) {
            for span in self.maker.of_request(line, ids) {
                spans.on_end(span);
            }
        }
        let error = request_error(line.status, line.ended, line.error.as_deref());
        let tokens = Tokens {
            input: line.prompt_tokens,
            cache_read: line.cached_tokens,
            cache_write: line.cache_write_tokens,
            output: line.completion_tokens,
            reasoning: line.reasoning_tokens,
        };
        let model = line.model.as_deref();
        self.measure(line.total_ms, tokens, model, None, error.as_deref());
    }

    pub(super) fn pass(&self, line: &PassRecord, ids: Option<&SpanIds>) {
        if let (Some(spans), Some(ids)) = (&self.spans, ids) {
            spans.on_end(self.maker.of_pass(line, ids));
        }
    }

    pub(super) fn call(&self, line: &CallRecord) {
        if let Some(spans) = &self.spans {
            let generator = RandomIdGenerator::default();
            let (trace, span) = (generator.new_trace_id(), generator.new_span_id());
            spans.on_end(self.maker.of_call(line, trace, span));
        }
        let tokens = Tokens {
            input: line.prompt_tokens,
            cache_read: line.cached_tokens,
            cache_write: line.cache_write_tokens,
            output: line.completion_tokens,
            reasoning: line.reasoning_tokens,
        };
        let (model, call) = (Some(&*line.model), Some(line.call.name()));
        let error = call_error(line.outcome);
        self.measure(line.total_ms, tokens, model, call, error.as_deref());
    }

    fn measure(
        &self,
        total_ms: u64,
        tokens: Tokens,
        model: Option<&str>,
        call: Option<&str>,
        error: Option<&str>,
    ) {
        let Some((_, instruments)) = &self.metrics else {
            return;
        };
        let attributes = self.maker.of_measurement(model, call, error);
        let seconds = Duration::from_millis(total_ms).as_secs_f64();
        instruments.record(seconds, tokens, &attributes);
    }

    /// Sends what is left. Blocks for some seconds at most.
    pub(super) fn shut_down(self) {
        // The client has logged what could not be sent.
        if let Some(spans) = &self.spans {
            let _ = spans.shutdown_with_timeout(SHUTDOWN);
        }
        if let Some((provider, _)) = &self.metrics {
            let _ = provider.shutdown_with_timeout(SHUTDOWN);
        }
    }
}
