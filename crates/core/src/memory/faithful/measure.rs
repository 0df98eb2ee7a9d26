//! Looks for the items of one text in another.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::beginning::strip;
use super::items::{Item, Reader};
use super::namesakes::{Known, Namesakes};
use super::spelling::{is_common, pair, stem, words};
use super::{Kind, Retention};

/// What a text holds that should not be lost.
#[derive(Debug)]
pub struct Source {
    reader: Reader,
    found: Vec<Found>,
    /// Whether what is not of high priority is what others than the user said.
    spoken: bool,
}

#[derive(Debug)]
struct Found {
    item: Item,
    /// Stands in a line that must not lose it.
    high: bool,
    /// The line it stands in, from 0; the last one of high priority, if there is one.
    line: usize,
}

/// Something that was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// What it is.
    pub kind: Kind,
    /// As it was written.
    pub text: String,
    /// Whether it must not be lost.
    pub high: bool,
    /// The line of the source it stood in, from 0.
    pub line: usize,
}

/// What a text kept of a [`Source`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Kept and total, by kind.
    pub retention: Retention,
    /// What was lost, in the order of the source.
    pub missing: Vec<Missing>,
}

impl Report {
    /// The lines of the source that lost something they must not lose.
    pub fn hurt(&self) -> impl Iterator<Item = usize> {
        self.missing
            .iter()
            .filter(|lost| lost.high)
            .map(|lost| lost.line)
    }
}

impl Source {
    /// A log of observations: what stands in a line marked high, or done, must not be lost.
    pub fn of_log(log: &str) -> Self {
        let mut source = Self::empty(log);
        for (index, line) in log.lines().enumerate() {
            let (marks, said) = strip(line);
            let mut items = source.reader.items(line);
            if marks.done && !words(said).is_empty() {
                items.push(Item::done(said));
            }
            source.take(items, marks.high || marks.done, index);
        }
        source
    }

    /// A transcript: what its user says must not be lost. What assistants and tools say is counted apart,
    /// since whoever observes leaves most of it out on purpose.
    pub fn of_transcript(transcript: &str) -> Self {
        let mut source = Self {
            spoken: true,
            ..Self::empty(transcript)
        };
        // Whether the user says it; nobody, where it is a line of the transcript's own.
        let mut says = None;
        for (index, line) in transcript.lines().enumerate() {
            let mut said = line;
            // Further lines of a message are indented.
            if !line.is_empty() && !line.starts_with(' ') {
                let others = line.starts_with("Assistant") || line.starts_with("Tool");
                says = (others || line.starts_with("User")).then_some(!others);
                said = line.split_once(": ").map_or(line, |(_, said)| said);
            }
            if let Some(user) = says {
                let items = source.reader.items(said);
                source.take(items, user, index);
            }
        }
        source
    }

    fn empty(text: &str) -> Self {
        Self {
            reader: Reader::of(text),
            found: Vec::new(),
            spoken: false,
        }
    }

    fn take(&mut self, items: Vec<Item>, high: bool, line: usize) {
        self.found
            .extend(items.into_iter().map(|item| Found { item, high, line }));
    }

