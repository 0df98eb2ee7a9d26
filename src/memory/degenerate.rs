//! Tells an answer that ran into a loop from an observation of a repetitive conversation.
//!
//! The thresholds are the published ones; two things are added. A stretch counts as repeated when
//! it occurs anywhere before, not only at the same step of the sample (a loop of odd length escapes
//! otherwise). And what the input does itself is no fault of the answer, as long as the answer is
//! the shorter of the two: a faithful log of a build that failed forty times in the same words is
//! no loop. Called by [`super::output`] before anything else is read.

use std::collections::HashSet;

/// Shorter answers are never degenerate.
const LEAST: usize = 2_000;
/// Samples taken, their length in characters, and the percentage of repeated ones that is too much.
const SAMPLES: usize = 50;
const SAMPLE_CHARS: usize = 200;
const REPEATED: usize = 40;
/// No honest line is longer.
const LONGEST_LINE: usize = 50_000;
/// Lines that count for the third rule: at least this long, at least so many, more than this
/// percentage of them said before.
const LINE_CHARS: usize = 24;
const LINES: usize = 20;
const DUPLICATES: usize = 50;
/// An answer beyond this length that is also longer than what it observes condenses nothing. Ours.
const BLOATED: usize = 20_000;

/// Whether `output`, the answer to `input`, is the product of a loop.
pub fn is_degenerate(output: &str, input: &str) -> bool {
    let (length, asked) = (output.chars().count(), input.chars().count());
    if length < LEAST {
        return false;
    }
    if output
        .lines()
        .any(|line| line.chars().count() > LONGEST_LINE)
        || (length > BLOATED && length > asked)
    {
        return true;
    }
    let loops = |text: &str| repeated(text) > REPEATED || duplicates(text) > DUPLICATES;
    loops(output) && !(length <= asked && loops(input))
}

/// The percentage of sampled stretches that occurred before in the text.
fn repeated(text: &str) -> usize {
    let (mut samples, mut seen) = (0, 0);
    for index in 0..SAMPLES {
        let start = text.floor_char_boundary(text.len() * index / SAMPLES);
        let rest = &text[start..];
        let Some((end, _)) = rest.char_indices().nth(SAMPLE_CHARS) else {
            break;
        };
        samples += 1;
        let sample = &rest.as_bytes()[..end];
        if memchr::memmem::find(&text.as_bytes()[..start], sample).is_some() {
            seen += 1;
        }
    }
    // Five or fewer say nothing.
    if samples <= 5 {
        0
    } else {
        100 * seen / samples
    }
}

/// The percentage of long lines that stood before in the text, word for word.
fn duplicates(text: &str) -> usize {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| line.chars().count() >= LINE_CHARS)
        .collect();
    if lines.len() < LINES {
        return 0;
    }
    let distinct: HashSet<&str> = lines.iter().copied().collect();
    100 * (lines.len() - distinct.len()) / lines.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn honest(lines: usize) -> String {
        (0..lines)
            .map(|n| {
                format!(
                    "* 🟡 (10:{:02}) Step {n}: file {} gave {}\n",
                    n % 60,
                    n * 7,
                    n * n * 13
                )
            })
            .collect()
    }

    #[test]
    fn honest_logs_pass() {
        let input = honest(4_000);
        for lines in [0, 10, 100, 1_000] {
            assert!(!is_degenerate(&honest(lines), &input));
        }
        let quiet = format!(
            "{}{}",
            honest(60),
            "* 🟢 (11:00) still waiting for it\n".repeat(20)
        );
        assert!(!is_degenerate(&quiet, &input));
    }

    #[test]
    fn loops_of_any_length_are_seen() {
        let input = honest(4_000);
        for period in [
            "a",
            "go on. ",
            "漢字👍",
            &honest(3),
            &honest(12),
            &honest(40),
        ] {
            let looped = period.repeat(12_000 / period.chars().count() + 4);
            assert!(is_degenerate(&looped, &input), "{period:.20}");
        }
        let late = format!(
            "{}{}",
            honest(20),
            "* 🟢 the same line again and again\n".repeat(60)
        );
        assert!(is_degenerate(&late, &input));
    }

    #[test]
    fn one_line_between_others_again_and_again_is_seen() {
        let nagging: String = (0..100)
            .map(|n| format!("* 🟢 waiting for the user to answer\n* 🟢 {}\n", n * 7_919))
            .collect();
        assert_eq!(repeated(&nagging), 0);
        assert!(is_degenerate(&nagging, &honest(4_000)));
    }

    #[test]
    fn short_text_is_never_degenerate() {
        assert!(!is_degenerate(&"a".repeat(1_999), ""));
        assert!(is_degenerate(&"a".repeat(2_001), ""));
    }

    #[test]
    fn a_line_without_end_is() {
        let words: String = (0..12_000).map(|n| format!("{n} ")).collect();
        assert!(is_degenerate(&words, &words.repeat(2)));
    }

    #[test]
    fn an_input_that_repeats_excuses_only_a_shorter_answer() {
        let input = "Tool result build: error: linker failed with code 1\n".repeat(300);
        let faithful = "* 🟡 Build failed: linker failed with code 1\n".repeat(100);
        assert!(!is_degenerate(&faithful, &input));
        assert!(is_degenerate(&faithful.repeat(6), &input));
        assert!(is_degenerate(&faithful, &honest(1_000)));
    }

    #[test]
    fn longer_than_what_it_observes_is_no_observation() {
        assert!(is_degenerate(&honest(1_000), "User (10:00): hi"));
    }
}
