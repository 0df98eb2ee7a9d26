//! The shapes of secrets: known prefixes, private keys, bearer tokens, passwords in URLs, and values
//! with a telling name (`DB_PASSWORD=…`).
//!
//! Each shape looks at one place of the text and at a run behind it that no other place of that shape looks at
//! again, so the pass is linear. Only values without quotes share their ends (`secret:secret:secret:…`): one scan
//! learns the whole run ([`UnquotedRun`]).

use super::counted_text::{CountedText, MAX_SECRET_BYTES, SecretMatch, is_token_byte};
use super::named_value::{UnquotedRun, named_value};

/// Known prefixes of credentials, with the least number of characters that follow. From the vendors'
/// own descriptions for secret scanning; the lengths are the shortest in use, rounded down.
const PREFIXES: [(&str, usize); 33] = [
    ("sk-", 20),
    ("sk_live_", 16),
    ("sk_test_", 16),
    ("rk_live_", 16),
    ("ghp_", 30),
    ("gho_", 30),
    ("ghu_", 30),
    ("ghs_", 30),
    ("ghr_", 30),
    ("github_pat_", 22),
    ("glpat-", 20),
    ("glsa_", 32),
    ("xoxb-", 20),
    ("xoxp-", 20),
    ("xoxa-", 20),
    ("xapp-", 20),
    ("AIza", 35),
    ("GOCSPX-", 24),
    ("hf_", 30),
    ("npm_", 36),
    ("pypi-", 50),
    ("gsk_", 30),
    ("xai-", 40),
    ("r8_", 36),
    ("dapi", 32),
    ("dop_v1_", 64),
    ("doo_v1_", 64),
    ("dor_v1_", 64),
    ("shpat_", 32),
    ("shpss_", 32),
    ("shpca_", 32),
    ("lin_api_", 32),
    ("AGE-SECRET-KEY-", 50),
];

/// The beginning of a webhook of Slack. A secret path follows.
const WEBHOOK: &[u8] = b"hooks.slack.com/services/";

/// Prefixes of the ids of Amazon's access keys; exactly 16 capitals and digits follow. One in thirty has no digit.
const AWS_PREFIXES: [&[u8]; 2] = [b"AKIA", b"ASIA"];
const AWS_ID_BYTES: usize = 16;

/// What one pass over a text has learned.
pub(super) struct Scanner<'a> {
    counted: CountedText<'a>,
    unquoted: UnquotedRun,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            counted: CountedText { text, work: 0 },
            unquoted: UnquotedRun::default(),
        }
    }

    /// How many bytes were looked at.
    pub(super) fn work(&self) -> usize {
        self.counted.work
    }

    /// The secret at byte `at`, if there is one. `at` grows from call to call.
    pub(super) fn find_at(&mut self, at: usize) -> Option<SecretMatch> {
        let bytes = self.counted.text.as_bytes();
        self.counted.work += 1;
        match bytes[at] {
            b':' if bytes[at..].starts_with(b"://") => self.user_info(at),
            b'=' | b':' => named_value(&mut self.counted, &mut self.unquoted, at),
            b'h' if bytes[at..].starts_with(WEBHOOK) => self.webhook(at),
            b'-' if bytes[at..].starts_with(b"-----BEGIN ") => self.private_key(at),
            byte if byte.is_ascii_alphanumeric() && is_word_start(bytes, at) => self
                .prefixed_key(at)
                .or_else(|| aws_id(bytes, at))
                .or_else(|| self.mail_key(at))
                .or_else(|| self.bot_token(at))
                .or_else(|| self.web_token(at))
                .or_else(|| self.bearer(at)),
            _ => None,
        }
    }
}

fn is_word_start(bytes: &[u8], at: usize) -> bool {
    at == 0 || !is_token_byte(bytes[at - 1])
}

/// The id of an access key of Amazon.
fn aws_id(bytes: &[u8], at: usize) -> Option<SecretMatch> {
    AWS_PREFIXES
        .iter()
        .find(|prefix| bytes[at..].starts_with(prefix))?;
    let end = at + 4 + AWS_ID_BYTES;
    let is_id_byte = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    let is_id = bytes.get(at + 4..end)?.iter().all(is_id_byte);
    let goes_on = bytes.get(end).is_some_and(|byte| is_token_byte(*byte));
    (is_id && !goes_on).then_some(SecretMatch {
        start: at,
        end,
        kind: "API key",
    })
}

