//! Decides when the Reflector is called, and with which parts.

use super::chain_state::{Action, ChainState, JobState};
use super::chain_view::{ChainView, part_tokens};
use crate::memory::{PartKind, PartMeta, Policy, Span};

/// The reflection that an operator requested: of the log that is sent, or of everything observed if
/// nothing is sent yet. `None` if there is no log, or if the log is only a reflection.
pub fn reflect_on_request(chain: &ChainState<'_>) -> Option<Action> {
    let view = ChainView::new(chain);
    let to_count = view
        .current
        .map_or(view.observed_count(), |now| now.to_count);
    let log = view.log(to_count)?;
    let fresh = log.iter().any(|part| part.kind == PartKind::Chunk);
    let last = log.last()?;
    fresh.then(|| Action::Reflect {
        sources: log.iter().map(|part| part.id).collect(),
        span: Span {
            from: chain.root,
            from_count: 0,
            ..last.span
        },
        tokens: part_tokens(&log),
        message_tokens: log
            .iter()
            .fold(0, |sum, part| sum.saturating_add(part.message_tokens)),
    })
}

/// The reflection that is prepared in the background once the log has reached `reflect_from`.
pub(super) fn reflect(view: &ChainView<'_>, policy: &Policy) -> Option<Action> {
    let unused = view.reflection.is_some_and(|reflection| {
        view.current
            .is_none_or(|current| !current.parts.contains(&reflection.id))
    });
    let running = view
        .chain
        .jobs
        .iter()
        .any(|work| work.kind == PartKind::Reflection && work.state != JobState::Abandoned);
    // The Reflector's answer came too late to fit together with the newer chunks, so both are
    // condensed together.
    let skipped_reflection = view
        .log_within(view.observed_count(), policy.observation_limit)
        .and_then(|log| log.first().copied())
        .is_some_and(|first| first.code_reflection && view.reflection != Some(first));
    let log = view.log(view.observed_count())?;
    let tokens = part_tokens(&log);
    // Its answer will not be used alone, but with the chunks that came meanwhile. If these fill the budget again, both are
    // condensed together, before code has to shorten them.
    let is_outgrown = tokens >= policy.observation_tokens;
    if unused && !skipped_reflection && !is_outgrown || running {
        return None;
    }
    let last = log.last()?;
    let fresh = log.iter().any(|part| part.kind == PartKind::Chunk);
    let span = Span {
        from: view.chain.root,
        from_count: 0,
        ..last.span
    };
    (tokens >= policy.reflect_from && fresh && is_worth_trying(view, policy, tokens)).then(|| {
        Action::Reflect {
            sources: log.iter().map(|part| part.id).collect(),
            span,
            tokens,
            message_tokens: log
                .iter()
                .fold(0, |sum, part| sum.saturating_add(part.message_tokens)),
        }
    })
}

/// Whether another call is worth its cost. If no model could shrink a log, or not far enough, it is
/// tried again when the log has grown by a quarter. Another attempt with every new chunk would cost
/// four calls each time (another implementation made 17 generations in two days).
fn is_worth_trying(view: &ChainView<'_>, policy: &Policy, tokens: u32) -> bool {
    // At the limit, the Reflector is asked in addition to code: only there may it lose more than is
    // allowed.
    let at_limit = tokens >= policy.observation_limit;
    // A log that a model or code has condensed since then is another log.
    let condensed = view.reflection.map_or(0, |part| part.span.to_count);
    let retry_failed_from = view
        .chain
        .jobs
        .iter()
        .filter(|work| work.kind == PartKind::Reflection)
        .map(|work| work.span.to_count)
        .filter(|to_count| *to_count > condensed)
        .max()
        .filter(|_| !at_limit)
        .and_then(|to_count| view.log(to_count))
        .map_or(0, |log| plus_quarter(part_tokens(&log)));
    let sent = |part: &PartMeta| {
        let current = view.current;
        current.is_some_and(|current| current.parts.contains(&part.id))
    };
    let retry_from = view.reflection.map_or(0, |part| match sent(part) {
        true if part.code_reflection || part.tokens < policy.observation_tokens => 0,
        true if at_limit => 0,
        // A reflection that is sent and exceeds the budget by itself was the best that could be
        // done. It is tried again at half the distance to the limit, if that is less than a
        // quarter.
        true => {
            plus_quarter(part.tokens).min(u64::from(part.tokens.midpoint(policy.observation_limit)))
        }
        // A reflection that is not sent, although another one is, was too long together with the
        // chunks behind it.
        false => plus_quarter(part.tokens),
    });
    u64::from(tokens) >= retry_failed_from.max(retry_from)
}

/// A quarter more, rounded up.
fn plus_quarter(tokens: u32) -> u64 {
    (u64::from(tokens) * 5).div_ceil(4)
}
