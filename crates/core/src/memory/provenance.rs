//! From which messages a line of observations comes, found by code and not asked of any model.
//!
//! A line is compared with the messages of its chunk by what they share: items ([`super::faithful`]) and
//! words, the rarer the heavier. Where nothing speaks for certain messages, the line comes from the
//! whole range. A line of a reflection inherits the messages of the lines that it matches. Cost is linear
//! in the texts. Called by the jobs that write parts; `diarist threads show --why` walks it back.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::faithful::{Feature, Reader};

/// A feature that more sources share tells none of them from the others.
const SHARED: usize = 8;

/// Weights: what an item says counts for several words, and both are divided among those who share them.
const ITEM: f64 = 4.0;
const WORD: f64 = 1.0;

/// The least evidence that says anything: two words that stand nowhere else.
const LEAST: f64 = 2.0;

/// Messages `first` to `last`, both included, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    /// The first message.
    pub first: usize,
    /// The last message.
    pub last: usize,
}

impl Range {
    /// The smallest range that holds both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            first: self.first.min(other.first),
            last: self.last.max(other.last),
        }
    }
}

/// For each line of a part's text the messages it comes from; `None` for a line that says nothing
/// (empty, a date). Empty for a part that was written before origins were kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(pub Vec<Option<Range>>);

impl Origins {
    /// The messages line `index` (from 0) comes from, as far as it is known.
    pub fn of(&self, index: usize) -> Option<Range> {
        self.0.get(index).copied().flatten()
    }

    /// As stored: an array of [first, last] or null.
    pub fn to_json(&self) -> String {
        let lines = self
            .0
            .iter()
            .map(|line| line.map_or(Value::Null, |range| json!([range.first, range.last])));
        Value::Array(lines.collect()).to_string()
    }

    /// The inverse of [`Origins::to_json`].
    pub fn from_json(json: &str) -> Option<Self> {
        let lines: Vec<Option<(usize, usize)>> = serde_json::from_str(json).ok()?;
        let range = |(first, last)| Range { first, last };
        Some(Self(
            lines.into_iter().map(|line| line.map(range)).collect(),
        ))
    }
}

/// A text and the messages it comes from.
#[derive(Clone, Copy, Debug)]
pub struct Sourced<'a> {
    /// What is said.
    pub text: &'a str,
    /// By which messages.
    pub range: Range,
}

/// The messages of a transcript ([`super::transcript::placed`]): `places` has one entry for each of its
/// lines that start with a speaker. Empty where the two do not fit together.
pub fn messages<'a>(transcript: &'a str, places: &[usize]) -> Vec<Sourced<'a>> {
    let starts: Vec<usize> = line_starts(transcript)
        .filter(|at| speaks(&transcript[*at..]))
        .collect();
    if starts.len() != places.len() {
        return Vec::new();
    }
    let ends = starts[1.min(starts.len())..]
        .iter()
        .copied()
        .chain([transcript.len()]);
    starts
        .iter()
        .zip(ends)
        .zip(places)
        .map(|((start, end), place)| Sourced {
            text: &transcript[*start..end],
            range: Range {
                first: *place,
                last: *place,
            },
        })
        .collect()
}

fn line_starts(text: &str) -> impl Iterator<Item = usize> {
    let breaks = memchr::memchr_iter(b'\n', text.as_bytes()).map(|at| at + 1);
    std::iter::once(0)
        .chain(breaks)
        .filter(|at| *at < text.len())
}

fn speaks(line: &str) -> bool {
    // A pause is nobody's either.
    !line.starts_with([' ', '\n', '[']) && !line.starts_with("Date:")
}

/// The lines of a part's text and the messages they come from; those of `span` where it is not known.
pub fn lines<'a>(text: &'a str, origins: &Origins, span: Range) -> Vec<Sourced<'a>> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| says_something(line))
        .map(|(index, text)| Sourced {
            text,
            range: origins.of(index).unwrap_or(span),
        })
        .collect()
}

