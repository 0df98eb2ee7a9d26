//! The audit line of each model call of memory, whatever became of it.
//!
//! A line is written when its [`OpenCall`] is dropped, so that a call which nobody waits for any more has its line
//! too. Decides nothing. Called by the model caller; the Observer and the Reflector say what became of the answer.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::clock::Clock;
use crate::audit::{Audit, CallKind, CallOutcome, CallRecord};
use crate::history::{Link, Scope};
use crate::llm::{CallError, FailedCall, Reply};
use crate::memory::PartKind;
use crate::store::Job;
use crate::wire::usage::RawUsage;

/// The most conversations whose names are kept. Lines about others have no name.
const MAX_THREADS: usize = 4_096;

/// Writes the lines, and knows the names of the conversations with queued jobs.
pub(super) struct CallAudit {
    clock: Clock,
    /// `None` writes no audit.
    audit: Option<Audit>,
    threads: Mutex<HashMap<(Scope, Link), String>>,
}

impl CallAudit {
    pub(super) fn new(clock: &Clock, audit: Option<Audit>) -> Self {
        Self {
            clock: clock.clone(),
            audit,
            threads: Mutex::default(),
        }
    }

    /// Notes the name of the conversation whose request ended with `tip`: a job for it follows.
    pub(super) fn set_thread(&self, scope: &Scope, tip: Link, thread: Option<String>) {
        let Some(thread) = thread.filter(|_| self.audit.is_some()) else {
            return;
        };
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.len() >= MAX_THREADS {
            threads.clear();
        }
        threads.insert((scope.clone(), tip), thread);
    }

    /// Forgets the names.
    pub(super) fn clear_threads(&self) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.clear();
    }

    /// Begins the line of a call of `model` on behalf of `job`.
    pub(super) fn begin(&self, job: &Job, model: &str) -> OpenCall {
        let line = self.audit.as_ref().map(|audit| {
            let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            let record = CallRecord {
                time: jiff::Timestamp::from_millisecond(self.clock.now_ms()).unwrap_or_default(),
                call: match job.spec.kind {
                    PartKind::Chunk => CallKind::Observe,
                    PartKind::Reflection => CallKind::Reflect,
                },
                tenant: job.scope.tenant_label(),
                thread: threads.get(&(job.scope.clone(), job.spec.tip)).cloned(),
                model: model.to_owned(),
                prompt_tokens: None,
                cached_tokens: None,
                completion_tokens: None,
                outcome: CallOutcome::Abandoned,
                total_ms: 0,
                cache_write_tokens: None,
                reasoning_tokens: None,
                usage: None,
                impossible_usage: None,
                owner: job.scope.clone(),
            };
            (audit.clone(), record)
        });
        OpenCall {
            line,
            started: Instant::now(),
            is_answered: false,
        }
    }
}

/// A call whose line is not written yet.
pub(super) struct OpenCall {
    line: Option<(Audit, CallRecord)>,
    started: Instant,
    is_answered: bool,
}

impl OpenCall {
    /// The answer came, or the call failed.
    pub(super) fn set_answer(&mut self, answer: &Result<Reply, FailedCall>) {
        self.set_total();
        let Some((_, record)) = &mut self.line else {
            return;
        };
        let usage = match answer {
            Ok(reply) => Some(&reply.usage),
            Err(failed) => failed.usage.as_deref(),
        };
        if let Some(usage) = usage {
            record.set_usage(usage.tokens);
            record.usage = usage.raw.clone().and_then(RawUsage::into_json);
        }
        match answer.as_ref().map_err(|failed| &failed.error) {
            Ok(reply) => record.model.clone_from(&reply.model),
            Err(CallError::Refused { .. }) => record.outcome = CallOutcome::Refused,
            Err(CallError::TooLong { .. }) => record.outcome = CallOutcome::TooLong,
            Err(_) => record.outcome = CallOutcome::Failed,
        }
    }

    /// What became of the answer.
    pub(super) fn set_outcome(&mut self, outcome: CallOutcome) {
        if let Some((_, record)) = &mut self.line {
            record.outcome = outcome;
        }
    }

    fn set_total(&mut self) {
        let elapsed = self.started.elapsed().as_millis();
        self.is_answered = true;
        if let Some((_, record)) = &mut self.line {
            record.total_ms = u64::try_from(elapsed).unwrap_or(u64::MAX);
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if !self.is_answered {
            self.set_total();
        }
        if let Some((audit, record)) = self.line.take() {
            audit.call(record);
        }
    }
}
