//! How far a chain is from its thresholds, for the order of jobs and for people. It decides nothing.

use super::chain_state::{ChainState, JobState};
use super::chain_view::{ChainView, part_tokens};
use crate::memory::{PartKind, Policy};

/// The distances of a chain from its thresholds. All numbers except counts are tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThresholdStatus {
    /// The raw history that the next request carries, without its newest turn.
    pub message_tokens: u32,
    /// The observations that the next request carries.
    pub observation_tokens: u32,
    /// How many chunks wait for an activation.
    pub chunks: usize,
    /// The messages that these chunks cover.
    pub chunk_message_tokens: u32,
    /// The text of these chunks.
    pub chunk_tokens: u32,
    /// Whether an observation is queued or running.
    pub observing: bool,
    /// The log of everything that is observed.
    pub log_tokens: u32,
    /// The newest reflection, if no snapshot has used it: the tokens it condensed, and its own.
    pub reflection: Option<(u32, u32)>,
    /// Whether a reflection is queued or running.
    pub reflecting: bool,
    /// How many reflections there are.
    pub generations: usize,
}

/// The status of `chain`.
#[must_use]
pub fn threshold_status(chain: &ChainState<'_>) -> ThresholdStatus {
    let view = ChainView::new(chain);
    let fresh = view.fresh_chunks();
    let has_open_job = |kind| {
        chain
            .jobs
            .iter()
            .any(|work| work.kind == kind && work.state != JobState::Abandoned)
    };
    let used = |id| view.current.is_some_and(|sent| sent.parts.contains(&id));
    let reflections = chain
        .parts
        .iter()
        .filter(|part| part.kind == PartKind::Reflection);
    let unused = view.reflection.filter(|part| !used(part.id));
    ThresholdStatus {
        message_tokens: view.pending_tokens(),
        observation_tokens: view.current.map_or(0, |snapshot| snapshot.tokens),
        chunks: fresh.len(),
        chunk_message_tokens: fresh
            .iter()
            .fold(0, |sum, chunk| sum.saturating_add(chunk.message_tokens)),
        chunk_tokens: part_tokens(&fresh),
        observing: has_open_job(PartKind::Chunk),
        log_tokens: view
            .log(view.observed_count())
            .map_or(0, |log| part_tokens(&log)),
        reflection: unused.map(|part| {
            let condensed: Vec<_> = view
                .chunks
                .iter()
                .copied()
                .filter(|chunk| chunk.span.to_count <= part.span.to_count)
                .collect();
            (part_tokens(&condensed), part.tokens)
        }),
        reflecting: has_open_job(PartKind::Reflection),
        generations: reflections.count(),
    }
}

impl ThresholdStatus {
    /// How close the chain is to the limit that work of `kind` guards, in thousandths of that
    /// limit.
    #[must_use]
    pub fn urgency(&self, kind: PartKind, policy: &Policy) -> u32 {
        let (tokens, limit) = match kind {
            PartKind::Chunk => {
                let thresholds = policy.with_observations(self.observation_tokens);
                (self.message_tokens, thresholds.block_after)
            }
            PartKind::Reflection => (self.log_tokens, policy.observation_tokens),
        };
        let thousandths = u64::from(tokens) * 1_000 / u64::from(limit.max(1));
        u32::try_from(thousandths).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::EarlyTriggers;

    #[test]
    fn urgency_is_the_share_of_the_limit() {
        let policy = Policy {
            message_tokens: 30_000,
            buffer_tokens: 6_000,
            retention_floor: 6_000,
            block_after: 36_000,
            observation_tokens: 40_000,
            reflect_from: 20_000,
            observation_limit: 48_000,
            block_overhead: 500,
            buffer_on_idle: false,
            share_token_budget: false,
            early_activation: EarlyTriggers::NEVER,
            early_reflection: EarlyTriggers::NEVER,
            costs: None,
        };
        let standing = |message_tokens, log_tokens| ThresholdStatus {
            message_tokens,
            log_tokens,
            ..ThresholdStatus::default()
        };
        for (messages, log, observe, reflect) in [
            (0, 0, 0, 0),
            (18_000, 20_000, 500, 500),
            (36_000, 40_000, 1_000, 1_000),
            (u32::MAX, 60_000, 119_304_647, 1_500),
        ] {
            let standing = standing(messages, log);
            assert_eq!(standing.urgency(PartKind::Chunk, &policy), observe);
            assert_eq!(standing.urgency(PartKind::Reflection, &policy), reflect);
        }
    }
}
