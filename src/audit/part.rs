//! The audit line of an observation or a reflection.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};

use super::record::milliseconds;

/// One line of the audit, told from those of requests by `wrote`. As with those, the order of the fields
/// does not change, and new ones go to the end.
#[derive(Clone, Debug, Serialize)]
pub struct PartRecord {
    /// When it was stored, RFC 3339 in UTC with milliseconds.
    #[serde(serialize_with = "milliseconds")]
    pub time: Timestamp,
    /// What was written.
    pub wrote: PartKind,
    /// Its number, as `diarist threads show` has it.
    pub part: String,
    /// A short hash; never the credential.
    pub tenant: String,
    /// As in the lines of the conversation's requests; absent where none of them was seen by this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// What wrote it; `code` where no model did.
    pub model: String,
    /// The first and the last message it stands for, counted from 1.
    pub messages: (u64, u64),
    /// Tokens of what it was made of: of the messages, or of the log that was condensed; absent where
    /// they are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_in: Option<u32>,
    /// Tokens of its text.
    pub tokens_out: u32,
    /// The share of the names, numbers, dates, quotes, paths, links, identifiers and completed marks it was made
    /// of that it kept; absent where there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<f64>,
    /// Of each kind how many it kept, and of how many; `high` are those that must not be lost.
    pub kept: Map<String, Value>,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// A chunk.
    Observation,
    /// A condensed log.
    Reflection,
}
