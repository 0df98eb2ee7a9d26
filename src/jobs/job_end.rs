//! The end of a job: its part is stored, or it is given back to the queue, for now or for good.
//!
//! Called by [`super::worker`], once for each job that it claims. Decides when a job is tried again; the store carries that
//! out.

use std::sync::Arc;
use std::time::Duration;

use super::base::Base;
use super::clock::millis;
use super::events::Cycle;
use super::failure::Failure;
use super::model_call::ModelCaller;
use super::outcome::JobOutcome;
use super::part_report::{CODE_AUTHOR, PartReport};
use super::retry_delay::{SLOW_RETRY_DELAY, retry_delay};
use super::routes::Routes;
use super::track::JobResult;
use crate::llm::{CallError, backoff};
use crate::memory::advance::JobState;
use crate::memory::{NewPart, PartId};
use crate::store::{Job, Release, StoreError};
use crate::telemetry;

/// The longest pause of a range that no model observes usefully, which grows with each try.
const MAX_USELESS_DELAY: Duration = Duration::from_hours(2);

/// Pauses between attempts to store a part.
const COMMIT_RETRY_DELAYS: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];

/// Ends jobs.
#[derive(Clone)]
pub(super) struct JobFinisher {
    base: Base,
    routes: Arc<Routes>,
    caller: Arc<ModelCaller>,
}

impl JobFinisher {
    pub(super) fn new(base: &Base, routes: &Arc<Routes>, caller: &Arc<ModelCaller>) -> Self {
        Self {
            base: base.clone(),
            routes: Arc::clone(routes),
            caller: Arc::clone(caller),
        }
    }

    /// Stores the part, or gives the job back.
    pub(super) async fn finish(&self, job: &Job, ended: EndedJob) -> JobOutcome {
        let failure_message = ended.end.failure_message();
        let verdict = ended.end.verdict();
        let report = match &ended.end {
            JobEnd::Written(part) => Some(PartReport::from_part(part)),
            _ => None,
        };
        // First, so that a process that ends behind the COMMIT has kept the call. One that ends before it calls again for
        // the same job, and the new call replaces this one.
        self.caller.bundles.job_ended(job, verdict.as_deref()).await;
        let now_ms = self.base.now_ms();
        let result = match ended.end {
            JobEnd::Written(part) => self.commit_part(job, *part).await,
            JobEnd::NoRoute => self.release(job, Release::RetryAt(now_ms + 1_000)).await,
            // Only the store knows what became of the job.
            JobEnd::LeaseLost => JobResult::Gone,
            // So that the next process can start at once. If the release fails, the job is free
            // when the lease ends.
            JobEnd::Stopped => self.release(job, Release::RetryAt(now_ms)).await,
            JobEnd::Failed(failure) => {
                let release = self.release_after(job, failure);
                self.release(job, release).await
            }
        };
        match (&result, failure_message) {
            (JobResult::Written(part), _) => ended.cycle.ended(job, part.tokens, report.as_ref()),
            (_, Some(message)) => ended.cycle.failed(job, &message),
            (_, None) => {}
        }
        JobOutcome {
            scope: job.scope.clone(),
            kind: job.spec.kind,
            span: job.spec.span,
            result,
            report,
        }
    }

    /// What follows for a job from a failure: whether and when it is tried again.
    fn release_after(&self, job: &Job, failure: Failure) -> Release {
        let now_ms = self.base.now_ms();
        match failure {
            Failure::Empty => Release::EmptyRetryAt(now_ms),
            Failure::Useless => {
                // The range does not count as shown to the Observer once more: it was read in vain, and the
                // conversation's family must have room left when the model is corrected.
                let wait = SLOW_RETRY_DELAY.saturating_mul(job.empty_answers.max(1));
                Release::RejectedRetryAt(now_ms + millis(wait.min(MAX_USELESS_DELAY)))
            }
            Failure::Fault => {
                let wait = backoff(job.unsettled.saturating_sub(1), None);
                Release::FaultRetryAt(now_ms + millis(wait))
            }
            Failure::GivenUp => Release::Abandon,
            Failure::Unreadable => {
                tracing::warn!("a job could not be read; the next request offers its range again");
                Release::Drop
            }
            Failure::Call(error) => self.release_after_call(job, &error),
        }
    }

