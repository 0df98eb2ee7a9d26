//! The thresholds of the policy that weighs costs: when it pays to observe, to activate and to reflect.
//!
//! How long a conversation will last is not known. So each decision is that of a skier who rents or buys: memory
//! is bought when the conversation has paid as much in rent, by reading again what memory would have replaced. A
//! conversation may never become dearer than without memory by more than a stated share. The result is a
//! [`Policy`], and the rest of `advance` follows it as it follows published thresholds.
//!
//! It reads only what is stored about the chain, so every process decides the same. Pauses are not in it: a cold
//! cache makes every history dearer, so leaving pauses out can only make memory later.

use super::activation_size;
use super::call_costs::{CALL_TOKENS, OBSERVED, REFLECTED};
use super::chain_view::{ChainView, part_tokens};
use super::spent::Spent;
use crate::memory::{CostRules, PartKind, PartMeta, Policy};

/// The least raw history that an activation aims to keep, and the least log that is condensed. Below these, a
/// model loses more than tokens.
const MIN_RAW: u32 = 2_000;
const MIN_LOG: u32 = 6_000;

/// The thresholds for this chain now; those of `policy` if it does not weigh costs.
pub(super) fn thresholds(view: &ChainView<'_>, policy: &Policy) -> Policy {
    let Some(rules) = policy.costs else {
        return *policy;
    };
    let spent = Spent::on(view, policy, &rules);
    let floor = raw_to_keep(&spent, policy);
    let decision = Decision {
        view,
        policy,
        rules: &rules,
        spent: &spent,
        floor,
    };
    let log = Policy {
        reflect_from: if decision.reflection_is_due() {
            policy.reflect_from.min(MIN_LOG)
        } else {
            // Not as late as the budget: at the budget there should be a reflection to use.
            policy.reflect_from.midpoint(policy.observation_tokens)
        },
        observation_tokens: decision.reflection_budget(),
        ..*policy
    };
    let pending = view.pending_tokens();
    if pending >= rules.history_limit {
        return log;
    }
    let can_observe = decision.can_afford_observation();
    let threshold = if decision.activation_is_due() {
        pending
    } else {
        rules.history_limit
    };
    Policy {
        message_tokens: threshold,
        block_after: threshold,
        retention_floor: floor.min(threshold),
        // No range is as large as the maximum, so none is offered.
        buffer_tokens: if can_observe {
            policy.buffer_tokens
        } else {
            u32::MAX
        },
        buffer_on_idle: can_observe && policy.buffer_on_idle,
        share_token_budget: false,
        ..log
    }
}

/// The thresholds that cut ranges, if `due` holds now. Whether a range is observed may depend on costs; where it
/// ends may not, because every process must cut a chain at the same places.
pub(super) fn range_thresholds(policy: &Policy, due: &Policy) -> Policy {
    Policy {
        buffer_tokens: due.buffer_tokens,
        buffer_on_idle: due.buffer_on_idle,
        ..*policy
    }
}

/// Raw history that an activation keeps: two turns as this conversation makes them.
fn raw_to_keep(spent: &Spent, policy: &Policy) -> u32 {
    let two_turns = spent.turn_tokens.saturating_mul(2);
    two_turns.max(MIN_RAW).min(policy.retention_floor)
}

struct Decision<'a> {
    view: &'a ChainView<'a>,
    policy: &'a Policy,
    rules: &'a CostRules,
    spent: &'a Spent,
    floor: u32,
}

impl Decision<'_> {
    /// Whether the requests since the last activation have paid, by reading again what could have been left out,
    /// as much as an activation costs now.
    fn activation_is_due(&self) -> bool {
        let (read, write) = self.rules.cache();
        let chunks = self.removable();
        let Some(last) = chunks.last() else {
            return false;
        };
        let current = self.view.current.map_or(0, |now| now.eligible_from);
        let read_again = |chunk: &&PartMeta| {
            let from = chunk.span.to_count.max(current);
            let requests = self.spent.requests_from(from);
            requests * f64::from(chunk.message_tokens.saturating_sub(chunk.tokens))
        };
        let rent = read * chunks.iter().map(read_again).sum::<f64>();
        let left = f64::from(self.tokens_behind(last));
        let price = (write - read) * left + write * f64::from(part_tokens(&chunks));
        rent >= price
    }

    /// The chunks that an activation would take.
    fn removable(&self) -> Vec<&PartMeta> {
        let least = activation_size::min_raw(self.floor);
        let mut chunks = self.view.fresh_chunks();
        chunks.retain(|chunk| self.tokens_behind(chunk) >= least);
        chunks
    }

    /// The raw history behind `chunk`; 0 if a longer request had more observed than this one holds.
    fn tokens_behind(&self, chunk: &PartMeta) -> u32 {
        let nodes = self.view.chain.nodes.get(chunk.span.to_count..);
        super::node_tokens(nodes.unwrap_or_default())
    }

    /// Whether the conversation stays within its bound if everything that can be observed is observed, and it ends
    /// then, or after the next request, which the activation makes dearer in one way and cheaper in another.
    fn can_afford_observation(&self) -> bool {
        let nodes = self.view.chain.nodes;
        let from = self.view.observed_count().min(self.view.confirmed_count);
        let range = f64::from(super::node_tokens(&nodes[from..self.view.confirmed_count]));
        let calls = (range / f64::from(self.policy.buffer_tokens)).max(1.0);
        let written = range * self.observed_ratio();
        let cost = self.rules.calls(range + calls * CALL_TOKENS, written);
        let (read, write) = self.rules.cache();
        let log = written + f64::from(part_tokens(&self.view.fresh_chunks()));
        // Ranges end where turns end, so about half a range more than the floor is left.
        let left = self.floor.saturating_add(self.policy.buffer_tokens / 2);
        let removed = f64::from(self.view.pending_tokens().saturating_sub(left));
        let activation = (write - read) * f64::from(left) + write * log - read * removed;
        self.spent.allows(cost + activation.max(0.0), self.rules)
    }

    /// As for an activation, and the conversation must be able to afford it.
    fn reflection_is_due(&self) -> bool {
        let (read, write) = self.rules.cache();
        let log = self.view.log(self.view.observed_count());
        let tokens = log.map_or(0, |log| part_tokens(&log));
        if tokens < MIN_LOG {
            return false;
        }
        let written = f64::from(tokens) * REFLECTED;
        let price = self.rules.calls(f64::from(tokens) + CALL_TOKENS, written) + write * written;
        read * (1.0 - REFLECTED) * self.spent.log_read_again >= price
            && self.spent.allows(price, self.rules)
    }

    /// The budget at which a reflection is used: at the next activation if there is one that is not sent, because
    /// the block changes then anyway.
    fn reflection_budget(&self) -> u32 {
        let sent = self
            .view
            .appended_log(self.view.covered_count())
            .map_or(0, |log| part_tokens(&log));
        sent.saturating_add(1).min(self.policy.observation_tokens)
    }

    /// Tokens of this chain's chunks for each token of their messages.
    fn observed_ratio(&self) -> f64 {
        let chunks = self.view.chain.parts.iter();
        let chunks = chunks.filter(|part| part.kind == PartKind::Chunk);
        let (text, messages) = chunks.fold((0.0, 0.0), |(text, messages), chunk| {
            (
                text + f64::from(chunk.tokens),
                messages + f64::from(chunk.message_tokens),
            )
        });
        if messages > 0.0 {
            text / messages
        } else {
            OBSERVED
        }
    }
}
