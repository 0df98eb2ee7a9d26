//! Reads numbers with their units: `1,000` = `1000` = `1.000`.

use std::sync::LazyLock;

use foldhash::HashMap;

use super::spelling::fold;

/// A unit and its other names, folded, plurals included. A counted thing ("rows", "invoices") is no
/// unit, since any noun could be one.
const UNITS: &[(&str, &[&str])] = &[
    ("%", &["percent", "pct", "prozent", "procent"]),
    (
        "ms",
        &[
            "msec",
            "millisecond",
            "milliseconds",
            "millisekunde",
            "millisekunden",
        ],
    ),
    (
        "s",
        &[
            "sec", "secs", "second", "seconds", "sek", "sekunde", "sekunden",
        ],
    ),
    ("min", &["mins", "minute", "minutes", "minuten"]),
    (
        "h",
        &["hr", "hrs", "hour", "hours", "std", "stunde", "stunden"],
    ),
    ("d", &["day", "days", "tag", "tage", "tagen"]),
    ("wk", &["week", "weeks", "woche", "wochen"]),
    ("mo", &["month", "months", "monat", "monate", "monaten"]),
    ("yr", &["year", "years", "jahr", "jahre", "jahren"]),
    ("usd", &["$", "dollar", "dollars"]),
    ("eur", &["€", "euro", "euros"]),
    ("gbp", &["£", "pound", "pounds", "pfund"]),
    ("cny", &["¥", "rmb", "yuan", "jpy", "yen"]),
    ("chf", &["franken", "francs"]),
    (
        "km",
        &[
            "kilometer",
            "kilometers",
            "kilometre",
            "kilometres",
            "kilometern",
        ],
    ),
    ("m", &["meter", "meters", "metre", "metres", "metern"]),
    ("cm", &["centimeter", "centimeters", "zentimeter"]),
    ("mm", &["millimeter", "millimeters"]),
    ("mi", &["mile", "miles", "meile", "meilen"]),
    (
        "kg",
        &["kilo", "kilos", "kilogram", "kilograms", "kilogramm"],
    ),
    ("g", &["gram", "grams", "gramm"]),
    ("lb", &["lbs"]),
    ("l", &["liter", "liters", "litre", "litres"]),
    ("kb", &["kib", "kilobyte", "kilobytes"]),
    ("mb", &["mib", "megabyte", "megabytes"]),
    ("gb", &["gib", "gigabyte", "gigabytes"]),
    ("tb", &["tib", "terabyte", "terabytes"]),
    ("°c", &["°", "celsius", "grad"]),
    ("hz", &["hertz"]),
    ("mhz", &[]),
    ("ghz", &[]),
    ("fps", &[]),
    ("px", &["pixel", "pixels"]),
    ("token", &["tokens"]),
];

/// Units written with Chinese signs; the first that fits is taken.
const SIGNS: &[(&str, &str)] = &[
    ("毫秒", "ms"),
    ("秒", "s"),
    ("分钟", "min"),
    ("小时", "h"),
    ("天", "d"),
    ("周", "wk"),
    ("个月", "mo"),
    ("个小时", "h"),
    ("人民币", "cny"),
    ("元", "cny"),
    ("美元", "usd"),
    ("欧元", "eur"),
    ("公里", "km"),
    ("千米", "km"),
    ("米", "m"),
    ("公斤", "kg"),
    ("度", "°c"),
];

/// Small numbers as words, with the digits they stand for.
const WORDS: &[(&str, &str)] = &[
    ("one", "1"),
    ("two", "2"),
    ("three", "3"),
    ("four", "4"),
    ("five", "5"),
    ("six", "6"),
    ("seven", "7"),
    ("eight", "8"),
    ("nine", "9"),
    ("ten", "10"),
    ("eleven", "11"),
    ("twelve", "12"),
    ("twice", "2"),
    ("both", "2"),
    ("once", "1"),
    ("ein", "1"),
    ("eine", "1"),
    ("zwei", "2"),
    ("drei", "3"),
    ("vier", "4"),
    ("fünf", "5"),
    ("sechs", "6"),
    ("sieben", "7"),
    ("acht", "8"),
    ("neun", "9"),
    ("zehn", "10"),
    ("elf", "11"),
    ("zwölf", "12"),
    ("一", "1"),
    ("二", "2"),
    ("两", "2"),
    ("三", "3"),
    ("四", "4"),
    ("五", "5"),
    ("六", "6"),
    ("七", "7"),
    ("八", "8"),
    ("九", "9"),
    ("十", "10"),
];

