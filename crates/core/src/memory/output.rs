//! Reads an answer of the Observer or the Reflector. Lenient in form; stores nothing itself.
//!
//! Small models forget a closing tag, wrap the answer in a code fence, think aloud first, or write a
//! bare list; all of that is understood. Tags count only at the start of a line, so text that mentions
//! them is kept. The result is safe to send: control characters are removed, endless lines are cut,
//! look-alikes of our own tags and of the marks of chat templates are escaped. An answer without a list line, or whose lines are about
//! something else, is `Empty`: a refusal must never replace a conversation. Called by the jobs that observe and reflect.

mod scan;
mod substance;
mod thinking;

use scan::{Sections, read_sections};
use substance::{has_substance, is_prompt_line, says_something};
use thinking::without_thinking;

use super::prompt::{escape, first_chars};
use super::repetition::is_repetitive;

/// Characters of a stored line, as published.
const LINE_CHARS: usize = 10_000;
/// Characters of a hint, which is a sentence or two.
const HINT_CHARS: usize = 4_000;

/// Characters of a title, which is shown in lists.
const TITLE_CHARS: usize = 80;

/// The result of reading an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParsedAnswer {
    /// It holds observations.
    Observed {
        /// The observations without hints and tags, and without empty lines at either end.
        text: String,
        /// The task of the conversation.
        current_task: Option<String>,
        /// How the Observer would continue.
        suggested_response: Option<String>,
        /// A title for the conversation: one line, at least three characters.
        title: Option<String>,
    },
    /// It holds nothing that could be stored: empty, a refusal, prose.
    Empty,
    /// It repeats itself in a loop.
    Repetitive,
}

/// Reads `answer`, the answer to `input` (a transcript or old observations). An answer that does not
/// begin with a date gets the first date of `input`.
pub fn read_answer(answer: &str, input: &str) -> ParsedAnswer {
    if is_repetitive(answer, input) {
        return ParsedAnswer::Repetitive;
    }
    let Sections {
        observations,
        current_task,
        suggested_response,
        title,
    } = read_sections(without_thinking(answer));
    let mut text = tidy(&observations);
    if !text.lines().any(scan::is_list_line) || !has_substance(&text, input) {
        return ParsedAnswer::Empty;
    }
    // Without a date of its own, it would seem to belong to the last day of the chunk before. The
    // first line of `input` is a date header that code wrote.
    if let Some(date) = input.lines().next().filter(|line| scan::is_date(line))
        && !text.lines().next().is_some_and(scan::is_date)
    {
        text.insert_str(0, &format!("{}\n", date.trim_end()));
    }
    let hint = |text: Option<String>| {
        text.filter(|text| !text.lines().any(is_prompt_line))
            .map(|text| first_chars(&tidy(&text), HINT_CHARS).to_owned())
            .filter(|text| !text.is_empty())
    };
    ParsedAnswer::Observed {
        text,
        current_task: hint(current_task),
        suggested_response: hint(suggested_response),
        title: title.and_then(|title| clean_title(&title)),
    }
}

/// Whether `answer` has the form that was asked for, and says in it that there is nothing to observe.
pub fn is_empty_block(answer: &str) -> bool {
    let answer = without_thinking(answer);
    let observations = read_sections(answer).observations;
    answer.contains("<observations") && !observations.lines().any(says_something)
}

/// Reads an answer that a limit cut off: everything except its last line, and without the sections
/// behind the observations.
pub fn read_truncated(answer: &str, input: &str) -> ParsedAnswer {
    let complete = answer.rfind('\n').map_or("", |end| &answer[..end]);
    match read_answer(complete, input) {
        // A loop that ends at a limit may be visible only in the line that was cut.
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

/// A title on one line, without quotes and heading marks; `None` if fewer than three characters are
/// left (published).
fn clean_title(text: &str) -> Option<String> {
    let tidied = tidy(text);
    // On one line, what stood on two may look like a tag of ours.
    let words = escape(&tidied.split_whitespace().collect::<Vec<_>>().join(" "));
    let is_frame = |c: char| matches!(c, '"' | '\'' | '`' | '#' | '*' | '“' | '”' | ' ');
    let title = first_chars(words.trim_matches(is_frame), TITLE_CHARS).trim_end();
    (title.chars().count() >= 3).then(|| title.to_owned())
}

/// The part of `text` that may be stored.
fn tidy(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| !is_prompt_line(line)) {
        let line: String = line.chars().filter(|c| is_visible(*c)).collect();
        let line = line.trim_end();
        let shortened = first_chars(line, LINE_CHARS);
        if shortened.len() < line.len() {
            lines.push(format!("{shortened} [cut]"));
        } else if !(line.is_empty() && lines.last().is_none_or(String::is_empty)) {
            lines.push(line.to_owned());
        }
    }
    escape_template_marks(&escape(lines.join("\n").trim_end()))
}

/// Whether a character says something: no control character, and none that turns the direction of writing or hides
/// what stands before it.
fn is_visible(c: char) -> bool {
    let hides = matches!(c, '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    (!c.is_control() || c == '\t') && !hides
}

/// Escapes the marks by which chat templates part roles, as `<|im_end|>` and `[INST]`. Servers that read them in the text
/// of a message would take what a user quoted for a message of the system.
fn escape_template_marks(text: &str) -> String {
    [
        ("<|", "&lt;|"),
        ("<<SYS>>", "&lt;&lt;SYS>>"),
        ("[INST]", "[ INST]"),
        ("[/INST]", "[ /INST]"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (mark, harmless)| {
        text.replace(mark, harmless)
    })
}

#[cfg(test)]
mod tests;
