//! One observation: the end of the log and new history in, a chunk out.

use super::ask::ask;
use super::failure::Failure;
use super::payload::Payload;
use super::{Phase, Shop};
use crate::llm::{CallError, Endpoint};
use crate::memory::observe::{self, ObserveInput, Outcome};
use crate::memory::{NewPart, PartKind, dates, render};
use crate::store::{Job, StoreError};

/// How much of the log before a range the Observer is shown, in tokens (the published
/// `previousObserverTokens`).
const EARLIER_TOKENS: u32 = 2_000;

/// Chunks read for that at most.
const EARLIER_CHUNKS: usize = 8;

/// Calls the Observer for `job` and reads its answer.
pub(super) async fn observe(
    shop: &Shop,
    phase: &Phase,
    endpoint: &Endpoint,
    job: &Job,
) -> Result<NewPart, Failure> {
    let Some(payload) = Payload::from_json(&job.work.payload) else {
        // Not JSON any more; nothing in the row could be observed.
        return Err(Failure::Hopeless);
    };
    if payload.transcript.trim().is_empty() {
        // Only system messages, which code copies, or echoes of our own block: nothing to ask.
        return Ok(chunk(shop, job, &payload, Written::by_code(&payload)).await);
    }
    let earlier = earlier(shop, job)
        .await
        .map_err(|error| Failure::store(&error))?;
    let prompt = observe::prompt(&ObserveInput {
        transcript: &payload.transcript,
        earlier: &earlier,
        nonce: &super::nonce(),
        now_date: &dates::day(shop.clock.now_ms(), &jiff::tz::TimeZone::UTC),
        instruction: phase.instruction.as_deref(),
        attachments: &[],
    });
    let written = match ask(shop, phase, endpoint, job, &prompt).await {
        Ok(reply) => match observe::read(&reply.text, &payload.transcript) {
            Outcome::Observed {
                text,
                current_task,
                suggested_response,
            } => Written {
                text,
                current_task,
                suggested_response,
                model: reply.model,
            },
            Outcome::Empty | Outcome::Degenerate => by_code(job, &payload)?,
        },
        Err(CallError::Refused { .. } | CallError::TooLong { .. }) => by_code(job, &payload)?,
        Err(error) => return Err(Failure::Call(error)),
    };
    Ok(chunk(shop, job, &payload, written).await)
}

async fn chunk(shop: &Shop, job: &Job, payload: &Payload, written: Written) -> NewPart {
    let text = render::chunk_text(&written.text, &payload.system);
    NewPart {
        kind: PartKind::Chunk,
        span: job.work.span,
        tokens: super::count(shop, &text).await,
        text,
        message_tokens: job.work.message_tokens,
        current_task: written.current_task,
        suggested_response: written.suggested_response,
        sources: Vec::new(),
        model: written.model,
        asked: false,
        evidence: crate::memory::Evidence::default(),
    }
}

struct Written {
    text: String,
    current_task: Option<String>,
    suggested_response: Option<String>,
    model: String,
}

/// The first empty answer is asked for again, the second is covered by code: a range that no model
/// will speak about must not stand in the way of the ranges after it.
fn by_code(job: &Job, payload: &Payload) -> Result<Written, Failure> {
    if job.empty_answers == 0 {
        return Err(Failure::Empty);
    }
    Ok(Written::by_code(payload))
}

impl Written {
    fn by_code(payload: &Payload) -> Self {
        Self {
            text: payload.by_code.clone(),
            current_task: None,
            suggested_response: None,
            model: "code".to_owned(),
        }
    }
}

/// The end of the log before the range: from the same chain, never from the thread.
async fn earlier(shop: &Shop, job: &Job) -> Result<String, StoreError> {
    let mut texts = Vec::new();
    let mut tokens = 0;
    let mut at = job.work.span.from;
    while tokens < EARLIER_TOKENS && texts.len() < EARLIER_CHUNKS {
        let Some(chunk) = shop.store.chunk_ending(&job.scope, at).await? else {
            break;
        };
        tokens += chunk.body.tokens;
        at = chunk.body.span.from;
        texts.push(chunk.body.text);
    }
    texts.reverse();
    let log = texts.join("\n");
    let counter = std::sync::Arc::clone(&shop.counter);
    let shown = tokio::task::spawn_blocking(move || {
        observe::earlier(&log, EARLIER_TOKENS as usize, |line| {
            counter.count(line) as usize
        })
    });
    Ok(shown.await.unwrap_or_default())
}
