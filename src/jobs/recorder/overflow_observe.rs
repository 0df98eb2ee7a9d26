//! What was observed while a client waited becomes memory like any other, with the request that it went
//! out with. Called by the recorder alone.

use super::state::Recorder;
use crate::jobs::events::ConversationState;
use crate::jobs::overflow_observe::PendingOverflow;
use crate::jobs::track::{JobResult, Track};
use crate::store::{RequestRecord, SentWith, StoreError, StoredOverflowObservation};

impl Recorder {
    /// Writes down what was observed while the client waited, together with the request; from now on it
    /// is what every other snapshot is.
    pub(super) async fn record_overflow(
        &self,
        track: &mut Track,
        record: &RequestRecord,
        PendingOverflow {
            observation: adoption,
            events,
        }: &PendingOverflow,
    ) -> Result<(i64, SentWith), StoreError> {
        let StoredOverflowObservation {
            lineage,
            parts,
            snapshot,
            peer_snapshot: bound,
        } = self
            .base
            .store
            .record_overflow_observation(&track.scope, record, adoption)
            .await?;
        for (id, part) in parts.into_iter().zip(&adoption.parts) {
            track.apply_result(part.kind, &part.span, &JobResult::Written(part.meta(id)));
        }
        // Equal requests that waited for it too are recorded after the first.
        if track
            .snapshots
            .iter()
            .all(|existing| existing.id != snapshot.meta.id)
        {
            self.base
                .events
                .record_logged(&track.scope, record.tip, events);
            let conversation = ConversationState::from_track(track);
            self.base.events.emit_activated(
                &conversation,
                &record.model,
                record.tip,
                &snapshot.meta,
            );
        }
        let cache = &self.base.cache;
        let mut sent_with = record.sent_with.clone();
        for stored in [Some(snapshot), bound].into_iter().flatten() {
            // What it was told of others, it was told.
            sent_with.snapshot = Some(stored.meta.id);
            track.snapshots.push(stored.meta.clone());
            cache.insert_snapshot(&track.scope, stored);
        }
        let tip_and_model = (record.tip, record.model.as_str());
        cache.renumber_pin(
            &track.scope,
            tip_and_model,
            &record.sent_with,
            sent_with.clone(),
        );
        Ok((lineage, sent_with))
    }
}
