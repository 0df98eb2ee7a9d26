//! How long a job waits after a failed call. Decides nothing else. Called by [`super::job_end`].

use std::time::Duration;

use crate::llm::{CallError, backoff};

/// Retries on the published schedule (see [`backoff`]), about six minutes in all.
const MAX_RETRIES: u32 = 8;

/// The pause of a job that retries are unlikely to help.
pub(super) const SLOW_RETRY_DELAY: Duration = Duration::from_mins(10);

/// The pause of a job whose call failed, after `attempts` claims. Two kinds of job are tried
/// rarely: those that fail until somebody corrects something, and those that failed through the
/// whole published schedule. Waiting loses nothing, and every try may cost money.
pub(super) fn retry_delay(attempts: u32, error: &CallError) -> Duration {
    let wait = backoff(attempts.saturating_sub(1), error.retry_after());
    if error.is_retryable() && attempts <= MAX_RETRIES {
        return wait;
    }
    wait.max(SLOW_RETRY_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_follow_the_published_schedule_and_then_become_rare() {
        let failed = CallError::Transient {
            retry_after: None,
            message: String::new(),
        };
        let assert_near = |attempts, error: &CallError, seconds: f64| {
            let wait = retry_delay(attempts, error).as_secs_f64();
            assert!(
                (seconds * 0.8..=seconds * 1.2).contains(&wait),
                "{attempts}: {wait}"
            );
        };
        for (attempts, seconds) in [(1, 1.0), (2, 2.0), (3, 4.0), (7, 64.0), (8, 120.0)] {
            assert_near(attempts, &failed, seconds);
        }
        assert_eq!(retry_delay(9, &failed), SLOW_RETRY_DELAY);
        let wrong = CallError::Fatal {
            message: String::new(),
        };
        assert_eq!(
            retry_delay(1, &wrong),
            SLOW_RETRY_DELAY,
            "the same call will fail again"
        );
        let rate_limited = CallError::RateLimited {
            retry_after: Some(Duration::from_mins(20)),
            message: String::new(),
        };
        assert!(
            retry_delay(1, &rate_limited) >= Duration::from_mins(20),
            "no earlier than the endpoint asks"
        );
    }
}
