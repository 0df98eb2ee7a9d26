//! Reads a history that was written as text: who said what, and when.
//!
//! Lenient on purpose, because another module decides the form of the prompt. A line that begins with a
//! speaker in its first column begins an entry, a line that is a date sets the date, and any other line
//! continues the entry before it. Lines before the first speaker are skipped.

/// The author of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaker {
    User,
    Assistant,
    Call,
    Result,
    System,
}

/// One statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) speaker: Speaker,
    /// In the form of a date header: `Mar 4, 2026`.
    pub(super) date: Option<String>,
    /// Hour and minute, 24 hours.
    pub(super) time: Option<(u8, u8)>,
    /// The tool's name, if the line gives one.
    pub(super) tool: Option<String>,
    pub(super) text: String,
}

/// The most bytes between a speaker and its colon: a tool's name and a time.
const MAX_HEADER_BYTES: usize = 120;

const SPEAKERS: [(&str, Speaker); 8] = [
    ("User", Speaker::User),
    ("Assistant", Speaker::Assistant),
    ("Tool Call", Speaker::Call),
    ("Tool Result", Speaker::Result),
    ("Tool Error", Speaker::Result),
    ("Tool", Speaker::Result),
    ("System", Speaker::System),
    ("Developer", Speaker::System),
];

/// Marks a date that is only the latest possible one.
const BEFORE: &str = "on or before ";

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

pub(super) fn read(text: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut date = None;
    let mut time = None;
    for line in text.lines() {
        if let Some(found) = date_line(line) {
            date = Some(found);
            time = None;
        } else if let Some((speaker, header, words)) = speaker_line(line) {
            // The time is left out if it is the same as on the line before.
            time = clock(header).or(time);
            date = iso_date(header).or(date);
            entries.push(Entry {
                speaker,
                date: date.clone(),
                time,
                tool: tool(header),
                text: words.to_owned(),
            });
        } else if let Some(entry) = entries.last_mut().filter(|_| !is_fence(line)) {
            entry.text.push('\n');
            entry.text.push_str(line);
        }
    }
    entries
}

/// Splits `User (14:05): words` into the speaker, the text before the colon, and the words.
fn speaker_line(line: &str) -> Option<(Speaker, &str, &str)> {
    let line = line.trim_start_matches(['[', '*']);
    let (speaker, rest) = SPEAKERS.iter().find_map(|(name, speaker)| {
        let head = line.get(..name.len())?;
        let matches = head.eq_ignore_ascii_case(name);
        matches.then(|| (*speaker, &line[name.len()..]))
    })?;
    // "Users: three" is no speaker.
    if !rest.starts_with([':', ' ', '(', '*', '_']) {
        return None;
    }
    let (header, words) = match rest.find(": ") {
        Some(colon) => (&rest[..colon], &rest[colon + 2..]),
        None => (rest.trim_end().strip_suffix(':')?, ""),
    };
    if header.len() > MAX_HEADER_BYTES {
        return None;
    }
    Some((speaker, header, words))
}

/// The name in ` search_flights (14:05)`.
fn tool(header: &str) -> Option<String> {
    let name = header
        .split(['(', '['])
        .next()
        .unwrap_or_default()
        .trim_matches([' ', '`', '*', '_']);
    (!name.is_empty()).then(|| name.to_owned())
}

/// Whether a line is a closing fence or the tag that closes a data section, and so no part of the last
/// entry.
fn is_fence(line: &str) -> bool {
    let line = line.trim();
    line.starts_with("</")
        || line.starts_with("```")
        || line.starts_with("---")
        || line.starts_with("===")
}

/// The date of a line that contains only a date.
fn date_line(line: &str) -> Option<String> {
    let line = line.trim().trim_matches(['*', '#', ' ']);
    let line = line.strip_prefix("Date:").unwrap_or(line).trim();
    let line = line.strip_suffix(':').unwrap_or(line);
    if let Some(date) = line.strip_prefix(BEFORE) {
        return date_line(date).map(|date| format!("{BEFORE}{date}"));
    }
    if line.len() == 10 && iso_date(line).is_some() {
        return iso_date(line);
    }
    let words: Vec<&str> = line
        .split([' ', ','])
        .filter(|word| !word.is_empty())
        .collect();
    let [month, day, year] = words.as_slice() else {
        return None;
    };
    let month = MONTHS.iter().find(|name| month.starts_with(**name))?;
    let day: u8 = day.parse().ok()?;
    let year: u16 = year.parse().ok().filter(|year| *year > 1900)?;
    Some(format!("{month} {day}, {year}"))
}

/// The first `2026-03-04` in a text.
fn iso_date(text: &str) -> Option<String> {
    text.split(|c: char| !c.is_ascii_digit() && c != '-')
        .find_map(|word| {
            let parts: Vec<&str> = word.split('-').collect();
            let [year, month, day] = parts.as_slice() else {
                return None;
            };
            let (year, month, day): (u16, usize, u8) =
                (year.parse().ok()?, month.parse().ok()?, day.parse().ok()?);
            let month = MONTHS.get(month.checked_sub(1)?)?;
            (year > 1900).then(|| format!("{month} {day}, {year}"))
        })
}

/// The first `14:05` or `2:05 PM` in a text.
fn clock(text: &str) -> Option<(u8, u8)> {
    let words: Vec<&str> = text
        .split([' ', '(', ')', ',', 'T'])
        .filter(|word| !word.is_empty())
        .collect();
    words.iter().enumerate().find_map(|(at, word)| {
        let (hour, minute) = word.split_once(':')?;
        let (hour, minute): (u8, u8) = (hour.parse().ok()?, minute.get(..2)?.parse().ok()?);
        let hour = match words.get(at + 1).copied() {
            Some("PM" | "pm") if hour < 12 => hour + 12,
            Some("AM" | "am") if hour == 12 => 0,
            _ => hour,
        };
        (hour < 24 && minute < 60).then_some((hour, minute))
    })
}
