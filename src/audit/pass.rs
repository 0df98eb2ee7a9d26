//! The audit line of a request that is no chat completion with a body that was read, and of one that Diarist refuses
//! before it reads it. Made by `proxy`.

use jiff::Timestamp;
use serde::Serialize;

use super::EndReason;
use super::record::milliseconds;
use crate::history::Scope;

/// One line. Only these lines have the field `path`. The order of the fields does not change; new fields go to the
/// end.
#[derive(Clone, Debug, Serialize)]
pub struct PassRecord {
    /// When the request came, RFC 3339 in UTC with milliseconds.
    #[serde(serialize_with = "milliseconds")]
    pub time: Timestamp,
    pub method: String,
    /// Without the query. Parts that may be ids or secrets are `*`.
    pub path: String,
    /// The status of the answer; absent if the client disconnected before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Bytes of the client's body, if its length was announced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_received: Option<u64>,
    /// Bytes of the answer's body that went to the client.
    pub bytes_answered: u64,
    /// From the request's head to the first byte of the answer's body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttfb_ms: Option<u64>,
    /// From the request's head to the answer's end.
    pub total_ms: u64,
    pub ended: EndReason,
    /// Why Diarist refused the request: the code in its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<&'static str>,
    /// So many refusals before this one have no line, because there were too many in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unlisted: Option<u64>,
    /// The model, if the path names it. The body is not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Whose it is, if its credentials say so: a database keeps it beside the line.
    #[serde(skip)]
    pub(crate) owner: Option<Scope>,
}
