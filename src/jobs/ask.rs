//! One question to a model: past the circuit breaker, and counted.

use std::time::Duration;

use super::{Phase, Shop};
use crate::llm::{CallError, Endpoint, Prompt, Reply};
use crate::memory::PartKind;
use crate::store::Job;
use crate::telemetry;

/// Failures in a row after which an endpoint is left alone.
pub(super) const FAILURES: u32 = 5;

/// For how long, the first time; the breaker doubles it while probes fail.
pub(super) const PAUSE: Duration = Duration::from_secs(30);

/// Asks `endpoint` on behalf of `job`.
///
/// # Errors
/// Those of the call; [`CallError::Transient`] with the time to wait where the endpoint keeps
/// failing and is left alone.
pub(super) async fn ask(
    shop: &Shop,
    phase: &Phase,
    endpoint: &Endpoint,
    job: &Job,
    prompt: &Prompt,
) -> Result<Reply, CallError> {
    let key = endpoint.breaker_key();
    if let Err(wait) = shop.breaker.admit(&key, shop.clock.instant()) {
        return Err(CallError::Transient {
            retry_after: Some(wait),
            message: "the endpoint keeps failing and is left alone for a while".to_owned(),
        });
    }
    let answer = shop
        .llm
        .call(endpoint, &phase.settings(&job.work.model), prompt)
        .await;
    match &answer {
        Err(error) if error.blames_endpoint() => shop.breaker.failed(&key, shop.clock.instant()),
        _ => shop.breaker.succeeded(&key),
    }
    if let Ok(reply) = &answer {
        count(job.work.kind, reply);
    }
    answer
}

/// What memory itself costs, as the endpoint reported it.
fn count(kind: PartKind, reply: &Reply) {
    let reported = [
        ("in", reply.usage.prompt),
        ("cached", reply.usage.cached),
        ("out", reply.usage.completion),
    ];
    for (direction, tokens) in reported {
        if let Some(tokens) = tokens {
            metrics::counter!(
                telemetry::MODEL_TOKENS,
                "kind" => kind.name(),
                "direction" => direction
            )
            .increment(tokens);
        }
    }
}
