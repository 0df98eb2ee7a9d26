//! How a job can end without a part. The Observer and the Reflector return a [`Failure`];
//! [`super::job_end`] decides what becomes of the job. Also how a failure of the store is logged.

use crate::llm::CallError;
use crate::store::{Job, StoreError};
use crate::telemetry;

/// How often a call is made that its endpoint rejects, ten minutes apart. A wrong configuration can
/// be corrected in that time. A text that the endpoint does not accept stays wrong, and without a
/// limit its range would block all later ones (INV-BOUND).
const MAX_REJECTIONS: u32 = 6;

/// Whether `job`, which its endpoint has just rejected, must not be tried again.
pub(super) fn is_rejected_for_good(job: &Job) -> bool {
    job.empty_answers + 1 >= MAX_REJECTIONS
}

/// How a job ended without a part.
#[derive(Debug)]
pub(super) enum Failure {
    /// The answer was not usable. One more call may help.
    Empty,
    /// No answer was usable, and the model has not shown that it can do better. The range waits: what
    /// was said in it must not vanish because nobody can observe it.
    Useless,
    /// The call failed or was not made, or what it needs could not be read, written or computed.
    Call(CallError),
    /// More calls for this range are useless.
    GivenUp,
    /// The row of the job cannot be read. The next request offers the same range again.
    Unreadable,
    /// A fault in the program ended the work.
    Fault,
}

impl Failure {
    /// The store could not be read. The same job works when the store does.
    pub(super) fn from_store(error: &StoreError) -> Self {
        Self::Call(CallError::Transient {
            retry_after: None,
            message: format!("the log cannot be read: {error}"),
        })
    }

    /// The message for logs and events: the provider's or ours, without text of a conversation.
    pub(super) fn message(&self) -> &str {
        match self {
            Self::Call(error) => error.message(),
            Self::Empty | Self::Useless => "the answer could not be used",
            Self::Fault => "a fault in the program ended the work",
            Self::GivenUp => "no answer could be used",
            Self::Unreadable => "the job could not be read",
        }
    }
}

/// Counts and logs a failure of the store that stopped `what`. No request is affected.
pub(super) fn log_store_failure(what: &'static str, error: &StoreError) {
    metrics::counter!(telemetry::STORE_FAILURES).increment(1);
    if !error.is_logged() {
        tracing::warn!(%error, "{what}; requests pass, and the next one tries again");
    }
}
