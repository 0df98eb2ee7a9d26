//! One question to a model: within the budget, past the circuit breaker, and paid for.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Phase, Shop, books, bundle};
use crate::llm::{CallError, CallSettings, Endpoint, Models, Prompt, Reply};
use crate::memory::measure;
use crate::store::Job;
use crate::wire::chat;

/// Model calls of memory at the same time, of jobs and while clients wait. They share rate limits with
/// the conversations.
pub const MODEL_CALLS: usize = 4;

/// Failures in a row after which an endpoint is left alone.
pub(super) const FAILURES: u32 = 5;

/// For how long, the first time; the breaker doubles it while probes fail.
pub(super) const PAUSE: Duration = Duration::from_secs(30);

/// How `prompt` is asked on behalf of `job`, and whom.
pub(super) async fn settings(
    shop: &Shop,
    phase: &Phase,
    job: &Job,
    prompt: &Prompt,
) -> CallSettings {
    phase.settings(&job.work.model, weight(shop, phase, prompt).await)
}

/// Asks `endpoint` on behalf of `job`, as `settings` say.
///
/// # Errors
/// Those of the call; [`CallError::Transient`] with the time to wait where the endpoint keeps
/// failing and is left alone, or its tenant has spent what it may today.
pub(super) async fn ask(
    shop: &Shop,
    settings: CallSettings,
    endpoint: &Endpoint,
    job: &Job,
    prompt: &Prompt,
) -> Result<Reply, CallError> {
    // Before anything is decided, since there may be a queue. Never closed; and held for one call
    // alone, so that whoever holds a permit waits for no other.
    let _permit = shop.calls.acquire().await;
    books::admit(shop, &job.scope)?;
    let key = endpoint.breaker_key();
    if let Err(wait) = shop.breaker.admit(&key, shop.clock.instant()) {
        return Err(CallError::Transient {
            retry_after: Some(wait),
            message: "the endpoint keeps failing and is left alone for a while".to_owned(),
        });
    }
    let answer = shop.llm.call(endpoint, &settings, prompt).await;
    match &answer {
        Err(error) if error.blames_endpoint() => shop.breaker.failed(&key, shop.clock.instant()),
        _ => shop.breaker.succeeded(&key),
    }
    books::pay(shop, job, prompt, &answer).await;
    bundle::asked(shop, job, endpoint, settings, prompt, &answer);
    answer
}

/// Tokens of the whole prompt, what is attached to it included, where they decide which model is asked;
/// a model that is for every prompt needs no counting.
async fn weight(shop: &Shop, phase: &Phase, prompt: &Prompt) -> u32 {
    let Some(Models::Tiers(tiers)) = &phase.model else {
        return 0;
    };
    let text = super::count(shop, &prompt.system).await + super::count(shop, &prompt.user).await;
    let parts: Vec<&Value> = prompt
        .attachments
        .iter()
        .filter_map(|shown| shown.part.as_ref())
        .collect();
    if parts.is_empty() {
        return text;
    }
    // By the rules of the model that is for prompts of this size: pictures weigh otherwise elsewhere.
    let model = Models::Tiers(tiers.clone()).pick(text).to_owned();
    let message = json!({"role": "user", "content": parts});
    let body = Bytes::from(json!({"model": model, "messages": [message]}).to_string());
    let counter = Arc::clone(&shop.counter);
    let shown = tokio::task::spawn_blocking(move || {
        let spoken = chat::parse(&body).ok()?.spoken(0)?;
        Some(measure::message(&spoken, &model, &*counter))
    });
    text.saturating_add(shown.await.ok().flatten().unwrap_or(0))
}