    /// Each item once, however often it is said.
    fn distinct(&self, namesakes: &Namesakes) -> Vec<&Found> {
        let mut at: HashMap<(Kind, Cow<'_, str>), usize> = HashMap::new();
        let mut distinct: Vec<&Found> = Vec::new();
        for found in &self.found {
            let identity = match namesakes.known(&found.item) {
                Known::ByAny => Cow::Borrowed(found.item.key()),
                Known::By(_) | Known::ByAll(_) => Cow::Owned(words(&found.item.text).join(" ")),
            };
            let identity = (found.item.kind, identity);
            match at.get(&identity) {
                Some(index) if found.high || !distinct[*index].high => distinct[*index] = found,
                Some(_) => {}
                None => {
                    at.insert(identity, distinct.len());
                    distinct.push(found);
                }
            }
        }
        distinct
    }

    /// What `text` kept.
    pub fn check(&self, text: &str) -> Report {
        let index = Index::of(text, &self.reader);
        let mut report = Report::default();
        let namesakes = Namesakes::of(self.found.iter().map(|found| &found.item));
        for found in self.distinct(&namesakes) {
            let kept = match namesakes.known(&found.item) {
                Known::ByAny => index.holds(&found.item),
                Known::By(keys) => keys.iter().any(|key| index.names(key)),
                Known::ByAll(words) => index.says(&words),
            };
            let by_others = self.spoken && !found.high;
            if by_others {
                report.retention.add_of_others(found.item.kind, kept);
            } else {
                report.retention.add(found.item.kind, found.high, kept);
            }
            if !kept {
                report.missing.push(Missing {
                    kind: found.item.kind,
                    text: found.item.text.clone(),
                    high: found.high,
                    line: found.line,
                });
            }
        }
        report
    }
}

impl Item {
    /// A line that was marked as done, without its marks.
    fn done(said: &str) -> Self {
        Self {
            kind: Kind::Done,
            text: said.to_owned(),
            keys: vec![format!("✅{}", telling(said).join(" "))],
            marks: Vec::new(),
        }
    }
}

/// The words of a line that tell it from others, by what their inflected forms share.
fn telling(said: &str) -> Vec<String> {
    let words = words(said);
    let telling: Vec<String> = words
        .iter()
        .filter(|word| !is_common(word))
        .map(|word| stem(word).to_owned())
        .collect();
    if telling.is_empty() { words } else { telling }
}

/// Everything a text can be asked for.
struct Index {
    marks: HashSet<String>,
    words: HashSet<String>,
    pairs: HashSet<u64>,
    done: HashSet<String>,
}

impl Index {
    fn of(text: &str, reader: &Reader) -> Self {
        let mut index = Self {
            marks: HashSet::new(),
            words: HashSet::new(),
            pairs: HashSet::new(),
            done: HashSet::new(),
        };
        for line in text.lines() {
            index.marks.extend(reader.marks(line));
            let (marks, said) = strip(line);
            if marks.done {
                index.done.extend(telling(said));
            }
            let said = words(said);
            index
                .pairs
                .extend(said.windows(2).map(|two| pair(&two[0], &two[1])));
            for word in said {
                if let Some(digit) = super::numbers::spelled(&word) {
                    index
                        .marks
                        .extend([format!("n:{digit}"), format!("n:{digit}|")]);
                }
                index.words.insert(word);
            }
        }
        index
    }

    /// Whether a name with this key is said.
    fn names(&self, key: &str) -> bool {
        let word = key.strip_prefix("w:").unwrap_or(key);
        self.words.contains(word) || self.marks.contains(key)
    }

    /// Whether these words are said, one behind the other.
    fn says<T: AsRef<str>>(&self, said: &[T]) -> bool {
        match said {
            [word] => self.words.contains(word.as_ref()),
            said => said
                .windows(2)
                .all(|two| self.pairs.contains(&pair(two[0].as_ref(), two[1].as_ref()))),
        }
    }

    fn holds(&self, item: &Item) -> bool {
        match item.kind {
            Kind::Name => item.keys.iter().any(|key| self.names(key)),
            Kind::Quote => {
                let said: Vec<&str> = item.key()["q:".len()..].split(' ').collect();
                self.says(&said)
            }
            Kind::Done => {
                let said: HashSet<&str> = item.key()["✅".len()..].split(' ').collect();
                let kept = said
                    .iter()
                    .filter(|word| self.done.contains(**word))
                    .count();
                kept * 2 >= said.len() && kept > 0
            }
            // A single identifier may have become part of a sentence: `Foo_bar` -> "foo bar".
            _ => item.keys.iter().any(|key| self.marks.contains(key)),
        }
    }
}

/// What an observation kept of the transcript it was made from.
pub fn observed(transcript: &str, observations: &str) -> Report {
    Source::of_transcript(transcript).check(observations)
}

/// What a shorter log kept of a longer one.
pub fn condensed(log: &str, shorter: &str) -> Report {
    Source::of_log(log).check(shorter)
}
