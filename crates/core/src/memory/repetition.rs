//! Tells an answer that ran into a loop from an observation of a repetitive conversation.
//!
//! Two steps. *Does it repeat itself?* The published thresholds, and one of ours: lines that say
//! nothing new but a time or a count nobody gave. *Has it a right to?* What the input does itself is
//! no fault of the answer: an answer no longer than what it observes, that repeats itself no more
//! often than that does and speaks of the same things, is a faithful log of a build that failed forty
//! times in the same words. Called by [`super::output`] before anything else is read.

mod units;

use std::collections::HashSet;

use units::{Unit, units};

/// Shorter answers are never degenerate.
const MIN_CHARS: usize = 2_000;
/// Samples taken, their length in characters, and the percentage of repeated ones that is too much.
/// Five or fewer samples say nothing.
const SAMPLES: usize = 50;
const SAMPLE_CHARS: usize = 200;
const FEW_SAMPLES: usize = 5;
const MAX_REPEATED_PERCENT: usize = 40;
/// No honest line is longer.
const MAX_LINE_CHARS: usize = 50_000;
/// Lines that count for the third rule: at least this long, at least so many, more than this
/// percentage of them said before.
const LINE_CHARS: usize = 24;
const MIN_LINES: usize = 20;
const MAX_DUPLICATE_PERCENT: usize = 50;
/// An answer beyond this length that is also longer than what it observes condenses nothing. Ours.
const BLOATED_CHARS: usize = 20_000;
/// The percentage of its input that an answer may reach, in length and in repetitions: times and
/// marks that a log adds make it longer, a finding of its own for each event makes it repeat more.
/// Ours, measured with the logs and loops of the tests.
const MAX_PERCENT_OF_INPUT: usize = 125;
/// Of the words of repeated lines the percentage that the input must know. Ours.
const MIN_KNOWN_PERCENT: usize = 25;

/// Whether `output`, the answer to `input`, is the product of a loop.
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

/// The percentage of sampled stretches that occurred before in the text, wherever: a loop whose
/// length is no multiple of the sample's step is seen as well.
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

/// The percentage of long lines that stood before in the text, word for word.
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

/// Whether most units say nothing that was not said before but a time, or a number that the input
/// does not know: a counter that drifts.
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

/// How many units have a form that stood before: numbers aside, they say the same again.
fn repetitions(units: &[Unit]) -> usize {
    let forms: HashSet<&str> = units.iter().map(|unit| unit.form.as_str()).collect();
    units.len() - forms.len()
}

/// Whether the units that are repeated speak of what the input speaks of.
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
