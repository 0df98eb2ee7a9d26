//! The audit line of an observation or a reflection. Made by `jobs`.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};

use super::record::milliseconds;
use crate::history::Scope;

/// One line. Only these lines have the field `wrote`; the lines of requests have not. The order of the fields does not change; new fields
/// go to the end.
#[derive(Clone, Debug, Serialize)]
pub struct PartRecord {
    /// When it was stored, RFC 3339 in UTC with milliseconds.
    #[serde(serialize_with = "milliseconds")]
    pub time: Timestamp,
    /// The kind of part.
    pub wrote: PartKind,
    /// Its number, as `diarist threads show` prints it.
    pub part: String,
    /// A short hash; never the credential.
    pub tenant: String,
    /// As in the lines of the conversation's requests; absent if this process saw none of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// The model that wrote it; `code` if none did.
    pub model: String,
    /// The first and the last message it covers, counted from 1.
    pub messages: (u64, u64),
    /// Tokens of its source: of the messages, or of the condensed log. Absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_in: Option<u32>,
    /// Tokens of its text.
    pub tokens_out: u32,
    /// The share of the names, numbers, dates, quotes, paths, links, identifiers and completed marks in its source that it
    /// kept; absent if there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<f64>,
    /// By kind: how many it kept, and of how many. `high` are those that must not be lost.
    pub kept: Map<String, Value>,
    /// Whose it is: a database keeps it beside the line.
    #[serde(skip)]
    pub(crate) owner: Scope,
}

/// The kind of part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// A chunk.
    Observation,
    /// A condensed log.
    Reflection,
}
