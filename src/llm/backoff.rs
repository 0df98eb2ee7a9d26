//! When a failed model call may be repeated.

use std::time::Duration;

use http::HeaderMap;
use http::header::RETRY_AFTER;
use jiff::Timestamp;

/// The published numbers of observational memory: 1 s doubling, at most 120 s, ±20 %.
const BASE: Duration = Duration::from_secs(1);
const CAP: Duration = Duration::from_mins(2);
const JITTER: f64 = 0.2;
/// A longer wait is cut to this, so that quotas that reset daily are tried again.
pub const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);

/// The wait after failure number `attempt` (from 0). Never shorter than the endpoint asks for, up
/// to one hour.
#[must_use]
pub fn backoff(attempt: u32, retry_after: Option<Duration>) -> Duration {
    with_jitter(attempt, retry_after, rand::random())
}

/// `chance` in 0..1 spreads calls that failed together.
fn with_jitter(attempt: u32, retry_after: Option<Duration>, chance: f64) -> Duration {
    let doubled = BASE.saturating_mul(2u32.saturating_pow(attempt)).min(CAP);
    let computed = doubled.mul_f64(1.0 - JITTER + 2.0 * JITTER * chance);
    let requested =
        retry_after.map(|wait| wait.min(MAX_RETRY_AFTER).mul_f64(1.0 + JITTER * chance));
    requested.map_or(computed, |requested| requested.max(computed))
}

/// The wait that the headers of an answer ask for: in milliseconds (OpenAI and Azure), in seconds
/// or as a date.
#[must_use]
pub fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms")
        .map(|milliseconds| milliseconds / 1000.0)
        .or_else(|| number(RETRY_AFTER.as_str()));
    if let Some(seconds) = seconds {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = headers.get(RETRY_AFTER)?.to_str().ok()?;
    let until = jiff::fmt::rfc2822::DateTimeParser::new()
        .parse_timestamp(date)
        .ok()?;
    // A date in the past asks for no wait.
    Some(Duration::try_from(until.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn waits_double_up_to_the_cap() {
        for (attempt, expected) in [(0, 1.0), (1, 2.0), (6, 64.0), (7, 120.0), (u32::MAX, 120.0)] {
            assert_eq!(
                with_jitter(attempt, None, 0.5),
                seconds(expected),
                "{attempt}"
            );
            let (min, max) = (
                with_jitter(attempt, None, 0.0),
                with_jitter(attempt, None, 1.0),
            );
            assert_eq!(min, seconds(expected * 0.8));
            assert_eq!(max, seconds(expected * 1.2));
            let drawn = backoff(attempt, None);
            assert!(min <= drawn && drawn <= max);
        }
    }

    #[test]
    fn a_retry_never_comes_before_the_time_in_retry_after() {
        for chance in [0.0, 0.5, 1.0] {
            assert!(with_jitter(0, Some(seconds(30.0)), chance) >= seconds(30.0));
            assert!(with_jitter(5, Some(seconds(0.0)), chance) >= seconds(32.0 * 0.8));
            assert!(with_jitter(0, Some(Duration::MAX), chance) <= MAX_RETRY_AFTER.mul_f64(1.2));
        }
    }

    #[test]
    fn the_wait_is_read_from_the_retry_headers() {
        let now: Timestamp = "2026-03-04T05:06:07Z".parse().unwrap();
        for (name, value, expected) in [
            ("retry-after", "20", Some(20.0)),
            ("retry-after", " 1.5 ", Some(1.5)),
            ("retry-after-ms", "250", Some(0.25)),
            ("retry-after", "Wed, 04 Mar 2026 05:06:37 GMT", Some(30.0)),
            ("retry-after", "Wed, 04 Mar 2026 05:00:00 GMT", Some(0.0)),
            ("retry-after", "-1", None),
            ("retry-after", "NaN", None),
            ("retry-after", "soon", None),
        ] {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
            assert_eq!(retry_after(&headers, now), expected.map(seconds), "{value}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
