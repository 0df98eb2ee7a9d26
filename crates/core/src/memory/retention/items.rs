//! Reads the items of a line: one pass over its characters, and one over its words.
//!
//! Knows what a path, a number, a name or a quote looks like. Does not compare texts; that is done in
//! [`super::check`].

use std::borrow::Cow;

use super::ItemKind;
use super::dates::{self, DateReadings};
use super::line_marks::split_marks;
use super::line_words::{find_link, split_words};
use super::names::{Capitals, Word};
use super::numbers;
use super::spelling::{fold, is_common, is_sign, stem, text_hash, words};
use crate::steps::end_step;

/// Quotes of up to this many characters are items. A longer one may be paraphrased.
const QUOTE_CHARS: usize = 160;

/// Something that should not be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// What it is.
    pub kind: ItemKind,
    /// As it was written.
    pub text: String,
    /// A text that is found under one of these keys contains the item.
    pub(super) match_keys: Vec<String>,
    /// The keys under which this item is found, if they are not the match keys. There are more of them, since a looser
    /// match may count: a day is also found without its year, a number with a unit also without the unit.
    pub(super) index_keys: Option<Vec<String>>,
}

impl Item {
    /// The key that is equal for two spellings of one item.
    pub fn key(&self) -> &str {
        self.match_keys.first().map_or("", String::as_str)
    }
}

/// Something by which a line can be recognised: the hash of an item, or of a word's stem. Two of them collide with a
/// chance of one in 2⁶⁴.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Feature {
    hash: u64,
    is_item: bool,
}

impl Feature {
    fn of_item(item: &Item) -> Self {
        Self {
            hash: text_hash(item.key()),
            is_item: true,
        }
    }

    fn of_word(word: &str) -> Self {
        Self {
            hash: text_hash(stem(word)),
            is_item: false,
        }
    }

    /// Whether it comes from an item, which says more than a word.
    pub fn is_item(&self) -> bool {
        self.is_item
    }
}

/// Reads the lines of one text, after learning from all of it what capitals mean there.
#[derive(Debug, Default)]
pub struct ItemReader {
    capitals: Capitals,
}

impl ItemReader {
    /// A reader for `text` and for the text that condenses it.
    pub fn for_text(text: &str) -> Self {
        let lines = text
            .lines()
            .map(|line| split_line(split_marks(line).1).words);
        Self {
            capitals: Capitals::from_lines(lines),
        }
    }

    /// The items of `line`, without its bullet, priority mark and leading time. [`ItemKind::Done`]
    /// is not among them: that item is the line itself.
    pub fn items(&self, line: &str) -> Vec<Item> {
        let (_, text) = split_marks(line);
        let mut parts = split_line(text);
        let mut items = std::mem::take(&mut parts.items);
        let mut words = parts.words;
        read_dates(text, &mut words, &mut items);
        for at in 0..words.len() {
            if !words[at].consumed {
                words[at].consumed = read_item(&mut words, at, &mut items);
            }
        }
        for (at, run) in self.capitals.names(&words) {
            items.push(name_item(
                text,
                &words[at..at + run],
                self.capitals.is_german(),
            ));
        }
        items
    }

    /// The features of `line`, possibly with repetitions: its items, and the stems of its
    /// distinctive words.
    pub fn features(&self, line: &str) -> Vec<Feature> {
        let items = self.items(line);
        let mut features: Vec<Feature> = items.iter().map(Feature::of_item).collect();
        let words = words(split_marks(line).1);
        let distinctive = words.iter().filter(|word| !is_common(word));
        features.extend(distinctive.map(|word| Feature::of_word(word)));
        features
    }

    /// The keys under which the items of `line` are found.
    pub(super) fn index_keys(&self, line: &str) -> Vec<String> {
        let mut keys = Vec::new();
        for item in self.items(line) {
            keys.extend(item.index_keys.unwrap_or(item.match_keys));
        }
        keys
    }
}

/// A line cut into words. Links and quotes are already read as items.
struct SplitLine<'a> {
    words: Vec<Word<'a>>,
    items: Vec<Item>,
}

