//! The Reflector: the log goes in, and a smaller log comes out, or nothing. Called by the worker.

mod reflection_log;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::reflection_log::{ChosenLog, OverBudget, ReflectionLog};
use super::base::Base;
use super::call_audit::OpenCall;
use super::events::Cycle;
use super::failure::{Failure, is_rejected_for_good};
use super::model_call::{ModelCaller, nonce};
use super::model_problem::Problem;
use super::settings::Settings;
use super::{part_report, payload};
use crate::audit::CallOutcome;
use crate::llm::{CallError, Endpoint, Finish};
use crate::memory::reflect::{self, ReflectInput, ReflectionAttempts};
use crate::memory::{NewPart, Part, PartKind, code_reflection, dates};
use crate::store::Job;
use crate::telemetry;

/// The payload of a reflection job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReflectionPayload {
    /// Whether an operator asked for it.
    #[serde(rename = "asked")]
    pub requested: bool,
    /// What the operator wants it to look at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub focus: Option<String>,
    /// The IANA name of the time zone for dates; without one, that of the settings applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

impl ReflectionPayload {
    /// The payload as text of a job row.
    pub fn to_json(&self) -> String {
        // A flag and strings always have a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }

    fn from_job(job: &Job) -> Self {
        serde_json::from_str(&job.spec.payload).unwrap_or_default()
    }
}

/// Why a Reflector is called again, for the events.
const REASON_LOSSY: &str = "the answer lost what is important";
const REASON_TOO_LONG: &str = "the answer was not short enough";
const REASON_UNUSABLE: &str = "the answer could not be used";
const REASON_TRUNCATED: &str = "the answer was cut by an output limit";

/// Condenses logs by model calls.
pub(super) struct Reflector {
    base: Base,
    caller: Arc<ModelCaller>,
}

impl Reflector {
    pub(super) fn new(base: &Base, caller: &Arc<ModelCaller>) -> Self {
        Self {
            base: base.clone(),
            caller: Arc::clone(caller),
        }
    }

    /// Condenses the sources of `job`. Tries levels from gentle to harsh until one reaches the
    /// target. The smallest answer is kept that lost no more high-priority items than allowed and
    /// that is smaller than the log it replaces. If there is none and the log is over budget, the
    /// answer that lost least is kept, and its newest lost lines are put back.
    pub(super) async fn reflect(
        &self,
        settings: &Settings,
        endpoint: &Endpoint,
        job: &Job,
        cycle: &Cycle,
    ) -> Result<NewPart, Failure> {
        let parts = self
            .base
            .store
            .parts(&job.scope, &job.spec.parts)
            .await
            .map_err(|error| Failure::from_store(&error))?;
        if parts.len() != job.spec.parts.len() {
            return Err(Failure::GivenUp);
        }
        let job_payload = ReflectionPayload::from_job(job);
        let policy = &self.base.policy_for(settings, &job.spec.model);
        let counter = Arc::clone(&self.base.counter);
        let from = policy.reflect_from;
        let condense_all =
            job_payload.requested || total_tokens(&parts) >= policy.observation_tokens;
        // High-priority items are lost only if the log has no room for them.
        let limit = policy.observation_limit;
        let over_budget =
            (total_tokens(&parts) >= policy.observation_tokens).then_some(OverBudget {
                limit,
                target: reflect::target_tokens(limit),
            });
        let log_bytes = parts.iter().map(|part| part.body.text.len()).sum();
        let log = self.compute(log_bytes, move || {
            ReflectionLog::new(parts, (!condense_all).then_some(from), over_budget, counter)
        });
        let log = Arc::new(log.await?);
        let Answers {
            attempts,
            failure,
            mut usable,
            model,
            called_model,
            is_answered,
        } = self
            .call_until_one_fits(settings, endpoint, job, cycle, &log, &job_payload)
            .await?;
        // After the last attempt it is still too long, or has lost too much.
        let give_up = |line: &mut Option<OpenCall>| {
            if let Some(line) = line {
                line.set_outcome(CallOutcome::Empty);
            }
        };
        let is_judged = is_answered && failure.is_none();
        let chosen = choose_log(attempts, failure, limit).inspect_err(|_| give_up(&mut usable));
        let health = &self.base.health;
        if chosen.is_err() && is_judged {
            health.failed(endpoint, &called_model, job, Problem::Unusable);
        }
        let chosen = chosen.map_err(|failure| match failure {
            // Otherwise each new chunk would make a job with calls of its own.
            Failure::GivenUp if !health.is_trusted(endpoint, &called_model, job, false) => {
                Failure::Useless
            }
            failure => failure,
        })?;
        let span = job.spec.span;
        let finish = move || {
            let chosen = log.fit_to_limit(chosen, limit);
            let observations = &log.source.observations;
            let analysis =
                part_report::for_reflection(&log.parts, observations, &chosen.text, &span);
            (chosen, analysis)
        };
        let (chosen, analysis) = self.compute(log_bytes, finish).await?;
        if chosen.by_code {
            give_up(&mut usable);
        } else if is_judged {
            health.worked(endpoint, &called_model, job);
        }
        if let Some(loss) = chosen.loss.filter(|loss| *loss > settings.max_loss) {
            warn_lossy(job, chosen.tokens, loss);
        }
        Ok(NewPart {
            kind: PartKind::Reflection,
            span,
            text: chosen.text,
            tokens: chosen.tokens,
            message_tokens: job.spec.message_tokens,
            current_task: None,
            suggested_response: None,
            sources: job.spec.parts.clone(),
            model: if chosen.by_code {
                code_reflection::MODEL.to_owned()
            } else {
                model
            },
            requested: job_payload.requested,
            code_reflection: false,
            analysis,
        })
    }

