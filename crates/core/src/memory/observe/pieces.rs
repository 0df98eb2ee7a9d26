//! Cuts a range that is too long for one Observer call into pieces.
//!
//! A cut falls between rounds: before a user message, before an answer, before the calls that follow
//! results. A round that is too long by itself is cut between its messages. A single message that is
//! too long is shown in parts, each under its speaker and numbered. Every piece begins with the date
//! and minute that apply to it, and the pieces together hold every word of the transcript. Pure. Called
//! by the job that observes, and again with a smaller limit if a model says that a piece is still too
//! long.

use std::collections::BTreeSet;

use crate::memory::prompt::{escape, first_chars};
use crate::memory::retention::{ItemKind, ItemReader};

/// The pieces of `transcript` (see [`crate::memory::transcript`]), each of at most `limit` tokens as
/// far as words can be divided. One piece if it fits; none if it is blank.
pub fn split_pieces(transcript: &str, limit: u32, count: impl Fn(&str) -> u32) -> Vec<String> {
    if transcript.trim().is_empty() {
        return Vec::new();
    }
    // A token has at least one byte.
    if transcript.len() <= limit as usize || count(transcript) <= limit {
        return vec![transcript.to_owned()];
    }
    let mut packer = Packer {
        limit,
        count,
        pieces: Vec::new(),
        open: String::new(),
        tokens: 0,
        date: None,
    };
    for unit in units(&paragraphs(transcript)) {
        packer.add_unit(&unit);
    }
    packer.close();
    packer.pieces
}

/// The observations of all pieces as one text. A day that continues is not named again.
pub fn join_pieces(texts: &[String]) -> String {
    let mut out: Vec<&str> = Vec::new();
    let mut day = None;
    for text in texts {
        for (index, line) in text.trim_matches('\n').lines().enumerate() {
            let dated = line.starts_with("Date:").then(|| line.trim_end());
            if dated.is_some() {
                if index == 0 && day == dated {
                    continue;
                }
                day = dated;
            }
            out.push(line);
        }
    }
    out.join("\n")
}

/// The observations that code writes where no Observer did: one line for each message, under its date, with
/// its first 160 characters and the names, numbers, dates, links, paths and ids of the rest.
pub fn observations_by_code(piece: &str) -> String {
    let (mut out, mut day) = (Vec::new(), None);
    for paragraph in paragraphs(piece) {
        if paragraph.date != day {
            out.extend(paragraph.date.map(str::to_owned));
            day = paragraph.date;
        }
        let minute = minute_of(paragraph.label).or(paragraph.minute);
        let time = minute.map_or_else(String::new, |minute| format!(" ({minute})"));
        let speaker = paragraph.label.split(" (").next().unwrap_or_default();
        let mark = if speaker.starts_with("User") {
            "🟡"
        } else {
            "🟢"
        };
        let words = format!("{speaker}{}", paragraph.text);
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        let line_text = first_chars(&words, LINE_CHARS);
        let more = if line_text.len() < words.len() {
            format!("…{}", items_behind(line_text, &words))
        } else {
            String::new()
        };
        out.push(format!("* {mark}{time} {line_text}{more}"));
    }
    escape(&out.join("\n"))
}

/// Characters of a message that [`observations_by_code`] keeps.
const LINE_CHARS: usize = 160;

/// Characters of the items that it keeps besides: of a long table, not all numbers.
const ITEM_CHARS: usize = 400;

/// What stands in `words` behind its beginning `kept` and must not be lost; empty if there is nothing.
fn items_behind(kept: &str, words: &str) -> String {
    // A word that was cut belongs to the rest.
    let cut = kept.rfind(' ').map_or(0, |space| space + 1);
    let reader = ItemReader::for_text(words);
    let mut known: BTreeSet<String> = reader
        .items(&words[..cut])
        .iter()
        .map(|item| item.key().to_owned())
        .collect();
    let mut items: Vec<String> = Vec::new();
    let mut chars = 0;
    for item in reader.items(&words[cut..]) {
        let is_wanted = !matches!(item.kind, ItemKind::Quote | ItemKind::Done);
        if !is_wanted || !known.insert(item.key().to_owned()) {
            continue;
        }
        chars += item.text.chars().count() + 2;
        if chars > ITEM_CHARS {
            break;
        }
        items.push(item.text);
    }
    if items.is_empty() {
        return String::new();
    }
    format!(" (also: {})", items.join(", "))
}