fn split_line(line: &str) -> SplitLine<'_> {
    end_step();
    let mut items = Vec::new();
    read_quotes(line, &mut items);
    let mut words = Vec::new();
    let mut at = 0;
    while let Some((start, end)) = find_link(&line[at..]) {
        split_words(line, at..at + start, &mut words);
        let text = &line[at + start..at + end];
        let text = text.trim_end_matches(['.', ',', ':', '/', '\'']);
        let key = format!("u:{}", text.to_lowercase());
        items.push(new_item(ItemKind::Url, text, vec![key]));
        at += end;
    }
    split_words(line, at..line.len(), &mut words);
    SplitLine { words, items }
}

/// Reads quotes of more than one word, and of a single word only if it is nothing else.
fn read_quotes(line: &str, items: &mut Vec<Item>) {
    // Most lines have none.
    if line.is_ascii() && memchr::memchr3(b'"', b'\'', b'`', line.as_bytes()).is_none() {
        return;
    }
    let mut open: Option<(usize, char)> = None;
    let mut before = ' ';
    let mut chars = line.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let after = chars.peek().map_or(' ', |(_, c)| *c);
        let is_edge = |c: char| !c.is_alphanumeric();
        match open {
            Some((start, close)) if c == close && (c != '\'' && c != '’' || is_edge(after)) => {
                read_quote(&line[start..at], items);
                open = None;
            }
            Some(_) => {}
            None => {
                let close = match c {
                    '"' => Some('"'),
                    '“' => Some('”'),
                    '„' => Some(if line[at..].contains('”') && !line[at..].contains('“') {
                        '”'
                    } else {
                        '“'
                    }),
                    '«' => Some('»'),
                    '`' => Some('`'),
                    '「' => Some('」'),
                    '『' => Some('』'),
                    '《' => Some('》'),
                    '\'' if is_edge(before) && !is_edge(after) => Some('\''),
                    '‘' => Some('’'),
                    _ => None,
                };
                open = close.map(|close| (at + c.len_utf8(), close));
            }
        }
        before = c;
    }
}

fn read_quote(text: &str, items: &mut Vec<Item>) {
    let text = text.trim();
    if text.is_empty() || text.chars().count() > QUOTE_CHARS || text.contains("://") {
        return;
    }
    let quoted_words = words(text);
    // A single word is read as what it is: a path, an identifier, a number.
    let mut single = Vec::new();
    if !text.contains(char::is_whitespace) && !text.chars().any(is_sign) {
        let mut one = Vec::new();
        split_words(text, 0..text.len(), &mut one);
        if one.len() == 1 && read_item(&mut one, 0, &mut single) {
            return;
        }
    }
    if !quoted_words.is_empty() {
        items.push(new_item(
            ItemKind::Quote,
            text,
            vec![format!("q:{}", quoted_words.join(" "))],
        ));
    }
}

fn new_item(kind: ItemKind, text: &str, keys: Vec<String>) -> Item {
    Item {
        kind,
        text: text.to_owned(),
        match_keys: keys,
        index_keys: None,
    }
}

