//! One question to a model: within the budget, past the circuit breaker, and paid for.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Phase, Shop, budget, bundle};
use crate::llm::{CallError, CallSettings, Endpoint, Models, Prompt, Reply};
use crate::memory::message_tokens;
use crate::store::Job;
use crate::wire::chat;

/// Model calls of memory at the same time, of jobs and while clients wait. They share rate limits with
/// the conversations.
pub const MODEL_CALLS: usize = 4;

/// Failures in a row after which an endpoint is left alone.
pub(super) const BREAKER_THRESHOLD: u32 = 5;

/// For how long, the first time; the breaker doubles it while probes fail.
pub(super) const BREAKER_PAUSE: Duration = Duration::from_secs(30);

/// How `prompt` is asked on behalf of `job`, and whom.
pub(super) async fn call_settings(
    shop: &Shop,
    phase: &Phase,
    job: &Job,
    prompt: &Prompt,
) -> CallSettings {
    phase.settings(&job.spec.model, prompt_tokens(shop, phase, prompt).await)
}

/// Asks `endpoint` on behalf of `job`, as `settings` say.
///
/// # Errors
/// Those of the call; [`CallError::Transient`] with the time to wait where the endpoint keeps
/// failing and is left alone, or its tenant has spent what it may today.
pub(super) async fn call_model(
    shop: &Shop,
    settings: CallSettings,
    endpoint: &Endpoint,
    job: &Job,
    prompt: &Prompt,
) -> Result<Reply, CallError> {
    // Before anything is decided, since there may be a queue. Never closed; and held for one call
    // alone, so that whoever holds a permit waits for no other.
    let _permit = shop.call_permits.acquire().await;
    budget::admit(shop, &job.scope)?;
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
    budget::record_cost(shop, job, prompt, &answer).await;
    bundle::record_call(shop, job, endpoint, settings, prompt, &answer);
    answer
}

/// Tokens of the whole prompt, what is attached to it included, where they decide which model is asked;
/// a model that is for every prompt needs no counting.
async fn prompt_tokens(shop: &Shop, phase: &Phase, prompt: &Prompt) -> u32 {
    let Some(Models::Tiers(tiers)) = &phase.model else {
        return 0;
    };
    let text_tokens = super::count_tokens(shop, &prompt.system).await
        + super::count_tokens(shop, &prompt.user).await;
    let parts: Vec<&Value> = prompt
        .attachments
        .iter()
        .filter_map(|attached| attached.part.as_ref())
        .collect();
    if parts.is_empty() {
        return text_tokens;
    }
    // By the rules of the model that is for prompts of this size: pictures weigh otherwise elsewhere.
    let model = Models::Tiers(tiers.clone()).pick(text_tokens).to_owned();
    let message = json!({"role": "user", "content": parts});
    let body = Bytes::from(json!({"model": model, "messages": [message]}).to_string());
    let counter = Arc::clone(&shop.counter);
    let attached_tokens = tokio::task::spawn_blocking(move || {
        let spoken = chat::parse(&body).ok()?.plain_text(0)?;
        Some(message_tokens::count_message(&spoken, &model, &*counter))
    });
    text_tokens.saturating_add(attached_tokens.await.ok().flatten().unwrap_or(0))
}
