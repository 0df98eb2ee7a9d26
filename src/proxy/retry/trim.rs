//! Finds where to cut a history that does not fit its model.
//!
//! Counts the tokens of every message, which happens nowhere else on the request path, and only after a
//! refusal. Cuts nothing itself. Called by [`super::overflow`], for a trim and for the range that is to be
//! observed.

use std::sync::Arc;

use super::super::memory::MemoryRequest;
use super::super::outgoing_request::{Block, OutgoingRequest};
use crate::memory::{Trim, message_tokens, render, trim};
use crate::wire;
use crate::wire::usage::Excess;

/// A share: numerator and denominator.
pub(super) type Share = (u64, u64);

pub(super) const WHOLE: Share = (1, 1);

/// The share of the model's window that a shortened request fills. The rest is room for the answer and for the
/// turns that follow: each of them would otherwise be refused too, and cost the prompt cache again.
const TARGET_FILL: Share = (4, 5);

/// The share that is kept if the refusal does not say how much was too much.
const HALF: Share = (1, 2);

/// Where to cut the history of `refused`, so that what stays raw fits into `share` of the tokens allowed.
/// `None` if no cut is enough.
pub(super) async fn find_trim(
    request: &MemoryRequest,
    refused: &OutgoingRequest,
    excess: Option<Excess>,
    share: Share,
) -> Option<Trim> {
    let parsed = Arc::clone(&request.parsed);
    let (covered, bytes) = (refused.covered(), refused.bytes);
    let pin = refused.block.as_ref().and_then(Block::pin);
    let has_block = refused.block.is_some();
    // Counting reads every message again: not on a thread that serves other requests.
    let request = request.clone();
    let pending_trim = tokio::task::spawn_blocking(move || {
        // The message of the request that stands at each place of the chain.
        let sent: Vec<Option<usize>> = (0..request.history.len())
            .map(|at| request.message_at(at))
            .collect();
        let tokens = count_tokens(&parsed, &sent, &request.model);
        let raw = (covered..tokens.len()).chain(pin);
        let raw_bytes: usize = raw
            .clone()
            .filter_map(|place| Some(parsed.messages().get(sent[place]?)?.span.len()))
            .sum();
        let rest = u64::from(message_tokens::estimate_bytes(
            bytes.saturating_sub(raw_bytes),
        ));
        let sent_tokens = rest + raw.map(|place| u64::from(tokens[place])).sum::<u64>();
        let note = if has_block {
            0
        } else {
            u64::from(render::preamble_tokens(1))
        };
        let allowed = allowed_tokens(sent_tokens, excess) * share.0 / share.1;
        let budget = allowed.saturating_sub(rest + note);
        let can_omit = |trim: &Trim| request.can_omit(trim.to_count, trim.pin);
        trim::trim_to_budget(&request.history, &tokens, covered, budget, can_omit)
    });
    pending_trim.await.ok().flatten()
}

/// How many tokens may be sent, of a request that we count as `sent` tokens.
fn allowed_tokens(sent: u64, excess: Option<Excess>) -> u64 {
    let share = |(part, whole): Share| sent.saturating_mul(part) / whole;
    match excess {
        // Our counts and the model's differ in unit; the share is the same in both.
        Some(Excess {
            window,
            sent: sent_tokens,
        }) if window < sent_tokens => share((
            window.saturating_mul(TARGET_FILL.0),
            sent_tokens.saturating_mul(TARGET_FILL.1),
        )),
        _ => share(HALF),
    }
}

/// The tokens of each place of the chain in this request; 0 if the request does not hold its message.
fn count_tokens(parsed: &wire::Request, sent: &[Option<usize>], model: &str) -> Vec<u32> {
    let count = |index: &Option<usize>| {
        let text = index.and_then(|index| parsed.plain_text(index));
        text.map_or(0, |text| message_tokens::estimate_message(&text, model))
    };
    sent.iter().map(count).collect()
}
