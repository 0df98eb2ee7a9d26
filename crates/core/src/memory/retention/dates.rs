//! Days in the spellings of several languages, as comparable keys: `Mar 4, 2026` = `4. März 2026` =
//! `2026-03-04` = `3月4日`; minutes: `9:05` = `09:05`.
//!
//! Not for calendar arithmetic: a day may have two readings or no year. Dates that the code calculates
//! with are read by [`crate::memory::dates`].

use std::sync::LazyLock;

use foldhash::HashMap;

/// A day as written, with both readings if day and month may stand either way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DateReadings {
    pub(super) year: Option<u32>,
    /// (month, day); the day is 0 where only the month is named.
    pub(super) readings: Vec<(u32, u32)>,
}

const MONTHS: [&[&str]; 12] = [
    &["jan", "january", "januar", "jänner", "janvier", "enero"],
    &["feb", "february", "februar", "février", "febrero"],
    &["mar", "march", "märz", "mrz", "mars", "marzo"],
    &["apr", "april", "avril", "abril"],
    &["may", "mai", "mayo"],
    &["jun", "june", "juni", "juin", "junio"],
    &["jul", "july", "juli", "juillet", "julio"],
    &["aug", "august", "août", "agosto"],
    &["sep", "sept", "september", "septembre", "septiembre"],
    &["oct", "october", "okt", "oktober", "octobre", "octubre"],
    &["nov", "november", "novembre", "noviembre"],
    &[
        "dec",
        "december",
        "dez",
        "dezember",
        "décembre",
        "diciembre",
    ],
];

const WEEKDAYS: &[&str] = &[
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
    "mon",
    "tue",
    "tues",
    "wed",
    "thu",
    "thurs",
    "fri",
    "sat",
    "sun",
    "montag",
    "dienstag",
    "mittwoch",
    "donnerstag",
    "freitag",
    "samstag",
    "sonntag",
];

/// The number of each name of a month. Every word of every text is looked up, so the lists are not searched.
static MONTHS_BY_NAME: LazyLock<HashMap<&str, u32>> = LazyLock::new(|| {
    let months = MONTHS.iter().zip(1..);
    let names = months.flat_map(|(names, number)| names.iter().map(move |name| (*name, number)));
    names.collect()
});

/// The number of a month from its folded name.
pub(super) fn month(word: &str) -> Option<u32> {
    // From "jan" to "septiembre": most words are not looked up.
    if !(3..=10).contains(&word.len()) {
        return None;
    }
    MONTHS_BY_NAME.get(word).copied()
}

/// Whether a folded word names a month or a day of the week.
pub(super) fn is_time_word(word: &str) -> bool {
    month(word).is_some() || WEEKDAYS.contains(&word)
}

/// A day of the month: `4`, `4.`, `4th`, `4,`.
pub(super) fn day_of_month(word: &str) -> Option<u32> {
    let word = word.trim_end_matches([',', '.']);
    let digits = ["st", "nd", "rd", "th", "er"]
        .iter()
        .find_map(|ending| word.strip_suffix(ending))
        .unwrap_or(word);
    let day = parse_two_digits(digits)?;
    (1..=31).contains(&day).then_some(day)
}

/// A year of four digits.
pub(super) fn year(word: &str) -> Option<u32> {
    let word = word.trim_end_matches([',', '.', ':']);
    let year: u32 = (word.len() == 4).then(|| parse_digits_only(word))??;
    (1900..=2100).contains(&year).then_some(year)
}

fn parse_two_digits(text: &str) -> Option<u32> {
    (text.len() <= 2).then(|| parse_digits_only(text))?
}

fn parse_digits_only(text: &str) -> Option<u32> {
    let all = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    all.then(|| text.parse().ok())?
}

/// A day in digits: `2026-03-04`, `2026/3/4`, `04.03.2026`, `3/4/2026`, `4.3.`.
pub(super) fn parse_digits(word: &str) -> Option<DateReadings> {
    // Nearly every word ends here.
    if !word.bytes().any(|b| b.is_ascii_digit()) {
        return None;
    }
    let word = match word.split_once('T') {
        Some((day, time)) if time.starts_with(|c: char| c.is_ascii_digit()) => day,
        _ => word,
    };
    for separator in ['-', '/', '.'] {
        let fields: Vec<&str> = word.split(separator).collect();
        match fields.as_slice() {
            [y, m, d] if y.len() == 4 => {
                return day(year(y), &[(parse_two_digits(m)?, parse_two_digits(d)?)]);
            }
            [a, b, y] if y.len() == 4 || (y.len() == 2 && separator == '.') => {
                let year = if y.len() == 4 {
                    year(y)?
                } else {
                    2000 + parse_two_digits(y)?
                };
                let (a, b) = (parse_two_digits(a)?, parse_two_digits(b)?);
                return match separator {
                    '/' => day(Some(year), &[(a, b), (b, a)]),
                    _ => day(Some(year), &[(b, a)]),
                };
            }
            [d, m, ""] if separator == '.' => {
                return day(None, &[(parse_two_digits(m)?, parse_two_digits(d)?)]);
            }
            [y, m] if separator == '-' && y.len() == 4 && m.len() == 2 => {
                return day(Some(year(y)?), &[(parse_two_digits(m)?, 0)]);
            }
            _ => {}
        }
    }
    None
}

