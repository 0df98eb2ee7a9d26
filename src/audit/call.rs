//! The audit line of a model call of memory. Made by `jobs`.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::record::milliseconds;
use crate::history::Scope;
use crate::wire::usage::Usage;

/// One line. Only these lines have the field `call`. The order of the fields does not change; new fields go to the
/// end.
#[derive(Clone, Debug, Serialize)]
pub struct CallRecord {
    /// When the call began, RFC 3339 in UTC with milliseconds.
    #[serde(serialize_with = "milliseconds")]
    pub time: Timestamp,
    /// The purpose of the call.
    pub call: CallKind,
    /// A short hash; never the credential.
    pub tenant: String,
    /// As in the lines of the conversation's requests; absent if this process did not queue the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// The model that answered, or that was asked.
    pub model: String,
    /// Tokens of the whole prompt as the provider counted them, cache reads included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Tokens read from the provider's prompt cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<u64>,
    /// What became of the call.
    pub outcome: CallOutcome,
    /// From the call to its answer.
    pub total_ms: u64,
    /// Tokens written to the provider's prompt cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write_tokens: Option<u64>,
    /// The part of `completion_tokens` that is reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// The usage report as the provider wrote it, without anything that is not a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Value>,
    /// `true` if more was reported of the cache than the prompt has: then what came from it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impossible_usage: Option<bool>,
    /// Whose it is: a database keeps it beside the line.
    #[serde(skip)]
    pub(crate) owner: Scope,
}

impl CallRecord {
    /// Copies what the provider reported; the rest stays absent.
    pub fn set_usage(&mut self, usage: Usage) {
        self.prompt_tokens = usage.prompt;
        self.cached_tokens = usage.cached;
        self.completion_tokens = usage.completion;
        self.cache_write_tokens = usage.cache_write;
        self.reasoning_tokens = usage.reasoning;
        self.impossible_usage = usage.impossible_cache.then_some(true);
    }
}

/// The purpose of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// To observe messages.
    Observe,
    /// To condense observations.
    Reflect,
}

impl CallKind {
    /// The name in the audit.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Reflect => "reflect",
        }
    }
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The answer is used.
    Kept,
    /// The answer could be used, but lost too much or was too long: the model was asked again.
    Retried,
    /// The answer holds nothing usable.
    Empty,
    /// A limit of its length cut the answer.
    Cut,
    /// The model or a content filter declined.
    Refused,
    /// The prompt is too long for the model.
    TooLong,
    /// Any other failure: no answer, no connection, a rate limit.
    Failed,
    /// Nobody waited for the answer any more: the process stopped, or a client's time was up.
    Abandoned,
}

impl CallOutcome {
    /// The name in the audit.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Retried => "retried",
            Self::Empty => "empty",
            Self::Cut => "cut",
            Self::Refused => "refused",
            Self::TooLong => "too_long",
            Self::Failed => "failed",
            Self::Abandoned => "abandoned",
        }
    }
}

impl Serialize for CallKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Serialize for CallOutcome {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
