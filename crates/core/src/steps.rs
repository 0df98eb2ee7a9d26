//! Ends of steps, for a thread that lets others go first.
//!
//! The longest computations here take tens of milliseconds: a long transcript is counted, or searched for what must not be
//! lost. Their steps take microseconds. A thread whose work nobody waits for says once what it does after a step; on all other
//! threads nothing happens. Results do not depend on it.

use std::cell::Cell;

thread_local! {
    static AFTER_STEP: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// Calls `after_step` on this thread whenever a step of a computation ends: a piece of text is counted, a line searched.
pub fn call_after_steps(after_step: fn()) {
    AFTER_STEP.set(Some(after_step));
}

/// Ends a step. Cheap on a thread that has nothing to do after it.
pub fn end_step() {
    if let Some(after_step) = AFTER_STEP.get() {
        after_step();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::memory::redact::Redactor;
    use crate::memory::retention::RetentionSource;
    use crate::tokens::{O200k, TokenCounter as _};

    thread_local! {
        static STEPS: Cell<u32> = const { Cell::new(0) };
    }

    /// Steps that end while `work` runs on a thread that looks at them.
    fn steps(work: fn(&str)) -> u32 {
        let counting = thread::spawn(move || {
            call_after_steps(|| STEPS.set(STEPS.get() + 1));
            work(&"User: The order 4711 came late.\n".repeat(1_000));
            STEPS.get()
        });
        counting.join().unwrap()
    }

    #[test]
    fn long_computations_have_many_steps() {
        let count = |text: &str| {
            O200k::new().count(text);
        };
        let read_items = |text: &str| {
            RetentionSource::from_transcript(text);
        };
        let redact = |text: &str| {
            for line in text.lines() {
                Redactor::default().clean(line);
            }
        };
        assert!(steps(count) > 6);
        assert!(steps(read_items) >= 1_000);
        assert!(steps(redact) >= 1_000);
        O200k::new().count("A thread that said nothing.");
        assert_eq!(STEPS.get(), 0);
    }
}
