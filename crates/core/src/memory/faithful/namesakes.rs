//! Names that share a word. One of the two words of a name is enough to know it again, but not where
//! another name has that word too: "Keller" says neither that Anna Keller nor that Peter Keller was kept.
//!
//! Called by [`super::measure`] with the items of one text; decides nothing about other kinds.

use std::collections::{HashMap, HashSet};

use super::Kind;
use super::items::Item;
use super::spelling::words;

/// Which names of a text hold which words.
#[derive(Debug, Default)]
pub(super) struct Namesakes {
    /// Word -> the names of several words that hold it, up to two of them.
    names: HashMap<String, HashSet<String>>,
}

/// How a name is known again.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known<'a> {
    /// By any of its keys.
    ByAny,
    /// By one of these alone: another name has the others.
    By(Vec<&'a str>),
    /// By its words, one behind the other: other names have each of them.
    ByAll(Vec<String>),
}

impl Namesakes {
    pub(super) fn of<'a>(items: impl Iterator<Item = &'a Item>) -> Self {
        let mut names: HashMap<String, HashSet<String>> = HashMap::new();
        for item in items {
            let Some(words) = several(item) else { continue };
            let name = words.join(" ");
            for word in words {
                let holding = names.entry(word).or_default();
                if holding.len() < 2 {
                    holding.insert(name.clone());
                }
            }
        }
        Self { names }
    }

    fn shared(&self, word: &str) -> bool {
        self.names.get(word).is_some_and(|names| names.len() > 1)
    }

    /// How `item` is known again.
    pub(super) fn known<'a>(&self, item: &'a Item) -> Known<'a> {
        let Some(words) = several(item) else {
            return Known::ByAny;
        };
        let shared: Vec<&String> = words.iter().filter(|word| self.shared(word)).collect();
        let of_shared = |key: &str| {
            let key = key.strip_prefix("w:").unwrap_or(key);
            shared.iter().any(|word| {
                key == word.as_str()
                    || key.strip_suffix('s') == Some(word)
                    || word.strip_suffix('s') == Some(key)
            })
        };
        let own: Vec<&str> = item
            .keys
            .iter()
            .map(String::as_str)
            .filter(|key| !of_shared(key))
            .collect();
        if own.len() == item.keys.len() {
            Known::ByAny
        } else if own.is_empty() {
            Known::ByAll(words)
        } else {
            Known::By(own)
        }
    }
}

/// The words of a name that is known by more than one of them.
fn several(item: &Item) -> Option<Vec<String>> {
    if item.kind != Kind::Name {
        return None;
    }
    let words = words(&item.text);
    let first = words.first().filter(|_| words.len() > 1)?;
    // Where the first word alone says nothing (a title, German nouns), it tells no one apart.
    let telling = item.keys.iter().any(|key| key["w:".len()..] == **first);
    telling.then_some(words)
}
