//! Stores what was observed while a client waited, together with the exchange that it was sent
//! with. Called by the recorder only.

use super::state::Recorder;
use crate::jobs::events::ConversationState;
use crate::jobs::overflow_observe::PendingOverflow;
use crate::jobs::track::{JobResult, Track};
use crate::store::{RequestRecord, SentWith, StoreError, StoredOverflowObservation};

impl Recorder {
    /// Stores the observation with its request. From then on its snapshot is one like any other.
    pub(super) async fn record_overflow(
        &self,
        track: &mut Track,
        record: &RequestRecord,
        PendingOverflow {
            observation,
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
            .record_overflow_observation(&track.scope, record, observation)
            .await?;
        for (id, part) in parts.into_iter().zip(&observation.parts) {
            track.apply_result(part.kind, &part.span, &JobResult::Written(part.meta(id)));
        }
        // The snapshot may be known already: several equal requests waited for it, and each is
        // recorded.
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
            // The request was sent with the copy with peer memory, if there is one.
            sent_with.snapshot = Some(stored.meta.id);
            track.snapshots.push(stored.meta.clone());
            cache.insert_snapshot(&track.scope, stored);
        }
        let tip_and_model = (record.tip, record.model.as_str());
        cache.renumber_sent_snapshot(
            &track.scope,
            tip_and_model,
            &record.sent_with,
            sent_with.clone(),
        );
        Ok((lineage, sent_with))
    }
}
