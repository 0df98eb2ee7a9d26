//! Reads what the Observer or the Reflector answered, leniently, and stores nothing by itself.
//!
//! Small models forget a closing tag, wrap the answer in a code fence, think aloud first, or write
//! a bare list; all of that is understood. Tags count only where a line starts with them, so text
//! that mentions them is kept. What is kept is safe to send: control characters gone, endless lines
//! cut, look-alikes of our own tags defused. An answer without a single list line is `Empty`: a
//! refusal must never stand in for a conversation. Called by the jobs that observe and reflect.

mod scan;

use scan::{Sections, read_sections};

use super::prompt::{escape, first_chars};
use super::repetition::is_repetitive;

/// Characters of a stored line, as published.
const LINE_CHARS: usize = 10_000;
/// Characters of a hint. A hint is a sentence or two; a page would not be one.
const HINT_CHARS: usize = 4_000;

/// Characters of a title; it is shown in a list.
const TITLE_CHARS: usize = 80;

/// What an answer amounts to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParsedAnswer {
    /// It observed something.
    Observed {
        /// The observations, without hints and tags; no empty line at either end.
        text: String,
        /// What the conversation was busy with.
        current_task: Option<String>,
        /// How the Observer would go on.
        suggested_response: Option<String>,
        /// What a person would call the conversation; at least three characters, on one line.
        title: Option<String>,
    },
    /// It says nothing that could be kept: empty, a refusal, prose.
    Empty,
    /// It ran into a loop.
    Repetitive,
}

/// Reads `answer`, which was given to `input` (the transcript or the old observations). An answer
/// that opens with no date is given the first one of `input`.
pub fn read_answer(answer: &str, input: &str) -> ParsedAnswer {
    if is_repetitive(answer, input) {
        return ParsedAnswer::Repetitive;
    }
    let Sections {
        observations,
        current_task,
        suggested_response,
        title,
    } = read_sections(answer);
    let mut text = tidy(&observations);
    if !text.lines().any(scan::is_list_line) {
        return ParsedAnswer::Empty;
    }
    // Without a date of its own it would seem to belong to the last day of the chunk before it. The
    // first line of what it describes is a date header, and always ours.
    if let Some(date) = input.lines().next().filter(|line| scan::is_date(line))
        && !text.lines().next().is_some_and(scan::is_date)
    {
        text.insert_str(0, &format!("{}\n", date.trim_end()));
    }
    let hint = |text: Option<String>| {
        text.map(|text| first_chars(&tidy(&text), HINT_CHARS).to_owned())
            .filter(|text| !text.is_empty())
    };
    ParsedAnswer::Observed {
        text,
        current_task: hint(current_task),
        suggested_response: hint(suggested_response),
        title: title.and_then(|title| clean_title(&title)),
    }
}

/// What came whole of an `answer` that a limit cut: its last line did not, and neither did what stands
/// behind the observations.
pub fn read_truncated(answer: &str, input: &str) -> ParsedAnswer {
    let complete = answer.rfind('\n').map_or("", |end| &answer[..end]);
    match read_answer(complete, input) {
        // A loop that ends at a limit shows it in the line that was cut, if that is all there is.
        _ if is_repetitive(answer, input) => ParsedAnswer::Repetitive,
        ParsedAnswer::Observed { text, .. } => ParsedAnswer::Observed {
            text,
            current_task: None,
            suggested_response: None,
            title: None,
        },
        other => other,
    }
}

/// A title on one line, without quotes and heading marks; `None` where nothing of three characters
/// is left (published).
fn clean_title(text: &str) -> Option<String> {
    let tidied = tidy(text);
    let words = tidied.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_frame = |c: char| matches!(c, '"' | '\'' | '`' | '#' | '*' | '“' | '”' | ' ');
    let title = first_chars(words.trim_matches(is_frame), TITLE_CHARS).trim_end();
    (title.chars().count() >= 3).then(|| title.to_owned())
}

/// What may be stored of `text`.
fn tidy(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let visible = |c: &char| !c.is_control() || *c == '\t';
        let line: String = line.chars().filter(visible).collect();
        let line = line.trim_end();
        let shortened = first_chars(line, LINE_CHARS);
        if shortened.len() < line.len() {
            lines.push(format!("{shortened} [cut]"));
        } else if !(line.is_empty() && lines.last().is_none_or(String::is_empty)) {
            lines.push(line.to_owned());
        }
    }
    escape(lines.join("\n").trim_end())
}

#[cfg(test)]
mod tests;
