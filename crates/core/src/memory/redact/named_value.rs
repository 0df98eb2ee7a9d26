//! Values with a telling name: `DB_PASSWORD=…`, `"api_key": "…"`.
//!
//! Called by `shapes` at every `=` and `:`.

use super::counted_text::{CountedText, SecretMatch, is_token_byte};

/// Endings of names (lower case, without `_` and `-`) whose values are secrets.
const SECRET_NAMES: [(&str, &str); 14] = [
    ("password", "password"),
    ("passwd", "password"),
    ("passphrase", "password"),
    ("dbpwd", "password"),
    ("secret", "secret"),
    ("apikey", "secret"),
    ("accesskey", "secret"),
    ("secretkey", "secret"),
    ("privatekey", "secret"),
    ("accountkey", "secret"),
    ("token", "token"),
    // Of links that were signed for somebody: Amazon's, Google's, Azure's.
    ("amzsignature", "token"),
    ("googsignature", "token"),
    ("sig", "token"),
];

/// Values that are placeholders for a secret.
const PLACEHOLDERS: [&str; 9] = [
    "none",
    "null",
    "true",
    "false",
    "undefined",
    "string",
    "redacted",
    "required",
    "optional",
];

/// The run of characters that may form a value without quotes, and the last places in it that decide whether a part of
/// it that ends with it is a secret. Zero stands for none: no value begins there.
#[derive(Default)]
pub(super) struct UnquotedRun {
    start: usize,
    end: usize,
    last_digit: usize,
    last_bracket: usize,
    last_dot: usize,
    /// The last character that is no letter, dot or underscore.
    last_other: usize,
}

impl UnquotedRun {
    fn read(text: &str, start: usize) -> Self {
        let mut run = Self {
            start,
            end: start,
            ..Self::default()
        };
        let rest = text.get(start..).unwrap_or_default();
        for (offset, c) in rest.char_indices() {
            if c.is_whitespace() || ",;&\"'`)}]<\\".contains(c) {
                break;
            }
            let at = start + offset;
            run.end = at + c.len_utf8();
            match c {
                '0'..='9' => run.last_digit = at,
                '(' | '[' | '{' => run.last_bracket = at,
                '.' => run.last_dot = at,
                _ => {}
            }
            if !(c.is_ascii_alphabetic() || matches!(c, '.' | '_')) {
                run.last_other = at;
            }
        }
        run
    }

    /// Reads the run that holds `start`, unless it has been read.
    fn reach(&mut self, counted: &mut CountedText<'_>, start: usize) -> &Self {
        if !(self.start..self.end).contains(&start) {
            *self = Self::read(counted.text, start);
            counted.work += self.end - start;
        }
        self
    }

    fn has_digit(&self, start: usize) -> bool {
        self.last_digit >= start
    }

    /// Whether the part from `start` on is code that fetches the secret rather than the secret.
    fn is_reference(&self, start: usize) -> bool {
        self.last_bracket >= start || (self.last_dot >= start && self.last_other < start)
    }
}

/// A value with a telling name: `name=value`, `name: value`, `"name": "value"`.
pub(super) fn named_value(
    counted: &mut CountedText<'_>,
    unquoted: &mut UnquotedRun,
    at: usize,
) -> Option<SecretMatch> {
    let (text, bytes) = (counted.text, counted.text.as_bytes());
    let arrow = bytes[at..].starts_with(b"=>");
    if bytes[at..].starts_with(b"==") || (at > 0 && b"=!<>".contains(&bytes[at - 1])) {
        return None;
    }
    let (name, spaced_left) = name_before(bytes, at)?;
    counted.work += name.len();
    let kind = secret_kind(&name)?;
    let mut start = at + if arrow { 2 } else { 1 };
    let spaces = bytes[start..]
        .iter()
        .take(4)
        .take_while(|byte| **byte == b' ')
        .count();
    start += spaces;
    let quote = quote_at(bytes, start);
    start += quote.len();
    let (end, is_value, has_digit) = if let Some(close) = quote.last() {
        let mut end = start + counted.run_length(start, |byte| byte != *close && byte != b'\n');
        if quote.len() == 2 && bytes.get(end.wrapping_sub(1)) == Some(&b'\\') {
            end -= 1;
        }
        let value = text.get(start..end)?;
        (
            end,
            value.chars().nth(3).is_some(),
            value.bytes().any(|byte| byte.is_ascii_digit()),
        )
    } else {
        let run = unquoted.reach(counted, start);
        let (length, has_digit) = (run.end - start, run.has_digit(start));
        let spaced = spaces > 0 || spaced_left;
        let is_value = match bytes[at] {
            b'=' => length >= 4 && (!spaced || has_digit),
            _ => length >= 6 && has_digit,
        };
        (run.end, is_value && !run.is_reference(start), has_digit)
    };
    let is_long_enough = kind != "token" || (end - start >= 16 && has_digit);
    (is_value && is_long_enough && !is_placeholder(text.get(start..end)?)).then_some(SecretMatch {
        start,
        end,
        kind,
    })
}

/// The name that ends before the separator at `at` (its last 64 characters, lower case, without
/// `_` and `-`), and whether space stands between them.
fn name_before(bytes: &[u8], at: usize) -> Option<(String, bool)> {
    let mut end = at;
    while end > 0 && at - end < 4 && bytes[end - 1] == b' ' {
        end -= 1;
    }
    let spaced = end < at;
    while end > 0 && at - end < 8 && b"\"'\\`".contains(&bytes[end - 1]) {
        end -= 1;
    }
    let length = bytes[..end]
        .iter()
        .rev()
        .take(64)
        .take_while(|byte| is_token_byte(**byte))
        .count();
    let name: String = bytes[end - length..end]
        .iter()
        .filter(|byte| byte.is_ascii_alphanumeric())
        .map(|byte| char::from(byte.to_ascii_lowercase()))
        .collect();
    (!name.is_empty()).then_some((name, spaced))
}

fn secret_kind(name: &str) -> Option<&'static str> {
    SECRET_NAMES
        .iter()
        .find(|(ending, _)| name.ends_with(ending))
        .map(|(_, kind)| *kind)
}

/// The opening quote at `at`: `"`, `'`, or `\"` (JSON inside JSON); empty for none.
fn quote_at(bytes: &[u8], at: usize) -> &[u8] {
    match bytes.get(at..) {
        Some([b'\\', b'"' | b'\'', ..]) => &bytes[at..at + 2],
        Some([b'"' | b'\'', ..]) => &bytes[at..=at],
        _ => &[],
    }
}

fn is_placeholder(value: &str) -> bool {
    value.starts_with(['$', '<', '{', '%', '*', '['])
        || value.contains(char::is_whitespace)
        || PLACEHOLDERS
            .iter()
            .any(|word| value.eq_ignore_ascii_case(word))
        || value
            .chars()
            .next()
            .is_some_and(|first| value.chars().all(|c| c == first))
}