/// The text of `words` as it stands in `line`.
fn source_text<'a>(line: &'a str, words: &[Word<'_>]) -> &'a str {
    match (words.first(), words.last()) {
        (Some(first), Some(last)) => &line[first.at..last.at + last.text.len()],
        _ => "",
    }
}

fn name_item(line: &str, words: &[Word<'_>], german: bool) -> Item {
    let folded: Vec<Cow<'_, str>> = words.iter().map(|word| fold(word.text)).collect();
    let mut key_words: Vec<&str> = folded.last().map(AsRef::as_ref).into_iter().collect();
    // "Anna Keller" is retained if Keller occurs, or Anna. "New York" is not retained by "new", nor
    // "Schwester Leonie" by a sister.
    if folded.len() > 1 && !german {
        let first = folded.first().map(AsRef::as_ref);
        key_words.extend(first.filter(|word: &&str| word.chars().count() > 3));
    }
    let mut keys = Vec::new();
    for word in key_words {
        // With and without the ending of a genitive.
        keys.push(format!("w:{word}"));
        keys.push(format!("w:{word}s"));
        keys.extend(word.strip_suffix('s').map(|word| format!("w:{word}")));
    }
    new_item(ItemKind::Name, source_text(line, words), keys)
}

/// Reads days that are written over several words and marks their words as consumed.
fn read_dates(line: &str, words: &mut [Word<'_>], items: &mut Vec<Item>) {
    for at in 0..words.len() {
        if words[at].consumed {
            continue;
        }
        let Some((day, length)) = read_date(&words[at..]) else {
            continue;
        };
        items.push(date_item(source_text(line, &words[at..at + length]), &day));
        for word in &mut words[at..at + length] {
            word.consumed = true;
        }
    }
}

fn date_item(text: &str, day: &DateReadings) -> Item {
    Item {
        kind: ItemKind::Date,
        text: text.to_owned(),
        match_keys: day.match_keys(),
        index_keys: Some(day.index_keys()),
    }
}

/// The day at the beginning of `words`, and its number of words.
fn read_date(words: &[Word<'_>]) -> Option<(DateReadings, usize)> {
    let text = |at: usize| words.get(at).map_or("", |word: &Word<'_>| word.text);
    let year_at = |at: usize| dates::year(text(at)).filter(|_| words.get(at).is_some());
    if let Some(month) = dates::month(&fold(text(0))) {
        // "Mar 4, 2026", "March 2026"
        if let Some(day) = dates::day_of_month(text(1)) {
            let year = year_at(2);
            return Some((
                DateReadings::new(year, month, day),
                2 + usize::from(year.is_some()),
            ));
        }
        let year = year_at(1)?;
        return Some((DateReadings::new(Some(year), month, 0), 2));
    }
    // Every other day begins with a digit.
    if !text(0).bytes().any(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // "4 March 2026", "4. März", "the 4th of March"
    if let Some(day) = dates::day_of_month(text(0)) {
        let of_word = usize::from(fold(text(1)) == "of");
        if let Some(month) = dates::month(&fold(text(1 + of_word))) {
            let year = year_at(2 + of_word);
            let length = 2 + of_word + usize::from(year.is_some());
            return Some((DateReadings::new(year, month, day), length));
        }
        // "3月4日"
        if text(1).starts_with('月')
            && let Some(date) = dates::day_of_month(text(2))
            && text(3).starts_with(['日', '号'])
        {
            return Some((DateReadings::new(None, day, date), 3));
        }
    }
    // "2026年3月4日"
    if let Some(year) = dates::year(text(0))
        && text(1) == "年"
    {
        let month = dates::day_of_month(text(2)).filter(|month| *month <= 12)?;
        let date = dates::day_of_month(text(4)).filter(|_| text(3) == "月");
        return Some((
            DateReadings::new(Some(year), month, date.unwrap_or(0)),
            if date.is_some() { 5 } else { 3 },
        ));
    }
    dates::parse_digits(text(0)).map(|day| (day, 1))
}

/// Reads the word at `at` as a path, an identifier or a number; `false` for an ordinary word.
fn read_item(words: &mut [Word<'_>], at: usize, items: &mut Vec<Item>) -> bool {
    let word = words[at].text;
    // Most words are letters alone.
    if is_plain(word) {
        return false;
    }
    if let Some(minute) = dates::minute_key(word) {
        items.push(new_item(ItemKind::Date, word, vec![minute]));
        return true;
    }
    if let Some((path, lines)) = split_path(word) {
        // `./config` is `config`.
        let key = path.trim_start_matches("./").trim_end_matches('/');
        let key = key.to_lowercase();
        items.push(new_item(ItemKind::Path, path, vec![format!("p:{key}")]));
        for line in lines.split(':').filter(|line| !line.is_empty()) {
            read_number(line, None, items);
        }
        return true;
    }
    // A range is two numbers.
    if let Some((from, to)) = word.split_once(['-', '–'])
        && [from, to]
            .iter()
            .all(|end| !end.is_empty() && numbers::read(end).is_some())
    {
        let unit = unit_after(words, at);
        return read_number(from, unit, items) | read_number(to, unit, items);
    }
    if numbers::read(word).is_some() {
        let unit = unit_after(words, at);
        return read_number(word, unit, items);
    }
    if is_identifier(word) {
        let folded = word
            .trim_matches(|c: char| !c.is_alphanumeric())
            .to_lowercase();
        let mut keys = vec![format!("i:{folded}")];
        if folded.bytes().all(|b| b.is_ascii_digit()) {
            // "#123" is kept where "number 123" is.
            keys.push(format!("n:{folded}"));
        }
        items.push(new_item(ItemKind::Identifier, word, keys));
        return true;
    }
    false
}

/// The unit behind the number at `at`; its word is consumed.
fn unit_after(words: &mut [Word<'_>], at: usize) -> Option<&'static str> {
    let next = words.get_mut(at + 1).filter(|next| !next.separated)?;
    let unit = numbers::unit(next.text).or_else(|| numbers::unit_of_signs(next.text))?;
    next.consumed |= !next.text.chars().any(is_sign);
    Some(unit)
}

fn read_number(word: &str, unit: Option<&'static str>, items: &mut Vec<Item>) -> bool {
    let Some(number) = numbers::read(word) else {
        return false;
    };
    let unit = number.unit.or(unit).unwrap_or("");
    let keys_with = |ending: &str| -> Vec<String> {
        let values = number.values.iter();
        values.map(|value| format!("n:{value}{ending}")).collect()
    };
    let index_keys = Some([keys_with(&format!("|{unit}")), keys_with("")].concat());
    // A number with a unit is found with that unit or with none, never with another one.
    let (match_keys, text) = if unit.is_empty() {
        (keys_with(""), word.to_owned())
    } else {
        let bare = [keys_with(&format!("|{unit}")), keys_with("|")].concat();
        (bare, format!("{word} {unit}"))
    };
    items.push(Item {
        kind: ItemKind::Number,
        text,
        match_keys,
        index_keys,
    });
    true
}

/// Splits a path or file name from line numbers that follow it after a colon.
fn split_path(word: &str) -> Option<(&str, &str)> {
    memchr::memchr3(b'/', b'.', b'\\', word.as_bytes())?;
    let (path, lines) = match word.find(':') {
        Some(at) if at > 1 && word[at..].bytes().all(|b| b == b':' || b.is_ascii_digit()) => {
            word.split_at(at)
        }
        _ => (word, ""),
    };
    let lettered = path.chars().any(char::is_alphabetic);
    let rooted = ["/", "./", "../", "~/"]
        .iter()
        .any(|root| path.strip_prefix(root).is_some_and(|rest| !rest.is_empty()));
    let windows = path.as_bytes().get(1..3) == Some(b":\\");
    let segments = path
        .split('/')
        .filter(|segment| !segment.is_empty())
        .count();
    let inner =
        segments >= 3 || (segments == 2 && (path.contains(['.', '_']) || path.ends_with('/')));
    let is_path =
        lettered && (rooted || windows || (inner && !path.contains("//")) || is_file(path));
    is_path.then_some((path, lines))
}

/// `orders.csv`, `main.c`; not `e.g` and not `3.2s`.
fn is_file(word: &str) -> bool {
    let Some((stem, ending)) = word.rsplit_once('.') else {
        return false;
    };
    let short = (1..=5).contains(&ending.len());
    let plain = ending
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let has_letter = |text: &str| text.chars().any(char::is_alphabetic);
    let whole = stem
        .chars()
        .all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '+'));
    let last = stem.rsplit('.').next().unwrap_or(stem);
    short
        && plain
        && whole
        && has_letter(ending)
        && has_letter(stem)
        && (last.len() > 1 || ending.len() > 1)
        && !stem.is_empty()
}

/// Words no one would use in a sentence: `QX-2291`, `E0502`, `retry_count`, `fooBar`, `a::b`, `@nils`.
fn is_identifier(word: &str) -> bool {
    let lettered = word.chars().any(|c| c.is_ascii_alphabetic());
    let digits = word.bytes().any(|b| b.is_ascii_digit());
    let tagged = word.starts_with(['@', '#'])
        && word.len() > 2
        && word[1..].starts_with(char::is_alphanumeric);
    let joined = word.split('_').filter(|part| !part.is_empty()).count() > 1 || word.contains("::");
    let address = word
        .split_once('@')
        .is_some_and(|(user, host)| !user.is_empty() && host.contains('.'));
    let dotted = digits && word.matches('.').count() > 1;
    (lettered && digits) || tagged || joined || address || dotted || has_hump(word)
}

/// Letters of ASCII alone, without a hump.
fn is_plain(word: &str) -> bool {
    let mut small = false;
    word.bytes().all(|byte| {
        let is_hump = small && byte.is_ascii_uppercase();
        small = byte.is_ascii_lowercase();
        byte.is_ascii_alphabetic() && !is_hump
    })
}

/// A capital behind a small letter, `fooBar`.
fn has_hump(word: &str) -> bool {
    let mut small = false;
    for c in word.chars() {
        if small && c.is_uppercase() {
            return true;
        }
        small = c.is_lowercase();
    }
    false
}