/// Where each line of `text` comes from, of `sources`, which cover `whole`.
pub fn attribute(text: &str, sources: &[Sourced<'_>], whole: Range) -> Origins {
    let evidence = Evidence::of(text, sources);
    let mut origins = Vec::new();
    let mut parent = whole;
    let mut system: Option<Range> = None;
    for line in text.lines() {
        if let Some(place) = system_message(line) {
            system = Some(Range {
                first: place,
                last: place,
            });
        }
        let origin = if let Some(place) = system {
            // Copied by code, word for word.
            Some(place)
        } else if says_something(line) {
            let detail = line.starts_with([' ', '\t']);
            let found = evidence.of_line(line);
            // A detail that says nothing of its own comes from where its observation does.
            let range = found.unwrap_or(if detail { parent } else { whole });
            if !detail {
                parent = range;
            }
            Some(range)
        } else {
            None
        };
        if line == super::verbatim::CLOSE {
            system = None;
        }
        origins.push(origin);
    }
    Origins(origins)
}

fn says_something(line: &str) -> bool {
    !line.trim().is_empty() && !line.starts_with("Date:")
}

fn system_message(line: &str) -> Option<usize> {
    super::verbatim::opening(line)
}

/// Which sources say what.
struct Evidence<'a> {
    reader: Reader,
    sources: &'a [Sourced<'a>],
    /// Lines that stand in the sources as they are.
    verbatim: HashMap<&'a str, Range>,
    /// Features and the sources that have them; one too many where it is more than [`SHARED`].
    postings: HashMap<Feature, Vec<usize>>,
}