fn day(year: Option<u32>, readings: &[(u32, u32)]) -> Option<DateReadings> {
    let readings: Vec<(u32, u32)> = readings
        .iter()
        .copied()
        .filter(|(month, day)| (1..=12).contains(month) && *day <= 31)
        .collect();
    (!readings.is_empty()).then_some(DateReadings { year, readings })
}

impl DateReadings {
    pub(super) fn new(year: Option<u32>, month: u32, day: u32) -> Self {
        Self {
            year,
            readings: vec![(month, day)],
        }
    }

    /// The keys under which a text that names this day is found.
    pub(super) fn index_keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for (month, day) in &self.readings {
            match (self.year, day) {
                (Some(year), 0) => keys.push(format!("d:{year}-{month}")),
                (None, 0) => {}
                (Some(year), day) => keys.extend([
                    format!("d:{year}-{month}-{day}"),
                    format!("d:*-{month}-{day}"),
                    format!("d:{year}-{month}"),
                ]),
                (None, day) => {
                    keys.extend([format!("d:?-{month}-{day}"), format!("d:*-{month}-{day}")]);
                }
            }
        }
        keys
    }

    /// The keys of which a text must have one to name this day. A text that leaves out the year
    /// names it too.
    pub(super) fn match_keys(&self) -> Vec<String> {
        let key = |(month, day): &(u32, u32)| match (self.year, day) {
            (Some(year), 0) => vec![format!("d:{year}-{month}")],
            (None, 0) => Vec::new(),
            (Some(year), day) => {
                vec![
                    format!("d:{year}-{month}-{day}"),
                    format!("d:?-{month}-{day}"),
                ]
            }
            (None, day) => vec![format!("d:*-{month}-{day}")],
        };
        self.readings.iter().flat_map(key).collect()
    }
}

/// A time of day: `9:05` as `t:9:05`.
pub(super) fn minute_key(word: &str) -> Option<String> {
    let (hour, rest) = word.split_once(':')?;
    let minute = rest.get(..2)?;
    let after_minute = &rest[2..];
    let seconds = after_minute.is_empty()
        || after_minute
            .strip_prefix(':')
            .and_then(parse_two_digits)
            .is_some();
    let (hour, minute) = (parse_two_digits(hour)?, parse_digits_only(minute)?);
    (seconds && hour < 25 && minute < 60).then(|| format!("t:{hour}:{minute:02}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_spellings_of_a_day_are_read_as_the_same_day() {
        let meant = DateReadings::new(Some(2026), 3, 4);
        for word in [
            "2026-03-04",
            "2026/3/4",
            "04.03.2026",
            "4.3.26",
            "2026-03-04T10:00:00Z",
        ] {
            assert_eq!(parse_digits(word), Some(meant.clone()), "{word}");
        }
        let either = parse_digits("3/4/2026").map(|day| day.readings);
        assert_eq!(either, Some(vec![(3, 4), (4, 3)]));
        assert_eq!(
            parse_digits("13/4/2026").map(|day| day.readings),
            Some(vec![(4, 13)])
        );
        for word in [
            "1.2.3",
            "3/4",
            "2026-13-40",
            "10-12",
            "192.168.0.1",
            "a-b-c",
        ] {
            assert_eq!(parse_digits(word), None, "{word}");
        }
        assert_eq!(
            (month("märz"), month("mar"), month("dog")),
            (Some(3), Some(3), None)
        );
        assert_eq!(day_of_month("4th"), Some(4));
        assert_eq!(day_of_month("32"), None);
        assert_eq!(minute_key("09:05").as_deref(), Some("t:9:05"));
        assert_eq!(minute_key("src:10"), None);
    }

    #[test]
    fn every_name_of_a_month_is_found() {
        for (at, names) in MONTHS.iter().enumerate() {
            for name in *names {
                assert_eq!(month(name), u32::try_from(at + 1).ok(), "{name}");
            }
        }
        let names = MONTHS.iter().map(|names| names.len());
        assert_eq!(MONTHS_BY_NAME.len(), names.sum::<usize>());
    }

    #[test]
    fn a_day_without_a_year_matches_the_day_with_a_year() {
        let full = DateReadings::new(Some(2026), 3, 4);
        let short = DateReadings::new(None, 3, 4);
        let other = DateReadings::new(Some(2025), 3, 4);
        let kept = |source: &DateReadings, text: &DateReadings| {
            source
                .match_keys()
                .iter()
                .any(|key| text.index_keys().contains(key))
        };
        assert!(kept(&full, &full) && kept(&full, &short) && kept(&short, &full));
        assert!(!kept(&full, &other));
        assert!(kept(&DateReadings::new(Some(2026), 3, 0), &full));
        assert!(!kept(&full, &DateReadings::new(Some(2026), 3, 0)));
    }
}
