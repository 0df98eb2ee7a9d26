//! What a new part kept, and where its lines come from. The worker and the Reflector measure it off
//! the runtime's workers, it is stored with the part, and the recorder counts and audits it,
//! because the recorder knows the conversation. Decides nothing.

use super::clock::Clock;
use super::payload::ObservationPayload;
use super::track::Track;
use crate::audit::{self, Audit, PartRecord};
use crate::history::Scope;
use crate::memory::provenance::{self, LineSources, MessageRange, SourceText};
use crate::memory::{
    NewPart, Part, PartAnalysis, PartId, PartKind, PartMeta, Span, retention, system_messages,
};
use crate::store::Job;
use crate::tasks::ComputePool;
use crate::telemetry;

/// Stands for a model's name in a part that code wrote.
pub(super) const CODE_AUTHOR: &str = "code";

/// The messages of a span, counted from 1.
pub(super) fn message_range(span: &Span) -> MessageRange {
    MessageRange {
        first: span.from_count + 1,
        last: span.to_count.max(span.from_count + 1),
    }
}

/// Compares a chunk with the transcript of its job. What code wrote in the place of an Observer has no
/// share of what was kept: it is made of the items that are counted, and says nothing of how well the text was understood.
pub(super) async fn for_chunk(pool: &ComputePool, job: &Job, part: &NewPart) -> PartAnalysis {
    let (payload, text) = (job.spec.payload.clone(), part.text.clone());
    let whole = message_range(&part.span);
    let by_model = part.model != CODE_AUTHOR;
    let measured = pool.run(payload.len() + text.len(), move || {
        let payload = ObservationPayload::from_json(&payload).unwrap_or_default();
        let messages = provenance::source_messages(&payload.transcript, &payload.places);
        let (observations, _) = system_messages::split_messages(&text);
        let report = retention::check_observations(&payload.transcript, &observations);
        PartAnalysis {
            line_sources: provenance::attribute_lines(&text, &messages, whole),
            lost: Some(retention::LostItems::from_report(&report)),
            retention: if by_model {
                report.retention
            } else {
                retention::Retention::default()
            },
        }
    });
    // If the computation panicked, the part has no analysis, like parts of versions before there was one.
    measured.await.unwrap_or_default()
}

/// Compares the text of a reflection with the `parts` it condenses.
pub(super) fn for_reflection(parts: &[Part], log: &str, text: &str, span: &Span) -> PartAnalysis {
    let (observations, _) = system_messages::split_messages(text);
    let report = retention::check_reflection(log, &observations);
    PartAnalysis {
        line_sources: inherit_origins(parts, text, span),
        lost: Some(retention::LostItems::from_report(&report)),
        retention: report.retention,
    }
}

fn inherit_origins(parts: &[Part], text: &str, span: &Span) -> LineSources {
    let sources: Vec<SourceText<'_>> = parts
        .iter()
        .flat_map(|part| {
            let body = &part.body;
            provenance::source_lines(
                &body.text,
                &body.analysis.line_sources,
                message_range(&body.span),
            )
        })
        .collect();
    provenance::attribute_lines(text, &sources, message_range(span))
}

/// What the audit needs of a stored part besides its metadata.
#[derive(Debug)]
pub(super) struct PartReport {
    model: String,
    sources: Vec<PartId>,
    pub(super) retention: retention::Retention,
}

impl PartReport {
    pub(super) fn from_part(part: &NewPart) -> Self {
        Self {
            model: part.model.clone(),
            sources: part.sources.clone(),
            retention: part.analysis.retention,
        }
    }
}

/// Counts and audits the parts that were stored.
#[derive(Clone)]
pub(super) struct PartReporter {
    clock: Clock,
    /// `None` writes no audit.
    audit: Option<Audit>,
}

impl PartReporter {
    pub(super) fn new(clock: &Clock, audit: Option<Audit>) -> Self {
        Self {
            clock: clock.clone(),
            audit,
        }
    }

    /// Whether there is an audit to write to.
    pub(super) fn audits(&self) -> bool {
        self.audit.is_some()
    }

    /// Counts and audits what `part` kept. `track` is a chain that holds it, if one is known.
    pub(super) fn report(
        &self,
        scope: &Scope,
        track: Option<&Track>,
        part: &PartMeta,
        report: PartReport,
    ) {
        record_retention(part.kind, &report.retention);
        let Some(audit) = &self.audit else { return };
        let range = message_range(&part.span);
        let total = report.retention.for_all_kinds();
        audit.part(PartRecord {
            time: jiff::Timestamp::from_millisecond(self.clock.now_ms()).unwrap_or_default(),
            wrote: match part.kind {
                PartKind::Chunk => audit::PartKind::Observation,
                PartKind::Reflection => audit::PartKind::Reflection,
            },
            part: part.id.0.to_string(),
            tenant: scope.tenant_label(),
            thread: track.and_then(Track::label),
            tokens_in: match part.kind {
                PartKind::Chunk => Some(part.message_tokens),
                PartKind::Reflection => track.and_then(|track| track.tokens_of(&report.sources)),
            },
            model: report.model,
            messages: (range.first as u64, range.last as u64),
            tokens_out: part.tokens,
            retention: (total.total > 0).then(|| 1.0 - total.loss()),
            kept: report.retention.to_map(),
            owner: scope.clone(),
        });
    }
}

/// Counts what a part kept, by kind of item. The metric names no part.
fn record_retention(kind: PartKind, retention: &retention::Retention) {
    let record = |item: &'static str, share: retention::Share| {
        if share.total == 0 {
            return;
        }
        metrics::histogram!(telemetry::RETENTION, "kind" => kind.name(), "item" => item)
            .record(1.0 - share.loss());
    };
    for kind in retention::ItemKind::ALL {
        record(kind.name(), retention.for_kind(kind));
    }
    record("high", retention.high);
    record("others", retention.for_non_user());
}

/// Lets every series exist before its first event.
pub(super) fn register_metrics() {
    let items = retention::ItemKind::ALL.map(retention::ItemKind::name);
    for kind in [PartKind::Chunk, PartKind::Reflection] {
        for item in items.into_iter().chain(["high", "others"]) {
            let _ =
                metrics::histogram!(telemetry::RETENTION, "kind" => kind.name(), "item" => item);
        }
    }
}
