//! The recorder: one task that records exchanges and decides what follows from them.
//!
//! It is the only writer of chains and snapshots, so decisions are made one after the other on one
//! state. It never calls a model, and no request waits for it. If it panics, it is started again
//! without its tracks: each is loaded from the store when its conversation goes on.

mod batch;
mod idle;
mod overflow_observe;
mod queueing;
mod record;
mod snapshot;
mod state;
mod steps;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::batch::room_beside;
use self::record::Recorded;
pub(super) use self::state::{Recorder, RecorderShares};
use super::events::status;
use super::exchange::Exchange;
use super::intake::{Exchanges, QueuedExchange};
use super::outcome::JobOutcome;
use super::track::{JobResult, Track};
use crate::history::{Link, Scope};
use crate::store::StoreError;
use crate::telemetry;

/// The most tracks of one conversation (its forks) that can be stale at the same time.
const MAX_STALE_TRACKS: usize = 8;

/// The pause after a batch, as a multiple of the time that the batch took. What comes meanwhile is recorded together: a
/// COMMIT costs as much as recording several exchanges, and requests need the processor. An exchange that comes later than
/// that is recorded at once.
const PAUSE_SHARE: u32 = 5;

/// The longest pause between two batches. A crash loses what waits, and the next request brings it again.
const MAX_PAUSE: Duration = Duration::from_millis(20);

/// What the recorder is sent. It outlives a recorder that panics.
pub(super) struct Inputs {
    exchanges: Exchanges,
    outcomes: mpsc::UnboundedReceiver<JobOutcome>,
    /// Exchanges that were taken for the next batch.
    waiting: Vec<QueuedExchange>,
}

impl Inputs {
    pub(super) fn new(exchanges: Exchanges, outcomes: mpsc::UnboundedReceiver<JobOutcome>) -> Self {
        Self {
            exchanges,
            outcomes,
            waiting: Vec::new(),
        }
    }
}

/// Runs until `stop`, then records the exchanges that still wait.
pub(super) async fn run(
    mut recorder: Recorder,
    inputs: Arc<Mutex<Inputs>>,
    stop: CancellationToken,
) {
    let mut inputs = inputs.lock().await;
    let Inputs {
        exchanges,
        outcomes,
        waiting,
    } = &mut *inputs;
    let mut next_batch = Instant::now();
    loop {
        let room = room_beside(waiting);
        let (most, max_kib) = room.unwrap_or_default();
        tokio::select! {
            biased;
            Some(outcome) = outcomes.recv() => {
                let _ending = recorder.shared.pending_work.ending();
                recorder.handle_outcome(outcome).await;
            }
            more = exchanges.recv(most, max_kib), if room.is_some() => {
                waiting.extend(more);
            }
            () = due(next_batch, room.is_none()), if !waiting.is_empty() => {
                recorder.base.tasks.fault_point("recorder");
                let begin = Instant::now();
                recorder.handle_exchanges(std::mem::take(waiting)).await;
                next_batch = Instant::now() + (begin.elapsed() * PAUSE_SHARE).min(MAX_PAUSE);
            }
            () = stop.cancelled() => break,
            () = tokio::time::sleep(recorder.time_to_next_timer()) => {
                recorder.shared.pending_work.begin();
                let _ending = recorder.shared.pending_work.ending();
                recorder.fire_timer().await;
            }
        }
    }
    exchanges.close();
    loop {
        if let Some((most, max_kib)) = room_beside(waiting) {
            waiting.extend(exchanges.recv(most, max_kib).await);
        }
        if waiting.is_empty() {
            break;
        }
        recorder.handle_exchanges(std::mem::take(waiting)).await;
    }
}

/// Waits until what waits is to be recorded: at once if no more can be added to it.
async fn due(next_batch: Instant, is_full: bool) {
    if !is_full {
        tokio::time::sleep_until(next_batch).await;
    }
}

impl Recorder {
    /// Records one exchange in a transaction of its own, and draws the consequences.
    pub(super) async fn record_alone(&mut self, exchange: Exchange) {
        let mut recorded = self.record(&exchange).await;
        for _ in 0..MAX_STALE_TRACKS {
            if !matches!(recorded, Err(StoreError::Forgotten)) {
                break;
            }
            // The track was of a chain that the store no longer has. It is dropped, and the next
            // try loads another.
            recorded = self.record(&exchange).await;
        }
        match recorded {
            Ok(recorded) => self.follow_up(recorded, &exchange).await,
            Err(error) => self.report_failure(&error),
        }
    }