impl<'a> Evidence<'a> {
    fn of(text: &str, sources: &'a [Sourced<'a>]) -> Self {
        let mut evidence = Self {
            reader: Reader::of(text),
            sources,
            verbatim: HashMap::new(),
            postings: HashMap::new(),
        };
        for (index, source) in sources.iter().enumerate() {
            let mut lines = source.text.lines();
            if let (Some(line), None) = (lines.next(), lines.next()) {
                let known = evidence.verbatim.entry(line.trim()).or_insert(source.range);
                *known = known.with(source.range);
            }
            for line in source.text.lines() {
                for feature in evidence.reader.features(line) {
                    let having = evidence.postings.entry(feature).or_default();
                    if having.last() != Some(&index) && having.len() <= SHARED {
                        having.push(index);
                    }
                }
            }
        }
        evidence
    }

    fn of_line(&self, line: &str) -> Option<Range> {
        if let Some(range) = self.verbatim.get(line.trim()) {
            return Some(*range);
        }
        let mut scores: HashMap<usize, f64> = HashMap::new();
        let mut features = self.reader.features(line);
        features.sort_unstable();
        features.dedup();
        for feature in features {
            let Some(having) = self.postings.get(&feature) else {
                continue;
            };
            if having.len() > SHARED {
                continue;
            }
            let weight = if feature.is_item() { ITEM } else { WORD };
            for index in having {
                *scores.entry(*index).or_default() += weight / having.len() as f64;
            }
        }
        let best = scores.values().copied().fold(0.0, f64::max);
        if best < LEAST {
            return None;
        }
        // What has half of the best evidence had its share in the line.
        let sources = scores.iter().filter(|(_, score)| **score * 2.0 >= best);
        sources
            .map(|(index, _)| self.sources[*index].range)
            .reduce(Range::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Range = Range { first: 5, last: 12 };

    fn range(first: usize, last: usize) -> Range {
        Range { first, last }
    }

    const TRANSCRIPT: &str = "Date: Mar 4, 2026\nUser (14:05): Please book the hotel Miramar in Porto.\n  It must have parking.\nTool call search: {\"city\": \"Porto\"}\nTool result search: 3 hotels, cheapest 91 EUR\nAssistant: Booked for you.\n\nDate: Mar 5, 2026\nUser: My sister Leonie needs a vegetarian breakfast.\n";
    const PLACES: [usize; 5] = [5, 6, 7, 8, 9];

    fn of(text: &str) -> Vec<Option<Range>> {
        attribute(text, &messages(TRANSCRIPT, &PLACES), WHOLE).0
    }

    #[test]
    fn a_line_comes_from_the_messages_that_say_it() {
        let text = "Date: Mar 4, 2026\n* 🔴 (14:05) User wants hotel Miramar, with parking\n  * -> cheapest was 91 EUR\n\n* 🟡 Leonie, the sister, eats vegetarian\n* 🟢 Assistant was polite\n  * -> indeed";
        assert_eq!(
            of(text),
            [
                None,
                Some(range(5, 5)),
                Some(range(7, 7)),
                None,
                Some(range(9, 9)),
                Some(WHOLE),
                Some(WHOLE)
            ]
        );
        // A merged line comes from all that it merges.
        assert_eq!(
            of("* 🔴 Hotel Miramar with parking; Leonie needs vegetarian breakfast"),
            [Some(range(5, 9))]
        );
    }

    #[test]
    fn what_does_not_fit_together_is_the_whole_range() {
        assert!(messages(TRANSCRIPT, &PLACES[1..]).is_empty());
        assert_eq!(
            attribute("* x\n\n* Miramar", &[], WHOLE).0,
            [Some(WHOLE), None, Some(WHOLE)]
        );
        assert!(messages("", &[]).is_empty());
    }

    #[test]
    fn a_system_message_is_at_its_place() {
        let text = "* 🟢 x\n<system-message n=\"8\">\nMiramar\nbe brief\n</system-message>\n* 🟢 y";
        let [at, whole] = [range(8, 8), WHOLE].map(Some);
        assert_eq!(of(text), [whole, at, at, at, at, whole]);
    }

    #[test]
    fn origins_pass_through_reflections() {
        let chunks = [
            (
                "* 🔴 User wants hotel Miramar in Porto\n* 🟢 small talk about rain",
                vec![Some(range(5, 5)), Some(range(6, 8))],
            ),
            (
                "* 🔴 Sister Leonie eats vegetarian\n* 🟡 Invoice QX-77 sent",
                vec![Some(range(9, 9)), Some(range(11, 11))],
            ),
        ];
        let mut sources = Vec::new();
        for (text, origins) in &chunks {
            sources.extend(lines(text, &Origins(origins.clone()), WHOLE));
        }
        let reflected = "* 🔴 Miramar hotel in Porto; Leonie (sister) eats vegetarian\n* 🟡 Invoice QX-77 sent\n* 🟢 nothing of it";
        let origins = attribute(reflected, &sources, WHOLE);
        assert_eq!(
            origins.0,
            [Some(range(5, 9)), Some(range(11, 11)), Some(WHOLE)]
        );
        // And through the next one.
        let again = attribute(
            "* 🟡 QX-77 is the invoice",
            &lines(reflected, &origins, WHOLE),
            WHOLE,
        );
        assert_eq!(again.0, [Some(range(11, 11))]);
        // A part of an older version has no origins: its lines come from all of it.
        let old = lines(chunks[0].0, &Origins::default(), range(1, 4));
        assert!(old.iter().all(|line| line.range == range(1, 4)));
    }

    #[test]
    fn origins_survive_the_store() {
        let origins = Origins(vec![None, Some(range(1, 3))]);
        assert_eq!(origins.to_json(), "[null,[1,3]]");
        assert_eq!(Origins::from_json("[null,[1,3]]"), Some(origins));
        assert_eq!(Origins::from_json("{}"), None);
    }

    #[test]
    fn a_long_log_of_one_word_is_no_trouble() {
        // Each line shares everything with each other one; if all were compared, this would not end.
        let line = "* 🟡 the same words again 17 km from Porto\n";
        let text = line.repeat(8_000);
        let transcript = format!(
            "{}User: once\n",
            "User: the same words again 17 km from Porto, twice\n".repeat(8_000)
        );
        let places: Vec<usize> = (1..=8_001).collect();
        let origins = attribute(&text, &messages(&transcript, &places), WHOLE);
        assert_eq!(origins.0.len(), 8_000);
        assert!(origins.0.iter().all(|origin| *origin == Some(WHOLE)));
    }
}
