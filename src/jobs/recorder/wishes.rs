//! What an operator asks of one conversation, done by the recorder with its next request: only then are
//! the words at hand.

use super::{Recorder, failed, load};
use crate::jobs::intake::Exchange;
use crate::jobs::track::Track;
use crate::memory::advance::{Step, everything};
use crate::store::Wanted;

impl Recorder {
    /// Does what an operator wants of this conversation: looks at what was written beside this task, and
    /// offers everything that is confirmed where that is the wish.
    pub(super) async fn grant(&self, track: &mut Track, exchange: &Exchange) {
        let Some(lineage) = track.lineage else { return };
        let store = &self.shop.store;
        let Ok(Some(wanted)) = store.wanted(&track.scope, lineage).await else {
            return;
        };
        let known = match load(&self.shop, &track.scope, &exchange.history).await {
            Ok(known) => known,
            Err(error) => return failed("what an operator asked for was not done", &error),
        };
        track.learn(known);
        if let Wanted::Observe { focus } = wanted {
            let settings = self.shop.settings.now();
            let steps = everything(&track.path(), settings.policy_for(&track.model));
            let ranges = steps.into_iter().filter_map(|step| match step {
                Step::Observe {
                    span,
                    message_tokens,
                } => Some((span, message_tokens)),
                _ => None,
            });
            self.observe(track, ranges.collect(), exchange, focus.as_deref())
                .await;
        }
        if let Err(error) = store.given(&track.scope, lineage).await {
            failed("what an operator asked for will be done again", &error);
        }
    }
}