/// [`WORDS`] and [`UNITS`] by each name. Every word of every text is looked up, so the lists are not searched.
static DIGITS: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| WORDS.iter().copied().collect());
static UNITS_BY_NAME: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
    let names = UNITS.iter().flat_map(|(unit, aliases)| {
        let names = std::iter::once(unit).chain(*aliases);
        names.map(|name| (*name, *unit))
    });
    names.collect()
});

/// The digits that a word stands for.
pub(super) fn number_word(word: &str) -> Option<&'static str> {
    DIGITS.get(word).copied()
}

/// The unit that a word names.
pub(super) fn unit(word: &str) -> Option<&'static str> {
    let trimmed = word.trim_matches(|c: char| matches!(c, '.' | ',' | ':' | '!' | '?' | ')'));
    let word = match trimmed {
        "%" | "$" | "€" | "£" | "¥" | "°C" | "°" => trimmed.to_lowercase().into(),
        _ => fold(trimmed),
    };
    // Units are folded, so "min" and "Min" are one, and so are "m" and "M".
    UNITS_BY_NAME.get(&*word).copied()
}

/// The unit at the beginning of a run of signs.
pub(super) fn unit_of_signs(run: &str) -> Option<&'static str> {
    let found = SIGNS.iter().find(|(name, _)| run.starts_with(name));
    found.map(|(_, unit)| *unit)
}

/// A number as written: its possible values, and a unit attached to it.
pub(super) struct Number {
    pub(super) values: Vec<String>,
    pub(super) unit: Option<&'static str>,
}

/// Reads `word` as a number, with a currency sign before it and a unit or the ending of an ordinal
/// behind it.
pub(super) fn read(word: &str) -> Option<Number> {
    let bare = word.trim_start_matches(['+', '-', '~', '≈', '<', '>', '−']);
    let digits_at = bare.find(|c: char| c.is_ascii_digit())?;
    let before = match digits_at {
        0 => None,
        _ => Some(unit(&bare[..digits_at])?),
    };
    let rest = &bare[digits_at..];
    let is_inside = |c: char| c.is_ascii_digit() || matches!(c, ',' | '.' | '\'' | '’');
    let end = rest.find(|c: char| !is_inside(c)).unwrap_or(rest.len());
    let body = rest[..end].trim_end_matches(|c: char| !c.is_ascii_digit());
    let tail = rest[body.len()..].trim_start_matches(['-', '+', '.', ',']);
    let mut values = values(body)?;
    let after = match tail {
        "" | "st" | "nd" | "rd" | "th" | "er" | "x" | "×" => None,
        "k" | "K" => {
            let thousands = values.iter().filter_map(|value| times_thousand(value));
            values = thousands.collect();
            None
        }
        _ => match unit(tail) {
            Some(unit) => Some(unit),
            // "4-stanza", "2-person"
            None if rest[body.len()..].starts_with('-')
                && tail.chars().all(char::is_alphabetic) =>
            {
                None
            }
            None => return None,
        },
    };
    Some(Number {
        values,
        unit: before.or(after),
    })
}

