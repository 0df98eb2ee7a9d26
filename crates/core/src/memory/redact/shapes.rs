//! The shapes of secrets: known prefixes, private keys, bearer tokens, passwords in URLs, and values
//! with a telling name (`DB_PASSWORD=…`).
//!
//! Each shape looks at one place of the text and at a bounded distance behind it (or at a run that no
//! other place scans again), so no input makes the pass quadratic.

/// A secret in the text, by byte offsets.
pub(super) struct SecretMatch {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) kind: &'static str,
}

/// The most bytes of a key, a value or a token that are followed.
const MAX_SECRET_BYTES: usize = 4096;

/// Known prefixes of credentials, with the least number of characters that follow. From the vendors'
/// own descriptions for secret scanning; the lengths are the shortest in use, rounded down.
const PREFIXES: [(&str, usize); 22] = [
    ("sk-", 20),
    ("sk_live_", 16),
    ("sk_test_", 16),
    ("rk_live_", 16),
    ("AKIA", 16),
    ("ASIA", 16),
    ("ghp_", 30),
    ("gho_", 30),
    ("ghu_", 30),
    ("ghs_", 30),
    ("ghr_", 30),
    ("github_pat_", 22),
    ("glpat-", 20),
    ("xoxb-", 20),
    ("xoxp-", 20),
    ("xoxa-", 20),
    ("xapp-", 20),
    ("AIza", 35),
    ("hf_", 30),
    ("npm_", 36),
    ("pypi-", 50),
    ("gsk_", 30),
];

