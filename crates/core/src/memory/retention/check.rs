//! Looks for the items of one text in another and counts what is missing.
//!
//! Two kinds of source: a log, and a transcript. Decides what counts as found; the jobs decide what
//! follows from a loss.

use std::borrow::Cow;

use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};

use super::ambiguous_names::{AmbiguousNames, NameMatch};
use super::items::{Item, ItemReader};
use super::line_marks::split_marks;
use super::spelling::{is_common, pair_hash, stem, words};
use super::{ItemKind, Retention};

/// A text and its items, which should be retained.
#[derive(Debug)]
pub struct RetentionSource {
    reader: ItemReader,
    items: Vec<SourceItem>,
    /// Whether it is a transcript: then items without high priority are what others than the user
    /// said.
    is_transcript: bool,
}

#[derive(Debug)]
struct SourceItem {
    item: Item,
    /// Whether the item must not be lost.
    high: bool,
    /// The line that the item stands in, from 0; if it is said several times, the last line of high
    /// priority.
    line: usize,
}

/// An item that was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostItem {
    /// What it is.
    pub kind: ItemKind,
    /// The text as written.
    pub text: String,
    /// Whether it should not have been lost.
    pub high: bool,
    /// The line of the source that it stood in, from 0.
    pub line: usize,
}

/// What a text retained of a [`RetentionSource`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionReport {
    /// Retained and total, by kind.
    pub retention: Retention,
    /// The lost items, in the order of the source.
    pub lost: Vec<LostItem>,
}

impl RetentionReport {
    /// The lines of the source that lost an item of high priority.
    pub fn damaged_lines(&self) -> impl Iterator<Item = usize> {
        self.lost
            .iter()
            .filter(|lost| lost.high)
            .map(|lost| lost.line)
    }
}

impl RetentionSource {
    /// Reads a log of observations. Items in a line marked high or done must not be lost.
    pub fn from_log(log: &str) -> Self {
        let mut source = Self::empty(log);
        for (index, line) in log.lines().enumerate() {
            let (marks, text) = split_marks(line);
            let mut items = source.reader.items(line);
            if marks.done && !words(text).is_empty() {
                items.push(Item::done(text));
            }
            source.add_items(items, marks.high || marks.done, index);
        }
        source
    }

    /// Reads a transcript. What its user says must not be lost. What assistants and tools say is
    /// counted apart, because an Observer leaves most of it out on purpose.
    pub fn from_transcript(transcript: &str) -> Self {
        let mut source = Self {
            is_transcript: true,
            ..Self::empty(transcript)
        };
        // Whether the user says the current line; `None` for lines of the transcript itself.
        let mut by_user = None;
        for (index, line) in transcript.lines().enumerate() {
            let mut text = line;
            // Further lines of a message are indented.
            if !line.is_empty() && !line.starts_with(' ') {
                let non_user = line.starts_with("Assistant") || line.starts_with("Tool");
                by_user = (non_user || line.starts_with("User")).then_some(!non_user);
                text = line.split_once(": ").map_or(line, |(_, text)| text);
            }
            if let Some(is_user) = by_user {
                let items = source.reader.items(text);
                source.add_items(items, is_user, index);
            }
        }
        source
    }

    fn empty(text: &str) -> Self {
        Self {
            reader: ItemReader::for_text(text),
            items: Vec::new(),
            is_transcript: false,
        }
    }

    fn add_items(&mut self, items: Vec<Item>, high: bool, line: usize) {
        self.items.extend(
            items
                .into_iter()
                .map(|item| SourceItem { item, high, line }),
        );
    }