impl Scanner<'_> {
    fn prefixed_key(&mut self, at: usize) -> Option<SecretMatch> {
        let bytes = self.counted.text.as_bytes();
        let (prefix, min_length) = PREFIXES
            .iter()
            .find(|(prefix, _)| bytes[at..].starts_with(prefix.as_bytes()))?;
        let from = at + prefix.len();
        let length = self.counted.run_length(from, is_token_byte);
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

    /// A key of SendGrid: `SG.`, 22 characters, a dot, 43 characters.
    fn mail_key(&mut self, at: usize) -> Option<SecretMatch> {
        self.counted.text.as_bytes()[at..]
            .starts_with(b"SG.")
            .then_some(())?;
        let first = self.counted.run_length(at + 3, is_token_byte);
        let end = self.parts_end(at + 3 + first, &[43])?;
        (first == 22).then_some(SecretMatch {
            start: at,
            end,
            kind: "API key",
        })
    }

    /// The path of a webhook of Slack: whoever has it can write there.
    fn webhook(&mut self, at: usize) -> Option<SecretMatch> {
        let start = at + WEBHOOK.len();
        let is_path_byte = |byte| is_token_byte(byte) || byte == b'/';
        let length = self.counted.run_length(start, is_path_byte);
        (length >= 20).then_some(SecretMatch {
            start,
            end: start + length,
            kind: "token",
        })
    }

    /// The token of a bot: of Telegram (`<number>:<35 characters>`) or Discord (a number in base64, a time, a
    /// signature).
    fn bot_token(&mut self, at: usize) -> Option<SecretMatch> {
        let bytes = self.counted.text.as_bytes();
        let length = self.counted.run_length(at, is_token_byte);
        let end = match (bytes.get(at + length)?, length) {
            (b':', 8..=10) if bytes[at..at + length].iter().all(u8::is_ascii_digit) => {
                let start = at + length + 1;
                let signature = self.counted.run_length(start, is_token_byte);
                (signature == 35 && bytes[start..].starts_with(b"AA")).then_some(start + 35)
            }
            (b'.', 24..=28) if b"MNO".contains(&bytes[at]) => self.parts_end(at + length, &[6, 27]),
            _ => None,
        }?;
        Some(SecretMatch {
            start: at,
            end,
            kind: "token",
        })
    }

    /// The end of parts of at least these lengths, each behind a dot, from `at` on.
    fn parts_end(&mut self, at: usize, lengths: &[usize]) -> Option<usize> {
        let mut end = at;
        for min_length in lengths {
            (self.counted.text.as_bytes().get(end) == Some(&b'.')).then_some(())?;
            let length = self.counted.run_length(end + 1, is_token_byte);
            (length >= *min_length).then_some(())?;
            end += 1 + length;
        }
        Some(end)
    }

    /// A JSON web token: three base64 parts, the first an object.
    fn web_token(&mut self, at: usize) -> Option<SecretMatch> {
        self.counted.text.as_bytes()[at..]
            .starts_with(b"eyJ")
            .then_some(())?;
        let first = self.counted.run_length(at, is_token_byte);
        (first >= 10).then_some(())?;
        let end = self.parts_end(at + first, &[10, 10])?;
        Some(SecretMatch {
            start: at,
            end,
            kind: "token",
        })
    }

    /// `Bearer <token>` and `Basic <token>`, as in an Authorization header.
    fn bearer(&mut self, at: usize) -> Option<SecretMatch> {
        let bytes = self.counted.text.as_bytes();
        let word = [b"bearer ".as_slice(), b"basic "]
            .into_iter()
            .find(|word| {
                bytes
                    .get(at..at + word.len())
                    .is_some_and(|start| start.eq_ignore_ascii_case(word))
            })?;
        let start = at + word.len();
        let length = self.counted.run_length(start, |byte| {
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
    fn user_info(&mut self, at: usize) -> Option<SecretMatch> {
        let bytes = self.counted.text.as_bytes();
        let from = at + 3;
        // A slash ends both, so the runs of two addresses have no byte in common.
        let plain = |byte: u8| !byte.is_ascii_whitespace() && !b"/?#\"'<>@".contains(&byte);
        let user = self
            .counted
            .run_length(from, |byte| plain(byte) && byte != b':');
        (bytes.get(from + user) == Some(&b':')).then_some(())?;
        let start = from + user + 1;
        let length = self.counted.run_length(start, plain);
        let is_literal = bytes.get(start).is_some_and(|byte| !b"[${*".contains(byte));
        (is_literal && bytes.get(start + length) == Some(&b'@')).then_some(SecretMatch {
            start,
            end: start + length,
            kind: "password",
        })
    }

    fn private_key(&mut self, at: usize) -> Option<SecretMatch> {
        const CLOSE: &str = "PRIVATE KEY-----";
        let text = self.counted.text;
        let opening = &text.as_bytes()[at..text.len().min(at + 80)];
        let head = opening
            .windows(CLOSE.len())
            .position(|window| window == CLOSE.as_bytes())?;
        let body = at + head + CLOSE.len();
        // Key bodies have a few thousand characters. An opening is the end of the one before it, so those that
        // search the whole window stand a window apart.
        let window = &text.as_bytes()[body..text.len().min(body + 4 * MAX_SECRET_BYTES)];
        let close = memchr::memmem::find(window, CLOSE.as_bytes());
        self.counted.work += close.unwrap_or(window.len());
        let end = match close {
            Some(offset) => body + offset + CLOSE.len(),
            None => body + unfinished_key(&text[body..]),
        };
        Some(SecretMatch {
            start: at,
            end,
            kind: "private key",
        })
    }
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
