//! Finds the messages that a line of observations comes from, by code and without a model.
//!
//! A line is compared with the messages of its chunk by shared items ([`super::retention`]) and words;
//! rarer ones count more. Without enough evidence, the line comes from the whole range. A line of a
//! reflection inherits the messages of the lines that it matches. The cost is linear in the texts.
//! Called by the jobs that write parts; `diarist threads show --why` follows the result back.

use foldhash::{HashMap, HashMapExt as _};
use serde_json::{Value, json};

use super::retention::{Feature, ItemReader};

/// A feature that more sources share does not distinguish between them.
const MAX_SHARED: usize = 8;

/// Weights. An item counts for several words; both are divided among the sources that share them.
const ITEM_WEIGHT: f64 = 4.0;
const WORD_WEIGHT: f64 = 1.0;

/// The least evidence that counts: two words that no other source has.
const MIN_SCORE: f64 = 2.0;

/// Messages `first` to `last`, both included, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageRange {
    /// The first message.
    pub first: usize,
    /// The last message.
    pub last: usize,
}

impl MessageRange {
    /// The smallest range that contains both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self {
            first: self.first.min(other.first),
            last: self.last.max(other.last),
        }
    }
}

/// For each line of a part's text, the messages it comes from; `None` for an empty line or a date.
/// Empty for a part of a version that did not store them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineSources(pub Vec<Option<MessageRange>>);

impl LineSources {
    /// The memory that they hold.
    pub fn bytes(&self) -> usize {
        self.0.len() * size_of::<Option<MessageRange>>()
    }

    /// The messages that line `index` (from 0) comes from, if they are known.
    pub fn for_line(&self, index: usize) -> Option<MessageRange> {
        self.0.get(index).copied().flatten()
    }

    /// The stored form: an array of [first, last] or null.
    pub fn to_json(&self) -> String {
        let lines = self
            .0
            .iter()
            .map(|line| line.map_or(Value::Null, |range| json!([range.first, range.last])));
        Value::Array(lines.collect()).to_string()
    }

    /// The inverse of [`LineSources::to_json`].
    pub fn from_json(json: &str) -> Option<Self> {
        let lines: Vec<Option<(usize, usize)>> = serde_json::from_str(json).ok()?;
        let range = |(first, last)| MessageRange { first, last };
        Some(Self(
            lines.into_iter().map(|line| line.map(range)).collect(),
        ))
    }
}

/// A text and the messages it comes from.
#[derive(Clone, Copy, Debug)]
pub struct SourceText<'a> {
    /// The text.
    pub text: &'a str,
    /// The messages.
    pub range: MessageRange,
}

