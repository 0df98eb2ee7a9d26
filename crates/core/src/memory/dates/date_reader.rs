//! Reads the dates that models write: `Mar 4, 2026`, `May 27-28, 2023`, `mid April 2024`.
//!
//! Lenient about the text around a date, strict about the date: text that is not certainly a date is
//! none, and its line stays as it is. English only, as the prompts ask for; the many spellings that
//! users write are compared in [`crate::memory::retention`].

use jiff::civil::{Date, date};

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

/// A date as somebody wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenDate {
    /// The day to calculate with: the first of several days; the 7th, 15th or 23rd of an early, mid
    /// or late month; the first of the second month if two are named (as published). `None` for a
    /// month alone.
    pub first: Option<Date>,
    /// The last day that can be meant. Only after it has the time certainly passed.
    pub last: Date,
}

impl WrittenDate {
    fn exact(date: Date) -> Self {
        Self {
            first: Some(date),
            last: date,
        }
    }
}

/// The first date in `text`, and the byte behind it.
pub fn find_date(text: &str) -> Option<(WrittenDate, usize)> {
    let words = words(text);
    (0..words.len()).find_map(|at| {
        let (day, word_count) = iso(&words[at..])
            .or_else(|| approximate(&words[at..]))
            .or_else(|| month_range(&words[at..]))
            .or_else(|| month_first(&words[at..]))
            .or_else(|| day_first(&words[at..]))
            .or_else(|| month_alone(&words[at..]))?;
        Some((day, words[at + word_count - 1].end))
    })
}

/// A run of letters or of digits.
#[derive(Clone, Copy, Debug)]
struct DateWord<'a> {
    text: &'a str,
    /// The byte behind it.
    end: usize,
    /// The text between the word before and this one.
    gap: &'a str,
}

fn words(text: &str) -> Vec<DateWord<'_>> {
    let mut words = Vec::new();
    let mut behind = 0;
    let mut rest = text.char_indices().peekable();
    while let Some((start, first)) = rest.next() {
        if !first.is_alphanumeric() {
            continue;
        }
        let kind = |c: char| (c.is_ascii_digit(), c.is_alphabetic());
        let mut end = start + first.len_utf8();
        while let Some((at, next)) = rest.next_if(|(_, next)| kind(*next) == kind(first)) {
            end = at + next.len_utf8();
        }
        words.push(DateWord {
            text: &text[start..end],
            end,
            gap: &text[behind..start],
        });
        behind = end;
    }
    words
}