    /// Each item once, however often it is said.
    fn distinct(&self, ambiguous_names: &AmbiguousNames) -> Vec<&SourceItem> {
        let mut at: HashMap<(ItemKind, Cow<'_, str>), usize> = HashMap::new();
        let mut distinct: Vec<&SourceItem> = Vec::new();
        for source_item in &self.items {
            let identity = match ambiguous_names.match_for(&source_item.item) {
                NameMatch::AnyKey => Cow::Borrowed(source_item.item.key()),
                NameMatch::OneOf(_) | NameMatch::AllWords(_) => {
                    Cow::Owned(words(&source_item.item.text).join(" "))
                }
            };
            let identity = (source_item.item.kind, identity);
            match at.get(&identity) {
                Some(index) if source_item.high || !distinct[*index].high => {
                    distinct[*index] = source_item;
                }
                Some(_) => {}
                None => {
                    at.insert(identity, distinct.len());
                    distinct.push(source_item);
                }
            }
        }
        distinct
    }

    /// What `text` retained.
    pub fn check(&self, text: &str) -> RetentionReport {
        let index = TextIndex::new(text, &self.reader);
        let mut report = RetentionReport::default();
        let ambiguous_names =
            AmbiguousNames::from_items(self.items.iter().map(|found| &found.item));
        for source_item in self.distinct(&ambiguous_names) {
            let is_retained = match ambiguous_names.match_for(&source_item.item) {
                NameMatch::AnyKey => index.has_item(&source_item.item),
                NameMatch::OneOf(keys) => keys.iter().any(|key| index.has_name(key)),
                NameMatch::AllWords(words) => index.has_phrase(&words),
            };
            let is_non_user = self.is_transcript && !source_item.high;
            if is_non_user {
                report
                    .retention
                    .add_non_user(source_item.item.kind, is_retained);
            } else {
                report
                    .retention
                    .add(source_item.item.kind, source_item.high, is_retained);
            }
            if !is_retained {
                report.lost.push(LostItem {
                    kind: source_item.item.kind,
                    text: source_item.item.text.clone(),
                    high: source_item.high,
                    line: source_item.line,
                });
            }
        }
        report
    }
}

impl Item {
    /// The item for a line marked as done; `text` is without its marks.
    fn done(text: &str) -> Self {
        Self {
            kind: ItemKind::Done,
            text: text.to_owned(),
            match_keys: vec![format!("✅{}", distinctive_words(text).join(" "))],
            index_keys: Some(Vec::new()),
        }
    }
}

/// The stems of the words that distinguish a line from others.
fn distinctive_words(text: &str) -> Vec<String> {
    let words = words(text);
    let distinctive: Vec<String> = words
        .iter()
        .filter(|word| !is_common(word))
        .map(|word| stem(word).to_owned())
        .collect();
    if distinctive.is_empty() {
        words.into_iter().map(Cow::into_owned).collect()
    } else {
        distinctive
    }
}

/// Everything that a text can be searched for.
pub(super) struct TextIndex {
    marks: HashSet<String>,
    words: HashSet<String>,
    pairs: HashSet<u64>,
    done: HashSet<String>,
}

impl TextIndex {
    pub(super) fn new(text: &str, reader: &ItemReader) -> Self {
        let mut index = Self {
            marks: HashSet::new(),
            words: HashSet::new(),
            pairs: HashSet::new(),
            done: HashSet::new(),
        };
        for line in text.lines() {
            index.marks.extend(reader.index_keys(line));
            let (marks, text) = split_marks(line);
            if marks.done {
                index.done.extend(distinctive_words(text));
            }
            let words = words(text);
            index
                .pairs
                .extend(words.windows(2).map(|two| pair_hash(&two[0], &two[1])));
            for word in words {
                if let Some(digit) = super::numbers::number_word(&word) {
                    index
                        .marks
                        .extend([format!("n:{digit}"), format!("n:{digit}|")]);
                }
                index.words.insert(word.into_owned());
            }
        }
        index
    }

    /// Whether a name with this key occurs.
    fn has_name(&self, key: &str) -> bool {
        let word = key.strip_prefix("w:").unwrap_or(key);
        self.words.contains(word) || self.marks.contains(key)
    }

    /// Whether these words occur in a row.
    pub(super) fn has_phrase<T: AsRef<str>>(&self, words: &[T]) -> bool {
        match words {
            [word] => self.words.contains(word.as_ref()),
            words => words.windows(2).all(|two| {
                self.pairs
                    .contains(&pair_hash(two[0].as_ref(), two[1].as_ref()))
            }),
        }
    }

    pub(super) fn has_item(&self, item: &Item) -> bool {
        match item.kind {
            ItemKind::Name => item.match_keys.iter().any(|key| self.has_name(key)),
            ItemKind::Quote => {
                let words: Vec<&str> = item.key()["q:".len()..].split(' ').collect();
                self.has_phrase(&words)
            }
            ItemKind::Done => {
                let words: HashSet<&str> = item.key()["✅".len()..].split(' ').collect();
                let retained = words
                    .iter()
                    .filter(|word| self.done.contains(**word))
                    .count();
                retained * 2 >= words.len() && retained > 0
            }
            // One identifier may have become part of a sentence: `Foo_bar` -> "foo bar".
            _ => item.match_keys.iter().any(|key| self.marks.contains(key)),
        }
    }
}

/// What observations retained of their transcript.
pub fn check_observations(transcript: &str, observations: &str) -> RetentionReport {
    RetentionSource::from_transcript(transcript).check(observations)
}

/// What a shorter log retained of a longer one.
pub fn check_reflection(log: &str, shorter: &str) -> RetentionReport {
    RetentionSource::from_log(log).check(shorter)
}
