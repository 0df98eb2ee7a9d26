//! Brings words to one spelling: lower case, without punctuation around them, Chinese and Japanese sign
//! by sign.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::LazyLock;

use foldhash::HashSet;

/// Whether a character is a word or part of one by itself, in a script without spaces.
pub(super) fn is_sign(c: char) -> bool {
    !c.is_ascii()
        && matches!(c,
        '\u{3040}'..='\u{30ff}'        // kana
        | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' // Han
        | '\u{ac00}'..='\u{d7af}'      // Hangul
        | '\u{20000}'..='\u{3134f}')
}

/// Whether a character always ends a word. Apostrophes, dots, colons, slashes and hyphens may stand inside one.
#[inline]
pub(super) fn is_break(c: char) -> bool {
    // Apart, so that the first is a test of a bit: every character of every text is read.
    if c.is_ascii() {
        return matches!(
            c,
            '\t'..='\r'
                | ' '
                | '!'
                | '"'
                | '('
                | ')'
                | '*'
                | ';'
                | '<'
                | '='
                | '>'
                | '?'
                | '['
                | ']'
                | '`'
                | '{'
                | '|'
                | '}'
        );
    }
    c.is_whitespace()
        || matches!(
            c,
            '“' | '”' | '„' | '‟' | '«' | '»' | '‹' | '›' | '—' | '–' | '→' | '…' | '\u{3000}'
                ..='\u{303f}'
                    | '\u{ff01}'
                    | '\u{ff08}'
                    | '\u{ff09}'
                    | '\u{ff0c}'
                    | '\u{ff1a}'
                    | '\u{ff1b}'
                    | '\u{ff1f}'
        )
}

/// The form in which a word is compared.
pub(super) fn fold(word: &str) -> Cow<'_, str> {
    let lower = lower_case(if has_plain_ends(word) {
        word
    } else {
        word.trim_matches(|c: char| !c.is_alphanumeric())
    });
    for possessive in ["'s", "’s"] {
        if let Some(stem) = lower.strip_suffix(possessive) {
            let length = stem.len();
            return match lower {
                Cow::Borrowed(lower) => Cow::Borrowed(&lower[..length]),
                Cow::Owned(mut lower) => {
                    lower.truncate(length);
                    Cow::Owned(lower)
                }
            };
        }
    }
    lower
}

/// Whether a word begins and ends with a letter or digit of ASCII, as most do: then nothing is trimmed.
fn has_plain_ends(word: &str) -> bool {
    let is_plain = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    is_plain(word.as_bytes().first()) && is_plain(word.as_bytes().last())
}

/// Most words are in lower case already, and are not copied.
fn lower_case(word: &str) -> Cow<'_, str> {
    if !word.is_ascii() {
        Cow::Owned(word.to_lowercase())
    } else if word.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(word.to_ascii_lowercase())
    } else {
        Cow::Borrowed(word)
    }
}

/// The folded words of a text: runs of letters and digits, and every sign by itself.
pub(super) fn words(text: &str) -> Vec<Cow<'_, str>> {
    let mut words = Vec::new();
    for run in text.split(|c: char| is_break(c) || matches!(c, ',' | '.' | ':' | '/' | '-' | '_')) {
        let mut rest = run;
        while let Some((at, sign)) = first_sign(rest) {
            push_folded(&mut words, &rest[..at]);
            let end = at + sign.len_utf8();
            words.push(Cow::Borrowed(&rest[at..end]));
            rest = &rest[end..];
        }
        push_folded(&mut words, rest);
    }
    words
}

fn first_sign(text: &str) -> Option<(usize, char)> {
    if text.is_ascii() {
        return None;
    }
    text.char_indices().find(|(_, c)| is_sign(*c))
}

fn push_folded<'a>(words: &mut Vec<Cow<'a, str>>, word: &'a str) {
    let word = fold(word);
    if !word.is_empty() {
        words.push(word);
    }
}

/// The first five characters of a word, which its inflected forms share. For words that may be
/// inflected and still mean the same.
pub(super) fn stem(word: &str) -> &str {
    let end = word.char_indices().nth(5).map_or(word.len(), |(at, _)| at);
    &word[..end]
}

/// A hash of a text.
pub(super) fn text_hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// A hash of two words in a row. Two pairs collide with a chance of one in 2⁶⁴.
pub(super) fn pair_hash(first: &str, second: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    first.hash(&mut hasher);
    second.hash(&mut hasher);
    hasher.finish()
}

/// Words too common to distinguish one line from another, folded: English, German and a few Chinese
/// ones.
const COMMON: &[&str] = &[
    "the",
    "and",
    "for",
    "that",
    "this",
    "with",
    "was",
    "were",
    "are",
    "has",
    "have",
    "had",
    "not",
    "but",
    "from",
    "they",
    "them",
    "their",
    "then",
    "than",
    "its",
    "it",
    "is",
    "in",
    "on",
    "at",
    "to",
    "of",
    "a",
    "an",
    "as",
    "by",
    "be",
    "or",
    "so",
    "if",
    "we",
    "he",
    "she",
    "his",
    "her",
    "you",
    "your",
    "user",
    "users",
    "assistant",
    "stated",
    "asked",
    "said",
    "wants",
    "intends",
    "will",
    "would",
    "should",
    "can",
    "could",
    "been",
    "being",
    "also",
    "about",
    "into",
    "after",
    "before",
    "when",
    "which",
    "what",
    "who",
    "how",
    "all",
    "any",
    "more",
    "now",
    "one",
    "out",
    "der",
    "die",
    "das",
    "den",
    "dem",
    "des",
    "und",
    "ist",
    "ein",
    "eine",
    "einen",
    "einem",
    "einer",
    "mit",
    "von",
    "für",
    "auf",
    "nicht",
    "zu",
    "im",
    "am",
    "an",
    "sich",
    "auch",
    "es",
    "er",
    "sie",
    "wir",
    "hat",
    "wird",
    "war",
    "als",
    "bei",
    "aus",
    "nach",
    "dass",
    "的",
    "了",
    "是",
    "在",
    "和",
    "用",
    "户",
];

/// Whether a folded word says nothing by itself.
pub(super) fn is_common(word: &str) -> bool {
    // Every word of every text is looked up.
    static WORDS: LazyLock<HashSet<&str>> = LazyLock::new(|| COMMON.iter().copied().collect());
    WORDS.contains(word)
}
