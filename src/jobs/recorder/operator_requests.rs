//! What an operator asks of one conversation, done by the recorder with its next request: only then are
//! the words at hand.

use super::{Recorder, load};
use crate::jobs::failure::log_store_failure;
use crate::jobs::intake::Exchange;
use crate::jobs::track::Track;
use crate::memory::advance::{Action, observe_all};
use crate::store::OperatorRequest;

impl Recorder {
    /// Does what an operator wants of this conversation: looks at what was written beside this task, and
    /// offers everything that is confirmed where that is the wish.
    pub(super) async fn handle_operator_request(&self, track: &mut Track, exchange: &Exchange) {
        let Some(lineage) = track.lineage else { return };
        let store = &self.shop.store;
        let Ok(Some(request)) = store.operator_request(&track.scope, lineage).await else {
            return;
        };
        let stored = match load(&self.shop, &track.scope, &exchange.history).await {
            Ok(stored) => stored,
            Err(error) => {
                return log_store_failure("what an operator asked for was not done", &error);
            }
        };
        track.refresh_from(stored);
        if let OperatorRequest::Observe { focus } = request {
            let settings = self.shop.settings.current();
            let steps = observe_all(&track.path(), settings.policy_for(&track.model));
            let ranges = steps.into_iter().filter_map(|step| match step {
                Action::Observe {
                    span,
                    message_tokens,
                } => Some((span, message_tokens)),
                _ => None,
            });
            self.observe(track, ranges.collect(), exchange, focus.as_deref())
                .await;
        }
        if let Err(error) = store.complete_operator_request(&track.scope, lineage).await {
            log_store_failure("what an operator asked for will be done again", &error);
        }
    }
}
