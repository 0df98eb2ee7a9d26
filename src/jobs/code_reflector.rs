//! A log that is shortened without a model: the recorder's own work, since nothing waits for it but the
//! snapshot that follows.

use std::sync::Arc;

use super::base::Base;
use super::evidence::{self, PartReport};
use super::settings::Settings;
use crate::history::Scope;
use crate::memory::advance::SnapshotPlan;
use crate::memory::reflect::{self, ReflectionSource};
use crate::memory::{NewPart, Part, PartKind, PartMeta, Span, code_reflection, render};
use crate::store::StoreError;
use crate::telemetry;
use crate::tokens::TokenCounter;

/// What became of a log that was to be shortened.
pub(super) enum Shortened {
    /// It was: the stopgap, and what it kept.
    Written(Box<(PartMeta, PartReport)>),
    /// Nothing can be left out.
    Irreducible,
    /// It is another one by now: somebody else shortened it, or a part of it was deleted.
    Stale,
}

/// Shortens logs without a model.
#[derive(Clone)]
pub(super) struct CodeReflector {
    base: Base,
}

impl CodeReflector {
    pub(super) fn new(base: &Base) -> Self {
        Self { base: base.clone() }
    }

    /// Stores a stopgap for the parts of `plan`, below `limit` tokens; `settings` are those of its conversation.
    pub(super) async fn shorten(
        &self,
        scope: &Scope,
        settings: &Settings,
        plan: &SnapshotPlan,
        span: Span,
        (message_tokens, limit): (u32, u32),
    ) -> Result<Shortened, StoreError> {
        let parts = self.base.store.parts(scope, &plan.parts).await?;
        if parts.len() != plan.parts.len() {
            return Ok(Shortened::Stale);
        }
        let counter = Arc::clone(&self.base.counter);
        let written = tokio::task::spawn_blocking(move || {
            shorten_log(&parts, span, (message_tokens, limit), &*counter)
        });
        let Ok(Some(part)) = written.await else {
            return Ok(Shortened::Irreducible);
        };
        let committed = self
            .base
            .store
            .commit_code_reflection(scope, &part, self.base.now_ms())
            .await?;
        let Some(id) = committed else {
            return Ok(Shortened::Stale);
        };
        tracing::warn!(
            tenant = %scope.tenant_label(),
            messages = span.to_count,
            tokens = part.tokens,
            limit,
            retention = %part.analysis.retention.to_json(),
            "no model condensed the observations in time: the oldest of the least weight were left out"
        );
        if part.analysis.retention.high.loss() > settings.max_loss {
            metrics::counter!(telemetry::REFLECTIONS_LOSSY).increment(1);
        }
        let written = (part.meta(id), PartReport::from_part(&part));
        Ok(Shortened::Written(Box::new(written)))
    }
}

/// The shorter log; `None` where it would not be one.
fn shorten_log(
    parts: &[Part],
    span: Span,
    (message_tokens, limit): (u32, u32),
    counter: &dyn TokenCounter,
) -> Option<NewPart> {
    let texts: Vec<&str> = parts.iter().map(|part| part.body.text.as_str()).collect();
    let count = |text: &str| render::max_tokens(text, |text| counter.count(text));
    let source = ReflectionSource::from_parts(&texts);
    // As one part, which it becomes: to name a day once instead of with each chunk leaves nothing out.
    let before = count(&source.with_system_messages(&source.observations));
    // Some way below the limit: each time what is sent is rewritten, and the cache of all of it lost.
    let excess = before.saturating_sub(reflect::target_tokens(limit));
    let short = code_reflection::shorten(&source.observations, excess, |line| counter.count(line));
    let text = source.with_system_messages(&short);
    let tokens = count(&text);
    (tokens < before || tokens < limit).then(|| NewPart {
        kind: PartKind::Reflection,
        span,
        tokens,
        message_tokens,
        current_task: None,
        suggested_response: None,
        sources: parts.iter().map(|part| part.id).collect(),
        model: code_reflection::MODEL.to_owned(),
        requested: false,
        code_reflection: true,
        analysis: evidence::for_reflection(parts, &source.observations, &text, &span),
        text,
    })
}
