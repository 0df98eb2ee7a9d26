//! One model call of memory: within the tenant's budget, past the circuit breaker, counted and paid
//! for.
//!
//! Decides whether a call may be made now and which model gets it; never whether to try again. Called
//! by the Observer and the Reflector.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::base::Base;
use super::budget::Budget;
use super::bundle::Bundles;
use super::call_audit::{CallAudit, OpenCall};
use super::model_problem::Problem;
use super::settings::Phase;
use crate::audit::Audit;
use crate::llm::{
    Breaker, CallError, CallSettings, Endpoint, FailedCall, ModelClient, Models, Prompt, Reply,
};
use crate::memory::message_tokens;
use crate::store::Job;
use crate::wire::chat;

/// The most model calls of memory at the same time, for jobs and for waiting clients together. They
/// share rate limits with the conversations.
pub const MODEL_CALLS: usize = 4;

/// After so many failures in a row, an endpoint gets no calls for a while.
const BREAKER_THRESHOLD: u32 = 5;

/// How long the first time; the breaker doubles it while probes fail.
const BREAKER_PAUSE: Duration = Duration::from_secs(30);

/// Makes the model calls of this process.
pub(super) struct ModelCaller {
    base: Base,
    llm: Arc<dyn ModelClient>,
    breaker: Breaker,
    /// One permit per running call. The semaphore is fair, so jobs and waiting clients cannot starve
    /// each other.
    permits: Semaphore,
    pub(super) budget: Arc<Budget>,
    pub(super) bundles: Bundles,
    pub(super) audit: Arc<CallAudit>,
}

/// Bills a call whose answer nobody waits for any more: a waiting client has no more time, the job has lost its lease, or
/// the process stops. The model works on it all the same, as on one that runs out of time.
struct BillIfAbandoned<'a> {
    caller: &'a ModelCaller,
    /// `None`: the call has ended.
    call: Option<(&'a Job, &'a Prompt)>,
}

impl Drop for BillIfAbandoned<'_> {
    fn drop(&mut self) {
        let Some((job, prompt)) = self.call else {
            return;
        };
        let (budget, job, prompt) = (Arc::clone(&self.caller.budget), job.clone(), prompt.clone());
        let tasks = &self.caller.base.tasks;
        tasks.spawn_background("cost of an abandoned call", async move {
            let timeout = CallError::Timeout {
                message: "nobody waits for it".to_owned(),
            };
            let answer = Err(timeout.into());
            budget.record_cost(&job, &prompt, &answer).await;
        });
    }
}

impl ModelCaller {
    pub(super) fn new(base: &Base, llm: Arc<dyn ModelClient>, audit: Option<Audit>) -> Self {
        Self {
            base: base.clone(),
            llm,
            breaker: Breaker::new(BREAKER_THRESHOLD, BREAKER_PAUSE),
            permits: Semaphore::new(MODEL_CALLS),
            budget: Arc::new(Budget::new(base)),
            bundles: Bundles::new(base),
            audit: Arc::new(CallAudit::new(&base.clock, audit)),
        }
    }

    /// Forgets what was learned of the endpoints, and budgets that are larger now: the configuration has changed.
    pub(super) fn reset(&self) {
        self.breaker.reset();
        self.base.health.reset();
        self.budget.limits_changed();
    }

    /// The model and the parameters for calling `phase` with `prompt` on behalf of `job`.
    pub(super) async fn settings(&self, phase: &Phase, job: &Job, prompt: &Prompt) -> CallSettings {
        phase.settings(&job.spec.model, self.prompt_tokens(phase, prompt).await)
    }

