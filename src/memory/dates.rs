//! Dates and minutes as the memory writes them: `Mar 4, 2026` and `14:05`.
//!
//! Decides nothing and reads no clock: instants and the zone come in as values. Only absolute dates
//! are written, because a relative one ("3 days ago") would change with every day and with it the
//! prompt prefix. Called by the transcript and by whoever tells a model what day it is.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Zoned};

/// The day of an instant (milliseconds since 1970) in `zone`: `Mar 4, 2026`.
pub fn day(ms: i64, zone: &TimeZone) -> String {
    at(ms, zone).strftime("%b %-d, %Y").to_string()
}

/// The minute of an instant (milliseconds since 1970) in `zone`, 24 hours: `14:05`.
pub fn minute(ms: i64, zone: &TimeZone) -> String {
    at(ms, zone).strftime("%H:%M").to_string()
}

/// A time beyond what a calendar can hold can only come from a damaged row; the nearest end will do.
fn at(ms: i64, zone: &TimeZone) -> Zoned {
    Zoned::default() // 1970, in UTC
        .saturating_add(SignedDuration::from_millis(ms))
        .with_time_zone(zone.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zone_decides_the_day() {
        let ms = 1_772_667_900_000; // 2026-03-04T23:45:00Z
        assert_eq!(day(ms, &TimeZone::UTC), "Mar 4, 2026");
        assert_eq!(minute(ms, &TimeZone::UTC), "23:45");
        let oslo = TimeZone::fixed(jiff::tz::offset(1));
        assert_eq!(day(ms, &oslo), "Mar 5, 2026");
        assert_eq!(minute(ms, &oslo), "00:45");
    }

    #[test]
    fn damaged_times_do_not_panic() {
        for ms in [i64::MIN, i64::MAX, 0, -1] {
            for zone in [TimeZone::UTC, TimeZone::fixed(jiff::tz::offset(25))] {
                assert!(!day(ms, &zone).is_empty());
                assert_eq!(minute(ms, &zone).len(), 5);
            }
        }
    }
}
