//! Numbers as people read them.

use crate::report::grouped;

/// What stands for an unknown number.
pub(super) const UNKNOWN: &str = "?";

pub(super) fn count(number: Option<u64>) -> String {
    number.map_or_else(|| UNKNOWN.to_owned(), grouped)
}

/// Three or four digits: `16.6M`.
pub(super) fn short_count(number: Option<u64>) -> String {
    let Some(number) = number else {
        return UNKNOWN.to_owned();
    };
    let scales = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let number = number as f64;
    // 999.95 and more would be written with four digits in front of the point.
    let scale = scales.iter().find(|(scale, _)| number >= scale * 0.99995);
    scale.map_or_else(
        || number.to_string(),
        |(scale, unit)| format!("{:.1}{unit}", number / scale),
    )
}

pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(
        || UNKNOWN.to_owned(),
        |share| format!("{:.1} %", share * 100.0),
    )
}

/// Less is nothing: sums of dollars are rounded to billionths.
const SMALLEST: f64 = 5e-10;
const MORE_DIGITS: i32 = 5;

/// `-$0.1234`, and whole cents from a hundred dollars on. Below a cent, two digits that are not 0: a request of a cheap
/// model costs millionths.
pub(super) fn dollars(amount: Option<f64>) -> String {
    let Some(amount) = amount else {
        return UNKNOWN.to_owned();
    };
    let size = amount.abs();
    let more = (1..=MORE_DIGITS).take_while(|more| size < 0.01 / 10_f64.powi(*more));
    let digits = match size {
        100.0.. => 2,
        SMALLEST..0.01 => 4 + more.count(),
        _ => 4,
    };
    let written = format!("{size:.digits$}");
    let is_zero = written.bytes().all(|byte| b"0.".contains(&byte));
    let sign = if amount < 0.0 && !is_zero { "-" } else { "" };
    format!("{sign}${}", with_separators(&written))
}

fn with_separators(number: &str) -> String {
    let (whole, rest) = number.split_once('.').unwrap_or((number, ""));
    match whole.parse() {
        Ok(whole) => format!("{}.{rest}", grouped(whole)),
        Err(_) => number.to_owned(),
    }
}

/// Date and time to the minute.
pub(super) fn minute(time: &str) -> String {
    time.get(..16).unwrap_or(time).replace('T', " ")
}

/// At most so many characters; the middle of a longer text is left out, since long names differ at their ends.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let all: Vec<char> = text.chars().collect();
    if all.len() <= most {
        return text.to_owned();
    }
    let tail = most.saturating_sub(1) / 2;
    let head = most.saturating_sub(1) - tail;
    let (head, tail) = (&all[..head], &all[all.len() - tail..]);
    head.iter().chain(&['…']).chain(tail).collect()
}

/// Text that HTML shows as it is. Clients write names.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_numbers_are_shortened_and_unknown_ones_are_question_marks() {
        let shorts = [999, 1_000, 16_579_239, 999_949, 999_950, 2_000_000_000];
        assert_eq!(
            shorts.map(|number| short_count(Some(number))),
            ["999", "1.0k", "16.6M", "999.9k", "1.0M", "2.0G"]
        );
        assert_eq!(count(None) + &short_count(None) + &percent(None), "???");
        assert_eq!(percent(Some(0.8125)), "81.2 %");
    }

    #[test]
    fn a_loss_has_a_minus_sign_and_zero_has_none() {
        assert_eq!(dollars(Some(-0.12345)), "-$0.1235");
        assert_eq!(dollars(Some(0.0)), "$0.0000");
        assert_eq!(dollars(Some(0.01)), "$0.0100");
        assert_eq!(dollars(Some(0.009_76)), "$0.0098");
        assert_eq!(dollars(Some(0.000_976)), "$0.00098");
        assert_eq!(dollars(Some(-0.000_002)), "-$0.0000020");
        assert_eq!(dollars(Some(1e-12)), "$0.0000");
        assert_eq!(dollars(Some(12_345.678)), "$12,345.68");
        assert_eq!(dollars(None), "?");
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(shortened("abcdefghij", 10), "abcdefghij");
        assert_eq!(shortened("abcdefghijk", 6), "abc…jk");
        assert_eq!(shortened("abc", 1), "…");
    }
}
