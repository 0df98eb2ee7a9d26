//! Sends a chat completion that memory may change, and other requests if the upstream refuses it (INV-OPEN).
//!
//! The family, in reading order: [`attempt`] has the table of what follows which refusal; [`overflow`] and
//! [`trim`] shorten a request that does not fit its model; [`declined`] says what was at fault and what is
//! learned from it; [`answer`] sends and reads one answer; [`stream`] and [`stream_head`] do the same for a
//! refusal in the first event of a stream; [`sent_request`] is the value that passes through all of them.
//! Called by `chat_completions`; `dry_run` takes the same steps without an upstream.

mod answer;
mod attempt;
mod declined;
mod overflow;
mod sent_request;
mod stream;
mod stream_head;
mod trim;

use http::request::Parts;

use self::answer::{AnswerForm, Outcome};
use self::attempt::{Attempt, Recovery};
use super::audit_entry::AuditEntry;
use super::error::ProxyError;
use super::memory::{Memory, MemoryRequest};
use super::outgoing_request::OutgoingRequest;
use super::shared::Shared;

pub(super) use self::answer::UpstreamAnswer;
#[cfg(feature = "testing")]
pub(super) use self::overflow::OverflowShortening;
pub(super) use self::sent_request::SentRequest;
pub(super) use self::stream::{SharedStreamOutcome, StreamRetry};
pub(super) use self::stream_head::is_readable_stream;

/// Sends `outgoing`, and after a refusal what may help. Without a `request` nothing was changed, and the first
/// answer is the client's.
///
/// # Errors
/// If `outgoing` got no answer. An answer to it is kept, whatever becomes of the requests after it.
pub(super) async fn send(
    shared: &Shared,
    memory: &Memory,
    parts: &Parts,
    request: Option<&MemoryRequest>,
    outgoing: OutgoingRequest,
    entry: &mut AuditEntry,
) -> Result<UpstreamAnswer, ProxyError> {
    let form = AnswerForm::Whole;
    let response = answer::send_once(shared, parts, &outgoing, form).await?;
    let (response, outcome) = match request {
        Some(_) => answer::classify(response, &outgoing, form).await,
        None => (response, Outcome::Accepted),
    };
    let sent = SentRequest::first(outgoing);
    let first = UpstreamAnswer { response, sent };
    let (Some(request), Outcome::Refused(reason)) = (request, outcome) else {
        return Ok(first);
    };
    let attempt = Attempt {
        shared,
        memory,
        request,
        parts,
        form,
    };
    let mut on_send = |outgoing: &OutgoingRequest| entry.set_outgoing(outgoing);
    // Boxed, so that the many requests that need no recovery have no room for it.
    let recovery = Box::pin(attempt.recover(first.sent.clone(), reason, &mut on_send));
    Ok(match recovery.await {
        Recovery::Accepted(answer) | Recovery::Refused(answer, _) => answer,
        Recovery::FirstAnswer => first,
    })
}
