//! Distinguishes an answer that ran into a loop from observations of a repetitive conversation.
//!
//! Two steps. First: does the answer repeat itself? The published thresholds decide, and one of ours:
//! lines with nothing new except a time or an invented count. Second: does its input repeat itself too?
//! An answer that is no longer than its input, repeats itself no more often and has the same subject is
//! a correct log, for example of a build that failed forty times in the same words. Called by
//! [`super::output`] before it reads anything else.

mod units;

use std::collections::HashSet;

use units::{Unit, units};

/// A shorter answer never counts as a loop.
const MIN_CHARS: usize = 2_000;
/// The number of samples, their length in characters, and the percentage of repeated ones above which
/// it is a loop. Five or fewer samples prove nothing.
const SAMPLES: usize = 50;
const SAMPLE_CHARS: usize = 200;
const FEW_SAMPLES: usize = 5;
const MAX_REPEATED_PERCENT: usize = 40;
/// No honest line is longer.
const MAX_LINE_CHARS: usize = 50_000;
/// Lines count for the third rule if they have at least this many characters. There must be this many,
/// and more than this percentage of them repeated.
const LINE_CHARS: usize = 24;
const MIN_LINES: usize = 20;
const MAX_DUPLICATE_PERCENT: usize = 50;
/// An answer of more characters that is also longer than its input condenses nothing. Our own number.
const BLOATED_CHARS: usize = 20_000;
/// The percentage of its input that an answer may reach, in length and in repetitions. The times and
/// marks of a log make it longer, and separate entries for similar events make it repeat more. Our own
/// number, measured with the logs and loops of the tests.
const MAX_PERCENT_OF_INPUT: usize = 125;
/// The least percentage of the words in repeated lines that the input must contain. Our own number.
const MIN_KNOWN_PERCENT: usize = 25;

/// Whether `output`, the answer to `input`, ran into a loop.
pub fn is_repetitive(output: &str, input: &str) -> bool {
    let length = output.chars().count();
    if length < MIN_CHARS {
        return false;
    }
    let too_long = |line: &str| line.chars().count() > MAX_LINE_CHARS;
    if output.lines().any(too_long) {
        return true;
    }
    let within = |output_size: usize, input_size: usize| {
        output_size * 100 <= input_size * MAX_PERCENT_OF_INPUT
    };
    let fits = within(length, input.chars().count());
    if length > BLOATED_CHARS && !fits {
        return true;
    }
    let output_units = units(output);
    if repeated_percent(output) <= MAX_REPEATED_PERCENT
        && duplicate_percent(output) <= MAX_DUPLICATE_PERCENT
        && !is_mostly_empty(&output_units, input)
    {
        return false;
    }
    let input_units = units(input);
    !(fits
        && within(repetitions(&output_units), repetitions(&input_units))
        && is_on_topic(&output_units, input))
}

/// The percentage of samples that occur earlier in the text, at any place. So a loop is found whatever
/// its length is.
fn repeated_percent(text: &str) -> usize {
    let (mut samples, mut repeats) = (0, 0);
    for index in 0..SAMPLES {
        let start = text.floor_char_boundary(text.len() * index / SAMPLES);
        let rest = &text[start..];
        let Some((end, _)) = rest.char_indices().nth(SAMPLE_CHARS) else {
            break;
        };
        samples += 1;
        let sample = &rest.as_bytes()[..end];
        if memchr::memmem::find(&text.as_bytes()[..start], sample).is_some() {
            repeats += 1;
        }
    }
    if samples <= FEW_SAMPLES {
        0
    } else {
        100 * repeats / samples
    }
}

/// The percentage of long lines that occur earlier in the text, word for word.
fn duplicate_percent(text: &str) -> usize {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| line.chars().count() >= LINE_CHARS)
        .collect();
    if lines.len() < MIN_LINES {
        return 0;
    }
    let distinct: HashSet<&str> = lines.iter().copied().collect();
    100 * (lines.len() - distinct.len()) / lines.len()
}

/// Whether most units only repeat earlier ones with another time, or with a number that the input does
/// not have (a counter that drifts).
fn is_mostly_empty(units: &[Unit], input: &str) -> bool {
    let input_numbers = units::numbers(input);
    let (mut forms, mut words) = (HashSet::new(), HashSet::new());
    let (mut long, mut empty) = (0, 0);
    for unit in units {
        if unit.words.chars().count() < LINE_CHARS {
            continue;
        }
        long += 1;
        let repeats_words = !words.insert(unit.words.as_str());
        let same_form = !forms.insert(unit.form.as_str());
        let drifts = || {
            let numbers = units::numbers(&unit.words);
            !numbers.is_subset(&input_numbers)
        };
        if repeats_words || same_form && drifts() {
            empty += 1;
        }
    }
    long >= MIN_LINES && empty * 100 > long * MAX_DUPLICATE_PERCENT
}

/// How many units have a form that occurred before: apart from numbers, they say the same.
fn repetitions(units: &[Unit]) -> usize {
    let forms: HashSet<&str> = units.iter().map(|unit| unit.form.as_str()).collect();
    units.len() - forms.len()
}

/// Whether the repeated units have the subject of the input.
fn is_on_topic(units: &[Unit], input: &str) -> bool {
    let mut forms = HashSet::new();
    let repeated_units = units
        .iter()
        .filter(|unit| !forms.insert(unit.form.as_str()));
    let words: HashSet<String> = repeated_units
        .flat_map(|unit| units::stems(&unit.words))
        .collect();
    if words.is_empty() {
        return true;
    }
    let input_stems: HashSet<String> = units::stems(input).collect();
    let known_count = words
        .iter()
        .filter(|word| input_stems.contains(*word))
        .count();
    known_count * 100 >= words.len() * MIN_KNOWN_PERCENT
}

#[cfg(test)]
mod tests;
