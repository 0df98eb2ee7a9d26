//! The units of a text: a line, or a stretch of a line that is too long to be one statement.

use std::collections::HashSet;

/// From this length on, a line is more than one unit.
const LONG_LINE_BYTES: usize = 300;
/// Bytes of a stretch if a line has no punctuation to divide it at.
const STRETCH_BYTES: usize = 60;
/// Characters of a word that carry its meaning, whatever its ending.
const STEM_CHARS: usize = 5;
/// Shorter words occur in every text.
const MIN_STEM_CHARS: usize = 4;

/// One statement.
pub(super) struct Unit {
    /// Its words, without list marks, priority marks and time.
    pub(super) words: String,
    /// The same with every word that contains a digit replaced, so that events of one kind are
    /// equal.
    pub(super) form: String,
}

/// The units of `text` that contain words.
pub(super) fn units(text: &str) -> Vec<Unit> {
    text.lines().flat_map(stretches).filter_map(unit).collect()
}

fn unit(text: &str) -> Option<Unit> {
    let mark = |c: char| !c.is_alphanumeric();
    let words: Vec<&str> = text
        .split_whitespace()
        .filter(|word| !is_time(word) && word.chars().any(|c| !mark(c)))
        .collect();
    if words.is_empty() {
        return None;
    }
    let form: Vec<&str> = words
        .iter()
        .map(|word| {
            if word.contains(char::is_numeric) {
                "#"
            } else {
                word
            }
        })
        .collect();
    Some(Unit {
        form: form.join(" "),
        words: words.join(" "),
    })
}

/// `(14:05)`, in a log and in a transcript.
fn is_time(word: &str) -> bool {
    let word = word.trim_matches(|c: char| !c.is_ascii_digit());
    let bytes = word.as_bytes();
    matches!(bytes.len(), 4 | 5 | 8)
        && bytes.contains(&b':')
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_digit() || *byte == b':')
}

/// `line`; or its sentences and members if it is long.
fn stretches(line: &str) -> Vec<&str> {
    if line.len() <= LONG_LINE_BYTES {
        return vec![line];
    }
    line.split_inclusive(['.', ',', ';', '!', '?', '。', '，', '！'])
        .flat_map(|sentence| {
            let mut rest = sentence;
            std::iter::from_fn(move || {
                if rest.is_empty() {
                    return None;
                }
                let whole = rest.len() <= LONG_LINE_BYTES;
                let end = rest.ceil_char_boundary(if whole { rest.len() } else { STRETCH_BYTES });
                let (stretch, left) = rest.split_at(end);
                rest = left;
                Some(stretch)
            })
        })
        .collect()
}

/// Every run of digits in `text` except times: with them, any small number would be known.
pub(super) fn numbers(text: &str) -> HashSet<&str> {
    text.split_whitespace()
        .filter(|word| !is_time(word))
        .flat_map(|word| word.split(|c: char| !c.is_ascii_digit()))
        .filter(|run| !run.is_empty())
        .collect()
}

/// The first letters of the longer words of `text`, in lower case.
pub(super) fn stems(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphabetic())
        .filter(|word| word.chars().count() >= MIN_STEM_CHARS)
        .map(|word| {
            word.chars()
                .take(STEM_CHARS)
                .flat_map(char::to_lowercase)
                .collect()
        })
}
