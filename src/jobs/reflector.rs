//! One reflection: the log so far in, a smaller log out, or nothing.

use super::ask::ask;
use super::failure::Failure;
use super::{Phase, Shop};
use crate::llm::{CallError, Endpoint};
use crate::memory::reflect::{self, Attempts, Outcome, ReflectInput, START_LEVEL, Source, Verdict};
use crate::memory::{NewPart, PartKind, dates};
use crate::store::Job;

/// Condenses the sources of `job`. Levels are tried from the gentle to the harsh until one reaches
/// the target; the smallest valid answer is kept, whichever came last, and only if it is smaller
/// than the log it replaces.
pub(super) async fn reflect(
    shop: &Shop,
    phase: &Phase,
    endpoint: &Endpoint,
    job: &Job,
) -> Result<NewPart, Failure> {
    let parts = shop
        .store
        .parts(&job.scope, &job.work.parts)
        .await
        .map_err(|error| Failure::store(&error))?;
    if parts.len() != job.work.parts.len() {
        return Err(Failure::Hopeless);
    }
    let texts: Vec<&str> = parts.iter().map(|part| part.body.text.as_str()).collect();
    let source = Source::of(&texts);
    let input: u32 = parts.iter().map(|part| part.body.tokens).sum();
    let today = dates::day(shop.clock.now_ms(), &jiff::tz::TimeZone::UTC);
    let mut attempts = Attempts::new(input, reflect::target(input));
    let (mut model, mut failure) = (String::new(), None);
    for level in reflect::levels(START_LEVEL) {
        let prompt = reflect::prompt(&ReflectInput {
            observations: &source.observations,
            level,
            nonce: &super::nonce(),
            now_date: &today,
            instruction: phase.instruction.as_deref(),
        });
        match ask(shop, phase, endpoint, job, &prompt).await {
            Ok(reply) => {
                let Outcome::Observed { text, .. } =
                    reflect::read(&reply.text, &source.observations)
                else {
                    continue;
                };
                model = reply.model;
                let text = source.restore(&text);
                let tokens = super::count(shop, &text).await;
                if attempts.offer(text, tokens) == Verdict::GoodEnough {
                    break;
                }
            }
            Err(CallError::Refused { .. }) => {}
            // The log only grows: a model it does not fit will never take it.
            Err(CallError::TooLong { .. }) => break,
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    match (attempts.into_best(), failure) {
        (Some((text, tokens)), _) => Ok(NewPart {
            kind: PartKind::Reflection,
            span: job.work.span,
            text,
            tokens,
            message_tokens: job.work.message_tokens,
            current_task: None,
            suggested_response: None,
            sources: job.work.parts.clone(),
            model,
            asked: false,
            evidence: crate::memory::Evidence::default(),
        }),
        (None, Some(error)) => Err(Failure::Call(error)),
        (None, None) => Err(Failure::Hopeless),
    }
}
