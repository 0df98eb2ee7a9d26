//! When a conversation tells the others what it learned.

use super::super::others::tell;
use super::{Recorder, Track, failed};
use crate::memory::advance::observed;

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
}
