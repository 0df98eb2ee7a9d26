//! Background work lets requests go first.
//!
//! A lower priority alone does not do that. Since Linux 6.6, a thread that runs keeps its core until its turn is over,
//! which takes milliseconds, even if a thread of a higher priority is ready. So background threads offer their core between
//! the steps of their work. If no other thread is ready, that costs less than a microsecond.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

/// A thread offers its core after it ran for so long: a small part of what a request takes.
const RUN: Duration = Duration::from_micros(100);

thread_local! {
    /// From when on this thread offers its core again.
    static NEXT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Offers the core of this thread to others that are ready. The next offer is made `RUN` later, or after as long as the
/// others kept the core, if that was longer: what keeps a core for long is no request, and would take it at each offer.
pub fn yield_to_requests() {
    let now = Instant::now();
    if NEXT.get().is_some_and(|next| now < next) {
        return;
    }
    thread::yield_now();
    let back = Instant::now();
    NEXT.set(Some(back + (back - now).max(RUN)));
}

/// Whether this thread has offered its core.
#[cfg(test)]
pub(super) fn has_yielded() -> bool {
    NEXT.get().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between two steps that are near each other no time is lost.
    #[test]
    fn a_thread_yields_its_core_again_only_after_a_pause() {
        assert!(!has_yielded());
        yield_to_requests();
        assert!(has_yielded());
        // As if the other thread had kept the core.
        NEXT.set(Some(Instant::now() + Duration::from_mins(1)));
        let later = NEXT.get();
        yield_to_requests();
        assert_eq!(NEXT.get(), later);
    }
}
