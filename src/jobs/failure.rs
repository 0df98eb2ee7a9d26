//! How a job ends without a part: what `observer` and `reflector` tell `worker`, which decides what
//! becomes of the job.

use crate::llm::CallError;
use crate::store::StoreError;

/// How a job ended without a part.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing usable came back; asking once more may help.
    Empty,
    /// The model could not be called.
    Call(CallError),
    /// This range is not worth another try.
    Hopeless,
    /// The row of the job makes no sense (any more). The next request offers its words anew.
    Unreadable,
}

impl Failure {
    /// What was needed could not be read; the same job works when the store does.
    pub(super) fn store(error: &StoreError) -> Self {
        Self::Call(CallError::Transient {
            retry_after: None,
            message: format!("the log cannot be read: {error}"),
        })
    }
}
