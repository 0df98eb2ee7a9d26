//! Cuts a line into words and finds the links in it.

use super::names::Word;
use super::spelling::{is_break, is_sign};

/// Where the first link of `text` begins and ends.
pub(super) fn find_link(text: &str) -> Option<(usize, usize)> {
    let sign = memchr::memmem::find(text.as_bytes(), b"://")?;
    let scheme = text[..sign]
        .bytes()
        .rev()
        .take_while(u8::is_ascii_alphabetic)
        .count();
    let start = sign - scheme;
    let ends = |c: char| {
        c.is_whitespace()
            || is_sign(c)
            || (is_break(c) && !matches!(c, '=' | '?' | ';' | '*' | '!'))
    };
    let end = text[sign..].find(ends).map_or(text.len(), |at| sign + at);
    Some((start, end))
}

/// Characters after which a sentence, or something written like one, begins.
const STARTS: [char; 12] = [
    '!', '?', '"', '“', '„', '(', '。', '！', '？', '：', '—', '|',
];

/// The words in a stretch of a line without links. A run of Chinese or Japanese signs is one word.
pub(super) fn split_words<'a>(
    line: &'a str,
    stretch: std::ops::Range<usize>,
    words: &mut Vec<Word<'a>>,
) {
    // The first word of a line begins a sentence.
    let (mut starts_sentence, mut separated) = (words.is_empty(), true);
    let (mut at, end) = (stretch.start, stretch.end);
    while at < end {
        let rest = &line[at..end];
        let begin = rest.find(|c: char| !is_break(c)).unwrap_or(rest.len());
        let between = &rest[..begin];
        // Most words are a space apart.
        if !matches!(between, "" | " ") {
            starts_sentence |= between.contains(STARTS);
            separated |= !between.chars().all(char::is_whitespace);
        }
        let rest = &rest[begin..];
        let Some(first) = rest.chars().next() else {
            break;
        };
        let signs = is_sign(first);
        let length = rest
            .find(|c: char| is_break(c) || is_sign(c) != signs)
            .unwrap_or(rest.len());
        let chunk = at + begin;
        at = chunk + length;
        // "a,b" is two words, "1,000" is one.
        for (offset, piece) in pieces(&rest[..length]) {
            let text = piece.trim_start_matches(['\'', '‘', '’', ',', ':']);
            let before = piece.len() - text.len();
            let text = text.trim_end_matches(['.', ',', ':', '\'', '’']);
            if !text.is_empty() {
                words.push(Word {
                    text,
                    at: chunk + offset + before,
                    separated: separated || offset > 0 || before > 0,
                    starts_sentence,
                    consumed: false,
                });
            }
            starts_sentence = piece.ends_with(['.', ':']) && !is_abbreviation(piece);
            separated = piece.len() > before + text.len() && !is_abbreviation(piece);
        }
    }
}

/// Cuts a run without spaces at its commas; each piece comes with its offset.
fn pieces(chunk: &str) -> impl Iterator<Item = (usize, &str)> {
    let bytes = chunk.as_bytes();
    let is_digit = |at: Option<usize>| {
        at.and_then(|at| bytes.get(at))
            .is_some_and(u8::is_ascii_digit)
    };
    let commas = memchr::memchr_iter(b',', bytes);
    let cuts = commas.filter(move |at| !(is_digit(at.checked_sub(1)) && is_digit(Some(at + 1))));
    let mut start = 0;
    cuts.map(|at| at + 1).chain([chunk.len()]).map(move |end| {
        let piece = (start, &chunk[start..end]);
        start = end;
        piece
    })
}

/// Whether the dot at the end of a word belongs to the word: "Dr.", "z.B.", "4."
fn is_abbreviation(word: &str) -> bool {
    let stem = word.trim_end_matches('.');
    stem.contains('.')
        || stem.chars().count() < 2
        || stem.bytes().all(|b| b.is_ascii_digit())
        || ["dr", "mr", "mrs", "ms", "prof", "st", "no", "nr", "jr"]
            .contains(&stem.to_lowercase().as_str())
}
