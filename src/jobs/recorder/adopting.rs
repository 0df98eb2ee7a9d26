//! What was observed while a client waited becomes memory like any other, with the request that it went
//! out with. Called by the recorder alone.

use super::Recorder;
use crate::jobs::events::{self, Stood};
use crate::jobs::rescue::Rescued;
use crate::jobs::track::{Settled, Track};
use crate::store::{Adopted, Record, StoreError, Used};

impl Recorder {
    /// Writes down what was observed while the client waited, together with the request; from now on it
    /// is what every other snapshot is.
    pub(super) async fn adopt(
        &self,
        track: &mut Track,
        record: &Record,
        Rescued { adoption, events }: &Rescued,
    ) -> Result<(i64, Used), StoreError> {
        let Adopted {
            lineage,
            parts,
            snapshot,
            bound,
        } = self
            .shop
            .store
            .adopt(&track.scope, record, adoption)
            .await?;
        for (id, part) in parts.into_iter().zip(&adoption.parts) {
            track.settle(part.kind, &part.span, &Settled::Written(part.meta(id)));
        }
        // Equal requests that waited for it too are recorded after the first.
        if track
            .snapshots
            .iter()
            .all(|known| known.id != snapshot.meta.id)
        {
            self.shop.events.keep(&track.scope, record.tip, events);
            let stood = Stood::of(track);
            events::activated(
                &self.shop,
                &stood,
                &record.model,
                record.tip,
                &snapshot.meta,
            );
        }
        let recall = &self.shop.recall;
        let mut used = record.used.clone();
        for stored in [Some(snapshot), bound].into_iter().flatten() {
            // What it was told of others, it was told.
            used.snapshot = Some(stored.meta.id);
            track.snapshots.push(stored.meta.clone());
            recall.insert(&track.scope, stored);
        }
        let asking = (record.tip, record.model.as_str());
        recall.renumber(&track.scope, asking, &record.used, used.clone());
        Ok((lineage, used))
    }
}
