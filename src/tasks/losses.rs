//! What a part of the process loses: counted, logged at most once a minute with the number, and shown by
//! `/readyz` until nothing is lost any more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Condition, Readiness};

/// At most one log line in this time. After as much time without a loss, the part is up again.
const INTERVAL: Duration = Duration::from_mins(1);

/// The losses of one part. A clone counts into the same number.
#[derive(Clone, Debug)]
pub struct Losses {
    part: &'static str,
    readiness: Readiness,
    state: Arc<Mutex<LossState>>,
}

#[derive(Debug, Default)]
struct LossState {
    /// Since the part was last up.
    count: u64,
    /// The part of them that is in no log line yet.
    unlogged: u64,
    last_loss: Option<Instant>,
    /// It does not work, and has lost nothing by that.
    blocked: bool,
    last_line: Option<Instant>,
}

impl Losses {
    /// The losses of `part`, which is up.
    #[must_use]
    pub fn new(part: &'static str, readiness: &Readiness) -> Self {
        readiness.set(part, Condition::Up);
        Self {
            part,
            readiness: readiness.clone(),
            state: Arc::default(),
        }
    }

    /// One thing was lost. `reason` says what and why, for operators.
    pub fn lost(&self, reason: &str) {
        let now = Instant::now();
        let mut state = self.lock();
        state.count += 1;
        state.unlogged += 1;
        state.last_loss = Some(now);
        self.readiness
            .set(self.part, Condition::Degraded(reason.to_owned()));
        let is_due = |last: Instant| now.saturating_duration_since(last) >= INTERVAL;
        if state.last_line.is_none_or(is_due) {
            state.last_line = Some(now);
            let lost = std::mem::take(&mut state.unlogged);
            tracing::warn!(
                part = self.part,
                lost,
                "{reason}. This line comes at most once a minute; `lost` counts since the last one"
            );
        }
    }

    /// The part does not work, for a reason that another line of the log gives: only `/readyz` shows it.
    pub fn blocked(&self, reason: &str) {
        self.lock().blocked = true;
        self.readiness
            .set(self.part, Condition::Degraded(reason.to_owned()));
    }

    /// The part works: what it lost is over.
    pub fn recovered(&self) {
        let mut state = self.lock();
        if std::mem::take(&mut state.blocked) && state.last_loss.is_none() {
            self.readiness.set(self.part, Condition::Up);
        }
        if state.last_loss.take().is_some() {
            let lost = std::mem::take(&mut state.count);
            (state.unlogged, state.last_line) = (0, None);
            self.readiness.set(self.part, Condition::Up);
            tracing::info!(
                part = self.part,
                lost,
                "nothing is lost any more; `lost` counts all of it"
            );
        }
    }

    /// Logs the losses that are in no line yet, before the process ends.
    pub fn log_rest(&self) {
        let lost = std::mem::take(&mut self.lock().unlogged);
        if lost > 0 {
            tracing::warn!(
                part = self.part,
                lost,
                "more was lost before the stop; `lost` counts since the last such line"
            );
        }
    }

    /// Marks the part as up again when its last loss is a minute ago. For parts that cannot tell when they work again.
    pub fn expire(&self) {
        let last = self.lock().last_loss;
        if last.is_some_and(|last| last.elapsed() >= INTERVAL) {
            self.recovered();
        }
    }

    fn lock(&self) -> MutexGuard<'_, LossState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_reported_in_readiness_until_recovery() {
        let readiness = Readiness::new();
        let losses = Losses::new("audit", &readiness);
        assert_eq!(readiness.condition("audit"), Some(Condition::Up));
        for _ in 0..1_000 {
            losses.lost("the disk is full");
        }
        let full = Condition::Degraded("the disk is full".to_owned());
        assert_eq!(readiness.condition("audit"), Some(full));
        assert_eq!(
            losses.lock().unlogged,
            999,
            "one line, however many are lost"
        );
        losses.expire();
        assert_ne!(
            readiness.condition("audit"),
            Some(Condition::Up),
            "too early"
        );
        losses.recovered();
        assert_eq!(readiness.condition("audit"), Some(Condition::Up));
        losses.blocked("the disk is missing");
        let missing = Condition::Degraded("the disk is missing".to_owned());
        assert_eq!(readiness.condition("audit"), Some(missing));
        assert_eq!(losses.lock().unlogged, 0, "nothing was lost");
        losses.recovered();
        assert_eq!(readiness.condition("audit"), Some(Condition::Up));
    }
}
