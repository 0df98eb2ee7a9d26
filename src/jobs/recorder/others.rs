//! When a conversation tells the others what it learned, and when it is told.

use super::super::others::{Told, compose, tell};
use super::{Recorder, Track, failed};
use crate::memory::advance::observed;
use crate::memory::others::Bound;

impl Recorder {
    /// Tells the user's other conversations what is new in this one.
    pub(super) async fn tell(&self, track: &mut Track) {
        let settings = self.shop.settings.now();
        let (Some(budget), Some(lineage)) =
            (settings.others.filter(|_| track.shared), track.lineage)
        else {
            return;
        };
        let log = observed(&track.path());
        if log.is_empty() || log == track.told {
            return;
        }
        match tell(&self.shop, &track.scope, lineage, &log, budget, &settings).await {
            Ok(()) => track.told = log,
            Err(error) => failed("other conversations could not be told", &error),
        }
    }

    /// What this conversation is told of the others with its next snapshot.
    pub(super) async fn others(&self, track: &Track) -> Option<Told> {
        let settings = self.shop.settings.now();
        let budget = settings.others.filter(|_| track.shared)?;
        let zone = track.zone.as_ref().unwrap_or(&settings.zone);
        let key = track.key();
        let own = track.lineages();
        let composed = compose(&self.shop, &track.scope, (&own, key), budget, zone).await;
        let mut told = composed.unwrap_or_else(|error| {
            failed("what other conversations know could not be read", &error);
            None
        })?;
        // Not the newest message: clients take back what they put into it, and edit it, and it is the
        // same conversation all the same.
        let settled = track.nodes.iter().rev().find(|node| node.confirmed)?;
        told.others.bound = Some(Bound {
            link: settled.link,
            count: settled.count,
            key: key.map(str::to_owned),
        });
        Some(told)
    }
}