    /// Calls `endpoint` on behalf of `job`. Returns the answer with its audit line, to which the outcome is still to
    /// be added.
    ///
    /// # Errors
    /// Those of the call. [`CallError::NotMade`] with the time to wait if the breaker is open, or if the tokens of
    /// today are spent.
    pub(super) async fn call(
        &self,
        settings: CallSettings,
        endpoint: &Endpoint,
        job: &Job,
        prompt: &Prompt,
    ) -> Result<(Reply, OpenCall), CallError> {
        // The permit comes first, because budget and breaker may change while the call waits for it.
        // The semaphore is never closed. A permit is held for one call only, so its holder never
        // waits for another permit.
        let _permit = self.permits.acquire().await;
        self.budget.admit(&job.scope)?;
        let key = endpoint.breaker_key();
        if let Err(wait) = self.breaker.admit(&key, self.base.clock.instant()) {
            return Err(CallError::NotMade {
                retry_after: wait,
                message: "its endpoint keeps failing and is left alone for a while".to_owned(),
            });
        }
        let mut line = self.audit.begin(job, &settings.model);
        let mut abandoned = BillIfAbandoned {
            caller: self,
            call: Some((job, prompt)),
        };
        let answer = self.answer(&settings, endpoint, job, prompt).await;
        line.set_answer(&answer);
        let health = &self.base.health;
        match &answer {
            Err(failed) if failed.error.blames_endpoint() => {
                if let Some(pause) = self.breaker.failed(&key, self.base.clock.instant()) {
                    health.record_pause(endpoint, job, pause);
                }
            }
            _ => {
                self.breaker.succeeded(&key);
                health.end_pause(endpoint, job);
            }
        }
        // Whether an answer is usable is found out when it is read.
        if let Err(failed) = &answer {
            let problem = Problem::Call(&failed.error);
            health.failed(endpoint, &settings.model, job, problem);
        }
        abandoned.call = None;
        self.budget.record_cost(job, prompt, &answer).await;
        let answer = answer.map_err(|failed| failed.error);
        self.bundles
            .record_call(job, endpoint, settings, prompt, &answer);
        answer.map(|reply| (reply, line))
    }

    /// The answer to one call. While it takes unusually long, that is reported.
    async fn answer(
        &self,
        settings: &CallSettings,
        endpoint: &Endpoint,
        job: &Job,
        prompt: &Prompt,
    ) -> Result<Reply, FailedCall> {
        let health = &self.base.health;
        let patience = health.patience(endpoint, &settings.model, job, settings.deadline);
        let started = self.base.clock.instant();
        let mut call = std::pin::pin!(self.llm.call(endpoint, settings, prompt));
        let answer = tokio::select! {
            biased;
            answer = call.as_mut() => answer,
            () = tokio::time::sleep(patience) => {
                let _overdue = health.begin_overdue(endpoint, &settings.model, job, patience);
                call.await
            }
        };
        if answer.is_ok() {
            let after = self.base.clock.instant().saturating_duration_since(started);
            health.answered(endpoint, &settings.model, job, after);
        }
        answer
    }

    /// Tokens of the whole prompt with its attachments, if they decide which model is called. A phase
    /// with one model needs no count and gets 0.
    async fn prompt_tokens(&self, phase: &Phase, prompt: &Prompt) -> u32 {
        let Some(Models::Tiers(tiers)) = &phase.model else {
            return 0;
        };
        let text_tokens = self.base.count_tokens(&prompt.system).await
            + self.base.count_tokens(&prompt.user).await;
        let parts: Vec<&Value> = prompt
            .attachments
            .iter()
            .filter_map(|attached| attached.part.as_ref())
            .collect();
        if parts.is_empty() {
            return text_tokens;
        }
        // A picture costs a different number of tokens with each model. The rules of the model for
        // a prompt of this size apply.
        let model = Models::Tiers(tiers.clone()).pick(text_tokens).to_owned();
        let message = json!({"role": "user", "content": parts});
        let body = Bytes::from(json!({"model": model, "messages": [message]}).to_string());
        let counter = Arc::clone(&self.base.counter);
        let attached_tokens = self.base.compute_pool.run(body.len(), move || {
            let spoken = chat::parse(&body).ok()?.plain_text(0)?;
            Some(message_tokens::count_message(&spoken, &model, &*counter))
        });
        text_tokens.saturating_add(attached_tokens.await.flatten().unwrap_or(0))
    }
}

/// A random code that nobody in the conversation can know. It marks the borders of quoted text in a
/// prompt.
pub(super) fn nonce() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}