    /// What follows for a job from a model call that failed.
    fn release_after_call(&self, job: &Job, error: &CallError) -> Release {
        let borrowed = self.base.borrows_credential(job);
        if let CallError::RateLimited { retry_after, .. } = error
            && borrowed
        {
            self.routes.limited(&job.scope.tenant, *retry_after);
        }
        let withdrawn = matches!(error, CallError::Unauthorised { .. }) && borrowed;
        if withdrawn {
            self.routes.withdraw(&job.scope.tenant, job.spec.route_hash);
        }
        // A job without a route cannot be claimed. The next request registers the route
        // again.
        let wait = if withdrawn {
            Duration::ZERO
        } else {
            retry_delay(job.attempts, error)
        };
        // [`super::model_health`] warns of it, once a minute.
        tracing::debug!(
            kind = job.spec.kind.name(),
            attempts = job.attempts,
            retry_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            error = %error,
            "a model call of memory failed; requests are not affected"
        );
        let retry_at_ms = self.base.now_ms() + millis(wait);
        match error {
            // The prompt may be the reason: see [`super::failure::is_rejected_for_good`].
            CallError::Rejected { .. } => Release::RejectedRetryAt(retry_at_ms),
            _ => Release::RetryAt(retry_at_ms),
        }
    }

    /// Stores `part`, in several attempts. It is paid for, so a failing store gets time to recover, unless the process is
    /// stopping.
    async fn store_part(&self, job: &Job, part: &NewPart) -> Result<Option<PartId>, StoreError> {
        let stop = self.base.tasks.token();
        for wait in COMMIT_RETRY_DELAYS {
            match self
                .base
                .store
                .commit_part(job, part, self.base.now_ms())
                .await
            {
                Err(error) => tracing::debug!(error = %error, "a part could not be stored yet"),
                result => return result,
            }
            let waited = stop.run_until_cancelled(tokio::time::sleep(wait)).await;
            if waited.is_none() {
                break;
            }
        }
        self.base
            .store
            .commit_part(job, part, self.base.now_ms())
            .await
    }

    async fn commit_part(&self, job: &Job, part: NewPart) -> JobResult {
        match self.store_part(job, &part).await {
            Ok(Some(id)) => {
                tracing::info!(
                    tenant = %job.scope.tenant_label(),
                    kind = part.kind.name(),
                    messages = part.span.to_count - part.span.from_count,
                    message_tokens = part.message_tokens,
                    tokens = part.tokens,
                    model = %part.model,
                    retention = %part.analysis.retention.to_json(),
                    "wrote a part of the log"
                );
                JobResult::Written(part.meta(id))
            }
            Ok(None) => JobResult::Gone,
            Err(error) => {
                metrics::counter!(telemetry::STORE_FAILURES).increment(1);
                tracing::warn!(error = %error, "a part could not be stored; its job will be done again");
                JobResult::Pending(JobState::Retrying)
            }
        }
    }

    async fn release(&self, job: &Job, action: Release) -> JobResult {
        if let Err(error) = self.base.store.release(job, action).await {
            metrics::counter!(telemetry::STORE_FAILURES).increment(1);
            tracing::warn!(error = %error, "a job could not be given back; it is free when its lease ends");
        }
        match action {
            Release::Abandon => JobResult::Pending(JobState::Abandoned),
            Release::RetryAt(_)
            | Release::EmptyRetryAt(_)
            | Release::RejectedRetryAt(_)
            | Release::FaultRetryAt(_) => JobResult::Pending(JobState::Retrying),
            Release::Drop => JobResult::Gone,
        }
    }
}

/// A job whose model calls have ended.
#[derive(Debug)]
pub(super) struct EndedJob {
    /// The events of its tries.
    pub(super) cycle: Arc<Cycle>,
    pub(super) end: JobEnd,
}

/// How they ended.
#[derive(Debug)]
pub(super) enum JobEnd {
    /// The calls wrote a part.
    Written(Box<NewPart>),
    /// They wrote none.
    Failed(Failure),
    /// The route was gone between claim and call.
    NoRoute,
    /// The lease was lost: another worker has the job, or it was deleted.
    LeaseLost,
    /// The process is stopping.
    Stopped,
}

/// The verdict on a call whose part was written by code.
pub(super) const CODE_VERDICT: &str = "no answer could be used, and code wrote in its place";

impl JobEnd {
    /// Why the last call is worth a bundle: its answer could not be used, or it failed.
    fn verdict(&self) -> Option<String> {
        match self {
            Self::Written(part) if part.model == CODE_AUTHOR => Some(CODE_VERDICT.to_owned()),
            Self::Failed(_) => self.failure_message(),
            _ => None,
        }
    }

    /// The message for logs and events. `None` if no model was called.
    fn failure_message(&self) -> Option<String> {
        Some(match self {
            Self::NoRoute => return None,
            Self::Written(_) => "the part could not be stored".to_owned(),
            Self::Failed(failure) => failure.message().to_owned(),
            Self::LeaseLost => "the lease was lost".to_owned(),
            Self::Stopped => "the process was stopped".to_owned(),
        })
    }
}