/// The messages of a transcript ([`super::transcript::format_transcript`]). `places` has one entry for
/// each line that starts with a speaker; the result is empty if the numbers do not match.
pub fn source_messages<'a>(transcript: &'a str, places: &[usize]) -> Vec<SourceText<'a>> {
    let starts: Vec<usize> = line_starts(transcript)
        .filter(|at| starts_message(&transcript[*at..]))
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
        .map(|((start, end), place)| SourceText {
            text: &transcript[*start..end],
            range: MessageRange {
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

fn starts_message(line: &str) -> bool {
    // A line about a pause has no speaker either.
    !line.starts_with([' ', '\n', '[']) && !line.starts_with("Date:")
}

/// The lines of a part's text with their messages; `span` where these are unknown.
pub fn source_lines<'a>(
    text: &'a str,
    line_sources: &LineSources,
    span: MessageRange,
) -> Vec<SourceText<'a>> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| says_something(line))
        .map(|(index, text)| SourceText {
            text,
            range: line_sources.for_line(index).unwrap_or(span),
        })
        .collect()
}

/// Finds the messages of each line of `text` among `sources`, which cover `whole`.
pub fn attribute_lines(text: &str, sources: &[SourceText<'_>], whole: MessageRange) -> LineSources {
    let index = SourceIndex::new(text, sources);
    let mut line_sources = Vec::new();
    let mut parent = whole;
    let mut system: Option<MessageRange> = None;
    for line in text.lines() {
        if let Some(place) = system_message_place(line) {
            system = Some(MessageRange {
                first: place,
                last: place,
            });
        }
        let range = if let Some(place) = system {
            // Code copied this line word for word.
            Some(place)
        } else if says_something(line) {
            let detail = line.starts_with([' ', '\t']);
            let line_range = index.range_for_line(line);
            // A detail without evidence of its own comes from the messages of its
            // observation.
            let range = line_range.unwrap_or(if detail { parent } else { whole });
            if !detail {
                parent = range;
            }
            Some(range)
        } else {
            None
        };
        if line == super::system_messages::CLOSING_TAG {
            system = None;
        }
        line_sources.push(range);
    }
    LineSources(line_sources)
}

fn says_something(line: &str) -> bool {
    !line.trim().is_empty() && !line.starts_with("Date:")
}

fn system_message_place(line: &str) -> Option<usize> {
    super::system_messages::opening_place(line)
}

/// The sources by those features that the attributed text has too.
struct SourceIndex<'a> {
    reader: ItemReader,
    sources: &'a [SourceText<'a>],
    /// Lines that are a whole source.
    verbatim: HashMap<&'a str, MessageRange>,
    /// Features of the text and their sources; the list is one longer than [`MAX_SHARED`] if there are too
    /// many.
    postings: HashMap<Feature, Vec<usize>>,
}

