//! The memory that request bodies may use together. A body that memory reads whole is held until its answer
//! has ended, so many large ones at once could use all memory of the machine. Large bodies of strangers, whose credential
//! no upstream has accepted since this process started, use at most a quarter of it: anybody can send one.
//! Beyond the budget a request is forwarded unread, without memory. Used by [`super::flow`] and
//! [`super::chat_completions`].

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit of the budget: a semaphore counts to 2^32 in one step.
const UNIT: usize = 1024;

/// Bodies of strangers from this size on, or of unknown size, may use only the strangers' quarter. With the limits of
/// the configuration's defaults, as many smaller ones as there are places fit into the whole budget.
pub(super) const LARGE_BYTES: u64 = 256 << 10;

/// The bytes that all bodies may use.
#[derive(Clone, Debug)]
pub(super) struct BodyBudget {
    all: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
}

impl BodyBudget {
    pub(super) fn new(bytes: usize) -> Self {
        let units = (bytes / UNIT).min(Semaphore::MAX_PERMITS);
        Self {
            all: Arc::new(Semaphore::new(units)),
            strangers: Arc::new(Semaphore::new(units / 4)),
        }
    }

    /// Reserves room for a body of `bytes`; `None` if there is not enough.
    pub(super) fn reserve(&self, bytes: u64, is_strange: bool) -> Option<Reservation> {
        let none = |budget: &Arc<Semaphore>| Arc::clone(budget).try_acquire_many_owned(0).ok();
        let mut permits = vec![none(&self.all)?];
        if is_strange {
            permits.push(none(&self.strangers)?);
        }
        let mut reservation = Reservation { permits };
        reservation
            .grow_to(usize::try_from(bytes).ok()?)
            .then_some(reservation)
    }
}

/// The part of each budget that one body uses. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Reservation {
    permits: Vec<OwnedSemaphorePermit>,
}

impl Reservation {
    /// Makes room for `bytes` in all. Returns `false` if there is not enough.
    pub(super) fn grow_to(&mut self, bytes: usize) -> bool {
        let grow = |permit: &mut OwnedSemaphorePermit| {
            let missing = bytes.div_ceil(UNIT).saturating_sub(permit.num_permits());
            let missing = u32::try_from(missing).ok()?;
            let budget = Arc::clone(permit.semaphore());
            permit.merge(budget.try_acquire_many_owned(missing).ok()?);
            Some(())
        };
        self.permits.iter_mut().all(|permit| grow(permit).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_reservation_returns_its_bytes_to_the_budget() {
        let budget = BodyBudget::new(10 * UNIT);
        let reserve = |units: usize| budget.reserve((units * UNIT) as u64, false);
        let mut first = reserve(4).unwrap();
        assert!(reserve(7).is_none());
        assert!(first.grow_to(9 * UNIT) && !first.grow_to(11 * UNIT));
        assert!(reserve(2).is_none());
        drop(first);
        assert!(reserve(10).is_some());
    }

    #[test]
    fn unaccepted_tenants_use_at_most_a_quarter_of_the_budget() {
        let budget = BodyBudget::new(8 * UNIT);
        let mut strange = budget.reserve(UNIT as u64, true).unwrap();
        assert!(strange.grow_to(2 * UNIT) && !strange.grow_to(3 * UNIT));
        assert!(budget.reserve(1, true).is_none());
        let known = budget.reserve(5 * UNIT as u64, false);
        assert!(known.is_some());
        drop((strange, known));
        assert!(budget.reserve(2 * UNIT as u64, true).is_some());
    }
}
