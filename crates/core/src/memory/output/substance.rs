//! Tells observations from an answer that only looks like them.
//!
//! A model that refuses in the form of a list, asks back, repeats the example of its prompt, or writes `* none`, has
//! observed nothing. Its lines must not replace messages. An honest answer may be short, in another language, or in words of
//! its own, so only what is clear is refused. Called by [`super::read_answer`] only.

use std::collections::HashSet;
use std::sync::LazyLock;

use super::scan::{is_date, is_list_line};
use crate::memory::retention::{Feature, ItemReader};

/// What a model writes in a list to say that there is nothing to write.
const NOTHING: [&str; 9] = [
    "none", "n/a", "na", "nil", "null", "nothing", "empty", "ok", "okay",
];
/// How such a line may begin, if it is short.
const NOTHING_STARTS: [&str; 6] = [
    "no observation",
    "no new observation",
    "nothing to observe",
    "nothing to note",
    "nothing to record",
    "nothing new",
];
const SHORT_LINE: usize = 34;

/// How a model begins that refuses. An observation speaks of the user and of the assistant, never of itself.
const REFUSALS: [&str; 10] = [
    "i'm sorry",
    "i’m sorry",
    "i am sorry",
    "i cannot ",
    "i can't ",
    "i can’t ",
    "as an ai model",
    "as an ai language model",
    "as an ai assistant",
    "as an ai,",
];

/// More list lines than these are no refusal, and nothing that is said by the way.
const MOST_LINES: usize = 2;
/// Items of the input from which on it is judged whether so short an answer speaks of it. Of a short greeting, an honest
/// answer may share no word.
const FEWEST_ITEMS: usize = 12;

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
    let lines = text.lines().filter(|line| is_list_line(line));
    let lines: Vec<&str> = lines.filter(|line| says_something(line)).collect();
    match lines.len() {
        0 => false,
        1..=MOST_LINES => {
            !lines.iter().all(|line| refuses(line)) && !is_about_something_else(&lines, text, input)
        }
        _ => true,
    }
}

/// Whether `line` says more than a day, or that there is nothing to say.
pub(super) fn says_something(line: &str) -> bool {
    let words = words_of(line);
    let says_nothing = NOTHING.contains(&words.as_str())
        || (words.len() <= SHORT_LINE
            && NOTHING_STARTS.iter().any(|start| words.starts_with(start)));
    let has_words = !words.is_empty() || line.chars().any(char::is_numeric);
    has_words && !says_nothing && !is_date(line)
}

/// Whether `line` refuses in its own words. What a user said stands in quotes.
fn refuses(line: &str) -> bool {
    let words = words_of(line);
    let is_quoted = line.contains(['"', '“', '„', '«', '`']);
    !is_quoted && REFUSALS.iter().any(|start| words.starts_with(start))
}

/// The words of a line of a list in lower case, without marks and time around them.
fn words_of(line: &str) -> String {
    let words = line.trim_start_matches(|c: char| !c.is_alphabetic());
    words
        .trim_end_matches(|c: char| !c.is_alphanumeric())
        .to_lowercase()
}

/// Whether the few `lines` of `text` share no word and no item with an `input` that has many items. Where they are written in
/// different scripts, nothing is known: an Observer may write in another language than the conversation.
fn is_about_something_else(lines: &[&str], text: &str, input: &str) -> bool {
    if is_latin(text) != is_latin(input) {
        return false;
    }
    let reader = ItemReader::for_text(text);
    let own_features: HashSet<Feature> = lines
        .iter()
        .flat_map(|line| reader.features(line))
        .collect();
    let signs = sign_pairs(lines);
    let mut items = HashSet::new();
    for line in input.lines().filter(|line| !is_date(line)) {
        // Who speaks, and when, is no item.
        let line = line.split_once("): ").map_or(line, |(_, text)| text);
        for feature in reader.features(line) {
            if own_features.contains(&feature) {
                return false;
            }
            if feature.is_item() && items.len() < FEWEST_ITEMS {
                items.insert(feature);
            }
        }
        if signs.iter().any(|pair| line.contains(pair)) {
            return false;
        }
    }
    items.len() >= FEWEST_ITEMS
}

/// Whether most letters of the beginning of `text` are Latin.
fn is_latin(text: &str) -> bool {
    let letters = text.chars().filter(|c| c.is_alphabetic()).take(2_000);
    let (latin, all) = letters.fold((0, 0), |(latin, all), c| {
        (latin + usize::from(c < '\u{250}'), all + 1)
    });
    2 * latin >= all
}

/// A letter of a script that does not part words by spaces: Chinese, Japanese, Korean, Thai, Burmese, Khmer.
fn is_unparted(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{3040}'..)
        && c.is_alphanumeric()
}

/// Pairs of neighbouring letters in such scripts.
fn sign_pairs(lines: &[&str]) -> HashSet<String> {
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

    const LONG: &str = "Date: Mar 4, 2026\nUser (14:05): Book the hotel Miramar in Porto for 3 nights, 91 EUR.\nTool result: `src/book.rs:12` and `src/pay.rs:7`, invoice QX-77, room 204, https://example.com/a\nAssistant: Booked. Leonie and Ada get rooms 205 and 206; code ZZ-81 and 417 points.\n";

    #[test]
    fn lines_about_something_else_are_no_observations() {
        for text in [
            "* 🔴 What would they like to hear?",
            "1. The history of it\n2. The format",
            "- Rephrase\n- Explain",
            "* N/A",
        ] {
            assert!(!has_substance(text, LONG), "{text}");
        }
        for refusal in [
            "* 🔴 I'm sorry, but I can't assist with that.",
            "- (14:05) As an AI model I cannot",
        ] {
            assert!(!has_substance(refusal, "User: hi\n"), "{refusal}");
        }
    }

    #[test]
    fn lines_about_the_input_are_observations() {
        for text in [
            "* 🔴 (14:05) the hotel",
            "* invoice QX-77 was paid",
            "* a\n* b\n* c",
            // In another script.
            "* 🔴 (14:05) Пользователь хочет поехать",
            "* 晩ご飯は七時を希望",
        ] {
            assert!(has_substance(text, LONG), "{text}");
        }
        // Too little to tell by: the times of messages are no items. What stands in quotes was said by the user.
        let quoted = "* 🔴 (14:05) \"I can't log in\": User's words";
        assert!(has_substance(quoted, "User: hi\n"));
        assert!(has_substance("* greeted the model", "User: hi\n"));
        let chat: String = (10..30)
            .map(|minute| format!("User (14:{minute}): try tea\n"))
            .collect();
        assert!(has_substance("* User has insomnia", &chat));
        let russian = "User (14:05): Мы поссорились с сестрой из-за 417 рублей, 12 марта, дом 7 и 8 и 9 и 10 и 11 и 13 и 14 и 15 и 16\n";
        assert!(has_substance("* User quarrelled with her sister", russian));
    }

    #[test]
    fn a_line_without_words_is_no_observation() {
        for text in [
            "* ok",
            "- -",
            "- ...",
            "- (none)",
            "* 🔴 (n/a)",
            "* No new observations.",
            "* 🟢 (14:05) Nothing to note",
        ] {
            assert!(!has_substance(text, ""), "{text}");
        }
        for text in [
            "* a",
            "* likes tea",
            "* 猫",
            "* nothing was booked",
            "* none of the tests passed",
            "* 4711",
            "* As an Airbnb host, User charges 91 EUR",
        ] {
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
