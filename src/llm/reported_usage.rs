//! What an endpoint reports about the cost of a call.

use serde_json::Value;

use crate::wire::usage::{RawUsage, Usage, UsageReports};

/// The usage of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedUsage {
    /// Fields that were not reported are absent.
    pub tokens: Usage,
    /// The same as the provider wrote it.
    pub raw: Option<RawUsage>,
}

impl ReportedUsage {
    /// The usage in a whole answer.
    pub(super) fn in_answer(answer: &Value) -> Self {
        let (tokens, raw) = UsageReports::in_answer(answer).read();
        Self {
            tokens: tokens.unwrap_or_default().checked(),
            raw,
        }
    }
}
