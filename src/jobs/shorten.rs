//! A log that is shortened without a model: the recorder's own work, since nothing waits for it but the
//! snapshot that follows.

use std::sync::Arc;

use super::evidence::{self, Kept};
use super::{Settings, Shop};
use crate::history::Scope;
use crate::memory::advance::Plan;
use crate::memory::reflect::{self, Source};
use crate::memory::{NewPart, Part, PartKind, PartMeta, Span, fallback, render};
use crate::store::StoreError;
use crate::telemetry;
use crate::tokens::TokenCounter;

/// What became of a log that was to be shortened.
pub(super) enum Shortened {
    /// It was: the stopgap, and what it kept.
    Written(Box<(PartMeta, Kept)>),
    /// Nothing can be left out.
    Whole,
    /// It is another one by now: somebody else shortened it, or a part of it was deleted.
    Changed,
}

/// Stores a stopgap for the parts of `plan`, below `limit` tokens; `settings` are those of its conversation.
pub(super) async fn shorten(
    shop: &Shop,
    scope: &Scope,
    settings: &Settings,
    plan: &Plan,
    span: Span,
    (message_tokens, limit): (u32, u32),
) -> Result<Shortened, StoreError> {
    let parts = shop.store.parts(scope, &plan.parts).await?;
    if parts.len() != plan.parts.len() {
        return Ok(Shortened::Changed);
    }
    let counter = Arc::clone(&shop.counter);
    let written = tokio::task::spawn_blocking(move || {
        write(&parts, span, (message_tokens, limit), &*counter)
    });
    let Ok(Some(part)) = written.await else {
        return Ok(Shortened::Whole);
    };
    let committed = shop
        .store
        .commit_by_code(scope, &part, shop.clock.now_ms())
        .await?;
    let Some(id) = committed else {
        return Ok(Shortened::Changed);
    };
    tracing::warn!(
        tenant = %scope.tenant_label(),
        messages = span.to_count,
        tokens = part.tokens,
        limit,
        retention = %part.evidence.retention.to_json(),
        "no model condensed the observations in time: the oldest of the least weight were left out"
    );
    if part.evidence.retention.high.loss() > settings.max_loss {
        metrics::counter!(telemetry::REFLECTIONS_LOSSY).increment(1);
    }
    let written = (part.meta(id), Kept::of(&part));
    Ok(Shortened::Written(Box::new(written)))
}

/// The shorter log; `None` where it would not be one.
fn write(
    parts: &[Part],
    span: Span,
    (message_tokens, limit): (u32, u32),
    counter: &dyn TokenCounter,
) -> Option<NewPart> {
    let texts: Vec<&str> = parts.iter().map(|part| part.body.text.as_str()).collect();
    let weigh = |text: &str| render::weight(text, |text| counter.count(text));
    let source = Source::of(&texts);
    // As one part, which it becomes: to name a day once instead of with each chunk leaves nothing out.
    let before = weigh(&source.restore(&source.observations));
    // Some way below the limit: each time what is sent is rewritten, and the cache of all of it lost.
    let excess = before.saturating_sub(reflect::target(limit));
    let short = fallback::shorten(&source.observations, excess, |line| counter.count(line));
    let text = source.restore(&short);
    let tokens = weigh(&text);
    (tokens < before || tokens < limit).then(|| NewPart {
        kind: PartKind::Reflection,
        span,
        tokens,
        message_tokens,
        current_task: None,
        suggested_response: None,
        sources: parts.iter().map(|part| part.id).collect(),
        model: fallback::MODEL.to_owned(),
        asked: false,
        stopgap: true,
        evidence: evidence::of_reflection(parts, &source.observations, &text, &span),
        text,
    })
}
