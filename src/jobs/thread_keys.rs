//! The name a conversation is recorded under: the client's, unless it stands for a crowd. Called by the
//! recorder.

use super::Shop;
use super::intake::Exchange;
use super::track::Track;
use crate::store::{LIVE_MS, SHARED_KEY_THRESHOLD, StoreError};

/// The name that `exchange` goes under. One that stands for a crowd names no conversation: a fixed id for
/// all users of an application, or for all that one of them ever asked.
pub(super) async fn effective_thread_key(
    shop: &Shop,
    track: &Track,
    exchange: &Exchange,
) -> Result<Option<String>, StoreError> {
    let Some(key) = exchange.thread_key.as_deref() else {
        return Ok(None);
    };
    let (scope, since) = (&exchange.scope, exchange.at_ms - LIVE_MS);
    if track.has_thread_key(key)
        || shop
            .store
            .count_live_conversations(scope, key, since)
            .await?
            < SHARED_KEY_THRESHOLD
    {
        return Ok(Some(key.to_owned()));
    }
    if shop.recall.add_shared_thread_key(scope, key) {
        tracing::warn!(
            tenant = scope.tenant_label(),
            "more than {SHARED_KEY_THRESHOLD} conversations go under one name: it is not taken for a name any more"
        );
    }
    Ok(None)
}