    /// Draws the consequences of an exchange that is recorded, and keeps its track.
    async fn follow_up(&mut self, (mut track, request): Recorded, exchange: &Exchange) {
        self.base.cache.set_degraded(false);
        if std::mem::take(&mut self.store_failed) {
            self.base.recording.recovered();
        } else {
            self.base.recording.expire();
        }
        self.shared.budget.bill_pending(&exchange.scope).await;
        if let Some(request) = request {
            self.handle_operator_request(&mut track, request, exchange)
                .await;
        }
        if exchange.held_out {
            self.tracks.put(track);
            return;
        }
        self.reprioritize(&mut track).await;
        let mut track = self.perform_steps(track, Some(exchange)).await;
        self.publish_digest(&mut track).await;
        let policy = self.base.policy_for(&self.base.settings(), &track.model);
        status::log(&policy, &track);
        self.prepare_model_switch(&track).await;
        self.tracks.put(track);
    }

    /// Notes that an exchange could not be recorded. Its track is dropped, so the next request loads
    /// it from the store.
    fn report_failure(&mut self, error: &StoreError) {
        // If the conversation was deleted meanwhile, the store is healthy.
        let degraded = !matches!(error, StoreError::Forgotten);
        self.base.cache.set_degraded(degraded);
        self.report_loss(error);
    }

    /// Counts an exchange that the store has not taken.
    fn report_loss(&mut self, error: &StoreError) {
        if matches!(error, StoreError::Forgotten) {
            // On purpose: an operator had the conversation deleted.
            return;
        }
        metrics::counter!(telemetry::STORE_FAILURES).increment(1);
        self.store_failed = true;
        let reason = format!("exchanges cannot be recorded: {error}");
        self.base.recording.lost(&reason);
    }

    pub(super) async fn handle_outcome(&mut self, mut outcome: JobOutcome) {
        self.drop_tracks_of_earlier_database();
        let tracks = self.tracks.take_containing(&outcome.scope, &outcome.span);
        self.report_part(&mut outcome, tracks.first()).await;
        for mut track in tracks {
            track.apply_result(outcome.kind, &outcome.span, &outcome.result);
            let mut track = self.perform_steps(track, None).await;
            self.publish_digest(&mut track).await;
            self.prepare_model_switch(&track).await;
            self.tracks.put(track);
        }
    }

    /// Counts and audits the part of `outcome`, if it has one; `track` is a chain that holds it.
    async fn report_part(&self, outcome: &mut JobOutcome, track: Option<&Track>) {
        let (JobResult::Written(part), Some(report)) = (&outcome.result, outcome.report.take())
        else {
            return;
        };
        let loaded = match track {
            None if self.shared.reporter.audits() => {
                self.load_track(&outcome.scope, part.span.to).await
            }
            _ => None,
        };
        let track = track.or(loaded.as_ref());
        self.shared
            .reporter
            .report(&outcome.scope, track, part, report);
    }

    /// Stores who pays for the tenant of `scope`, if the store does not know it yet. If that fails, the tenant's
    /// next exchange tries again, and until then it pays for itself.
    pub(super) async fn store_account(&self, scope: &Scope) {
        let Some(member) = self.base.accounts.unstored(&scope.tenant) else {
            return;
        };
        match self.base.store.set_account(member).await {
            Ok(()) => self.base.accounts.mark_stored(member),
            Err(error) => {
                metrics::counter!(telemetry::STORE_FAILURES).increment(1);
                if !error.is_logged() {
                    tracing::warn!(%error, "the account of a tenant could not be stored");
                }
            }
        }
    }

    /// Loads the chain that ends in `tip`.
    async fn load_track(&self, scope: &Scope, tip: Link) -> Option<Track> {
        let chain = self.base.store.chain_links(scope, tip).await.ok()?;
        Track::load_chain(&*self.base.store, scope, &chain)
            .await
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_recorder_pause_ends_in_time_and_a_full_batch_skips_it() {
        let now = Instant::now();
        due(now + MAX_PAUSE, true).await;
        assert_eq!(now.elapsed(), Duration::ZERO);
        due(now, false).await;
        assert_eq!(now.elapsed(), Duration::ZERO);
        due(now + MAX_PAUSE, false).await;
        assert_eq!(now.elapsed(), MAX_PAUSE);
    }
}
