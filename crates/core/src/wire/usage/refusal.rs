//! Reads what an upstream's refusal means for the refused request.
//!
//! Classifies what [`mod@super::error_report`] read; the caller decides what to do. Called by `llm` for
//! model calls, and by [`mod@super::blame`] for changed requests.

use serde_json::Value;

use super::error_report::{CAUSE_DEPTH, ErrorReport, MAX_READ_BYTES, is_refusal_status};
use super::excess::Excess;

/// Why a request was refused, as far as another attempt depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The prompt does not fit the model.
    TooLong,
    /// The provider does not accept this request parameter, or this value of it.
    UnknownParameter(String),
    /// A content filter refused what the request says; its form may be fine.
    Filtered,
    /// Anything else about the request.
    Other,
}

/// By how much a request was too long, if the refusal says that it was, and by how much: in fields of its own, or in its
/// words. The numbers of an error page that says neither are about something else.
#[must_use]
pub fn excess(body: &[u8]) -> Option<Excess> {
    ErrorReport::parse(body.get(..MAX_READ_BYTES).unwrap_or(body)).excess()
}

/// The kind of refusal; `None` if the answer does not refuse the request itself. Success, credentials,
/// quota, rate limits and failures of the upstream do not.
#[must_use]
pub fn refusal(status: u16, body: &[u8]) -> Option<RefusalKind> {
    if !is_refusal_status(status) {
        return None;
    }
    let report = ErrorReport::parse(body.get(..MAX_READ_BYTES).unwrap_or(body));
    if report.is_about_limits() {
        return None;
    }
    if report.is_too_long_with(status) {
        return Some(RefusalKind::TooLong);
    }
    if report.is_filtered() {
        return Some(RefusalKind::Filtered);
    }
    Some(match report.unknown_parameter() {
        Some(name) => RefusalKind::UnknownParameter(name),
        None => RefusalKind::Other,
    })
}

/// The same for an error without a status, such as the first event of a stream. An error counts unless it names a
/// failure of the server: that one teaches nothing, and the same request would meet it again.
#[must_use]
pub fn refusal_without_status(event: &[u8]) -> Option<RefusalKind> {
    let kind = refusal(400, event)?;
    let report = ErrorReport::parse(event.get(..MAX_READ_BYTES).unwrap_or(event));
    match kind {
        RefusalKind::TooLong => Some(kind),
        // Servers write these words with any code.
        RefusalKind::Other if report.names_placement() => Some(kind),
        _ if report.names_other_cause() => None,
        RefusalKind::UnknownParameter(_) | RefusalKind::Filtered => Some(kind),
        RefusalKind::Other => {
            let counts = report.blames_request() || !report.names_server_failure();
            counts.then_some(kind)
        }
    }
}

/// The provider's own message in an error body, if it has one.
#[must_use]
pub fn error_message(body: &Value) -> Option<String> {
    let mut report = ErrorReport::default();
    report.walk(body, CAUSE_DEPTH);
    report.messages.into_iter().next()
}

/// Whether an error body says that a content filter refused the request.
#[must_use]
pub fn is_content_filter(body: &[u8]) -> bool {
    ErrorReport::parse(body.get(..MAX_READ_BYTES).unwrap_or(body)).is_filtered()
}
