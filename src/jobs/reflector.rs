//! The Reflector: the log goes in, and a smaller log comes out, or nothing. Called by the worker.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::base::Base;
use super::call_audit::OpenCall;
use super::events::Cycle;
use super::failure::{Failure, is_rejected_for_good};
use super::model_call::{ModelCaller, nonce};
use super::settings::Settings;
use super::{part_report, payload};
use crate::audit::CallOutcome;
use crate::llm::{CallError, Endpoint, Finish};
use crate::memory::reflect::{
    self, ParsedAnswer, PartialReflection, ReflectInput, ReflectionAttempt, ReflectionAttempts,
    ReflectionSource,
};
use crate::memory::{NewPart, Part, PartKind, code_reflection, dates, render, retention};
use crate::store::Job;
use crate::telemetry;
use crate::tokens::TokenCounter;

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
        let log = self.compute(log_bytes, move || ReflectionLog {
            over_budget,
            ..ReflectionLog::new(parts, (!condense_all).then_some(from), counter)
        });
        let log = Arc::new(log.await?);
        let Answers {
            attempts,
            failure,
            mut usable,
            model,
        } = self
            .call_until_one_fits(settings, endpoint, job, cycle, &log, &job_payload)
            .await?;
        // After the last attempt it is still too long, or has lost too much.
        let give_up = |line: &mut Option<OpenCall>| {
            if let Some(line) = line {
                line.set_outcome(CallOutcome::Empty);
            }
        };
        let chosen = choose_log(attempts, failure, limit).inspect_err(|_| give_up(&mut usable))?;
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
            match self.caller.call(call, endpoint, job, &prompt).await {
                // A cut answer is shorter, but it is not the whole log.
                Ok((reply, mut line)) if reply.finish == Finish::Length => {
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
                Err(CallError::TooLong { .. }) => attempts.stop(),
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
    /// The model that answered last.
    model: String,
}

/// The log that replaces what was condensed.
struct ChosenLog {
    text: String,
    tokens: u32,
    /// The share of high-priority items that it lost, if that may be more than allowed.
    loss: Option<f64>,
    /// Whether code wrote it.
    by_code: bool,
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

/// For a log over its budget. Losing something is better than not condensing at all.
#[derive(Clone, Copy)]
struct OverBudget {
    /// The hard limit of the log, in tokens.
    limit: u32,
    /// The size to reach if something is lost: well below the limit, or else the next chunk would
    /// cost something again.
    target: u32,
}

/// The log to condense, and the measure for answers.
struct ReflectionLog {
    parts: Vec<Part>,
    source: ReflectionSource,
    /// The whole days that the Reflector reads.
    older: String,
    /// The days that stay as they are.
    newer: String,
    items: retention::RetentionSource,
    tokens: u32,
    target: u32,
    over_budget: Option<OverBudget>,
    counter: Arc<dyn TokenCounter>,
}

impl ReflectionLog {
    /// All of `parts`, or only their days up to `until` tokens.
    fn new(parts: Vec<Part>, until: Option<u32>, counter: Arc<dyn TokenCounter>) -> Self {
        let texts: Vec<&str> = parts.iter().map(|part| part.body.text.as_str()).collect();
        let source = ReflectionSource::from_parts(&texts);
        let count = |log: &str| render::max_tokens(log, |text| counter.count(text));
        // Counted as one part, because a reflection is one. A part names each day once, which is no
        // condensing.
        let tokens = count(&source.with_system_messages(&source.observations));
        let (older, newer) = match until {
            // If the log is far beyond that point, the older half of it.
            Some(point) => source.split_older(point.max(tokens / 2), count),
            None => (source.observations.as_str(), ""),
        };
        let (older, newer) = (older.to_owned(), newer.to_owned());
        let newer_tokens = match newer.as_str() {
            "" => 0,
            newer => count(newer),
        };
        Self {
            items: retention::RetentionSource::from_log(&older),
            // A quarter of what the Reflector reads is to go.
            target: newer_tokens.min(tokens)
                + reflect::target_tokens(tokens.saturating_sub(newer_tokens)),
            older,
            newer,
            tokens,
            source,
            over_budget: None,
            counter,
            parts,
        }
    }

    /// The log to store. If it is still too long, code shortens it here, because a range has only
    /// one reflection. If something is lost anyway, code competes with the model: by leaving out
    /// whole lines, the oldest of the least priority first, it may lose less.
    fn fit_to_limit(&self, chosen: ChosenLog, limit: u32) -> ChosenLog {
        let target = reflect::target_tokens(limit);
        if let Some(loss) = chosen.loss {
            let (text, tokens) = self.shorten(&self.source.observations, self.tokens, target);
            let code_loss = self.loss(&text);
            if code_loss < loss && tokens < limit {
                return ChosenLog {
                    text,
                    tokens,
                    loss: Some(code_loss),
                    by_code: true,
                };
            }
        }
        if chosen.tokens < limit {
            return chosen;
        }
        let (observations, _) = crate::memory::system_messages::split_messages(&chosen.text);
        let (text, tokens) = self.shorten(&observations, chosen.tokens, target);
        ChosenLog {
            loss: Some(self.loss(&text)),
            text,
            tokens,
            ..chosen
        }
    }

    /// Shortens `observations` by code, from `tokens` of the whole log to `target`.
    fn shorten(&self, observations: &str, tokens: u32, target: u32) -> (String, u32) {
        let excess = tokens.saturating_sub(target);
        let short = code_reflection::shorten(observations, excess, |line| self.counter.count(line));
        let text = self.source.with_system_messages(&short);
        let tokens = self.count_tokens(&text);
        (text, tokens)
    }

    /// The share of high-priority items that a whole log lost.
    fn loss(&self, text: &str) -> f64 {
        let (observations, _) = crate::memory::system_messages::split_messages(text);
        self.items.check(&observations).retention.high.loss()
    }

    /// Measures an answer; `None` if it has no observations.
    fn evaluate(&self, answer: &str) -> Option<ReflectionAttempt> {
        let ParsedAnswer::Observed { text, .. } = reflect::read_answer(answer, &self.older) else {
            return None;
        };
        let report = self.items.check(&text);
        let lost: BTreeSet<usize> = report.damaged_lines().collect();
        let restored = (!lost.is_empty()).then(|| self.restore_lines(&text, &lost));
        let partial = match (&restored, self.over_budget) {
            (Some((_, all)), Some(over)) if *all >= over.limit.min(self.tokens) => {
                Some(self.restore_partially(&text, &lost, over.target))
            }
            _ => None,
        };
        let (text, tokens) = self.full_log(&text);
        Some(ReflectionAttempt {
            text,
            tokens,
            loss: report.retention.high.loss(),
            restored,
            lost_items: reflect::list_lost_items(&self.older, &report),
            partial,
        })
    }

    /// The log to store if `condensed` replaces its older days, and its tokens.
    fn full_log(&self, condensed: &str) -> (String, u32) {
        let text = self
            .source
            .with_system_messages(&reflect::join_newer(condensed, &self.newer));
        let tokens = self.count_tokens(&text);
        (text, tokens)
    }

    fn count_tokens(&self, text: &str) -> u32 {
        render::max_tokens(text, |text| self.counter.count(text))
    }

    fn restore_lines(&self, condensed: &str, lost: &BTreeSet<usize>) -> (String, u32) {
        self.full_log(&retention::restore_lines(&self.older, condensed, lost))
    }

    /// Puts back as many of the lost lines as fit, the newest first.
    fn restore_partially(
        &self,
        condensed: &str,
        lost: &BTreeSet<usize>,
        target: u32,
    ) -> PartialReflection {
        let mut tokens_left = target.saturating_sub(self.full_log(condensed).1);
        loop {
            let count = |line: &str| self.counter.count(line);
            let to_restore = retention::newest_that_fit(&self.older, lost, tokens_left, count);
            let (text, tokens) = self.restore_lines(condensed, &to_restore);
            // A day heading that comes back costs tokens too.
            if tokens > target && !to_restore.is_empty() {
                tokens_left = tokens_left.saturating_sub(tokens - target);
                continue;
            }
            return PartialReflection {
                loss: self.loss(&text),
                over_limit: tokens > target,
                text,
                tokens,
            };
        }
    }
}
