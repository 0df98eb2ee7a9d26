//! Reads the beginning of a log line that is not part of its text: bullet, priority marks, time.

use super::dates;

/// The marks of a line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LineMarks {
    pub(super) high: bool,
    pub(super) done: bool,
}

/// The marks of a line, and its text without them and without its time.
pub(super) fn split_marks(line: &str) -> (LineMarks, &str) {
    let (marks, text) = split_symbols(line);
    let after_time = split_time(text).map(|(_, after)| after.trim_start());
    (marks, after_time.unwrap_or(text))
}

/// The marks of a line, and the rest behind them.
fn split_symbols(line: &str) -> (LineMarks, &str) {
    let mut marks = LineMarks::default();
    let mut rest = line.trim_start();
    if let Some(date) = rest.strip_prefix("Date:") {
        return (marks, date);
    }
    for bullet in ["* ", "- ", "+ ", "• ", "-> ", "→ "] {
        rest = rest.strip_prefix(bullet).unwrap_or(rest).trim_start();
    }
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    if digits > 0 && digits < 3 {
        rest = [". ", ") "]
            .iter()
            .find_map(|end| rest[digits..].strip_prefix(end))
            .unwrap_or(rest);
    }
    loop {
        let symbol = ['🔴', '🟡', '🟢', '✅']
            .into_iter()
            .find_map(|mark| Some((mark, rest.strip_prefix(mark)?)));
        let Some((mark, after)) = symbol else { break };
        marks.high |= mark == '🔴';
        marks.done |= mark == '✅';
        rest = after.trim_start_matches([' ', '\u{fe0f}']);
    }
    (marks, rest)
}

/// The time in brackets at the beginning of `text`, and what follows it.
fn split_time(text: &str) -> Option<(&str, &str)> {
    let (time, after) = text.strip_prefix('(')?.split_once(')')?;
    dates::minute_key(time)?;
    Some((time, after))
}

/// The minute of the day at the beginning of a log line.
pub(super) fn minute_of_day(line: &str) -> Option<u16> {
    let (time, _) = split_time(split_symbols(line).1)?;
    let mut numbers = time.split(':').map(str::parse::<u16>);
    Some(numbers.next()?.ok()? * 60 + numbers.next()?.ok()?)
}