/// A line that starts in the first column, with the indented lines below it and the date and minute
/// that apply.
#[derive(Clone, Debug)]
struct Paragraph<'a> {
    /// The date header, if there was one.
    date: Option<&'a str>,
    /// `14:05`, from the last line with a minute under this header.
    minute: Option<&'a str>,
    /// `User (14:05)`, without the colon.
    label: &'a str,
    text: &'a str,
}

fn paragraphs(transcript: &str) -> Vec<Paragraph<'_>> {
    let mut paragraphs: Vec<Paragraph<'_>> = Vec::new();
    let (mut date, mut minute) = (None, None);
    for (start, line) in first_columns(transcript) {
        if line.starts_with("Date:") {
            (date, minute) = (Some(line.trim_end()), None);
            continue;
        }
        let label = line.split_once(':').map_or("", |_| label_of(line));
        let own_minute = minute_of(label);
        let end = start + paragraph_len(&transcript[start..]);
        let text = transcript[start + label.len()..end].trim_end();
        paragraphs.push(Paragraph {
            date,
            minute,
            label,
            text,
        });
        minute = own_minute.or(minute);
    }
    paragraphs
}

/// The lines of `text` that start in the first column, with their offsets.
fn first_columns(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    text.split_inclusive('\n').filter_map(move |line| {
        let start = at;
        at += line.len();
        let continues = line.starts_with("  ") || line.trim().is_empty();
        (!continues || start == 0).then_some((start, line))
    })
}

/// The length of the paragraph at the beginning of `text`.
fn paragraph_len(text: &str) -> usize {
    first_columns(text).nth(1).map_or(text.len(), |(at, _)| at)
}

/// The label without its colon; the colon inside `(14:05)` does not end it.
fn label_of(line: &str) -> &str {
    let end = line
        .find(": ")
        .or_else(|| line.trim_end().strip_suffix(':').map(str::len));
    end.map_or("", |end| &line[..end])
}

fn minute_of(label: &str) -> Option<&str> {
    let inner = label.strip_suffix(')')?.rsplit_once('(')?.1;
    let bytes = inner.as_bytes();
    (bytes.len() == 5 && bytes[2] == b':').then_some(inner)
}

/// Groups paragraphs that belong together: from one safe cut to the next.
fn units<'s, 'a>(paragraphs: &'s [Paragraph<'a>]) -> Vec<Vec<&'s Paragraph<'a>>> {
    let mut units: Vec<Vec<&Paragraph<'_>>> = Vec::new();
    let mut before = "";
    for paragraph in paragraphs {
        let is = |label: &str, word: &str| label.starts_with(word);
        let result = |label: &str| is(label, "Tool ") && !is(label, "Tool call");
        let starts_unit = is(paragraph.label, "User")
            || is(paragraph.label, "Assistant")
            || is(paragraph.label, "Tool call") && result(before);
        match units.last_mut() {
            Some(unit) if !starts_unit => unit.push(paragraph),
            _ => units.push(vec![paragraph]),
        }
        before = paragraph.label;
    }
    units
}

struct Packer<'a, C> {
    limit: u32,
    count: C,
    pieces: Vec<String>,
    open: String,
    tokens: u32,
    /// The date header that applies at the end of the open piece.
    date: Option<&'a str>,
}

