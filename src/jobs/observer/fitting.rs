//! How long a call may be that a model found too long, where its refusal says how much was too much: one
//! refusal is enough then. Where it says nothing, beside and piece are halved in turn.

use super::beside::Beside;
use super::draft::Draft;
use super::{LEAST_INPUT, Observing, cut};
use crate::jobs::{ask, count};
use crate::llm::Models;
use crate::wire::usage::Excess;

/// Of a window, so much is filled: the answer needs room as well, and two tokenizers never quite agree.
const FILLED: (u64, u64) = (4, 5);

/// Of what a piece and what is shown beside it may have together, so much is the piece's.
const PIECE: (u32, u32) = (4, 5);

/// What a prompt weighs that was too long, in tokens as they are counted here.
#[derive(Clone, Copy, Debug)]
struct Weight {
    /// All of its text.
    whole: u32,
    /// Of that, the piece that is to be observed and what is shown beside it. The rest is always there.
    varies: u32,
}

impl Weight {
    /// What may vary may have so much, that a prompt like this one fits; `None` where nothing is left.
    fn room(self, excess: Excess) -> Option<u32> {
        let whole = u64::from(self.whole);
        // The provider counts tokens of its own, of which the share is what both have in common; and with
        // them what it keeps for the answer, which no shorter prompt makes less.
        let share = whole.saturating_mul(excess.window) / excess.sent.max(1);
        let rest = whole.saturating_sub(excess.sent.saturating_sub(excess.window));
        let filled = share.min(rest) * FILLED.0 / FILLED.1;
        let room = filled.checked_sub(u64::from(self.whole.saturating_sub(self.varies)))?;
        u32::try_from(room).ok().filter(|room| *room < self.varies)
    }
}

impl Observing<'_> {
    /// Makes `draft` as short as the model is known to want it that will be asked. What is shorter may be
    /// for another one, so that is looked at again.
    pub(super) async fn as_known(&self, draft: &mut Draft) {
        draft.asks(None);
        while let Some(piece) = draft.next() {
            let model = self.whom(draft, &piece).await;
            let room = self.shop.rooms.of(&model);
            let limit = self.shop.windows.of(&model);
            let less_room = room.filter(|room| draft.room.is_none_or(|known| *room < known));
            let shorter = limit.filter(|limit| *limit < draft.limit);
            if let Some(room) = less_room {
                draft.leaves(room);
            }
            if let Some(limit) = shorter {
                if draft.is_untouched() {
                    let whole = self.payload.transcript.clone();
                    draft.cut_to(limit, cut(self.shop, whole, limit).await);
                } else {
                    self.cut_to(draft, limit).await;
                }
            }
            if less_room.or(shorter).is_none() {
                return;
            }
        }
    }

    /// Who would be asked for `piece`: endpoint and model.
    async fn whom(&self, draft: &Draft, piece: &str) -> (String, String) {
        let model = if let Some(Models::Tiers(_)) = self.phase.model {
            let prompt = self.prompt(draft, piece, &self.beside(draft, piece).await);
            ask::settings(self.shop, self.phase, self.job, &prompt).await
        } else {
            self.phase.settings(&self.job.work.model, 0)
        };
        (self.endpoint.origin(), model.model)
    }

    /// Remembers for later ranges what was learned with `draft`.
    pub(super) fn remember(&self, draft: &Draft) {
        for (model, learned) in draft.learned() {
            let model = (self.endpoint.origin(), model.clone());
            if let Some(room) = learned.room {
                self.shop.rooms.lowered(model.clone(), room);
            }
            if let Some(limit) = learned.limit {
                self.shop.windows.lowered(model, limit);
            }
        }
    }

    /// Cuts `piece`, and all after it, to what fits as the refusal has it, with room for what is shown
    /// beside; `false` where it says nothing of use.
    pub(super) async fn fitted(
        &self,
        draft: &mut Draft,
        piece: &str,
        excess: Option<Excess>,
    ) -> bool {
        let Some(excess) = excess.filter(|_| draft.heeds()) else {
            return false;
        };
        let beside: Beside = self.beside(draft, piece).await;
        let prompt = self.prompt(draft, piece, &beside);
        let shop = self.shop;
        let weight = Weight {
            whole: count(shop, &prompt.system).await + count(shop, &prompt.user).await,
            varies: count(shop, piece).await + beside.tokens,
        };
        let Some(room) = weight.room(excess) else {
            return false;
        };
        let limit = room / PIECE.1 * PIECE.0;
        if limit < LEAST_INPUT {
            return false;
        }
        draft.leaves(room);
        draft.takes(limit);
        self.cut_to(draft, limit.min(draft.limit)).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_fits_the_window_that_a_refusal_names() {
        // 3,000 are always there.
        let weight = Weight {
            whole: 24_000,
            varies: 21_000,
        };
        let room = |window, sent| weight.room(Excess { window, sent });
        assert_eq!(room(20_000, 24_000), Some(16_000 - 3_000));
        // Its tokens are twice as many characters as ours, or half.
        assert_eq!(room(10_000, 12_000), Some(16_000 - 3_000));
        assert!(room(40_000, 48_000).is_some_and(|room| room <= 13_000));
        // It keeps 10,000 for the answer, which leaves 14,000.
        assert_eq!(room(24_000, 34_000), Some(11_200 - 3_000));
        for (window, sent) in [(3_000, 24_000), (256, 24_000), (9_000, 20_251_122)] {
            assert_eq!(room(window, sent), None, "{window} of {sent}");
        }
    }
}
