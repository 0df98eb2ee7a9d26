//! Names that share a word. One of the two words of a name is enough to know it again, but not where
//! another name has that word too: "Keller" says neither that Anna Keller nor that Peter Keller was kept.
//!
//! Called by [`super::measure`] with the items of one text; decides nothing about other kinds.

use std::collections::{HashMap, HashSet};

use super::ItemKind;
use super::items::Item;
use super::spelling::words;

/// Which names of a text hold which words.
#[derive(Debug, Default)]
pub(super) struct AmbiguousNames {
    /// Word -> the names of several words that hold it, up to two of them.
    names: HashMap<String, HashSet<String>>,
}

/// How a name is known again.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NameMatch<'a> {
    /// By any of its keys.
    AnyKey,
    /// By one of these alone: another name has the others.
    OneOf(Vec<&'a str>),
    /// By its words, one behind the other: other names have each of them.
    AllWords(Vec<String>),
}

impl AmbiguousNames {
    pub(super) fn from_items<'a>(items: impl Iterator<Item = &'a Item>) -> Self {
        let mut names: HashMap<String, HashSet<String>> = HashMap::new();
        for item in items {
            let Some(words) = full_name_words(item) else {
                continue;
            };
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

    fn is_shared(&self, word: &str) -> bool {
        self.names.get(word).is_some_and(|names| names.len() > 1)
    }

    /// How `item` is known again.
    pub(super) fn match_for<'a>(&self, item: &'a Item) -> NameMatch<'a> {
        let Some(words) = full_name_words(item) else {
            return NameMatch::AnyKey;
        };
        let shared: Vec<&String> = words.iter().filter(|word| self.is_shared(word)).collect();
        let is_shared_key = |key: &str| {
            let key = key.strip_prefix("w:").unwrap_or(key);
            shared.iter().any(|word| {
                key == word.as_str()
                    || key.strip_suffix('s') == Some(word)
                    || word.strip_suffix('s') == Some(key)
            })
        };
        let own_keys: Vec<&str> = item
            .match_keys
            .iter()
            .map(String::as_str)
            .filter(|key| !is_shared_key(key))
            .collect();
        if own_keys.len() == item.match_keys.len() {
            NameMatch::AnyKey
        } else if own_keys.is_empty() {
            NameMatch::AllWords(words)
        } else {
            NameMatch::OneOf(own_keys)
        }
    }
}

/// The words of a name that is known by more than one of them.
fn full_name_words(item: &Item) -> Option<Vec<String>> {
    if item.kind != ItemKind::Name {
        return None;
    }
    let words = words(&item.text);
    let first = words.first().filter(|_| words.len() > 1)?;
    // Where the first word alone says nothing (a title, German nouns), it tells no one apart.
    let is_distinctive = item
        .match_keys
        .iter()
        .any(|key| key["w:".len()..] == **first);
    is_distinctive.then_some(words)
}