/// `Mar 4, 2026`, `March 4th 2026`, `May 27-28, 2023`, `May 30 - June 2, 2023`.
fn month_first(words: &[DateWord<'_>]) -> Option<(WrittenDate, usize)> {
    let month = month(words.first()?)?;
    let first = number(words.get(1)?, 31)?;
    let mut at = 2 + ordinal(words.get(2));
    let mut last = (month, first);
    if let Some(word) = words.get(at).filter(|word| is_range_sign(word.gap)) {
        if let Some(day) = number(word, 31) {
            last.1 = day;
            at += 1 + ordinal(words.get(at + 1));
        } else if let Some(other) = self::month(word) {
            last = (other, number(words.get(at + 1)?, 31)?);
            at += 2 + ordinal(words.get(at + 2));
        }
    }
    let year = year(words.get(at)?)?;
    let first = Date::new(year, month, first).ok()?;
    let last = Date::new(year, last.0, last.1).ok()?;
    let last = last.max(first);
    let first = Some(first);
    Some((WrittenDate { first, last }, at + 1))
}

/// `4 March 2026`.
fn day_first(words: &[DateWord<'_>]) -> Option<(WrittenDate, usize)> {
    let day = number(words.first()?, 31)?;
    let at = 1 + ordinal(words.get(1));
    let month = month(words.get(at)?)?;
    let year = year(words.get(at + 1)?)?;
    Some((
        WrittenDate::exact(Date::new(year, month, day).ok()?),
        at + 2,
    ))
}

/// `2026-03-04`.
fn iso(words: &[DateWord<'_>]) -> Option<(WrittenDate, usize)> {
    let dashed = |word: &DateWord<'_>| word.gap == "-";
    let year = year(words.first()?)?;
    let month = number(words.get(1).filter(|word| dashed(word))?, 12)?;
    let day = number(words.get(2).filter(|word| dashed(word))?, 31)?;
    Some((WrittenDate::exact(Date::new(year, month, day).ok()?), 3))
}

/// `early April 2024`, `mid-April 2024`; in `late April to early May 2024`, the second half decides.
fn approximate(words: &[DateWord<'_>]) -> Option<(WrittenDate, usize)> {
    let (day, month, at) = part_of_month(words)?;
    if let Some(joint) = words
        .get(at)
        .filter(|word| is_range_sign(word.gap) || is_range_word(word))
    {
        let next = at + usize::from(is_range_word(joint));
        let second =
            part_of_month(words.get(next..)?).map(|(_, month, word_count)| (month, word_count));
        let second = second.or_else(|| Some((self::month(words.get(next)?)?, 1)));
        if let Some((second, word_count)) = second {
            return two_months(month, second, words, next + word_count);
        }
    }
    let year = year(words.get(at)?)?;
    let first = date(year, month, day);
    let last = first.last_of_month();
    let first = Some(first);
    Some((WrittenDate { first, last }, at + 1))
}

/// `March to April 2024`.
fn month_range(words: &[DateWord<'_>]) -> Option<(WrittenDate, usize)> {
    let first = month(words.first()?)?;
    let joint = words.get(1)?;
    if !is_range_sign(joint.gap) && !is_range_word(joint) {
        return None;
    }
    let next = 1 + usize::from(is_range_word(joint));
    let rest = words.get(next..)?;
    let (second, word_count) = part_of_month(rest)
        .map(|(_, month, word_count)| (month, word_count))
        .or_else(|| Some((month(rest.first()?)?, 1)))?;
    two_months(first, second, words, next + word_count)
}

fn two_months(
    first: i8,
    second: i8,
    words: &[DateWord<'_>],
    at: usize,
) -> Option<(WrittenDate, usize)> {
    let year = year(words.get(at)?)?;
    // From December to January, people write the year of the end.
    let start = date(year, second, 1);
    let day = if first == second { 15 } else { 1 };
    let first = Some(date(year, second, day));
    let last = start.last_of_month();
    Some((WrittenDate { first, last }, at + 1))
}

/// `Nov 2026`.
fn month_alone(words: &[DateWord<'_>]) -> Option<(WrittenDate, usize)> {
    let month = month(words.first()?)?;
    let year = year(words.get(1)?)?;
    let last = date(year, month, 1).last_of_month();
    Some((WrittenDate { first: None, last }, 2))
}

fn part_of_month(words: &[DateWord<'_>]) -> Option<(i8, i8, usize)> {
    let day = match words.first()?.text.to_ascii_lowercase().as_str() {
        "early" => 7,
        "mid" => 15,
        "late" => 23,
        _ => return None,
    };
    Some((day, month(words.get(1)?)?, 2))
}

/// A month by its name or its first three letters (four for September).
fn month(word: &DateWord<'_>) -> Option<i8> {
    let name = word.text.to_ascii_lowercase();
    let is_named = |month: &&str| {
        *month == name || month[..3] == name || name == "sept" && *month == "september"
    };
    let at = MONTHS.iter().position(is_named)?;
    i8::try_from(at + 1).ok()
}

fn number(word: &DateWord<'_>, max: i8) -> Option<i8> {
    let number = word.text.parse().ok()?;
    (1..=max).contains(&number).then_some(number)
}

fn year(word: &DateWord<'_>) -> Option<i16> {
    let digits = word.text.len() == 4 && word.text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| word.text.parse().ok()).flatten()
}

/// The number of words that `th`, `st`, `nd`, `rd` take.
fn ordinal(word: Option<&DateWord<'_>>) -> usize {
    let ending =
        |word: &DateWord<'_>| word.gap.is_empty() && ["st", "nd", "rd", "th"].contains(&word.text);
    usize::from(word.is_some_and(ending))
}

fn is_range_sign(gap: &str) -> bool {
    matches!(gap.trim(), "-" | "\u{2013}" | "\u{2014}" | "/")
}

fn is_range_word(word: &DateWord<'_>) -> bool {
    ["to", "and", "or"].contains(&word.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<(Option<Date>, Date)> {
        find_date(text).map(|(day, _)| (day.first, day.last))
    }

    #[track_caller]
    fn reads(text: &str, first: (i16, i8, i8), last: (i16, i8, i8)) {
        let day = |(year, month, day)| date(year, month, day);
        assert_eq!(read(text), Some((Some(day(first)), day(last))), "{text}");
    }

    #[test]
    fn different_spellings_of_one_day_are_read() {
        for text in [
            "May 27, 2023",
            "May 27 2023",
            "on May 27th, 2023",
            "27 May 2023",
            "Saturday, 27th May 2023, 14:00",
            "2023-05-27",
            "before MAY 27, 2023",
        ] {
            reads(text, (2023, 5, 27), (2023, 5, 27));
        }
        reads("Sept 3, 2023", (2023, 9, 3), (2023, 9, 3));
    }

    #[test]
    fn a_range_of_days_is_read_with_its_first_and_last_day() {
        reads("May 27-28, 2023", (2023, 5, 27), (2023, 5, 28));
        reads("May 27 \u{2013} 28, 2023", (2023, 5, 27), (2023, 5, 28));
        reads("May 30 - June 2, 2023", (2023, 5, 30), (2023, 6, 2));
    }

    #[test]
    fn parts_of_months_are_read_as_ranges_of_days() {
        reads("early April 2024", (2024, 4, 7), (2024, 4, 30));
        reads("mid-April 2024", (2024, 4, 15), (2024, 4, 30));
        reads("late Feb 2024", (2024, 2, 23), (2024, 2, 29));
        reads("late April to early May 2024", (2024, 5, 1), (2024, 5, 31));
        reads("April to May 2024", (2024, 5, 1), (2024, 5, 31));
        reads("April/May 2024", (2024, 5, 1), (2024, 5, 31));
        assert_eq!(read("Nov 2026"), Some((None, date(2026, 11, 30))));
    }

    #[test]
    fn text_that_is_no_date_is_not_read_as_one() {
        for text in [
            "",
            "soon",
            "next May",
            "May 2, then 17",
            "Feb 30, 2024",
            "Maybe 4, 2026",
            "2026-13-01",
            "March",
            "4/5/2026",
            "mid 2024",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn the_reader_returns_the_end_of_the_date() {
        let text = "meaning May 27-28, 2023, at noon";
        let (_, end) = find_date(text).unwrap();
        assert_eq!(&text[end..], ", at noon");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "((mid|May|june|to|-|/|,| |\\(|27|2023|th|é|\\PC){0,9} ?){0,6}") {
            if let Some((_, end)) = find_date(&text) {
                proptest::prop_assert!(text.is_char_boundary(end));
            }
        }
    }
}
