//! What a model of memory answers: one byte chooses whether the answer was cut off, the rest is the answer. It is
//! also read as text that secrets are removed from.

use diarist::memory::observe::{ParsedAnswer, read_answer, read_truncated};
use diarist::memory::redact::Redactor;

use super::choices;

/// A transcript, as code writes it.
const INPUT: &str = "Date: Nov 23, 2026\n* user (09:15): where does my locker open?\n";

/// Characters of a stored line, with the note that it was cut.
const LONGEST_LINE: usize = 10_000 + " [cut]".len();

/// Lines that frame what is sent. A model must not be able to write them.
const FRAMES: [&str; 4] = [
    "observations",
    "current-task",
    "suggested-response",
    "thread-title",
];

pub(crate) fn check(data: &[u8]) {
    let ([cut], answer) = choices(data);
    let answer = String::from_utf8_lossy(answer);
    let read = if cut & 1 == 0 {
        read_answer
    } else {
        read_truncated
    };
    let parsed = read(&answer, INPUT);
    assert_eq!(parsed, read(&answer, INPUT));
    if let ParsedAnswer::Observed {
        text,
        current_task,
        suggested_response,
        title,
    } = parsed
    {
        assert!(!text.trim().is_empty(), "nothing was observed");
        assert!(cut & 1 == 0 || (current_task.is_none() && suggested_response.is_none()));
        for part in [Some(text), current_task, suggested_response, title]
            .into_iter()
            .flatten()
        {
            is_safe_to_send(&part);
        }
    }
    secrets_are_removed_once(&answer);
}

fn is_safe_to_send(text: &str) {
    let is_hidden = |c: char| c.is_control() && c != '\n' && c != '\t';
    assert!(!text.contains(is_hidden), "a control character is stored");
    // An escaped tag is three characters longer for each `<`.
    let length = |line: &str| line.replace("&lt;", "<").chars().count();
    assert!(
        text.lines().all(|line| length(line) <= LONGEST_LINE),
        "an endless line is stored"
    );
    let lower = text.to_ascii_lowercase();
    // What stands in front of the first bracket is no tag.
    for after in lower.split('<').skip(1) {
        let name = after.trim_start_matches([' ', '\t', '/']);
        assert!(
            !FRAMES.iter().any(|frame| name.starts_with(frame)),
            "a tag of ours is stored: {name}"
        );
    }
}

/// What is left after secrets were removed has none.
fn secrets_are_removed_once(text: &str) {
    let redactor = Redactor::default();
    let clean = redactor.clean(text);
    assert_eq!(
        redactor.clean(&clean),
        clean,
        "a second reading removes more"
    );
}
