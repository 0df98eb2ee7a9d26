//! When the Reflector is asked, and for what.

use super::chain_state::{Action, ChainState, JobState};
use super::chain_view::{ChainView, part_tokens};
use crate::memory::{PartKind, PartMeta, Policy, Span};

/// The log that is sent now, or where nothing is sent yet all that is observed, to be condensed because
/// somebody asked. `None` where there is no log, or it is a reflection already.
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

/// The log reached the point where a reflection is prepared in the background.
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
    // It came so late that together with what came after it it is too long: it is condensed with that.
    let skipped_reflection = view
        .log_within(view.observed_count(), policy.observation_limit)
        .and_then(|log| log.first().copied())
        .is_some_and(|first| first.code_reflection && view.reflection != Some(first));
    if unused && !skipped_reflection || running {
        return None;
    }
    let log = view.log(view.observed_count())?;
    let tokens = part_tokens(&log);
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

/// A log that no model could make smaller, or small enough, is tried again once it has grown by a quarter:
/// to try with every new chunk would cost four calls each time (a rival ran 17 generations in two days).
fn is_worth_trying(view: &ChainView<'_>, policy: &Policy, tokens: u32) -> bool {
    // At the limit a Reflector is asked beside code, since only there more may be lost than is allowed.
    let at_limit = tokens >= policy.observation_limit;
    // What was condensed since, by a model or by code, is another log.
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
        // What is sent already and is over the budget by itself was all that could be done. Once more ahead
        // of the limit, where a quarter is more than is left to it.
        true => {
            plus_quarter(part.tokens).min(u64::from(part.tokens.midpoint(policy.observation_limit)))
        }
        // One that is not sent though there is another was too long with what came after it.
        false => plus_quarter(part.tokens),
    });
    u64::from(tokens) >= retry_failed_from.max(retry_from)
}

/// A quarter more.
fn plus_quarter(tokens: u32) -> u64 {
    (u64::from(tokens) * 5).div_ceil(4)
}
