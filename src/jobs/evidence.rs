//! What a new part kept, and where its lines come from: measured by code when it is written, kept with
//! it, counted and audited. Decides nothing; measured by `worker` and `reflector`, off the runtime's
//! workers, and told by the recorder, which knows whose part it is.

use super::Shop;
use super::payload::Payload;
use super::track::Track;
use crate::audit::{PartRecord, Wrote};
use crate::history::Scope;
use crate::memory::provenance::{self, Origins, Range, Sourced};
use crate::memory::{
    Evidence, NewPart, Part, PartId, PartKind, PartMeta, Span, faithful, verbatim,
};
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

/// What is told of a part that was stored.
#[derive(Debug)]
pub(super) struct Kept {
    model: String,
    sources: Vec<PartId>,
    pub(super) retention: faithful::Retention,
}

impl Kept {
    pub(super) fn of(part: &NewPart) -> Self {
        Self {
            model: part.model.clone(),
            sources: part.sources.clone(),
            retention: part.evidence.retention,
        }
    }
}

/// `part` was stored, on the chain of `track` where that is known: counts and audits what it kept.
pub(super) fn tell(shop: &Shop, scope: &Scope, track: Option<&Track>, part: &PartMeta, kept: Kept) {
    count(part.kind, &kept.retention);
    let Some(audit) = &shop.audit else { return };
    let (first, last) = {
        let range = messages(&part.span);
        (range.first as u64, range.last as u64)
    };
    let all = kept.retention.all();
    audit.part(PartRecord {
        time: jiff::Timestamp::from_millisecond(shop.clock.now_ms()).unwrap_or_default(),
        wrote: match part.kind {
            PartKind::Chunk => Wrote::Observation,
            PartKind::Reflection => Wrote::Reflection,
        },
        part: part.id.0.to_string(),
        tenant: scope.tenant_label(),
        thread: track.and_then(Track::name),
        tokens_in: match part.kind {
            PartKind::Chunk => Some(part.message_tokens),
            PartKind::Reflection => track.and_then(|track| track.tokens_of(&kept.sources)),
        },
        model: kept.model,
        messages: (first, last),
        tokens_out: part.tokens,
        retention: (all.total > 0).then(|| 1.0 - all.loss()),
        kept: kept.retention.to_map(),
    });
}

/// Counts what a part kept, by kind. No part is named.
fn count(kind: PartKind, retention: &faithful::Retention) {
    let record = |item: &'static str, share: faithful::Share| {
        if share.total == 0 {
            return;
        }
        metrics::histogram!(telemetry::RETENTION, "kind" => kind.name(), "item" => item)
            .record(1.0 - share.loss());
    };
    for kind in faithful::Kind::ALL {
        record(kind.name(), retention.of(kind));
    }
    record("high", retention.high);
    record("others", retention.of_others());
}
