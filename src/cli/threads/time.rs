//! Times as people read them.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Date and time to the minute, in this zone.
pub(super) fn time(ms: i64, zone: &TimeZone) -> String {
    Timestamp::from_millisecond(ms).map_or_else(
        |_| "?".to_owned(),
        |time| {
            time.to_zoned(zone.clone())
                .strftime("%Y-%m-%d %H:%M")
                .to_string()
        },
    )
}
