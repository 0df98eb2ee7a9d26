//! How a job ends without a part: what `observer` and `reflector` tell `worker`, which decides what
//! becomes of the job.

use crate::llm::CallError;
use crate::store::{Job, StoreError};
use crate::telemetry;

/// So often a call is made that its endpoint does not take, ten minutes apart. What is wrong with the
/// configuration can be mended meanwhile; what is wrong with the words of a range never is, and without
/// an end they would stand in the way of all that comes after them (INV-BOUND).
const MAX_REJECTIONS: u32 = 6;

/// Whether `job`, which its endpoint rejected once more, is not to be tried again.
pub(super) fn is_rejected_for_good(job: &Job) -> bool {
    job.empty_answers + 1 >= MAX_REJECTIONS
}

/// How a job ended without a part.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing usable came back; asking once more may help.
    Empty,
    /// The model could not be called.
    Call(CallError),
    /// This range is not worth another try.
    GivenUp,
    /// The row of the job makes no sense (any more). The next request offers its words anew.
    Unreadable,
}

impl Failure {
    /// What was needed could not be read; the same job works when the store does.
    pub(super) fn from_store(error: &StoreError) -> Self {
        Self::Call(CallError::Transient {
            retry_after: None,
            message: format!("the log cannot be read: {error}"),
        })
    }

    /// What is told of it: the provider's message or ours, no more.
    pub(super) fn message(&self) -> &str {
        match self {
            Self::Call(error) => error.message(),
            Self::Empty => "the answer could not be used",
            Self::GivenUp => "no answer could be used",
            Self::Unreadable => "the job could not be read",
        }
    }
}

/// Counts and logs a failure of the store that stopped `what`. No request is affected.
pub(super) fn log_store_failure(what: &'static str, error: &StoreError) {
    metrics::counter!(telemetry::STORE_FAILURES).increment(1);
    tracing::warn!(error = %error, "{what}; requests pass, and the next one tries again");
}
