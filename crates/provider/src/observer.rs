//! A scripted Observer: reads the history it is shown and writes observations, extracting only.
//!
//! It invents nothing: every word of an observation but its frame stands in the history, so a test
//! can plant a fact and look for it afterwards. The format is the published one. A [`Manner`] makes
//! it misbehave the ways real ones do. A [`Script`], called by [`super::server`].

mod transcript;

use super::script::{Ask, Reply, Script};
use transcript::{Entry, Speaker};

/// The longest user message that is kept word for word, in characters.
const VERBATIM_CHARS: usize = 140;

/// How an Observer (or Reflector) does its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// Everything that matters, compressed five- to eightfold.
    #[default]
    Faithful,
    /// As faithful, but every other line is lost.
    Forgetful,
    /// Says nothing at all.
    Empty,
    /// Refuses; `finish_reason` is `content_filter`.
    Filtered,
    /// Repeats one line hundreds of times.
    Degenerate,
    /// Writes a bare list, without any tags.
    Untagged,
}

/// The scripted Observer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observer {
    /// How it does its work.
    pub manner: Manner,
}

impl Script for Observer {
    fn reply(&self, ask: &Ask<'_>) -> Reply {
        // Instructions live in the system message; a history is in what the user says.
        let shown = ask.text_of("user").join("\n");
        let entries = transcript::read(&shown);
        reply(self.manner, &observe(&entries), &hints(&entries))
    }
}

/// Puts observations and hints into words, or fails to.
pub(super) fn reply(manner: Manner, observations: &[String], hints: &str) -> Reply {
    let lines = match manner {
        Manner::Empty => return Reply::say(""),
        Manner::Filtered => return Reply::filtered(),
        Manner::Degenerate => {
            let line = observations.iter().find(|line| line.starts_with('*'));
            let line = line.map_or("* 🟡 The same line again and again.", String::as_str);
            vec![line; 400].join("\n")
        }
        Manner::Forgetful => {
            let kept = observations.iter().step_by(2);
            kept.map(String::as_str).collect::<Vec<_>>().join("\n")
        }
        Manner::Faithful => observations.join("\n"),
        Manner::Untagged => return Reply::say(observations.join("\n")),
    };
    Reply::say(format!("<observations>\n{lines}\n</observations>\n{hints}"))
}

/// Whether `text` shows a conversation, as opposed to a log of observations.
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
    let said = entry.text.split_whitespace().collect::<Vec<_>>().join(" ");
    if said.is_empty() {
        return None;
    }
    let length = said.chars().count();
    let time = entry.time.map_or_else(String::new, |(hour, minute)| {
        format!("({hour:02}:{minute:02}) ")
    });
    Some(match entry.speaker {
        Speaker::User => {
            let mark = if facts(&said).next().is_some() {
                "🔴"
            } else {
                "🟡"
            };
            let verb = if said.ends_with('?') {
                "asked"
            } else {
                "stated"
            };
            let text = if length <= VERBATIM_CHARS {
                said
            } else {
                extract(&said, VERBATIM_CHARS)
            };
            format!("* {mark} {time}User {verb}: {text}")
        }
        Speaker::Assistant => {
            let done = ["done", "booked", "fixed", "pass"]
                .iter()
                .any(|word| said.contains(word));
            let mark = if done { "✅" } else { "🟡" };
            format!(
                "* {mark} {time}Assistant: {}",
                extract(&said, 40.max(length / 10))
            )
        }
        // What a call was for shows in what it found.
        Speaker::Call => return None,
        Speaker::Result => {
            let tool = entry.tool.as_deref().unwrap_or("tool");
            let found = extract(&said, (length / 20).clamp(24, 320));
            format!("* 🟢 {time}{tool}: {found}")
        }
        Speaker::System => format!("* 🟡 {time}System: {}", extract(&said, 60.max(length / 6))),
    })
}

/// The first sentence, then facts from what that leaves out, within about `budget` bytes.
fn extract(text: &str, budget: usize) -> String {
    let sentence = first_sentence(text);
    // "1. One-way 2. Economy": the stop of a list's number ends no sentence.
    let lead = if sentence.len() < 8 { text } else { sentence };
    // A third is left for the facts of a sentence that does not fit.
    let mut kept = shorten(
        lead,
        if lead.len() > budget {
            budget * 2 / 3
        } else {
            budget
        },
    );
    let mut told: Vec<&str> = Vec::new();
    for fact in facts(text) {
        let spent = kept.len() + told.iter().map(|fact| fact.len() + 2).sum::<usize>();
        if spent + fact.len() > budget {
            break;
        }
        if !kept.contains(fact) && !told.contains(&fact) {
            told.push(fact);
        }
    }
    if !told.is_empty() {
        kept.push_str(" | ");
        kept.push_str(&told.join(", "));
    }
    kept
}

fn first_sentence(text: &str) -> &str {
    let end = [". ", "? ", "! "]
        .iter()
        .filter_map(|stop| text.find(stop))
        .min();
    end.map_or(text, |end| &text[..=end])
}

/// At most `budget` bytes, ending at a word.
pub(super) fn shorten(text: &str, budget: usize) -> String {
    if text.len() <= budget {
        return text.to_owned();
    }
    let cut = &text[..text.floor_char_boundary(budget)];
    let words = cut.rfind(' ').map_or(cut, |space| &cut[..space]);
    format!("{words}…")
}

/// What identifies things: quoted strings, words with a digit or a sign in them, and names.
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
