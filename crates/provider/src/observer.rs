//! A scripted Observer: reads the history in its prompt and writes observations from it.
//!
//! It invents nothing: every word of an observation except its frame is in the history, so a test can
//! plant a fact and look for it. The format is the published one. An [`ObserverStyle`] makes it fail in
//! the ways real Observers do. A [`Script`], called by [`super::chat`].

mod transcript;

use super::script::{Reply, Script, ScriptInput};
use transcript::{Entry, Speaker};

/// Characters of the longest user message that is kept word for word.
const VERBATIM_CHARS: usize = 140;

/// How an Observer or Reflector works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObserverStyle {
    /// Writes everything that matters, five to eight times shorter.
    #[default]
    Faithful,
    /// The same, but loses every other line.
    Forgetful,
    /// Says nothing.
    Empty,
    /// Refuses; `finish_reason` is `content_filter`.
    Filtered,
    /// Repeats one line several hundred times.
    Repetitive,
    /// Writes a bare list without tags.
    Untagged,
}

/// The scripted Observer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observer {
    /// How it works.
    pub style: ObserverStyle,
}

impl Script for Observer {
    fn reply(&self, input: &ScriptInput<'_>) -> Reply {
        // The instructions are in the system message; the history is in the user message.
        let user_text = input.texts_by_role("user").join("\n");
        let entries = transcript::read(&user_text);
        reply(self.style, &observe(&entries), &hints(&entries))
    }
}

/// Writes observations and hints in this style.
pub(super) fn reply(style: ObserverStyle, observations: &[String], hints: &str) -> Reply {
    let lines = match style {
        ObserverStyle::Empty => return Reply::text(""),
        ObserverStyle::Filtered => return Reply::filtered(),
        ObserverStyle::Repetitive => {
            let line = observations.iter().find(|line| line.starts_with('*'));
            let line = line.map_or("* 🟡 The same line again and again.", String::as_str);
            vec![line; 400].join("\n")
        }
        ObserverStyle::Forgetful => {
            let remaining = observations.iter().step_by(2);
            remaining.map(String::as_str).collect::<Vec<_>>().join("\n")
        }
        ObserverStyle::Faithful => observations.join("\n"),
        ObserverStyle::Untagged => return Reply::text(observations.join("\n")),
    };
    Reply::text(format!("<observations>\n{lines}\n</observations>\n{hints}"))
}

/// Whether `text` shows a conversation rather than a log of observations.
pub(super) fn shows_history(text: &str) -> bool {
    !transcript::read(text).is_empty()
}

fn observe(entries: &[Entry]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut date = None;
    for entry in entries {
        if entry.date.is_some() && entry.date != date {
            date.clone_from(&entry.date);
            lines.push(format!("Date: {}", date.as_deref().unwrap_or_default()));
        }
        if let Some(line) = observation(entry) {
            lines.push(line);
        }
    }
    lines
}

fn observation(entry: &Entry) -> Option<String> {
    let words = entry.text.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.is_empty() {
        return None;
    }
    let length = words.chars().count();
    let time = entry.time.map_or_else(String::new, |(hour, minute)| {
        format!("({hour:02}:{minute:02}) ")
    });
    Some(match entry.speaker {
        Speaker::User => {
            let mark = if facts(&words).next().is_some() {
                "🔴"
            } else {
                "🟡"
            };
            let verb = if words.ends_with('?') {
                "asked"
            } else {
                "stated"
            };
            let text = if length <= VERBATIM_CHARS {
                words
            } else {
                extract(&words, VERBATIM_CHARS)
            };
            format!("* {mark} {time}User {verb}: {text}")
        }
        Speaker::Assistant => {
            let done = ["done", "booked", "fixed", "pass"]
                .iter()
                .any(|word| words.contains(word));
            let mark = if done { "✅" } else { "🟡" };
            format!(
                "* {mark} {time}Assistant: {}",
                extract(&words, 40.max(length / 10))
            )
        }
        // The purpose of a call is visible in its result.
        Speaker::Call => return None,
        Speaker::Result => {
            let tool = entry.tool.as_deref().unwrap_or("tool");
            let summary = extract(&words, (length / 20).clamp(24, 320));
            format!("* 🟢 {time}{tool}: {summary}")
        }
        Speaker::System => format!("* 🟡 {time}System: {}", extract(&words, 60.max(length / 6))),
    })
}

/// The first sentence, then facts from the rest, within about `budget` bytes.
fn extract(text: &str, budget: usize) -> String {
    let sentence = first_sentence(text);
    // "1. One-way 2. Economy": the dot of a list number ends no sentence.
    let lead = if sentence.len() < 8 { text } else { sentence };
    // A third is left for the facts of a sentence that does not fit.
    let mut summary = shorten(
        lead,
        if lead.len() > budget {
            budget * 2 / 3
        } else {
            budget
        },
    );
    let mut added_facts: Vec<&str> = Vec::new();
    for fact in facts(text) {
        let used_bytes =
            summary.len() + added_facts.iter().map(|fact| fact.len() + 2).sum::<usize>();
        if used_bytes + fact.len() > budget {
            break;
        }
        if !summary.contains(fact) && !added_facts.contains(&fact) {
            added_facts.push(fact);
        }
    }
    if !added_facts.is_empty() {
        summary.push_str(" | ");
        summary.push_str(&added_facts.join(", "));
    }
    summary
}

fn first_sentence(text: &str) -> &str {
    let end = [". ", "? ", "! "]
        .iter()
        .filter_map(|stop| text.find(stop))
        .min();
    end.map_or(text, |end| &text[..=end])
}

/// At most `budget` bytes, ending after a word.
pub(super) fn shorten(text: &str, budget: usize) -> String {
    if text.len() <= budget {
        return text.to_owned();
    }
    let cut = &text[..text.floor_char_boundary(budget)];
    let words = cut.rfind(' ').map_or(cut, |space| &cut[..space]);
    format!("{words}…")
}

/// Identifying words: quoted strings, words with a digit or a sign in them, and names.
fn facts(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text
        .split('"')
        .skip(1)
        .step_by(2)
        .filter(|quoted| !quoted.is_empty());
    let mut sentence_starts = true;
    let words = text.split_whitespace().filter(move |word| {
        let name = !sentence_starts && word.len() > 2 && word.starts_with(char::is_uppercase);
        sentence_starts = word.ends_with(['.', '?', '!', ':']);
        name || word.contains(|c: char| c.is_ascii_digit() || matches!(c, '@' | '_'))
    });
    let words = words.map(|word| word.trim_matches(|c: char| !c.is_alphanumeric() && c != '@'));
    quoted
        .chain(words)
        .filter(|fact| (2..=60).contains(&fact.len()))
}

fn hints(entries: &[Entry]) -> String {
    let last = |speaker| {
        let entry = entries.iter().rev().find(|entry| entry.speaker == speaker);
        entry.map_or_else(String::new, |entry| {
            shorten(first_sentence(entry.text.trim()), 160)
        })
    };
    format!(
        "<current-task>\nPrimary: {}\n</current-task>\n<suggested-response>\nContinue from: {}\n</suggested-response>",
        last(Speaker::User),
        last(Speaker::Assistant)
    )
}

#[cfg(test)]
mod tests;