    /// Calls the model at one level after the other until an answer reaches the target, or no level is left.
    async fn call_until_one_fits(
        &self,
        settings: &Settings,
        endpoint: &Endpoint,
        job: &Job,
        cycle: &Cycle,
        log: &Arc<ReflectionLog>,
        reflection: &ReflectionPayload,
    ) -> Result<Answers, Failure> {
        let zone = payload::zone(reflection.zone.as_deref(), &settings.zone);
        let today = dates::format_day(self.base.now_ms(), &zone);
        let phase = &settings.reflection;
        let prompt = |level: u8, missing: Option<&str>| {
            reflect::prompt(&ReflectInput {
                observations: &log.older,
                level,
                nonce: &nonce(),
                now_date: &today,
                instruction: phase.instruction.as_deref(),
                focus: reflection.focus.as_deref(),
                lost_items: missing,
            })
        };
        // If the size of the prompt decides on the model, the gentlest level's prompt does.
        let first = self.caller.settings(phase, job, &prompt(0, None)).await;
        let mut model = first.model;
        let start = reflect::start_level(&model, reflection.requested);
        let mut attempts =
            ReflectionAttempts::new(start, log.tokens, log.target, settings.max_loss);
        let mut failure = None;
        let mut retry_reason = None;
        let (mut called_model, mut is_answered) = (model.clone(), false);
        // The newest answer that can be used; the loop may ask for a better one.
        let mut usable: Option<OpenCall> = None;
        while let Some(attempt) = attempts.next_attempt() {
            if let Some(mut line) = usable.take() {
                line.set_outcome(CallOutcome::Retried);
            }
            if let Some(reason) = retry_reason.take() {
                let reason = attempt.lost_items.as_ref().map_or(reason, |_| REASON_LOSSY);
                cycle.retry(settings, job, reason);
            }
            if attempt.lost_items.is_some() {
                metrics::counter!(telemetry::REFLECTIONS_REMINDED).increment(1);
            }
            let prompt = prompt(attempt.level, attempt.lost_items.as_deref());
            let call = self.caller.settings(phase, job, &prompt).await;
            called_model.clone_from(&call.model);
            match self.caller.call(call, endpoint, job, &prompt).await {
                // A cut answer is shorter, but it is not the whole log.
                Ok((reply, mut line)) if reply.finish == Finish::Length => {
                    is_answered = true;
                    line.set_outcome(CallOutcome::Cut);
                    tracing::warn!(
                        tenant = %job.scope.tenant_label(),
                        model = %reply.model,
                        "the Reflector's answer was cut by a limit of its length and is not used: allow it \
                         more (`max_output_tokens`, or the endpoint's own limit)"
                    );
                    attempts.answer_unusable();
                    retry_reason = Some(REASON_TRUNCATED);
                }
                Ok((reply, mut line)) => {
                    is_answered = true;
                    line.set_outcome(CallOutcome::Empty);
                    model = reply.model;
                    let (log, bytes) = (Arc::clone(log), log.older.len());
                    let evaluate = move || log.evaluate(&reply.text);
                    if let Some(attempt) = self.compute(bytes, evaluate).await? {
                        attempts.add_attempt(attempt);
                        line.set_outcome(CallOutcome::Kept);
                        usable = Some(line);
                        retry_reason = Some(REASON_TOO_LONG);
                    } else {
                        attempts.answer_unusable();
                        retry_reason = Some(REASON_UNUSABLE);
                    }
                }
                Err(CallError::Refused { .. }) => {
                    attempts.answer_unusable();
                    retry_reason = Some(REASON_UNUSABLE);
                }
                // The log only grows, so this model will never accept it.
                Err(error @ CallError::TooLong { .. }) => {
                    let (health, problem) = (&self.base.health, Problem::NoShorterCall(&error));
                    health.failed(endpoint, &called_model, job, problem);
                    attempts.stop();
                }
                Err(CallError::Rejected { .. }) if is_rejected_for_good(job) => attempts.stop(),
                Err(error) => {
                    failure = Some(error);
                    attempts.stop();
                }
            }
        }
        Ok(Answers {
            attempts,
            failure,
            usable,
            model,
            called_model,
            is_answered,
        })
    }

