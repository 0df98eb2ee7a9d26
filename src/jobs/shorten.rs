//! A log that is shortened without a model: the recorder's own work, since nothing waits for it but the
//! snapshot that follows.

use std::sync::Arc;

use super::Shop;
use super::evidence::{self, Kept};
use crate::history::Scope;
use crate::memory::advance::Plan;
use crate::memory::reflect::{self, Source};
use crate::memory::{NewPart, Part, PartKind, PartMeta, Span, fallback};
use crate::store::StoreError;
use crate::telemetry;
use crate::tokens::TokenCounter;

/// Stores a reflection by code of the parts of `plan`, below `limit` tokens. `None` where nothing can be
/// left out, or the span has a reflection already.
pub(super) async fn shorten(
    shop: &Shop,
    scope: &Scope,
    plan: &Plan,
    span: Span,
    (message_tokens, limit): (u32, u32),
) -> Result<Option<(PartMeta, Kept)>, StoreError> {
    let parts = shop.store.parts(scope, &plan.parts).await?;
    if parts.len() != plan.parts.len() {
        return Ok(None);
    }
    let counter = Arc::clone(&shop.counter);
    let written = tokio::task::spawn_blocking(move || {
        write(&parts, span, (message_tokens, limit), &*counter)
    });
    let Ok(Some(part)) = written.await else {
        return Ok(None);
    };
    let committed = shop
        .store
        .commit_by_code(scope, &part, shop.clock.now_ms())
        .await?;
    let Some(id) = committed else {
        return Ok(None);
    };
    tracing::warn!(
        tenant = %scope.tenant_label(),
        messages = span.to_count,
        tokens = part.tokens,
        limit,
        retention = %part.evidence.retention.to_json(),
        "no model condensed the observations in time: the oldest of the least weight were left out"
    );
    if part.evidence.retention.high.loss() > shop.settings.now().max_loss {
        metrics::counter!(telemetry::REFLECTIONS_LOSSY).increment(1);
    }
    let meta = PartMeta {
        id,
        kind: part.kind,
        span,
        tokens: part.tokens,
        message_tokens,
        asked: false,
    };
    Ok(Some((meta, Kept::of(&part))))
}

/// The shorter log; `None` where it would not be one.
fn write(
    parts: &[Part],
    span: Span,
    (message_tokens, limit): (u32, u32),
    counter: &dyn TokenCounter,
) -> Option<NewPart> {
    let texts: Vec<&str> = parts.iter().map(|part| part.body.text.as_str()).collect();
    let before = texts
        .iter()
        .fold(0, |sum: u32, text| sum.saturating_add(counter.count(text)));
    let source = Source::of(&texts);
    // Some way below the limit: each time what is sent is rewritten, and the cache of all of it lost.
    let excess = before.saturating_sub(reflect::target(limit));
    let short = fallback::shorten(&source.observations, excess, |line| counter.count(line));
    let text = source.restore(&short);
    let tokens = counter.count(&text);
    (tokens < before).then(|| NewPart {
        kind: PartKind::Reflection,
        span,
        tokens,
        message_tokens,
        current_task: None,
        suggested_response: None,
        sources: parts.iter().map(|part| part.id).collect(),
        model: fallback::MODEL.to_owned(),
        asked: false,
        evidence: evidence::of_reflection(parts, &source.observations, &text, &span),
        text,
    })
}
