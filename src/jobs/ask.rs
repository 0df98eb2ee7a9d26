//! One question to a model: within the budget, past the circuit breaker, and paid for.

use std::time::Duration;

use super::{Phase, Shop, books, bundle};
use crate::llm::{CallError, Endpoint, Models, Prompt, Reply};
use crate::store::Job;

/// Model calls of memory at the same time, of jobs and while clients wait. They share rate limits with
/// the conversations.
pub const MODEL_CALLS: usize = 4;

/// Failures in a row after which an endpoint is left alone.
pub(super) const FAILURES: u32 = 5;

/// For how long, the first time; the breaker doubles it while probes fail.
pub(super) const PAUSE: Duration = Duration::from_secs(30);

/// Asks `endpoint` on behalf of `job`.
///
/// # Errors
/// Those of the call; [`CallError::Transient`] with the time to wait where the endpoint keeps
/// failing and is left alone, or its tenant has spent what it may today.
pub(super) async fn ask(
    shop: &Shop,
    phase: &Phase,
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
    let tokens = match &phase.model {
        // The whole prompt decides; one that is for every prompt needs no counting.
        Some(Models::Tiers(_)) => {
            super::count(shop, &prompt.system).await + super::count(shop, &prompt.user).await
        }
        _ => 0,
    };
    let settings = phase.settings(&job.work.model, tokens);
    let answer = shop.llm.call(endpoint, &settings, prompt).await;
    match &answer {
        Err(error) if error.blames_endpoint() => shop.breaker.failed(&key, shop.clock.instant()),
        _ => shop.breaker.succeeded(&key),
    }
    books::pay(shop, job, prompt, &answer).await;
    bundle::asked(shop, job, endpoint, settings, prompt, &answer);
    answer
}
