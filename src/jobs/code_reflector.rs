//! Shortens a log without a model, if no reflection is ready at the hard limit: a code-written
//! reflection. The recorder and the overflow activator call it directly, because the snapshot that
//! follows waits for it.

use std::sync::Arc;

use super::base::Base;
use super::part_report::{self, PartReport};
use super::settings::Settings;
use crate::history::Scope;
use crate::memory::advance::SnapshotPlan;
use crate::memory::reflect::{self, ReflectionSource};
use crate::memory::{NewPart, Part, PartKind, PartMeta, Span, code_reflection, render};
use crate::store::StoreError;
use crate::telemetry;
use crate::tokens::TokenCounter;

/// What became of the log.
pub(super) enum Shortened {
    /// A code-written reflection was stored.
    Written(Box<(PartMeta, PartReport)>),
    /// Nothing can be left out.
    Irreducible,
    /// The log has changed: another process shortened it, or a part was deleted.
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

    /// Stores a code-written reflection of the parts of `plan`, below `limit` tokens. `settings`
    /// are those of the conversation.
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
            "no model condensed the observations in time: code left out the oldest lines of the least priority"
        );
        if part.analysis.retention.high.loss() > settings.max_loss {
            metrics::counter!(telemetry::REFLECTIONS_LOSSY).increment(1);
        }
        let written = (part.meta(id), PartReport::from_part(&part));
        Ok(Shortened::Written(Box::new(written)))
    }
}

/// The shorter log; `None` if it would not be shorter and not below the limit.
fn shorten_log(
    parts: &[Part],
    span: Span,
    (message_tokens, limit): (u32, u32),
    counter: &dyn TokenCounter,
) -> Option<NewPart> {
    let texts: Vec<&str> = parts.iter().map(|part| part.body.text.as_str()).collect();
    let count = |text: &str| render::max_tokens(text, |text| counter.count(text));
    let source = ReflectionSource::from_parts(&texts);
    // Counted as one part, because the result is one. A part names each day once, which saves
    // tokens without leaving anything out.
    let before = count(&source.with_system_messages(&source.observations));
    // The target is well below the limit: each shortening changes the block and costs the
    // provider's whole cache of it.
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
        analysis: part_report::for_reflection(parts, &source.observations, &text, &span),
        text,
    })
}
