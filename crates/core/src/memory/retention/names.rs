//! Finds names: words with a capital where grammar asks for none.
//!
//! In English, only names have such capitals. German writes every noun with a capital; there, a name is
//! a run of such words, or one after a preposition or a title without the ending of an abstract noun.
//! Chinese has no capitals: its names are found only in quotes.

use std::sync::LazyLock;

use foldhash::{HashSet, HashSetExt as _};

use super::dates::is_time_word;
use super::spelling::{fold, is_sign};

/// A word of a line, and whether grammar asks for a capital there.
pub(super) struct Word<'a> {
    pub(super) text: &'a str,
    /// The byte where it begins in its line.
    pub(super) at: usize,
    /// Whether more than a space stands before it.
    pub(super) separated: bool,
    /// Whether it begins a sentence, a quote or a bracket.
    pub(super) starts_sentence: bool,
    /// Whether it is already part of another item.
    pub(super) consumed: bool,
}

/// Words that have a capital for other reasons: they begin lines of the log, or English always writes
/// them so.
const NOT_NAMES: &[&str] = &[
    "user",
    "users",
    "assistant",
    "system",
    "tool",
    "i",
    "i'm",
    "i'll",
    "i've",
    "i'd",
    "ok",
    "okay",
    "the",
    "a",
    "an",
    "it",
    "he",
    "she",
    "they",
    "we",
    "you",
    "my",
    "our",
    "his",
    "her",
    "your",
    "this",
    "that",
    "these",
    "those",
    "there",
    "here",
    "what",
    "when",
    "where",
    "who",
    "why",
    "how",
    "if",
    "in",
    "on",
    "at",
    "for",
    "from",
    "to",
    "with",
    "and",
    "or",
    "but",
    "so",
    "then",
    "also",
    "after",
    "before",
    "now",
    "date",
    "yes",
    "no",
    "not",
    "mr",
    "mrs",
    "ms",
    "dr",
    "prof",
    "herr",
    "herrn",
    "frau",
    "primary",
    "secondary",
    "der",
    "die",
    "das",
    "den",
    "dem",
    "ein",
    "eine",
    "einen",
    "ich",
    "wir",
    "sie",
    "er",
    "es",
    "und",
    "im",
    "am",
    "zum",
    "zur",
    "nutzer",
    "nutzerin",
    "benutzer",
    "assistent",
    "as",
    "is",
    "are",
    "was",
    "please",
    "thanks",
    "bitte",
    "danke",
    "let",
    "todo",
    "note",
];

/// German words that are in almost every German sentence and hardly in other languages.
const GERMAN: &[&str] = &[
    "der", "das", "und", "ist", "nicht", "ein", "eine", "einen", "den", "dem", "mit", "für", "auf",
    "zu", "von", "im", "sich", "des", "hat", "wird", "bei", "nach", "ich", "sie", "dass",
];

/// German words that stand before a name rather than before another noun.
const BEFORE_NAMES: &[&str] = &[
    "in", "aus", "nach", "bei", "mit", "von", "namens", "heißt", "frau", "herr", "herrn", "dr",
    "prof", "und", "an", "für",
];

/// Endings of German nouns that are neither persons nor places.
const NOUN_ENDINGS: &[&str] = &[
    "ung", "ungen", "heit", "keit", "keiten", "schaft", "tion", "tionen", "tät", "nis", "nisse",
    "ment", "chen", "ling", "ismus", "en",
];

/// [`NOT_NAMES`] and [`GERMAN`]. Every word of every text is looked up, so the lists are not searched.
static NO_NAMES: LazyLock<HashSet<&str>> = LazyLock::new(|| NOT_NAMES.iter().copied().collect());
static GERMAN_WORDS: LazyLock<HashSet<&str>> = LazyLock::new(|| GERMAN.iter().copied().collect());

/// What capitals mean in one text.
#[derive(Debug, Default)]
pub(super) struct Capitals {
    german: bool,
    /// Folded words with a capital in the middle of a sentence. They are names also at its
    /// beginning.
    mid_sentence: HashSet<String>,
}

impl Capitals {
    /// Reads the lines of a text, each as its words.
    pub(super) fn from_lines<'a>(lines: impl Iterator<Item = Vec<Word<'a>>>) -> Self {
        let (mut words, mut german) = (0_usize, 0_usize);
        let mut mid_sentence = HashSet::new();
        for line in lines {
            for word in line {
                let folded = fold(word.text);
                words += usize::from(!folded.is_empty());
                german += usize::from(GERMAN_WORDS.contains(&*folded));
                if !word.starts_sentence
                    && !word.consumed
                    && is_capital(word.text)
                    && can_be_name(&folded)
                {
                    mid_sentence.insert(folded.into_owned());
                }
            }
        }
        // These words are about a third of German prose; a German title in English text is far
        // below 8 %.
        let german = words >= 8 && german * 100 >= words * 8;
        if german {
            mid_sentence.clear();
        }
        Self {
            german,
            mid_sentence,
        }
    }

    /// Whether the text is German.
    pub(super) fn is_german(&self) -> bool {
        self.german
    }

    /// The names in a line, each as the index of its first word and the number of its words.
    pub(super) fn names(&self, words: &[Word<'_>]) -> Vec<(usize, usize)> {
        if is_all_caps(words) {
            return Vec::new();
        }
        let mut names = Vec::new();
        let mut at = 0;
        while at < words.len() {
            let run = words[at..]
                .iter()
                .enumerate()
                .take_while(|(offset, word)| {
                    is_name_word(word) && (*offset == 0 || !word.separated)
                })
                .count();
            if run == 0 {
                at += 1;
                continue;
            }
            if run > 1 || self.is_single_name(words, at) {
                names.push((at, run));
            }
            at += run;
        }
        names
    }

    /// Whether a single capitalised word is a name.
    fn is_single_name(&self, words: &[Word<'_>], at: usize) -> bool {
        let folded = fold(words[at].text);
        if folded.chars().count() < 2 {
            return false;
        }
        if self.german {
            let before = at.checked_sub(1).map(|before| fold(words[before].text));
            return before.is_some_and(|before| BEFORE_NAMES.contains(&&*before))
                && !NOUN_ENDINGS.iter().any(|ending| folded.ends_with(ending));
        }
        !words[at].starts_sentence || self.mid_sentence.contains(&*folded)
    }
}

fn is_name_word(word: &Word<'_>) -> bool {
    !word.consumed && is_capital(word.text) && can_be_name(&fold(word.text))
}

fn is_capital(word: &str) -> bool {
    let mut chars = word.chars().filter(|c| c.is_alphabetic());
    chars.next().is_some_and(char::is_uppercase) && !word.chars().any(is_sign)
}

fn can_be_name(folded: &str) -> bool {
    !folded.is_empty() && !NO_NAMES.contains(folded) && !is_time_word(folded)
}

/// Whether a line is in capitals, which then mean nothing.
fn is_all_caps(words: &[Word<'_>]) -> bool {
    let in_capitals = |word: &&Word<'_>| {
        word.text.len() > 1 && word.text.chars().all(|c| !c.is_lowercase() && !is_sign(c))
    };
    words.len() >= 5 && words.iter().filter(in_capitals).count() * 10 >= words.len() * 7
}