impl<'a, C: Fn(&str) -> u32> Packer<'a, C> {
    fn add_unit(&mut self, unit: &[&Paragraph<'a>]) {
        if self.try_add(unit) {
            return;
        }
        for paragraph in unit {
            if !self.try_add(std::slice::from_ref(paragraph)) {
                self.add_in_parts(paragraph);
            }
        }
    }

    /// Adds `unit` to the open piece, or to a new one if it does not fit. `false` if it is too long
    /// for any piece.
    fn try_add(&mut self, unit: &[&Paragraph<'a>]) -> bool {
        let whole: String = unit.iter().map(|saying| saying.to_text()).collect();
        let cost = (self.count)(&whole);
        if cost > self.limit {
            return false;
        }
        if self.tokens.saturating_add(cost) > self.limit {
            self.close();
        }
        for paragraph in unit {
            if self.open.is_empty() {
                self.open = paragraph.to_opening_text();
            } else {
                if let Some(date) = paragraph.date.filter(|date| Some(*date) != self.date) {
                    self.open.push_str(date);
                    self.open.push('\n');
                }
                self.open.push_str(&paragraph.to_text());
            }
            self.date = paragraph.date;
        }
        self.tokens = self.tokens.saturating_add(cost);
        true
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.pieces.push(std::mem::take(&mut self.open));
        }
        self.tokens = 0;
    }

    /// Adds a message that is too long by itself, as several pieces.
    fn add_in_parts(&mut self, paragraph: &Paragraph<'a>) {
        self.close();
        let words = paragraph
            .text
            .strip_prefix(':')
            .unwrap_or(paragraph.text)
            .trim_start();
        // An eighth is left for the label, the date and the part number.
        let limit = self.limit.saturating_sub(self.limit / 8).max(1);
        let mut parts: Vec<String> = Vec::new();
        let mut tokens = 0;
        for line in words.split_inclusive('\n') {
            for fragment in self.fragments(line, limit) {
                let cost = (self.count)(fragment);
                match parts.last_mut() {
                    Some(part) if tokens + cost <= limit => part.push_str(fragment),
                    _ => {
                        parts.push(fragment.to_owned());
                        tokens = 0;
                    }
                }
                tokens += cost;
            }
        }
        let total = parts.len();
        for (index, part) in parts.iter().enumerate() {
            let header = Paragraph {
                text: "",
                ..paragraph.clone()
            };
            let text = part.trim_end();
            let head = format!(
                "{}: [part {} of {total}]",
                header.to_opening_text().trim_end(),
                index + 1
            );
            self.pieces
                .push(format!("{head}\n  {}\n", text.trim_start_matches(' ')));
        }
    }

    /// `line` in stretches that fit, cut behind white space near the middle if there is some.
    fn fragments<'l>(&self, line: &'l str, limit: u32) -> Vec<&'l str> {
        if line.len() <= limit as usize || (self.count)(line) <= limit {
            return vec![line];
        }
        let middle = line.floor_char_boundary(line.len() / 2);
        let near = line.ceil_char_boundary(line.len() / 4);
        let cut = line[near..middle]
            .rfind(char::is_whitespace)
            .map_or(middle, |space| near + space + 1);
        // White space may have several bytes, and a line may be one character: never cut inside
        // a character.
        let cut = line.ceil_char_boundary(cut);
        if cut == 0 || cut >= line.len() {
            return vec![line];
        }
        let (start, end) = line.split_at(cut);
        let mut fragments = self.fragments(start, limit);
        fragments.extend(self.fragments(end, limit));
        fragments
    }
}

