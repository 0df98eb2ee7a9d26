//! How long a call may be that a model found too long, where its refusal says how much was too much: one
//! refusal is enough then. Where it says nothing, beside and piece are halved in turn.

use super::draft::ChunkDraft;
use super::job::{Background, MIN_INPUT_TOKENS, ObserveJob, split_transcript};
use crate::llm::Models;
use crate::wire::usage::Excess;

/// Of a window, so much is filled: the answer needs room as well, and two tokenizers never quite agree.
const WINDOW_SHARE: (u64, u64) = (4, 5);

/// Of what a piece and what is shown beside it may have together, so much is the piece's.
const PIECE_SHARE: (u32, u32) = (4, 5);

/// What a prompt weighs that was too long, in tokens as they are counted here.
#[derive(Clone, Copy, Debug)]
struct PromptTokens {
    /// All of its text.
    whole: u32,
    /// Of that, the piece that is to be observed and what is shown beside it. The rest is always there.
    variable: u32,
}

impl PromptTokens {
    /// What may vary may have so much, that a prompt like this one fits; `None` where nothing is left.
    fn available(self, excess: Excess) -> Option<u32> {
        let whole = u64::from(self.whole);
        // The provider counts tokens of its own, of which the share is what both have in common; and with
        // them what it keeps for the answer, which no shorter prompt makes less.
        let share = whole.saturating_mul(excess.window) / excess.sent.max(1);
        let rest = whole.saturating_sub(excess.sent.saturating_sub(excess.window));
        let filled = share.min(rest) * WINDOW_SHARE.0 / WINDOW_SHARE.1;
        let available = filled.checked_sub(u64::from(self.whole.saturating_sub(self.variable)))?;
        u32::try_from(available)
            .ok()
            .filter(|available| *available < self.variable)
    }
}

impl ObserveJob<'_> {
    /// Makes `draft` as short as the model is known to want it that will be asked. What is shorter may be
    /// for another one, so that is looked at again.
    pub(super) async fn apply_learned_limits(&self, draft: &mut ChunkDraft) {
        draft.set_model(None);
        while let Some(piece) = draft.next_piece() {
            let model = self.model_key(draft, &piece).await;
            let combined = self.limits.combined.get(&model);
            let piece_limit = self.limits.piece.get(&model);
            let lower_combined = combined.filter(|combined| {
                draft
                    .combined_limit
                    .is_none_or(|current| *combined < current)
            });
            let lower_piece = piece_limit.filter(|limit| *limit < draft.piece_limit);
            if let Some(combined) = lower_combined {
                draft.set_combined_limit(combined);
            }
            if let Some(limit) = lower_piece {
                if draft.is_untouched() {
                    let whole = self.payload.transcript.clone();
                    draft.replace_pending(limit, split_transcript(self.base, whole, limit).await);
                } else {
                    self.split_pending(draft, limit).await;
                }
            }
            if lower_combined.or(lower_piece).is_none() {
                return;
            }
        }
    }

    /// Who would be asked for `piece`: endpoint and model.
    async fn model_key(&self, draft: &ChunkDraft, piece: &str) -> (String, String) {
        let model = if let Some(Models::Tiers(_)) = self.phase.model {
            let prompt = self.prompt(draft, piece, &self.background(draft, piece).await);
            self.caller.settings(self.phase, self.job, &prompt).await
        } else {
            self.phase.settings(&self.job.spec.model, 0)
        };
        (self.endpoint.origin(), model.model)
    }

    /// Remembers for later ranges what was learned with `draft`.
    pub(super) fn remember_limits(&self, draft: &ChunkDraft) {
        for (model, learned) in draft.learned_limits() {
            let model = (self.endpoint.origin(), model.clone());
            if let Some(combined) = learned.combined {
                self.limits.combined.lower(model.clone(), combined);
            }
            if let Some(limit) = learned.piece {
                self.limits.piece.lower(model, limit);
            }
        }
    }

    /// Cuts `piece`, and all after it, to what fits as the refusal has it, with room for what is shown
    /// beside; `false` where it says nothing of use.
    pub(super) async fn fit_to_window(
        &self,
        draft: &mut ChunkDraft,
        piece: &str,
        excess: Option<Excess>,
    ) -> bool {
        let Some(excess) = excess.filter(|_| draft.use_refusal_once()) else {
            return false;
        };
        let background: Background = self.background(draft, piece).await;
        let prompt = self.prompt(draft, piece, &background);
        let tokens = PromptTokens {
            whole: self.base.count_tokens(&prompt.system).await
                + self.base.count_tokens(&prompt.user).await,
            variable: self.base.count_tokens(piece).await + background.tokens,
        };
        let Some(available) = tokens.available(excess) else {
            return false;
        };
        let limit = available / PIECE_SHARE.1 * PIECE_SHARE.0;
        if limit < MIN_INPUT_TOKENS {
            return false;
        }
        draft.set_combined_limit(available);
        draft.record_piece_limit(limit);
        self.split_pending(draft, limit.min(draft.piece_limit))
            .await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_fits_the_window_that_a_refusal_names() {
        // 3,000 are always there.
        let weight = PromptTokens {
            whole: 24_000,
            variable: 21_000,
        };
        let available = |window, sent| weight.available(Excess { window, sent });
        assert_eq!(available(20_000, 24_000), Some(16_000 - 3_000));
        // Its tokens are twice as many characters as ours, or half.
        assert_eq!(available(10_000, 12_000), Some(16_000 - 3_000));
        assert!(available(40_000, 48_000).is_some_and(|available| available <= 13_000));
        // It keeps 10,000 for the answer, which leaves 14,000.
        assert_eq!(available(24_000, 34_000), Some(11_200 - 3_000));
        for (window, sent) in [(3_000, 24_000), (256, 24_000), (9_000, 20_251_122)] {
            assert_eq!(available(window, sent), None, "{window} of {sent}");
        }
    }
}