/// Endings of names (lower case, without `_` and `-`) whose values are secrets.
const SECRET_NAMES: [(&str, &str); 11] = [
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

/// The secret at byte `at`, if there is one.
pub(super) fn find_at(text: &str, at: usize) -> Option<SecretMatch> {
    let bytes = text.as_bytes();
    match bytes[at] {
        b':' if bytes[at..].starts_with(b"://") => user_info(bytes, at),
        b'=' | b':' => named_value(text, at),
        b'-' if bytes[at..].starts_with(b"-----BEGIN ") => private_key(text, at),
        byte if byte.is_ascii_alphanumeric() && is_word_start(bytes, at) => prefixed_key(bytes, at)
            .or_else(|| web_token(bytes, at))
            .or_else(|| bearer(bytes, at)),
        _ => None,
    }
}

fn is_word_start(bytes: &[u8], at: usize) -> bool {
    at == 0 || !(bytes[at - 1].is_ascii_alphanumeric() || matches!(bytes[at - 1], b'_' | b'-'))
}

/// Length of the run of bytes that satisfy `keep`, from `from`.
fn run_length(bytes: &[u8], from: usize, keep: impl Fn(u8) -> bool) -> usize {
    bytes[from.min(bytes.len())..]
        .iter()
        .take(MAX_SECRET_BYTES)
        .take_while(|byte| keep(**byte))
        .count()
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

fn prefixed_key(bytes: &[u8], at: usize) -> Option<SecretMatch> {
    let (prefix, min_length) = PREFIXES
        .iter()
        .find(|(prefix, _)| bytes[at..].starts_with(prefix.as_bytes()))?;
    let from = at + prefix.len();
    let length = run_length(bytes, from, is_token_byte);
    let body = &bytes[from..from + length];
    // Slugs and file names may have these prefixes too. A key has a longer stretch without
    // separators and with digits.
    let stretch = body
        .split(|byte| matches!(byte, b'_' | b'-'))
        .any(|part| part.len() >= 12 && part.iter().any(u8::is_ascii_digit));
    (length >= *min_length && stretch).then_some(SecretMatch {
        start: at,
        end: from + length,
        kind: "API key",
    })
}

/// A JSON web token: three base64 parts, the first an object.
fn web_token(bytes: &[u8], at: usize) -> Option<SecretMatch> {
    if !bytes[at..].starts_with(b"eyJ") {
        return None;
    }
    let mut end = at;
    for part in 0..3 {
        if part > 0 {
            (bytes.get(end) == Some(&b'.')).then_some(())?;
            end += 1;
        }
        let length = run_length(bytes, end, is_token_byte);
        (length >= 10).then_some(())?;
        end += length;
    }
    Some(SecretMatch {
        start: at,
        end,
        kind: "token",
    })
}

/// `Bearer <token>` and `Basic <token>`, as in an Authorization header.
fn bearer(bytes: &[u8], at: usize) -> Option<SecretMatch> {
    let word = [b"bearer ".as_slice(), b"basic "]
        .into_iter()
        .find(|word| {
            bytes
                .get(at..at + word.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(word))
        })?;
    let start = at + word.len();
    let length = run_length(bytes, start, |byte| {
        is_token_byte(byte) || matches!(byte, b'.' | b'~' | b'+' | b'/' | b'=')
    });
    let value = &bytes[start..start + length];
    (length >= 16 && value.iter().any(u8::is_ascii_digit)).then_some(SecretMatch {
        start,
        end: start + length,
        kind: "token",
    })
}

/// The password of `scheme://user:password@host`.
fn user_info(bytes: &[u8], at: usize) -> Option<SecretMatch> {
    let from = at + 3;
    let plain = |byte: u8| !byte.is_ascii_whitespace() && !b"/?#\"'<>@".contains(&byte);
    let user = run_length(bytes, from, |byte| plain(byte) && byte != b':');
    (bytes.get(from + user) == Some(&b':')).then_some(())?;
    let start = from + user + 1;
    let length = run_length(bytes, start, plain);
    let is_literal = bytes.get(start).is_some_and(|byte| !b"[${*".contains(byte));
    (is_literal && bytes.get(start + length) == Some(&b'@')).then_some(SecretMatch {
        start,
        end: start + length,
        kind: "password",
    })
}

fn private_key(text: &str, at: usize) -> Option<SecretMatch> {
    const CLOSE: &str = "PRIVATE KEY-----";
    let opening = &text.as_bytes()[at..text.len().min(at + 80)];
    let head = opening
        .windows(CLOSE.len())
        .position(|window| window == CLOSE.as_bytes())?;
    let body = at + head + CLOSE.len();
    // Key bodies have a few thousand characters. The bound keeps many openings without an end cheap.
    let window = &text.as_bytes()[body..text.len().min(body + 4 * MAX_SECRET_BYTES)];
    let end = match memchr::memmem::find(window, CLOSE.as_bytes()) {
        Some(offset) => body + offset + CLOSE.len(),
        None => body + unfinished_key(&text[body..]),
    };
    Some(SecretMatch {
        start: at,
        end,
        kind: "private key",
    })
}

/// The length of the beginning of `text` that looks like lines of a key without an end.
fn unfinished_key(text: &str) -> usize {
    let (mut at, mut end) = (0, 0);
    for line in text.split_inclusive('\n').take(64) {
        let content = line.trim();
        let key_line = content.len() >= 16
            && content
                .bytes()
                .all(|byte| is_token_byte(byte) || b"+/=\\".contains(&byte));
        if key_line {
            end = at + line.trim_end().len();
        } else if !content.is_empty() {
            break;
        }
        at += line.len();
    }
    end
}

/// A value with a telling name: `name=value`, `name: value`, `"name": "value"`.
fn named_value(text: &str, at: usize) -> Option<SecretMatch> {
    let bytes = text.as_bytes();
    let arrow = bytes[at..].starts_with(b"=>");
    if bytes[at..].starts_with(b"==") || (at > 0 && b"=!<>".contains(&bytes[at - 1])) {
        return None;
    }
    let (name, spaced_left) = name_before(bytes, at)?;
    let kind = secret_kind(&name)?;
    let mut start = at + if arrow { 2 } else { 1 };
    let spaces = run_length(bytes, start, |byte| byte == b' ').min(4);
    start += spaces;
    let quote = quote_at(bytes, start);
    start += quote.len();
    let length = if quote.is_empty() {
        run_length(bytes, start, |byte| {
            !byte.is_ascii_whitespace() && !b",;&\"'`)}]<\\".contains(&byte)
        })
    } else {
        let close = quote[quote.len() - 1];
        run_length(bytes, start, |byte| byte != close && byte != b'\n')
    };
    let mut end = start + length;
    if quote.len() == 2 && bytes.get(end.wrapping_sub(1)) == Some(&b'\\') {
        end -= 1;
    }
    let value = text.get(start..end)?;
    let spaced = spaces > 0 || spaced_left;
    let is_value = match (quote.is_empty(), bytes[at]) {
        (false, _) => value.chars().count() >= 4,
        (true, b'=') => value.len() >= 4 && (!spaced || has_digit(value)) && !is_reference(value),
        (true, _) => value.len() >= 6 && has_digit(value) && !is_reference(value),
    };
    let is_long_enough = kind != "token" || (value.len() >= 16 && has_digit(value));
    (is_value && is_long_enough && !is_placeholder(value)).then_some(SecretMatch {
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

fn has_digit(value: &str) -> bool {
    value.bytes().any(|byte| byte.is_ascii_digit())
}

/// Whether an unquoted value is code that fetches the secret rather than the secret.
fn is_reference(value: &str) -> bool {
    value.contains(['(', '[', '{'])
        || (value.contains('.')
            && value
                .bytes()
                .all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'.' | b'_')))
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
