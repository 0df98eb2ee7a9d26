//! Fits a call to the window of its model. If a refusal states by how much the call was too long,
//! one refusal is enough. Otherwise, background and piece are halved in turn.

use super::draft::ChunkDraft;
use super::job::{Background, MIN_INPUT_TOKENS, ObserveJob, split_transcript};
use crate::llm::Models;
use crate::wire::usage::Excess;

/// The share of a window that a prompt may fill. The answer needs room too, and two tokenizers
/// never fully agree.
const WINDOW_SHARE: (u64, u64) = (4, 5);

/// The piece's share of the tokens for piece and background.
const PIECE_SHARE: (u32, u32) = (4, 5);

/// The size of a prompt that was too long, in our tokens.
#[derive(Clone, Copy, Debug)]
struct PromptTokens {
    /// The whole prompt.
    whole: u32,
    /// Of that, the piece and its background. The rest is constant.
    variable: u32,
}

impl PromptTokens {
    /// The tokens for piece and background with which such a prompt fits; `None` if nothing is
    /// left.
    fn available(self, excess: Excess) -> Option<u32> {
        let whole = u64::from(self.whole);
        // The provider counts in its own tokens, so the ratio of window to prompt is used. It may
        // also count the space that it reserves for the answer, which no shorter prompt reduces, so
        // the plain difference is used too. The smaller result counts.
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
    /// Makes the pieces of `draft` as short as the model is known to need. A shorter prompt may go
    /// to another model, so this is repeated until nothing changes.
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

    /// The endpoint and the model that a call for `piece` would use.
    async fn model_key(&self, draft: &ChunkDraft, piece: &str) -> (String, String) {
        let model = if let Some(Models::Tiers(_)) = self.phase.model {
            let prompt = self.prompt(draft, piece, &self.background(draft, piece).await);
            self.caller.settings(self.phase, self.job, &prompt).await
        } else {
            self.phase.settings(&self.job.spec.model, 0)
        };
        (self.endpoint.origin(), model.model)
    }

    /// Remembers the limits learned with `draft` for later ranges.
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

    /// Cuts `piece` and all after it to what the refusal says, with room for background; `false` if
    /// the refusal does not help.
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
        // 3,000 tokens are constant.
        let weight = PromptTokens {
            whole: 24_000,
            variable: 21_000,
        };
        let available = |window, sent| weight.available(Excess { window, sent });
        assert_eq!(available(20_000, 24_000), Some(16_000 - 3_000));
        // The provider's tokens are twice as long as ours, or half as long.
        assert_eq!(available(10_000, 12_000), Some(16_000 - 3_000));
        assert!(available(40_000, 48_000).is_some_and(|available| available <= 13_000));
        // The provider reserves 10,000 tokens for the answer, so 14,000 are left.
        assert_eq!(available(24_000, 34_000), Some(11_200 - 3_000));
        for (window, sent) in [(3_000, 24_000), (256, 24_000), (9_000, 20_251_122)] {
            assert_eq!(available(window, sent), None, "{window} of {sent}");
        }
    }
}
