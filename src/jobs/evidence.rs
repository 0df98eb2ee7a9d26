//! What a new part kept, and where its lines come from: measured by code when it is written, kept with
//! it, and counted. Decides nothing; called by `worker` and `reflector`, off the runtime's workers.

use super::payload::Payload;
use crate::memory::provenance::{self, Origins, Range, Sourced};
use crate::memory::{Evidence, NewPart, Part, Span, faithful, verbatim};
use crate::store::Job;
use crate::telemetry;

/// The messages of a span, as people count them.
pub(super) fn messages(span: &Span) -> Range {
    Range {
        first: span.from_count + 1,
        last: span.to_count.max(span.from_count + 1),
    }
}

/// The evidence of a chunk: against the words of its job.
pub(super) async fn of_chunk(job: &Job, part: &NewPart) -> Evidence {
    let (words, text) = (job.work.payload.clone(), part.text.clone());
    let whole = messages(&part.span);
    let measured = tokio::task::spawn_blocking(move || {
        let payload = Payload::from_json(&words).unwrap_or_default();
        let said = provenance::messages(&payload.transcript, &payload.places);
        let (observations, _) = verbatim::split(&text);
        Evidence {
            origins: provenance::attribute(&text, &said, whole),
            retention: faithful::observed(&payload.transcript, &observations).retention,
        }
    });
    // Should its thread die, the part is as good as one that was written before evidence was kept.
    measured.await.unwrap_or_default()
}

/// The evidence of a text that condenses `parts`.
pub(super) fn of_reflection(parts: &[Part], log: &str, text: &str, span: &Span) -> Evidence {
    let (observations, _) = verbatim::split(text);
    Evidence {
        origins: inherited(parts, text, span),
        retention: faithful::condensed(log, &observations).retention,
    }
}

fn inherited(parts: &[Part], text: &str, span: &Span) -> Origins {
    let sources: Vec<Sourced<'_>> = parts
        .iter()
        .flat_map(|part| {
            let body = &part.body;
            provenance::lines(&body.text, &body.evidence.origins, messages(&body.span))
        })
        .collect();
    provenance::attribute(text, &sources, messages(span))
}

/// Counts what a part kept, by kind. No part is named.
pub(super) fn count(part: &NewPart) {
    let record = |item: &'static str, share: faithful::Share| {
        if share.total == 0 {
            return;
        }
        metrics::histogram!(telemetry::RETENTION, "kind" => part.kind.name(), "item" => item)
            .record(1.0 - share.loss());
    };
    let retention = &part.evidence.retention;
    for kind in faithful::Kind::ALL {
        record(kind.name(), retention.of(kind));
    }
    record("high", retention.high);
}