/// The values that the digits may mean: one, or two if the separator is ambiguous.
fn values(body: &str) -> Option<Vec<String>> {
    let is_separator = |c: char| matches!(c, ',' | '.' | '\'' | '’');
    let separators: Vec<char> = body.chars().filter(|c| is_separator(*c)).collect();
    let groups: Vec<&str> = body.split(is_separator).collect();
    if groups.iter().any(|group| group.is_empty()) {
        return None;
    }
    let thousands = groups[0].len() <= 3 && groups[1..].iter().all(|group| group.len() == 3);
    let joined = || format_decimal(&groups.concat(), "");
    let decimal = |whole: &[&str], part: &str| format_decimal(&whole.concat(), part);
    let last = groups[groups.len() - 1];
    Some(match separators.as_slice() {
        [] => vec![joined()],
        // 1,000 or 1.000: a thousand, or one with three decimals.
        [_] if thousands && groups[0] != "0" => vec![joined(), decimal(&groups[..1], last)],
        ['\'' | '’'] => return None,
        [_] => vec![decimal(&groups[..1], last)],
        all if all.iter().all(|c| *c == all[0]) && thousands => vec![joined()],
        // 1.2.3 is a version
        all if all.iter().all(|c| *c == all[0]) => return None,
        // 1,234.56
        _ => vec![decimal(&groups[..groups.len() - 1], last)],
    })
}

fn format_decimal(whole: &str, part: &str) -> String {
    let whole = whole.trim_start_matches('0');
    let whole = if whole.is_empty() { "0" } else { whole };
    match part.trim_end_matches('0') {
        "" => whole.to_owned(),
        part => format!("{whole}.{part}"),
    }
}

fn times_thousand(value: &str) -> Option<String> {
    let (whole, part) = value.split_once('.').unwrap_or((value, ""));
    (part.len() <= 3).then(|| format_decimal(&format!("{whole}{part:0<3}"), ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(word: &str) -> String {
        read(word).map_or_else(
            || "none".to_owned(),
            |number| format!("{}|{}", number.values.join("/"), number.unit.unwrap_or("")),
        )
    }

    #[test]
    fn different_spellings_of_a_number_have_the_same_value() {
        for (word, meant) in [
            ("1000", "1000|"),
            ("1,000", "1000/1|"),
            ("1.000", "1000/1|"),
            ("1'000", "1000/1|"),
            ("1,234,567", "1234567|"),
            ("1,234.56", "1234.56|"),
            ("1.234,56", "1234.56|"),
            ("3,2", "3.2|"),
            ("3.20", "3.2|"),
            ("0.5", "0.5|"),
            ("007", "7|"),
            ("$5,000", "5000/5|usd"),
            ("€49.90", "49.9|eur"),
            ("49EUR", "49|eur"),
            ("140ms", "140|ms"),
            ("12%", "12|%"),
            ("10k", "10000|"),
            ("1.5k", "1500|"),
            ("3rd", "3|"),
            ("4-stanza", "4|"),
            ("-5", "5|"),
            ("1.2.3", "none"),
            ("E0502", "none"),
            ("o200k", "none"),
            ("abc", "none"),
        ] {
            assert_eq!(reading(word), meant, "{word}");
        }
    }

    #[test]
    fn every_unit_name_and_number_word_has_one_meaning() {
        let mut names = 0;
        for (unit, aliases) in UNITS {
            for name in std::iter::once(unit).chain(*aliases) {
                assert_eq!(UNITS_BY_NAME.get(name), Some(unit), "{name}");
                names += 1;
            }
        }
        assert_eq!(UNITS_BY_NAME.len(), names);
        for (word, digits) in WORDS {
            assert_eq!(number_word(word), Some(*digits));
        }
        assert_eq!(DIGITS.len(), WORDS.len());
    }

    #[test]
    fn different_spellings_of_a_unit_mean_the_same_unit() {
        for (word, meant) in [
            ("Minuten", "min"),
            ("hours,", "h"),
            ("Prozent", "%"),
            ("EUR", "eur"),
            ("GB.", "gb"),
        ] {
            assert_eq!(unit(word), Some(meant), "{word}");
        }
        assert_eq!(unit("rows"), None);
        assert_eq!(unit_of_signs("毫秒以内"), Some("ms"));
    }
}
