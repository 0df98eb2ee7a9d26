//! Finds names that share a word. One word of a name is enough to recognise it, unless another name has
//! that word too: "Keller" proves neither Anna Keller nor Peter Keller.
//!
//! Called by [`super::RetentionSource::check`] with the items of one text; decides nothing about other
//! kinds.

use std::borrow::Cow;

use foldhash::{HashMap, HashMapExt as _, HashSet};

use super::ItemKind;
use super::items::Item;
use super::spelling::words;

/// Which names of a text contain which words.
#[derive(Debug, Default)]
pub(super) struct AmbiguousNames {
    /// Word -> the names of several words that contain it, at most two of them.
    names: HashMap<String, HashSet<String>>,
}

/// How a name can be recognised.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NameMatch<'a> {
    /// By any of its keys.
    AnyKey,
    /// By one of these keys only: the other keys fit another name too.
    OneOf(Vec<&'a str>),
    /// By all its words in a row: each of them is in another name too.
    AllWords(Vec<Cow<'a, str>>),
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
                let holding = names.entry(word.into_owned()).or_default();
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

    /// How `item` can be recognised.
    pub(super) fn match_for<'a>(&self, item: &'a Item) -> NameMatch<'a> {
        let Some(words) = full_name_words(item) else {
            return NameMatch::AnyKey;
        };
        let shared: Vec<&str> = words
            .iter()
            .map(AsRef::as_ref)
            .filter(|word| self.is_shared(word))
            .collect();
        let is_shared_key = |key: &str| {
            let key = key.strip_prefix("w:").unwrap_or(key);
            shared.iter().any(|word| {
                key == *word
                    || key.strip_suffix('s') == Some(*word)
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

/// The words of a name that more than one word identifies.
fn full_name_words(item: &Item) -> Option<Vec<Cow<'_, str>>> {
    if item.kind != ItemKind::Name {
        return None;
    }
    let words = words(&item.text);
    let first = words.first().filter(|_| words.len() > 1)?;
    // If the first word says nothing by itself (a title, a German noun), it identifies nobody.
    let is_distinctive = item
        .match_keys
        .iter()
        .any(|key| key["w:".len()..] == **first);
    is_distinctive.then_some(words)
}
