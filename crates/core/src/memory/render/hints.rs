//! The hints at the end of a block: the task and the suggested response at the end of the last part.
//!
//! Hints are written before the conversation continues. So they are left out if the log, or
//! observations of the messages behind the block, say that their task is done: a model that is shown a
//! finished task does it again. Raw messages that nobody has observed yet are not checked here; the
//! preamble tells the model that they come first.

use std::collections::BTreeSet;

use crate::memory::{prompt, system_messages};

/// The hints for the end of the last part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints<'a> {
    /// The task that the conversation is busy with.
    pub current_task: Option<&'a str>,
    /// How the Observer would continue.
    pub suggested_response: Option<&'a str>,
}

impl Hints<'_> {
    /// The hints that are still open after `parts`, in order: those that the parts report as done
    /// are removed.
    #[must_use]
    pub fn without_done(self, parts: &[&str]) -> Self {
        if self.current_task.is_some_and(|task| is_done(task, parts)) {
            // The suggestion goes with its task: it says how to do what is done.
            return Self::default();
        }
        let suggested = self.suggested_response;
        Self {
            suggested_response: suggested.filter(|text| !is_done(text, parts)),
            ..self
        }
    }

    /// The section behind a log whose last part is `last`; `None` if there is nothing open to say.
    pub(super) fn section(self, last: &str) -> Option<String> {
        let open_hints = self.without_done(&[last]);
        let section = |name: &str, text: Option<&str>| {
            let text = prompt::escape(text.unwrap_or_default().trim());
            if text.is_empty() {
                return String::new();
            }
            format!("<{name}>\n{text}\n</{name}>\n")
        };
        let task = section("current-task", open_hints.current_task);
        let response = section("suggested-response", open_hints.suggested_response);
        let both = task + &response;
        (!both.is_empty()).then_some(both)
    }
}

/// Whether a line marked ✅ in `parts` is about the main clause of `hint`, and no later line marked 🔴
/// takes it up again.
fn is_done(hint: &str, parts: &[&str]) -> bool {
    let hint_stems = stems(main_clause(hint));
    // One common word may be chance.
    if hint_stems.len() < 2 {
        return false;
    }
    let mut done = false;
    let observed: Vec<String> = parts
        .iter()
        .map(|part| system_messages::split_messages(part).0)
        .collect();
    for line in observed.iter().flat_map(|text| text.lines()) {
        let is_finished = line.contains('✅');
        if !is_finished && !line.contains('🔴') {
            continue;
        }
        let line_stems = stems(line);
        let common = hint_stems.intersection(&line_stems).count();
        // Two thirds of its words, because the Observer words a task and its end differently.
        if common * 3 >= hint_stems.len() * 2 {
            done = is_finished;
        }
    }
    done
}

/// The first line or sentence; secondary and waiting tasks follow it.
fn main_clause(hint: &str) -> &str {
    let hint = hint.trim_start();
    let end = hint.find(['\n', ';']).unwrap_or(hint.len());
    let sentence = hint[..end].find(". ").unwrap_or(end);
    &hint[..sentence]
}

/// Words that say nothing about a task.
const COMMON_WORDS: [&str; 24] = [
    "about",
    "after",
    "and",
    "assistant",
    "before",
    "for",
    "from",
    "has",
    "have",
    "into",
    "main",
    "now",
    "open",
    "primary",
    "task",
    "that",
    "the",
    "their",
    "then",
    "this",
    "user",
    "wants",
    "was",
    "with",
];

/// The words of `text` by their beginnings: `imports` and `importing` are one.
fn stems(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_alphanumeric())
        .map(str::to_lowercase)
        .filter(|word| word.chars().count() > 2 && !COMMON_WORDS.contains(&word.as_str()))
        .map(|word| word.chars().take(5).collect())
        .collect()
}

/// Whether a segment of a block is the hints.
pub(super) fn is_hint(segment: &str) -> bool {
    ["<current-task>", "<suggested-response>"]
        .iter()
        .any(|tag| segment.starts_with(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "Date: Mar 4, 2026\n* 🔴 (09:12) User asked why the nightly import stops\n* ✅ (09:40) Nightly import follows the cursor; import fixed, user confirmed";

    fn section(task: &str, log: &str) -> Option<String> {
        let hints = Hints {
            current_task: Some(task),
            suggested_response: Some("Say how the import was mended."),
        };
        hints.section(log)
    }

    #[test]
    fn a_finished_task_gives_no_hints() {
        assert_eq!(section("Fixing the nightly import", LOG), None);
        assert_eq!(
            section("The nightly import. Waiting: the budget", LOG),
            None
        );
    }

    #[test]
    fn an_open_or_reopened_task_stays_in_the_hints() {
        for task in [
            "Write the audit report",
            "Nightly export of invoices stops",
            "import",
        ] {
            assert!(section(task, LOG).is_some(), "{task}");
        }
        let reopened = format!("{LOG}\n* 🔴 (10:01) User: the nightly import stops again");
        assert!(section("Nightly import stops", &reopened).is_some());
        assert!(section("Nightly import stops", "* 🔴 nightly import stops").is_some());
        // System messages of the application complete no task.
        let text =
            "* 🔴 x\n<system-message n=\"7\">\n✅ the nightly import stops\n</system-message>";
        assert!(section("Nightly import stops", text).is_some());
    }

    /// Observations of messages behind the block are not in it, but they count.
    #[test]
    fn a_task_that_a_later_part_completes_is_removed_from_the_hints() {
        let hints = Hints {
            current_task: Some("Write the audit report"),
            suggested_response: Some("Fix the nightly import with the cursor"),
        };
        let done = "* ✅ (11:20) Audit report written and sent";
        let again = "* 🔴 (11:30) User wants the audit report to be written again";
        assert_eq!(hints.without_done(&[]), hints);
        assert_eq!(
            hints.without_done(&["* 🟡 another thing", done]),
            Hints::default()
        );
        assert_eq!(hints.without_done(&[done, again]), hints);
        let fixed = Hints {
            suggested_response: None,
            ..hints
        };
        assert_eq!(hints.without_done(&[LOG]), fixed);
    }

    #[test]
    fn a_completed_suggestion_is_removed_and_the_open_task_stays() {
        let hints = Hints {
            current_task: Some("Write the audit report"),
            suggested_response: Some("Fix the nightly import with the cursor"),
        };
        assert_eq!(
            hints.section(LOG).unwrap(),
            "<current-task>\nWrite the audit report\n</current-task>\n"
        );
    }
}
