//! Sending, and what is done when the upstream refuses (INV-OPEN).
//!
//! A changed request that is refused goes out once more as the client made it; a request that is
//! too long goes out once more with everything that is already observed. No more than one extra
//! request, and no model is waited for.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::BodyExt as _;

use super::body::OutBody;
use super::choose::{Choice, Rung};
use super::decode::{Decoder, Encoding};
use super::line::Line;
use super::memory::{Asked, Memory};
use super::{Proxy, ProxyBody, ProxyError, body, forward};
use crate::store::Used;
use crate::wire::usage::{RefusalKind, refusal};

/// The upstream's answer and what it is the answer to.
pub(super) struct Sent {
    pub(super) response: Response<ProxyBody>,
    pub(super) used: Used,
    pub(super) asked_usage: bool,
}

/// Sends `choice`, and once more what the refusal asks for.
pub(super) async fn send(
    proxy: &Proxy,
    memory: &Memory,
    parts: &Parts,
    asked: Option<&Asked>,
    choice: Choice,
    line: &mut Line,
) -> Result<Sent, ProxyError> {
    let first = once(proxy, parts, &choice).await?;
    let Some(asked) = asked.filter(|_| may_be_refusal(first.status())) else {
        return Ok(choice.sent(first));
    };
    let (first, kind) = examine(first).await;
    let Some(again) = again(memory, asked, &choice, kind.as_ref()).await else {
        return Ok(choice.sent(first));
    };
    line.chosen(&again);
    let second = once(proxy, parts, &again).await;
    if again.rung == Rung::Observed && second.as_ref().map_or(true, of_no_help) {
        // That its own prompt is too long is something the client can act on.
        line.chosen(&choice);
        return Ok(choice.sent(first));
    }
    let second = second?;
    let accepted = second.status().is_success();
    conclude(memory, asked, &choice, &again, kind.as_ref(), accepted);
    Ok(again.sent(second))
}

/// What goes out after `choice` was refused, if anything does.
pub(super) async fn again(
    memory: &Memory,
    asked: &Asked,
    choice: &Choice,
    kind: Option<&RefusalKind>,
) -> Option<Choice> {
    match kind {
        Some(RefusalKind::TooLong) => shortened(memory, asked, choice).await,
        Some(_) if choice.is_changed() => {
            Some(Choice::of(asked, None, false, choice.why, Rung::Refused))
        }
        _ => None,
    }
}

/// `again` went out in the place of `refused`: what is learned from it, and what its repetition goes
/// out as.
pub(super) fn conclude(
    memory: &Memory,
    asked: &Asked,
    refused: &Choice,
    again: &Choice,
    kind: Option<&RefusalKind>,
    accepted: bool,
) {
    if again.rung == Rung::Refused && accepted {
        learn(memory, asked, refused, kind);
    }
    if let Some(tip) = asked.history.tip() {
        memory
            .recall
            .resettle(&asked.identity.scope, tip, again.used());
    }
}

impl Choice {
    fn sent(&self, response: Response<ProxyBody>) -> Sent {
        Sent {
            response,
            used: self.used(),
            asked_usage: self.asks_usage,
        }
    }
}

async fn once(
    proxy: &Proxy,
    parts: &Parts,
    choice: &Choice,
) -> Result<Response<ProxyBody>, ProxyError> {
    let mut parts = parts.clone();
    if choice.asks_usage {
        // The event that answers our own question is taken out again, which a compressed stream
        // would not allow.
        parts.headers.insert(
            header::ACCEPT_ENCODING,
            HeaderValue::from_static("identity"),
        );
    }
    let out = OutBody::Segments(choice.frames.clone());
    let response = forward::send(&proxy.upstream, parts, out).await?;
    Ok(
        response
            .map(|body| super::body::Idle::new(body, proxy.limits.response_idle).boxed_unsync()),
    )
}

/// Whether this is a refusal of words the client never wrote.
fn of_no_help(answer: &Response<ProxyBody>) -> bool {
    matches!(answer.status().as_u16(), 400 | 413 | 422)
}

/// Statuses with which upstreams refuse a request for what it holds; `refusal` reads the rest.
fn may_be_refusal(status: StatusCode) -> bool {
    status.is_client_error() || status.is_server_error()
}

/// Reads the refusal, and puts the answer together again as it was.
async fn examine(response: Response<ProxyBody>) -> (Response<ProxyBody>, Option<RefusalKind>) {
    /// Error bodies are a few hundred bytes.
    const READ: usize = 64 * 1024;
    let (parts, rest) = response.into_parts();
    let (read, rest) = body::peek(rest, READ).await;
    let encoding = Encoding::of(parts.headers.get(header::CONTENT_ENCODING));
    let kind = plain(encoding, &read).and_then(|plain| refusal(parts.status.as_u16(), &plain));
    (Response::from_parts(parts, body::after(read, rest)), kind)
}

fn plain(encoding: Encoding, read: &Bytes) -> Option<Bytes> {
    let mut decoder = Decoder::new(encoding);
    decoder.push(read.clone()).ok()
}

/// How long a refusal is held back while what is observed is applied: a read and a short write.
const APPLYING: Duration = Duration::from_secs(2);

/// Everything observed applied, if that is more than was sent.
async fn shortened(memory: &Memory, asked: &Asked, sent: &Choice) -> Option<Choice> {
    memory.manners.placement(&asked.model)?;
    let (scope, used) = (&asked.identity.scope, sent.used());
    let zone = asked.identity.zone();
    let applying = memory
        .jobs
        .overflow(scope, &asked.history, used.snapshot, zone.as_ref());
    let Ok(applied) = tokio::time::timeout(APPLYING, applying).await else {
        tracing::warn!("the log could not be applied within {APPLYING:?}");
        return None;
    };
    let snapshot = applied
        .inspect_err(|error| tracing::warn!(error = %error, "the log could not be applied"))
        .ok()??;
    let own = &snapshot.meta.placement;
    let placement = memory.manners.placement_of(&asked.model, own)?;
    let covered = sent.snapshot.as_ref().map_or(0, |sent| sent.meta.to_count);
    (snapshot.meta.to_count > covered).then(|| {
        Choice::of(
            asked,
            Some((Arc::clone(&snapshot), placement)),
            sent.asks_usage,
            "too_long",
            Rung::Observed,
        )
    })
}

/// The original was accepted where the changed request was not: what was changed is left out next
/// time.
fn learn(memory: &Memory, asked: &Asked, refused: &Choice, kind: Option<&RefusalKind>) {
    let about_usage = matches!(
        kind,
        Some(RefusalKind::UnknownParameter(name)) if name.starts_with("stream_options")
    );
    if refused.asks_usage && (about_usage || refused.snapshot.is_none()) {
        tracing::info!("the upstream does not report usage in streams; it is not asked again");
        memory.manners.usage_refused();
    } else if let Some(placement) = refused.placement {
        tracing::warn!(
            placement = placement.name(),
            "the upstream refused the block here; placement steps down for this model"
        );
        memory.manners.refused(&asked.model, placement);
    }
}