impl<'a> SourceIndex<'a> {
    fn new(text: &str, sources: &'a [SourceText<'a>]) -> Self {
        let reader = ItemReader::for_text(text);
        let features = text.lines().flat_map(|line| reader.features(line));
        let mut postings: HashMap<Feature, Vec<usize>> =
            features.map(|feature| (feature, Vec::new())).collect();
        let mut verbatim = HashMap::new();
        for (at, source) in sources.iter().enumerate() {
            let mut lines = source.text.lines();
            if let (Some(line), None) = (lines.next(), lines.next()) {
                let range = verbatim.entry(line.trim()).or_insert(source.range);
                *range = range.union(source.range);
            }
            for line in source.text.lines() {
                for feature in reader.features(line) {
                    let Some(holders) = postings.get_mut(&feature) else {
                        continue;
                    };
                    if holders.last() != Some(&at) && holders.len() <= MAX_SHARED {
                        holders.push(at);
                    }
                }
            }
        }
        Self {
            reader,
            sources,
            verbatim,
            postings,
        }
    }

    fn range_for_line(&self, line: &str) -> Option<MessageRange> {
        if let Some(range) = self.verbatim.get(line.trim()) {
            return Some(*range);
        }
        let mut scores: HashMap<usize, f64> = HashMap::new();
        let mut features = self.reader.features(line);
        features.sort_unstable();
        features.dedup();
        for feature in features {
            let Some(holders) = self.postings.get(&feature) else {
                continue;
            };
            if holders.len() > MAX_SHARED {
                continue;
            }
            let weight = if feature.is_item() {
                ITEM_WEIGHT
            } else {
                WORD_WEIGHT
            };
            for index in holders {
                *scores.entry(*index).or_default() += weight / holders.len() as f64;
            }
        }
        let best = scores.values().copied().fold(0.0, f64::max);
        if best < MIN_SCORE {
            return None;
        }
        // A source with half of the best evidence had a part in the line.
        let sources = scores.iter().filter(|(_, score)| **score * 2.0 >= best);
        sources
            .map(|(index, _)| self.sources[*index].range)
            .reduce(MessageRange::union)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: MessageRange = MessageRange { first: 5, last: 12 };

    fn range(first: usize, last: usize) -> MessageRange {
        MessageRange { first, last }
    }

    const TRANSCRIPT: &str = "Date: Mar 4, 2026\nUser (14:05): Please book the hotel Miramar in Porto.\n  It must have parking.\nTool call search: {\"city\": \"Porto\"}\nTool result search: 3 hotels, cheapest 91 EUR\nAssistant: Booked for you.\n\nDate: Mar 5, 2026\nUser: My sister Leonie needs a vegetarian breakfast.\n";
    const PLACES: [usize; 5] = [5, 6, 7, 8, 9];

    fn ranges_of(text: &str) -> Vec<Option<MessageRange>> {
        attribute_lines(text, &source_messages(TRANSCRIPT, &PLACES), WHOLE).0
    }

    #[test]
    fn an_observation_line_is_attributed_to_the_messages_that_contain_it() {
        let text = "Date: Mar 4, 2026\n* 🔴 (14:05) User wants hotel Miramar, with parking\n  * -> cheapest was 91 EUR\n\n* 🟡 Leonie, the sister, eats vegetarian\n* 🟢 Assistant was polite\n  * -> indeed";
        assert_eq!(
            ranges_of(text),
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
        // A merged line comes from the messages of all lines that it merges.
        assert_eq!(
            ranges_of("* 🔴 Hotel Miramar with parking; Leonie needs vegetarian breakfast"),
            [Some(range(5, 9))]
        );
    }

    #[test]
    fn lines_without_known_sources_are_attributed_to_the_whole_range() {
        assert!(source_messages(TRANSCRIPT, &PLACES[1..]).is_empty());
        assert_eq!(
            attribute_lines("* x\n\n* Miramar", &[], WHOLE).0,
            [Some(WHOLE), None, Some(WHOLE)]
        );
        assert!(source_messages("", &[]).is_empty());
    }

    #[test]
    fn the_lines_of_a_system_message_are_attributed_to_its_place() {
        let text = "* 🟢 x\n<system-message n=\"8\">\nMiramar\nbe brief\n</system-message>\n* 🟢 y";
        let [at, whole] = [range(8, 8), WHOLE].map(Some);
        assert_eq!(ranges_of(text), [whole, at, at, at, at, whole]);
    }

    #[test]
    fn a_reflection_keeps_the_sources_of_its_lines() {
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
            sources.extend(source_lines(text, &LineSources(origins.clone()), WHOLE));
        }
        let reflected = "* 🔴 Miramar hotel in Porto; Leonie (sister) eats vegetarian\n* 🟡 Invoice QX-77 sent\n* 🟢 nothing of it";
        let origins = attribute_lines(reflected, &sources, WHOLE);
        assert_eq!(
            origins.0,
            [Some(range(5, 9)), Some(range(11, 11)), Some(WHOLE)]
        );
        // And through the next reflection.
        let again = attribute_lines(
            "* 🟡 QX-77 is the invoice",
            &source_lines(reflected, &origins, WHOLE),
            WHOLE,
        );
        assert_eq!(again.0, [Some(range(11, 11))]);
        // A part of an older version has no sources: its lines come from its whole range.
        let old = source_lines(chunks[0].0, &LineSources::default(), range(1, 4));
        assert!(old.iter().all(|line| line.range == range(1, 4)));
    }

    #[test]
    fn line_sources_are_unchanged_after_writing_and_reading_json() {
        let origins = LineSources(vec![None, Some(range(1, 3))]);
        assert_eq!(origins.to_json(), "[null,[1,3]]");
        assert_eq!(LineSources::from_json("[null,[1,3]]"), Some(origins));
        assert_eq!(LineSources::from_json("{}"), None);
    }

    #[test]
    fn a_long_log_of_equal_lines_is_attributed_to_the_whole_range() {
        // Every line shares everything with every other one. To compare them all would not end.
        let line = "* 🟡 the same words again 17 km from Porto\n";
        let text = line.repeat(8_000);
        let transcript = format!(
            "{}User: once\n",
            "User: the same words again 17 km from Porto, twice\n".repeat(8_000)
        );
        let places: Vec<usize> = (1..=8_001).collect();
        let origins = attribute_lines(&text, &source_messages(&transcript, &places), WHOLE);
        assert_eq!(origins.0.len(), 8_000);
        assert!(origins.0.iter().all(|origin| *origin == Some(WHOLE)));
    }
}
