//! Just enough of Rust's grammar to see what a file names: words and punctuation, items that are only
//! there in tests, and paths with their groups taken apart.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    pub line: usize,
}

/// Identifiers and punctuation; comments, strings and characters leave nothing.
pub fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < chars.len() {
        let rest = &chars[at..];
        let length = match rest {
            ['/', '/', ..] => rest.iter().take_while(|c| **c != '\n').count(),
            ['/', '*', ..] => block_comment(rest),
            ['"', ..] => string(rest, 1, None),
            ['b' | 'c', '"', ..] => string(rest, 2, None),
            ['r', '"' | '#', ..] | ['b' | 'c', 'r', '"' | '#', ..] if raw(rest).is_some() => {
                raw(rest).unwrap()
            }
            ['\'', '\\', ..] => 3 + rest[3..].iter().take_while(|c| **c != '\'').count(),
            ['\'', _, '\'', ..] => 3,
            [c, ..] if c.is_alphanumeric() || *c == '_' => {
                let word = rest
                    .iter()
                    .take_while(|c| c.is_alphanumeric() || **c == '_');
                let text: String = word.collect();
                let length = text.chars().count();
                tokens.push(Token { text, line });
                length
            }
            [':', ':', ..] => {
                tokens.push(Token {
                    text: "::".to_owned(),
                    line,
                });
                2
            }
            [c, ..] => {
                if !c.is_whitespace() {
                    tokens.push(Token {
                        text: c.to_string(),
                        line,
                    });
                }
                1
            }
            [] => unreachable!("the loop ends with the source"),
        };
        let end = (at + length).min(chars.len());
        line += chars[at..end].iter().filter(|c| **c == '\n').count();
        at = end;
    }
    tokens
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => depth += 1,
            ['*', '/', ..] => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length of a string whose text begins at `from`; `hashes` closes a raw one.
fn string(rest: &[char], from: usize, hashes: Option<usize>) -> usize {
    let mut at = from;
    while at < rest.len() {
        match (rest[at], hashes) {
            ('\\', None) => at += 1,
            ('"', None) => return at + 1,
            ('"', Some(n)) if rest[at + 1..].iter().take(n).filter(|c| **c == '#').count() == n => {
                return at + 1 + n;
            }
            _ => {}
        }
        at += 1;
    }
    at
}

/// The length of the raw string that begins here, if one does (`r#type` is a word).
fn raw(rest: &[char]) -> Option<usize> {
    let prefix = rest.iter().take_while(|c| c.is_alphabetic()).count();
    let hashes = rest[prefix..].iter().take_while(|c| **c == '#').count();
    let quote = prefix + hashes;
    (rest.get(quote) == Some(&'"')).then(|| string(rest, quote + 1, Some(hashes)))
}

pub const TEST_ONLY: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];

/// The tokens without items marked `#[cfg(test)]`.
pub fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if spells(&tokens[at..], &TEST_ONLY) {
            at += item(&tokens[at..]);
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// The length of the item at the start: to its `;`, or to the end of its braces.
fn item(tokens: &[Token]) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" if depth == 1 => return at + 1,
            "}" => depth = depth.saturating_sub(1),
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

pub fn spells(tokens: &[Token], words: &[&str]) -> bool {
    tokens.len() >= words.len()
        && tokens
            .iter()
            .zip(words)
            .all(|(token, word)| token.text == *word)
}

#[derive(Debug)]
pub struct Used {
    pub segments: Vec<String>,
    pub line: usize,
}

/// Every path of two segments or more, groups taken apart: `a::{b, c::d}` is `a::b` and `a::c::d`.
pub fn paths(tokens: &[Token]) -> Vec<Used> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let mut used = Vec::new();
        let next = if is_word(&tokens[at].text) {
            tree(tokens, at, &[], &mut used)
        } else {
            at + 1
        };
        // `pub(in crate::module)` grants, it does not import.
        let grants = at > 0 && tokens[at - 1].text == "in" && tokens[at].text == "crate";
        if !grants {
            found.extend(used.into_iter().filter(|used| used.segments.len() > 1));
        }
        at = next;
    }
    found
}

/// Reads one use tree; answers with the place after it, which lies behind `start`.
fn tree(tokens: &[Token], start: usize, prefix: &[String], found: &mut Vec<Used>) -> usize {
    let mut segments = prefix.to_vec();
    let mut at = start;
    while let Some(token) = tokens.get(at) {
        if token.text == "{" {
            return group(tokens, at + 1, &segments, found);
        }
        if !is_word(&token.text) {
            break;
        }
        segments.push(token.text.clone());
        at += 1;
        if tokens.get(at).is_none_or(|token| token.text != "::") {
            break;
        }
        at += 1;
    }
    let line = tokens[at.saturating_sub(1)].line;
    found.push(Used { segments, line });
    at.max(start + 1)
}

/// Reads the trees of a group, from behind its brace; answers with the place after the group.
fn group(tokens: &[Token], start: usize, prefix: &[String], found: &mut Vec<Used>) -> usize {
    let mut at = start;
    while tokens.get(at).is_some_and(|token| token.text != "}") {
        at = tree(tokens, at, prefix, found);
        // The end of this tree: whatever `as` names is no path.
        while tokens
            .get(at)
            .is_some_and(|token| token.text != "," && token.text != "}")
        {
            at += 1;
        }
        if tokens.get(at).is_some_and(|token| token.text == ",") {
            at += 1;
        }
    }
    at + 1
}

fn is_word(text: &str) -> bool {
    text == "*" || text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}
