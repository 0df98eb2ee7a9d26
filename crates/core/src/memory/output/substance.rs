//! Tells observations from an answer that only looks like them.
//!
//! A model that refuses in the form of a list, asks back, repeats the example of its prompt, or writes `* none`, has
//! observed nothing. Its lines must not replace messages. Called by [`super::read_answer`] only.

use std::collections::HashSet;
use std::sync::LazyLock;

use super::scan::{is_date, is_list_line};
use crate::memory::retention::{Feature, ItemReader};

/// What a model writes in a list to say that there is nothing to write.
const NOTHING: [&str; 10] = [
    "none",
    "n/a",
    "na",
    "nil",
    "null",
    "nothing",
    "empty",
    "ok",
    "okay",
    "no observations",
];

/// Items of the input from which on it is judged whether an answer speaks of it. Of a short greeting, an honest answer
/// may share no word.
const FEWEST_ITEMS: usize = 12;

/// What an answer must share with such an input: an item, or three words. A refusal shares one or two by chance.
const LEAST_SHARED: usize = 3;

/// The prompts that an answer may repeat. Their lines say nothing about a conversation.
const PROMPTS: [&str; 8] = [
    include_str!("../prompts/observer.md"),
    include_str!("../prompts/reflector.md"),
    include_str!("../prompts/rules.md"),
    include_str!("../prompts/format.md"),
    include_str!("../prompts/hints.md"),
    include_str!("../prompts/hints/task.md"),
    include_str!("../prompts/hints/response.md"),
    include_str!("../prompts/hints/title.md"),
];

/// A shorter line of a prompt may be said in a conversation too.
const SHORTEST_PROMPT_LINE: usize = 16;

/// Whether `line` is one of our prompts, word for word.
pub(super) fn is_prompt_line(line: &str) -> bool {
    static LINES: LazyLock<HashSet<&str>> = LazyLock::new(|| {
        let lines = PROMPTS.iter().flat_map(|prompt| prompt.lines());
        let is_own = |line: &&str| line.len() >= SHORTEST_PROMPT_LINE && !is_date(line);
        lines.map(str::trim).filter(is_own).collect()
    });
    LINES.contains(line.trim())
}

/// Whether the list lines of `text` say something, and something about `input`.
pub(super) fn has_substance(text: &str, input: &str) -> bool {
    let mut lines = text.lines().filter(|line| is_list_line(line));
    lines.any(says_something) && is_about(text, input)
}

/// Whether `line` says more than that there is nothing to say.
pub(super) fn says_something(line: &str) -> bool {
    let words = line.trim_matches(|c: char| !c.is_alphanumeric());
    !words.is_empty() && !NOTHING.contains(&words.to_lowercase().as_str())
}

/// A letter of a script that does not part words by spaces: Chinese, Japanese, Korean, Thai, Burmese, Khmer.
fn is_unparted(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{3040}'..)
        && c.is_alphanumeric()
}

/// Whether `text` shares words or items with `input`, or `input` is too short to tell.
fn is_about(text: &str, input: &str) -> bool {
    let reader = ItemReader::for_text(text);
    let lines = text.lines().filter(|line| is_list_line(line));
    let mut expected: HashSet<Feature> = lines
        .clone()
        .flat_map(|line| reader.features(line))
        .collect();
    let mut signs = sign_pairs(lines);
    let (mut shared, mut items) = (0, HashSet::new());
    for line in input.lines() {
        for feature in reader.features(line) {
            if expected.remove(&feature) {
                shared += if feature.is_item() { LEAST_SHARED } else { 1 };
            }
            if feature.is_item() && items.len() < FEWEST_ITEMS {
                items.insert(feature);
            }
        }
        let pairs = signs.len();
        signs.retain(|pair| !line.contains(pair.as_str()));
        shared += pairs - signs.len();
        if shared >= LEAST_SHARED {
            return true;
        }
    }
    items.len() < FEWEST_ITEMS
}

/// Pairs of neighbouring letters in scripts that do not part words by spaces.
fn sign_pairs<'a>(lines: impl Iterator<Item = &'a str>) -> HashSet<String> {
    /// Enough to tell; each is looked for in every line of the input.
    const MOST_PAIRS: usize = 200;
    let mut pairs = HashSet::new();
    for line in lines {
        let mut before = None;
        for c in line.chars() {
            if let Some(before) = before.filter(|before| is_unparted(*before) && is_unparted(c))
                && pairs.len() < MOST_PAIRS
            {
                pairs.insert(String::from_iter([before, c]));
            }
            before = Some(c);
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "Date: Mar 4, 2026\nUser (14:05): Book the hotel Miramar in Porto for 3 nights, 91 EUR.\nTool result: `src/book.rs:12` and `src/pay.rs:7`, invoice QX-77, room 204, https://example.com/a\nAssistant: Booked. Leonie and Ada get rooms 205 and 206; code ZZ-81 and 417 points.\nUser: 晩ご飯は七時にお願いします。\n";

    #[test]
    fn lines_about_something_else_are_no_observations() {
        for text in [
            "* 🔴 I'm sorry, but I can't assist with that.",
            "1. The history of it\n2. The format",
            "- Rephrase\n- Explain",
            "* N/A",
        ] {
            assert!(!has_substance(text, LONG), "{text}");
        }
    }

    #[test]
    fn lines_about_the_input_are_observations() {
        for text in [
            "* 🔴 (14:05) the hotel Miramar in Porto",
            "* invoice QX-77 was paid",
            "* User wants rooms booked in a hotel",
            "* 晩ご飯は七時を希望",
        ] {
            assert!(has_substance(text, LONG), "{text}");
        }
        // Too little to tell by.
        assert!(has_substance("* greeted the model", "User: hi\n"));
    }

    #[test]
    fn a_line_without_words_is_no_observation() {
        for text in ["* ok", "- -", "- ...", "- (none)", "* 🔴 (n/a)"] {
            assert!(!has_substance(text, ""), "{text}");
        }
        for text in ["* a", "* likes tea", "* 猫", "* nothing was booked"] {
            assert!(has_substance(text, ""), "{text}");
        }
    }

    #[test]
    fn the_lines_of_the_prompts_are_known() {
        assert!(is_prompt_line(
            "* 🟢 (09:16) Assistant mentioned that the log is kept for 14 days"
        ));
        assert!(is_prompt_line(
            "  * -> the staging log shows no error, so the job counts as successful"
        ));
        assert!(!is_prompt_line("Date: Mar 4, 2026"));
        assert!(!is_prompt_line("* 🔴 (09:12) User wants tea"));
    }
}
