//! The memory that request bodies may use together. A body that memory reads whole is held until its answer
//! has ended, so many large ones at once could use all memory of the machine, also without a valid credential.
//! Beyond the budget a request is forwarded unread, without memory. Used by [`super::flow`] and
//! [`super::chat_completions`].

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit of the budget: a semaphore counts to 2^32 in one step.
const UNIT: usize = 1024;

/// The bytes that all bodies may use.
#[derive(Clone, Debug)]
pub(super) struct BodyBudget(Arc<Semaphore>);

impl BodyBudget {
    pub(super) fn new(bytes: usize) -> Self {
        let units = (bytes / UNIT).min(Semaphore::MAX_PERMITS);
        Self(Arc::new(Semaphore::new(units)))
    }

    /// Reserves room for a body of `bytes`; `None` if there is not enough.
    pub(super) fn reserve(&self, bytes: u64) -> Option<Reservation> {
        let mut reservation = Reservation {
            budget: self.clone(),
            permit: Arc::clone(&self.0).try_acquire_many_owned(0).ok()?,
        };
        reservation
            .grow_to(usize::try_from(bytes).ok()?)
            .then_some(reservation)
    }
}

/// The part of the budget that one body uses. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Reservation {
    budget: BodyBudget,
    permit: OwnedSemaphorePermit,
}

impl Reservation {
    /// Makes room for `bytes` in all. Returns `false` if there is not enough.
    pub(super) fn grow_to(&mut self, bytes: usize) -> bool {
        let missing = bytes
            .div_ceil(UNIT)
            .saturating_sub(self.permit.num_permits());
        let Ok(missing) = u32::try_from(missing) else {
            return false;
        };
        match Arc::clone(&self.budget.0).try_acquire_many_owned(missing) {
            Ok(more) => {
                self.permit.merge(more);
                true
            }
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_is_given_back() {
        let budget = BodyBudget::new(10 * UNIT);
        let mut first = budget.reserve(4 * UNIT as u64).unwrap();
        assert!(budget.reserve(7 * UNIT as u64).is_none());
        assert!(first.grow_to(9 * UNIT) && !first.grow_to(11 * UNIT));
        assert!(budget.reserve(2 * UNIT as u64).is_none());
        drop(first);
        assert!(budget.reserve(10 * UNIT as u64).is_some());
    }
}