    /// Runs `work` on a log of this size with the other computations of jobs: comparing two logs of a megabyte would hold
    /// up the runtime, and many reflections at the same time would take every core.
    async fn compute<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let done = self.base.compute_pool.run(bytes, work).await;
        done.ok_or_else(|| {
            Failure::Call(CallError::Transient {
                retry_after: None,
                message: "a fault in the program: the logs could not be compared".to_owned(),
            })
        })
    }
}

/// What the calls of one job gave.
struct Answers {
    attempts: ReflectionAttempts,
    /// The error that ended the calls.
    failure: Option<CallError>,
    /// The newest answer that can be used.
    usable: Option<OpenCall>,
    /// The model that answered last, by its own report.
    model: String,
    /// The model that was called last.
    called_model: String,
    /// Whether any call was answered.
    is_answered: bool,
}

/// Chooses among all answers. One that lost too much is chosen only if no other is below the limit.
fn choose_log(
    mut attempts: ReflectionAttempts,
    failure: Option<CallError>,
    limit: u32,
) -> Result<ChosenLog, Failure> {
    let best = attempts.take_best();
    // If a call failed, a later try may lose nothing.
    let use_partial = match &best {
        Some((_, tokens)) => *tokens >= limit,
        None => failure.is_none(),
    };
    let partial = attempts.take_partial().filter(|_| use_partial);
    match (partial, best) {
        (Some(partial), _) => Ok(ChosenLog {
            text: partial.text,
            tokens: partial.tokens,
            loss: Some(partial.loss),
            by_code: false,
        }),
        (None, Some((text, tokens))) => Ok(ChosenLog {
            text,
            tokens,
            loss: None,
            by_code: false,
        }),
        (None, None) => Err(failure.map_or(Failure::GivenUp, Failure::Call)),
    }
}

/// Warns that a reflection lost more than allowed.
fn warn_lossy(job: &Job, tokens: u32, lost: f64) {
    metrics::counter!(telemetry::REFLECTIONS_LOSSY).increment(1);
    tracing::warn!(
        tenant = %job.scope.tenant_label(),
        messages = job.spec.span.to_count,
        tokens,
        lost,
        "the log has no room for all important items: the oldest of them were left out"
    );
}

fn total_tokens(parts: &[Part]) -> u32 {
    parts
        .iter()
        .fold(0, |sum, part| sum.saturating_add(part.body.tokens))
}
