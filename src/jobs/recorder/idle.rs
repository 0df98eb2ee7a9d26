//! Activation of idle conversations: recorded requests set timers, and the recorder acts when one
//! has run out.
//!
//! A timer lies in the store, so it survives a restart. The newest request moves it. A process
//! claims it before it acts, so that two processes do not both act. If both act all the same, they
//! prepare the same snapshot.

use std::time::Duration;

use jiff::tz::TimeZone;

use super::state::Recorder;
use crate::jobs::exchange::Exchange;
use crate::jobs::failure::log_store_failure;
use crate::jobs::track::Track;
use crate::memory::advance::{Action, JobState, bounded_snapshot, early};
use crate::memory::policy::cache_lifetime;
use crate::memory::{EarlyTriggers, PartKind, Policy, SnapshotCause};
use crate::store::{Alarms, NewTimer, StoreError, Timer};

/// How long timers that other processes set may stay unnoticed.
const POLL_INTERVAL: Duration = Duration::from_mins(1);

/// How long a claimed timer is leased. Acting on it takes a few queries.
const LEASE_MS: i64 = 60_000;

/// If the Observer is at work when the time is up: how long the timer waits for it, and how often
/// it looks.
const GRACE_MS: i64 = 120_000;
const RETRY_MS: i64 = 1_000;

impl Recorder {
    /// The timer that `exchange` sets, if it is the newest request of its conversation.
    pub(super) fn timer(&self, exchange: &Exchange) -> Option<NewTimer> {
        if exchange.held_out {
            return None;
        }
        let settings = self.base.settings();
        let policy = &settings.policy_for(&exchange.model);
        let retention = exchange.parsed.cache_retention();
        let lifetime = cache_lifetime(&settings.upstream, &exchange.model, retention.as_deref());
        let due_ms = |early: EarlyTriggers| {
            let millis = i64::try_from(early.idle.duration(lifetime)?.as_millis()).ok()?;
            exchange.answered_ms.checked_add(millis)
        };
        let alarms = Alarms {
            activate_ms: due_ms(policy.early_activation),
            reflect_ms: due_ms(policy.early_reflection),
        };
        alarms.next()?;
        Some(NewTimer {
            alarms,
            zone: exchange.zone_name(),
        })
    }

    /// The time until a timer may run out.
    pub(super) fn time_to_next_timer(&self) -> Duration {
        let remaining = self.next_timer_ms.map(|at| at - self.base.now_ms());
        let remaining = remaining.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0)));
        remaining.map_or(POLL_INTERVAL, |remaining| remaining.min(POLL_INTERVAL))
    }

    /// Notes that a timer runs out at `at_ms`.
    pub(super) fn schedule_timer(&mut self, at_ms: i64) {
        self.next_timer_ms = Some(
            self.next_timer_ms
                .map_or(at_ms, |current| current.min(at_ms)),
        );
    }

    /// Acts on the next timer that has run out. Returns whether there was one.
    pub(in crate::jobs) async fn fire_timer(&mut self) -> bool {
        self.next_timer_ms = None;
        let settings = self.base.settings();
        if settings.read_only || !settings.uses_idle_timers() {
            return false;
        }
        let store = &self.base.store;
        let now_ms = self.base.now_ms();
        match store.claim_timer(now_ms, now_ms + LEASE_MS).await {
            Ok(Some(timer)) => {
                // More timers may have run out.
                self.next_timer_ms = Some(now_ms);
                if let Err(error) = self.handle_timer(&timer, now_ms).await {
                    log_store_failure("an idle conversation could not be activated", &error);
                }
                true
            }
            Ok(None) => {
                self.next_timer_ms = store.next_timer().await.unwrap_or(None);
                false
            }
            Err(error) => {
                log_store_failure("the timers could not be read", &error);
                false
            }
        }
    }

    async fn handle_timer(&mut self, timer: &Timer, now_ms: i64) -> Result<(), StoreError> {
        let (due, remaining) = timer.alarms.split_due(now_ms);
        let Some(mut track) = self.track_for_timer(timer).await? else {
            return self.base.store.end_timer(timer, None).await;
        };
        let overdue = due.next().is_none_or(|at| at + GRACE_MS <= now_ms);
        if due.activate_ms.is_some() && !overdue && is_being_observed(&track) {
            self.tracks.put(track);
            let later = Some((timer.alarms, now_ms + RETRY_MS));
            return self.base.store.end_timer(timer, later).await;
        }
        let settings = self.base.settings();
        let policy = &self.base.policy_for(&settings, &timer.model);
        let allowed = |early, due_ms: Option<i64>| due_ms.map_or(EarlyTriggers::NEVER, |_| early);
        let policy = Policy {
            early_activation: allowed(policy.early_activation, due.activate_ms),
            early_reflection: allowed(policy.early_reflection, due.reflect_ms),
            ..*policy
        };
        // A log at its hard limit is shortened first, which needs another plan.
        for _ in 0..2 {
            let plan = early(&track.path(), &policy, SnapshotCause::Idle);
            let step = plan.map(|plan| bounded_snapshot(&track.path(), &policy, plan));
            let shortened = match step {
                Some(Action::Shorten {
                    span,
                    message_tokens,
                    limit,
                    plan,
                }) => {
                    let sizes = (message_tokens, limit);
                    self.shorten(&mut track, plan, span, sizes).await
                }
                Some(Action::Snapshot(plan)) => {
                    self.snapshot(&mut track, plan).await;
                    false
                }
                _ => false,
            };
            if !shortened {
                break;
            }
        }
        self.tracks.put(track);
        let rearm = remaining.next().map(|due| (remaining, due));
        self.base.store.end_timer(timer, rearm).await
    }

    /// The chain whose newest request set `timer`; `None` if it was deleted.
    async fn track_for_timer(&mut self, timer: &Timer) -> Result<Option<Track>, StoreError> {
        self.drop_tracks_of_earlier_database();
        if let Some(track) = self.tracks.take_at(&timer.scope, timer.tip) {
            return Ok(Some(track));
        }
        let chain = self.base.store.chain_links(&timer.scope, timer.tip).await?;
        if chain.is_empty() {
            return Ok(None);
        }
        let mut track = Track::load_chain(&*self.base.store, &timer.scope, &chain).await?;
        track.model.clone_from(&timer.model);
        let zone = timer.zone.as_deref().map(TimeZone::get);
        track.zone = zone.and_then(Result::ok).or(track.zone);
        Ok(Some(track))
    }
}

/// Whether an observation job of this chain is open and has not failed.
fn is_being_observed(track: &Track) -> bool {
    track
        .jobs
        .iter()
        .any(|job| job.kind == PartKind::Chunk && job.state == JobState::Fresh)
}
