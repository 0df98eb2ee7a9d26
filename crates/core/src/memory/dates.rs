//! Formats dates, minutes and time spans as memory writes them: `Mar 4, 2026`, `14:05`, `5 days
//! before`, `2 hours 5 minutes`.
//!
//! Decides nothing and reads no clock: instants, days and the zone come in as values. A day is related
//! to another named day, never to "now", because the text is kept. Called by the transcript, the block,
//! and everything that tells a model which day it is.

mod date_reader;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Zoned};

pub use date_reader::{WrittenDate, find_date};

/// The day of an instant (milliseconds since 1970) in `zone`: `Mar 4, 2026`.
pub fn format_day(ms: i64, zone: &TimeZone) -> String {
    format_date(date(ms, zone))
}

/// The day of an instant as a value.
pub fn date(ms: i64, zone: &TimeZone) -> Date {
    zoned(ms, zone).date()
}

/// A date as it is written: `Mar 4, 2026`.
pub fn format_date(date: Date) -> String {
    date.strftime("%b %-d, %Y").to_string()
}

/// The minute of an instant (milliseconds since 1970) in `zone`, 24 hours: `14:05`.
pub fn format_minute(ms: i64, zone: &TimeZone) -> String {
    zoned(ms, zone).strftime("%H:%M").to_string()
}

/// The relation of `date` to the day `as_of`: `5 days before`, `the same day`, `2 weeks after`.
pub fn relation(date: Date, as_of: Date) -> String {
    match days_between(date, as_of) {
        0 => "the same day".to_owned(),
        1 => "the day before".to_owned(),
        -1 => "the day after".to_owned(),
        passed @ 1.. => format!("{} before", format_days(passed)),
        ahead => format!("{} after", format_days(-ahead)),
    }
}

/// The time from `earlier` to `later`, if it is more than one day: `3 days`.
pub fn gap(earlier: Date, later: Date) -> Option<String> {
    let days = days_between(earlier, later);
    (days > 1).then(|| format_days(days))
}

/// A pause of at least this many minutes is noted (published: 10).
const MIN_PAUSE_MINUTES: i64 = 10;

/// A pause of this many milliseconds in its two largest units, if it is long enough to be noted: `2
/// hours 5 minutes`.
pub fn pause(ms: i64) -> Option<String> {
    let minutes = ms / 60_000;
    if minutes < MIN_PAUSE_MINUTES {
        return None;
    }
    let units = [
        (minutes / (7 * 24 * 60), "week"),
        (minutes / (24 * 60) % 7, "day"),
        (minutes / 60 % 24, "hour"),
        (minutes % 60, "minute"),
    ];
    let largest = units.iter().position(|(count, _)| *count > 0)?;
    let parts: Vec<String> = units[largest..]
        .iter()
        .take(2)
        .filter(|(count, _)| *count > 0)
        .map(|(count, unit)| plural(*count, unit))
        .collect();
    Some(parts.join(" "))
}

/// Days from `earlier` to `later`; negative if `later` comes first.
fn days_between(earlier: Date, later: Date) -> i64 {
    later.duration_since(earlier).as_hours() / 24
}

/// A number of days in the unit that people would use (the published steps).
fn format_days(days: i64) -> String {
    match days {
        ..7 => plural(days, "day"),
        7..30 => plural(days / 7, "week"),
        30..60 => plural(1, "month"),
        60..365 => plural(days / 30, "month"),
        _ => plural(days / 365, "year"),
    }
}

fn plural(count: i64, unit: &str) -> String {
    match count {
        1 => format!("1 {unit}"),
        _ => format!("{count} {unit}s"),
    }
}

/// Only a damaged row can hold a time that no calendar can; the nearest possible time will do.
fn zoned(ms: i64, zone: &TimeZone) -> Zoned {
    Zoned::default() // 1970, in UTC
        .saturating_add(SignedDuration::from_millis(ms))
        .with_time_zone(zone.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::civil::date;

    #[test]
    fn the_zone_decides_the_day() {
        let ms = 1_772_667_900_000; // 2026-03-04T23:45:00Z
        assert_eq!(format_day(ms, &TimeZone::UTC), "Mar 4, 2026");
        assert_eq!(format_minute(ms, &TimeZone::UTC), "23:45");
        let oslo = TimeZone::fixed(jiff::tz::offset(1));
        assert_eq!(format_day(ms, &oslo), "Mar 5, 2026");
        assert_eq!(format_minute(ms, &oslo), "00:45");
    }

    #[test]
    fn extreme_times_are_formatted_without_a_panic() {
        for ms in [i64::MIN, i64::MAX, 0, -1] {
            for zone in [TimeZone::UTC, TimeZone::fixed(jiff::tz::offset(25))] {
                assert!(!format_day(ms, &zone).is_empty());
                assert_eq!(format_minute(ms, &zone).len(), 5);
            }
        }
        assert_eq!(relation(Date::MIN, Date::MAX), "20012 years before");
    }

    #[test]
    fn the_distance_between_days_is_written_in_published_steps() {
        let as_of = date(2026, 3, 20);
        let before = |days: i32| {
            let then = as_of.saturating_sub(jiff::Span::new().days(days));
            relation(then, as_of)
        };
        for (days, expected) in [
            (0, "the same day"),
            (1, "the day before"),
            (2, "2 days before"),
            (6, "6 days before"),
            (7, "1 week before"),
            (13, "1 week before"),
            (14, "2 weeks before"),
            (29, "4 weeks before"),
            (30, "1 month before"),
            (59, "1 month before"),
            (60, "2 months before"),
            (364, "12 months before"),
            (365, "1 year before"),
            (800, "2 years before"),
            (-1, "the day after"),
            (-2, "2 days after"),
            (-7, "1 week after"),
            (-20, "2 weeks after"),
            (-400, "1 year after"),
        ] {
            assert_eq!(before(days), expected, "{days}");
        }
    }

    #[test]
    fn a_gap_is_more_than_one_day() {
        let day = |day| date(2026, 3, day);
        assert_eq!(gap(day(4), day(4)), None);
        assert_eq!(gap(day(4), day(5)), None);
        assert_eq!(gap(day(5), day(4)), None);
        assert_eq!(gap(day(4), day(6)).as_deref(), Some("2 days"));
        assert_eq!(gap(day(4), day(11)).as_deref(), Some("1 week"));
    }

    #[test]
    fn a_pause_of_ten_minutes_or_more_is_written_in_two_units() {
        let pause = |seconds: i64| super::pause(seconds * 1_000);
        assert_eq!(pause(599), None);
        assert_eq!(pause(-99_999), None);
        assert_eq!(pause(600).as_deref(), Some("10 minutes"));
        assert_eq!(pause(3_600).as_deref(), Some("1 hour"));
        assert_eq!(pause(7_530).as_deref(), Some("2 hours 5 minutes"));
        let day = 24 * 3_600;
        assert_eq!(pause(day + 59).as_deref(), Some("1 day"));
        assert_eq!(
            pause(3 * day + 3_600 + 120).as_deref(),
            Some("3 days 1 hour")
        );
        assert_eq!(pause(15 * day + 3_600).as_deref(), Some("2 weeks 1 day"));
    }
}
