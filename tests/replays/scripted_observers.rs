//! Observers and Reflectors that keep what they are asked to remember, and such as do not.

use diarist_provider::script::text;
use diarist_provider::{Observer, Reflector, Reply, Script, ScriptInput};

use crate::replays::planted::notes;

/// What stands between the lines that fence `label` in the user's message.
fn fenced(ask: &ScriptInput<'_>, label: &str) -> String {
    let shown = ask.texts_by_role("user").join("\n");
    let (open, close) = (format!("<{label}-"), format!("</{label}-"));
    let inside = shown
        .lines()
        .skip_while(|line| !line.starts_with(&open))
        .skip(1)
        .take_while(|line| !line.starts_with(&close));
    inside.collect::<Vec<_>>().join("\n")
}

fn with(reply: Reply, lines: &[String]) -> Reply {
    let text = reply.content.unwrap_or_default();
    let (before, after) = text.split_once("\n</observations>").unwrap();
    let lines: String = lines.iter().map(|line| format!("\n{line}")).collect();
    Reply::text(format!("{before}{lines}\n</observations>{after}"))
}

/// The provider's own Observer, which besides keeps every sentence that asks to be remembered, word for
/// word and with high priority.
pub struct Extracting;

impl Script for Extracting {
    fn reply(&self, ask: &ScriptInput<'_>) -> Reply {
        let history = fenced(ask, "history");
        let found = notes(&history);
        let kept: Vec<String> = found
            .iter()
            .map(|(_, note)| format!("* 🔴 {note}"))
            .collect();
        // It would list the words of a note one by one, and so keep what is then looked for as a whole.
        let mut messages = ask.messages.to_vec();
        for message in &mut messages {
            let mut content = text(message);
            for (_, note) in &found {
                content = content.replace(note, "");
            }
            message["content"] = content.into();
        }
        let rest = ScriptInput {
            messages: &messages,
            ..*ask
        };
        with(Observer::default().reply(&rest), &kept)
    }
}

/// The provider's own Reflector, which besides keeps every line that asks to be remembered.
pub struct Condensing;

impl Script for Condensing {
    fn reply(&self, ask: &ScriptInput<'_>) -> Reply {
        let mut kept = Vec::new();
        let mut messages = ask.messages.to_vec();
        for message in &mut messages {
            let content = text(message);
            let (notes, rest): (Vec<&str>, Vec<&str>) =
                content.lines().partition(|line| !notes(line).is_empty());
            kept.extend(notes.into_iter().map(str::to_owned));
            message["content"] = rest.join("\n").into();
        }
        kept.sort_unstable();
        kept.dedup();
        let rest = ScriptInput {
            messages: &messages,
            ..*ask
        };
        with(Reflector::default().reply(&rest), &kept)
    }
}

/// An Observer that writes down all that is said, line by line, but for some of the facts.
pub struct Dropping {
    /// Which words it leaves out.
    pub words: Vec<String>,
}

impl Script for Dropping {
    fn reply(&self, ask: &ScriptInput<'_>) -> Reply {
        let mut lines = Vec::new();
        for line in fenced(ask, "history").lines() {
            let first = !line.is_empty() && !line.starts_with(' ');
            if line.starts_with("Date:") {
                lines.push(line.to_owned());
                continue;
            }
            if !line.trim().is_empty() {
                let content = match line.split_once(": ") {
                    Some((_, content)) if first => content,
                    _ => line.trim_start(),
                };
                lines.push(format!("* 🟡 {}", without(content, &self.words)));
            }
        }
        // Where nobody says anything there is something to tell all the same.
        lines.push("* 🟢 Work went on.".to_owned());
        Reply::text(format!(
            "<observations>\n{}\n</observations>",
            lines.join("\n")
        ))
    }
}

/// `text` with each of `words` replaced by another word, quotes around it too.
fn without(text: &str, words: &[String]) -> String {
    let mut text = text.to_owned();
    for words in words {
        if text.contains(words.as_str()) {
            text = text
                .replace(&format!("\"{words}\""), "that")
                .replace(words.as_str(), "that");
        }
    }
    text
}

/// A Reflector that leaves out all that is of low priority, and some facts, whatever it is told.
pub struct Forgetting {
    /// Which words.
    pub words: Vec<String>,
    /// The lines they stand in go, not only they.
    pub lines: bool,
}

impl Script for Forgetting {
    fn reply(&self, ask: &ScriptInput<'_>) -> Reply {
        let log = fenced(ask, "history");
        let gone = |line: &str| self.words.iter().any(|words| line.contains(words.as_str()));
        let kept = log.lines().filter(|line| !line.contains('🟢'));
        let kept = kept.filter(|line| !(self.lines && gone(line)));
        let kept: Vec<String> = kept.map(|line| without(line, &self.words)).collect();
        Reply::text(format!(
            "<observations>\n{}\n</observations>",
            kept.join("\n")
        ))
    }
}

/// What a reminder says is missing, as far as it lists one of `words`.
pub fn reminded<'a>(shown: &str, words: &'a [String]) -> Vec<&'a str> {
    let list = shown
        .lines()
        .skip_while(|line| !line.starts_with("<missing-"))
        .skip(1)
        .take_while(|line| !line.starts_with("</missing-"))
        .filter(|line| !line.trim_start().starts_with("of: "))
        .collect::<Vec<_>>()
        .join("\n");
    let listed = words.iter().filter(|words| list.contains(words.as_str()));
    listed.map(String::as_str).collect()
}
