//! Removes secrets and long encoded data from the text that a memory model reads, so that they do not
//! get into memory.
//!
//! Conservative on purpose: only shapes that can hardly be anything else are removed, because a removed
//! word is a forgotten fact. A note of its kind replaces each secret. The shapes are found in one pass
//! with bounded look-ahead; the operator may disable kinds and add patterns. Called by the transcript
//! for every piece of text.

mod counted_text;
mod named_value;
mod shapes;

use std::borrow::Cow;

use counted_text::SecretMatch;
use regex::Regex;
use shapes::Scanner;

use crate::steps::end_step;

/// The longest run of encoded characters that is shown: 256, as published for encrypted content.
const MAX_ENCODED_RUN: usize = 256;

/// The note that replaces a match of an operator's pattern.
const PATTERN_NOTE: &str = "[redacted: pattern]";

/// A kind of secret that has a recognisable shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RedactKind {
    /// Keys with the prefix of a vendor.
    ApiKey,
    /// Bearer tokens, JSON web tokens, and values named token.
    Token,
    /// Values named password, and passwords in URLs.
    Password,
    /// Values named secret or key.
    Secret,
    /// PEM blocks.
    PrivateKey,
}

impl RedactKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::ApiKey,
        Self::Token,
        Self::Password,
        Self::Secret,
        Self::PrivateKey,
    ];

    /// The name in the note.
    pub fn label(self) -> &'static str {
        match self {
            Self::ApiKey => "API key",
            Self::Token => "token",
            Self::Password => "password",
            Self::Secret => "secret",
            Self::PrivateKey => "private key",
        }
    }
}

/// Removes secrets.
#[derive(Clone, Debug)]
pub struct Redactor {
    kinds: Vec<RedactKind>,
    patterns: Vec<Regex>,
}

impl Default for Redactor {
    fn default() -> Self {
        Self::new(RedactKind::ALL.to_vec(), Vec::new())
    }
}

impl Redactor {
    /// Removes these kinds of secrets and every match of these patterns.
    pub fn new(kinds: Vec<RedactKind>, patterns: Vec<Regex>) -> Self {
        Self { kinds, patterns }
    }

    /// `text` without secrets and without long encoded strings.
    pub fn clean(&self, text: &str) -> String {
        end_step();
        shorten_encoded(&shorten_encrypted(&self.redact(text)))
    }

    /// `text` with every secret replaced by `[redacted: kind]`. The operator's patterns come first,
    /// because they are written for the original text.
    fn redact(&self, text: &str) -> String {
        let mut text = Cow::Borrowed(text);
        for pattern in &self.patterns {
            if let Cow::Owned(redacted) = pattern.replace_all(&text, regex::NoExpand(PATTERN_NOTE))
            {
                text = Cow::Owned(redacted);
            }
        }
        self.redact_shapes(&text)
    }

    fn redact_shapes(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        self.replace_shapes(text, &mut out);
        out
    }

    /// Appends `text` without the shapes to `out`, and returns how many bytes were looked at.
    fn replace_shapes(&self, text: &str, out: &mut String) -> usize {
        let mut scanner = Scanner::new(text);
        let (mut copied, mut at, mut work) = (0, 0, 0);
        while at < text.len() {
            match scanner.find_at(at) {
                // A match that does not start and end at characters would be a bug of
                // its shape. Then the text stays as it is.
                Some(SecretMatch { start, end, kind })
                    if start >= copied && end > start && text.get(start..end).is_some() =>
                {
                    if self.kinds.iter().any(|enabled| enabled.label() == kind) {
                        out.push_str(&text[copied..at]);
                        // Between the mark and its secret may stand another one: a key as
                        // the user in front of a password.
                        if start > at {
                            out.push_str(&text[at..=at]);
                            work += self.replace_shapes(&text[at + 1..start], out);
                        }
                        out.push_str("[redacted: ");
                        out.push_str(kind);
                        out.push(']');
                        (copied, at) = (end, end);
                    } else {
                        // A value of a disabled kind may contain a secret of
                        // another kind.
                        at += 1;
                    }
                }
                _ => at += 1,
            }
        }
        out.push_str(&text[copied..]);
        work + scanner.work()
    }
}

/// Names of JSON members with data that a provider encrypted for itself.
const ENCRYPTED_FIELDS: [&str; 2] = ["encryptedcontent", "encrypted_content"];

/// `text` with the long values of `"encryptedContent": "…"` replaced by their length, in whatever
/// alphabet they are written.
fn shorten_encrypted(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut copied = 0;
    for (at, _) in text.match_indices(['e', 'E']) {
        let Some(value) = (at >= copied)
            .then(|| encrypted_value(&text[at..]))
            .flatten()
        else {
            continue;
        };
        let length = text[at..][value.clone()].chars().count();
        if length <= MAX_ENCODED_RUN {
            continue;
        }
        out.push_str(&text[copied..at + value.start]);
        out.push_str(&format!("[{length} characters of encrypted data left out]"));
        copied = at + value.end;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[copied..]);
    Cow::Owned(out)
}

/// The range of the value, if `text` begins with the name of such a member.
fn encrypted_value(text: &str) -> Option<std::ops::Range<usize>> {
    let name = ENCRYPTED_FIELDS.iter().find(|name| {
        text.get(..name.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(name))
    })?;
    let rest = text[name.len()..].strip_prefix('"')?.trim_start();
    let rest = rest.strip_prefix(':')?.trim_start().strip_prefix('"')?;
    let start = text.len() - rest.len();
    // Encrypted data has no escapes, so a value with escapes is text.
    Some(start..start + rest.find(['"', '\\'])?)
}

/// `text` with every run of more than 256 base64 or hexadecimal characters replaced by its length.
fn shorten_encoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let (mut copied, mut at) = (0, 0);
    while at < bytes.len() {
        let length = bytes[at..]
            .iter()
            .take_while(|b| is_encoded_byte(**b))
            .count();
        let run = &bytes[at..at + length];
        // Rulers (`-----`) and stretched words have no digits.
        if length > MAX_ENCODED_RUN
            && run.iter().any(u8::is_ascii_digit)
            && run.iter().any(u8::is_ascii_alphabetic)
        {
            out.push_str(&text[copied..at]);
            out.push_str(&format!("[{length} characters of encoded data left out]"));
            copied = at + length;
        }
        at += length.max(1);
    }
    out.push_str(&text[copied..]);
    out
}

fn is_encoded_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=' | b'_' | b'-')
}

#[cfg(test)]
mod tests;