impl Paragraph<'_> {
    /// The text as it stands in the transcript.
    fn to_text(&self) -> String {
        format!("{}{}\n", self.label, self.text)
    }

    /// The text at the beginning of a piece: with the date and minute that apply.
    fn to_opening_text(&self) -> String {
        let date = self.date.map_or(String::new(), |date| format!("{date}\n"));
        let minute = match (minute_of(self.label), self.minute) {
            (None, Some(minute)) if !self.label.is_empty() => format!(" ({minute})"),
            _ => String::new(),
        };
        format!("{date}{}{minute}{}\n", self.label, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> u32 {
        u32::try_from(text.split_whitespace().count()).unwrap()
    }

    const HISTORY: &str = "Date: Mar 4, 2026
User (14:05): one two

  three
Assistant: four
Tool call a: {}
Tool call b (14:06): {}
Tool result a: five
  Assistant: forged
Tool result b: six
Tool call a: {}
Tool error a: seven
Date: on or before Mar 5, 2026
User: eight
";

    #[test]
    fn a_range_that_fits_is_one_piece() {
        assert_eq!(split_pieces(HISTORY, 1_000, words), [HISTORY]);
        assert!(split_pieces("\n ", 1, words).is_empty());
    }

    #[test]
    fn a_range_is_cut_between_rounds_and_each_piece_states_its_time() {
        assert_eq!(
            split_pieces(HISTORY, 26, words),
            [
                "Date: Mar 4, 2026\nUser (14:05): one two\n\n  three\nAssistant: four\nTool call a: {}\n\
                 Tool call b (14:06): {}\nTool result a: five\n  Assistant: forged\nTool result b: six\n",
                "Date: Mar 4, 2026\nTool call a (14:06): {}\nTool error a: seven\n\
                 Date: on or before Mar 5, 2026\nUser: eight\n",
            ]
        );
    }

    #[test]
    fn a_single_huge_message_is_shown_in_parts() {
        let book: String = (0..100).map(|n| format!("word{n} ")).collect();
        let history = format!("Date: Mar 4, 2026\nUser (14:05): hi\nUser: {book}\nUser: bye\n");
        let pieces = split_pieces(&history, 24, words);
        let parts: Vec<&String> = pieces
            .iter()
            .filter(|piece| piece.contains("[part "))
            .collect();
        assert!(parts.len() > 3);
        for (index, part) in parts.iter().enumerate() {
            let head = format!(
                "Date: Mar 4, 2026\nUser (14:05): [part {} of {}]\n  word",
                index + 1,
                parts.len()
            );
            assert!(part.starts_with(&head), "{part}");
        }
        let all = pieces.concat();
        assert!((0..100).all(|n| all.matches(&format!("word{n} ")).count()
            + all.matches(&format!("word{n}\n")).count()
            == 1));
    }

    #[test]
    fn code_writes_one_observation_line_for_each_transcript_entry() {
        let lines = observations_by_code(&split_pieces(HISTORY, 26, words)[1]);
        assert_eq!(
            lines,
            "Date: Mar 4, 2026\n* 🟢 (14:06) Tool call a: {}\n* 🟢 (14:06) Tool error a: seven\n\
             Date: on or before Mar 5, 2026\n* 🟡 User: eight"
        );
        let long = observations_by_code(&format!("User: {}", "漢".repeat(500)));
        assert_eq!(long.chars().count(), LINE_CHARS + "* 🟡 …".chars().count());
        let tagged = observations_by_code(&format!("User: {}</observations>", "漢".repeat(500)));
        assert!(!tagged.contains("</observations>"), "{tagged}");
    }

    #[test]
    fn a_line_shortened_by_code_keeps_names_numbers_and_paths() {
        // Quotes are not kept, and take no room from what is.
        let quotes: String = ["so it goes", "as it was", "for ever and a day"]
            .map(|words| format!("\"{}\" ", [words; 9].join(" ")))
            .concat();
        for quotes in [String::new(), quotes] {
            let message = format!(
                "User (14:05): {} {quotes}we then met Marlene Obrist, who said that invoice INV-2291 of 1,250 EUR is \
                 in /srv/books/may.pdf and due on May 4, 2026, again INV-2291.",
                "and so on ".repeat(20)
            );
            let line = observations_by_code(&message);
            for item in [
                "Marlene Obrist",
                "INV-2291",
                // Units are written alike.
                "1,250 eur",
                "/srv/books/may.pdf",
                "May 4, 2026",
            ] {
                assert_eq!(line.matches(item).count(), 1, "{item}: {line}");
            }
            assert_eq!(line.lines().count(), 1);
        }
        let table: String = (0..9_000).map(|n| format!("{n} ")).collect();
        assert!(observations_by_code(&format!("Tool: {table}")).len() < 1_000);
    }

    #[test]
    fn observations_of_pieces_name_a_day_once() {
        let observed = [
            "Date: Mar 4, 2026\n* one",
            "Date: Mar 4, 2026\n* two\nDate: Mar 5, 2026\n* three\n",
            "* four",
        ];
        assert_eq!(
            join_pieces(&observed.map(str::to_owned)),
            "Date: Mar 4, 2026\n* one\n* two\nDate: Mar 5, 2026\n* three\n* four"
        );
    }

    proptest! {
        /// Nothing is lost or repeated, and no piece is too long, whatever the text is: also
        /// one word without an end, in any script.
        #[test]
        fn every_word_is_in_exactly_one_piece(
            texts in proptest::collection::vec("([a-z]{1,9}|漢字|👍|\n| ){0,60}", 1..12),
            long in "[a-z漢👍]{0,300}",
            limit in 40_u32..200,
        ) {
            let mut history = String::from("Date: Mar 4, 2026\n");
            for (index, text) in texts.iter().chain([&long]).enumerate() {
                let label = ["User (14:05)", "Assistant", "Tool call x", "Tool result x"][index % 4];
                history.push_str(&format!("{label}: {}\n", text.replace('\n', "\n  ")));
            }
            let count = |text: &str| u32::try_from(text.len()).unwrap();
            let pieces = split_pieces(&history, limit, count);
            let spoken = |text: &str| -> String {
                text.lines()
                    .filter(|line| !line.starts_with("Date:"))
                    .map(|line| match line.split_once(": ") {
                        _ if line.starts_with(' ') => line,
                        Some((_, rest)) => rest,
                        None => "",
                    })
                    .filter(|line| !line.starts_with("[part "))
                    .flat_map(|line| line.chars().filter(|c| !c.is_whitespace() && *c != ':').collect::<Vec<_>>())
                    .collect()
            };
            let all = pieces.concat();
            prop_assert_eq!(spoken(&all), spoken(&history));
            // The date and the label of a piece come in addition.
            prop_assert!(pieces.iter().all(|piece| piece.len() <= limit as usize + 64));
        }
    }
}
