//! What a call of memory costs, by what it reads and writes. Called by the policy that weighs costs.

use crate::memory::{CostRules, PartKind, PartMeta};

/// Tokens of a chunk for each token of its messages, until the chain has chunks of its own. An assumption: small
/// talk becomes shorter, dense text hardly does.
pub(super) const OBSERVED: f64 = 0.2;

/// Tokens of a reflection for each token of the log. An assumption, between the three quarters that a Reflector is
/// asked for at most and what it reaches on old notes.
pub(super) const REFLECTED: f64 = 0.5;

/// What a call reads besides its range: the instructions and earlier observations, each about 2,000 tokens.
pub(super) const CALL_TOKENS: f64 = 4_000.0;

/// The cost of a call that wrote `part`.
pub(super) fn call_cost(part: &PartMeta, rules: &CostRules) -> f64 {
    let written = f64::from(part.tokens);
    let read = match part.kind {
        PartKind::Chunk => f64::from(part.message_tokens),
        PartKind::Reflection => written / REFLECTED,
    };
    rules.calls(read + CALL_TOKENS, written)
}

/// The cost of a call for a range of so many tokens that has not been answered.
pub(super) fn open_call_cost(message_tokens: u32, rules: &CostRules) -> f64 {
    let read = f64::from(message_tokens);
    rules.calls(read + CALL_TOKENS, read * OBSERVED)
}
