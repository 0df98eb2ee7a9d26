//! Removes secrets and long encoded data from the text that a memory model reads, so that they do not
//! get into memory.
//!
//! Conservative on purpose: only shapes that can hardly be anything else are removed, because a removed
//! word is a forgotten fact. A note of its kind replaces each secret. The shapes are found in one pass
//! with bounded look-ahead; the operator may disable kinds and add patterns. Called by the transcript
//! for every piece of text.

mod shapes;

use std::borrow::Cow;

use regex::Regex;
use shapes::SecretMatch;

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
        let (mut copied, mut at) = (0, 0);
        while at < text.len() {
            match shapes::find_at(text, at) {
                // A match that does not start and end at characters would be a bug of
                // its shape. Then the text stays as it is.
                Some(SecretMatch { start, end, kind })
                    if start >= copied && end > start && text.get(start..end).is_some() =>
                {
                    if self.kinds.iter().any(|enabled| enabled.label() == kind) {
                        out.push_str(&text[copied..start]);
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
        out
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn redact(text: &str) -> String {
        Redactor::default().redact(text)
    }

    fn clean(text: &str) -> String {
        Redactor::default().clean(text)
    }

    #[test]
    fn kinds_are_left_out_and_patterns_added() {
        let text = "password=hunter2 and sk-a1B2c3D4e5F6g7H8a1B2c3D4 for QX-2291 and QX-17";
        let patterns = vec![Regex::new(r"QX-\d{3,}").unwrap()];
        let chosen = Redactor::new(vec![RedactKind::Password], patterns);
        assert_eq!(
            chosen.clean(text),
            "password=[redacted: password] and sk-a1B2c3D4e5F6g7H8a1B2c3D4 for [redacted: pattern] and QX-17"
        );
        assert_eq!(Redactor::new(Vec::new(), Vec::new()).clean(text), text);
        // A reference to a group is not expanded here.
        let dollar = Redactor::new(Vec::new(), vec![Regex::new("(a)(b)?").unwrap()]);
        assert_eq!(dollar.clean("xay"), "x[redacted: pattern]y");
    }

    #[test]
    fn what_a_provider_sealed_is_named_whatever_it_is_written_in() {
        let sealed = "gAAA.b:c d".repeat(30);
        for name in ["encryptedContent", "encrypted_content"] {
            assert_eq!(
                clean(&format!(r#"{{"{name}": "{sealed}", "b": 1}}"#)),
                format!(r#"{{"{name}": "[300 characters of encrypted data left out]", "b": 1}}"#)
            );
            let short = format!(r#"{{"{name}":"{}"}}"#, &sealed[..256]);
            assert_eq!(clean(&short), short);
        }
        let other = format!(r#"{{"content": "{sealed}"}}"#);
        assert_eq!(clean(&other), other);
    }

    /// Composed here, so that no secret scanner reports this file.
    fn key(prefix: &str, length: usize) -> String {
        let body: String = "a1B2c3D4e5F6g7H8".chars().cycle().take(length).collect();
        format!("{prefix}{body}")
    }

    #[test]
    fn secrets_are_taken() {
        let upper = key("AKIA", 16).to_ascii_uppercase();
        for (secret, kind) in [
            (key("sk-", 48), "API key"),
            (key("sk-ant-api03-", 90), "API key"),
            (key("sk-proj-", 60), "API key"),
            (key("sk_live_", 24), "API key"),
            (upper, "API key"),
            (key("ghp_", 36), "API key"),
            (key("github_pat_", 60), "API key"),
            (key("glpat-", 20), "API key"),
            (key("xoxb-", 40), "API key"),
            (key("AIza", 35), "API key"),
            (key("hf_", 34), "API key"),
            (
                format!("{}.{}.{}", key("eyJ", 20), key("eyJ", 30), key("", 43)),
                "token",
            ),
        ] {
            for (before, after) in [
                ("", ""),
                ("use ", " please"),
                ("\"", "\""),
                ("`", "`."),
                ("ключ ", "é"),
            ] {
                assert_eq!(
                    redact(&format!("{before}{secret}{after}")),
                    format!("{before}[redacted: {kind}]{after}"),
                    "{secret}"
                );
            }
        }
    }

    #[test]
    fn named_secrets_are_taken_and_their_names_kept() {
        for (text, want) in [
            ("password=hunter2", "password=[redacted: password]"),
            (
                "DB_PASSWORD=correcthorse\nX=1",
                "DB_PASSWORD=[redacted: password]\nX=1",
            ),
            (
                r#"{"password": "s3cr\u0065t!"}"#,
                r#"{"password": "[redacted: password]"}"#,
            ),
            (
                r#"{\"api_key\":\"abcd1234\"}"#,
                r#"{\"api_key\":\"[redacted: secret]\"}"#,
            ),
            (
                "client-secret: 'zz91-aa'",
                "client-secret: '[redacted: secret]'",
            ),
            (
                "wifi password: sunflower22, ok?",
                "wifi password: [redacted: password], ok?",
            ),
            (
                ":password => \"tr0ub4dor\"",
                ":password => \"[redacted: password]\"",
            ),
            (
                "Authorization: Bearer abc123def456ghi789",
                "Authorization: Bearer [redacted: token]",
            ),
            (
                "postgres://app:p4ss@db:5432/x",
                "postgres://app:[redacted: password]@db:5432/x",
            ),
            (
                "?access_token=abcdef0123456789&b=1",
                "?access_token=[redacted: token]&b=1",
            ),
        ] {
            assert_eq!(redact(text), want);
        }
    }

    #[test]
    fn private_keys_are_taken_whole() {
        let body = key("MIIE", 60);
        let dashes = "-----";
        let pem = format!(
            "{dashes}BEGIN RSA PRIVATE KEY{dashes}\n{body}\n{body}\n{dashes}END RSA PRIVATE KEY{dashes}"
        );
        assert_eq!(redact(&format!("a {pem} b")), "a [redacted: private key] b");
        let escaped = pem.replace('\n', "\\n");
        assert_eq!(
            redact(&format!("\"{escaped}\"")),
            "\"[redacted: private key]\""
        );
        let unfinished = format!("{dashes}BEGIN PRIVATE KEY{dashes}\n{body}\n{body}\nand so on");
        assert_eq!(redact(&unfinished), "[redacted: private key]\nand so on");
        let public = format!("{dashes}BEGIN PUBLIC KEY{dashes}\n{body}");
        assert_eq!(redact(&public), public);
    }

    #[test]
    fn what_is_no_secret_stays() {
        for text in [
            "password = getpass.getpass()",
            "password=os.environ['PW']",
            "PASSWORD=$DB_PASS and <password>",
            "\"password\": \"string\"",
            "\"password\": \"must have 8 characters\"",
            "password: I forgot it",
            "if password == given1:",
            "max_tokens: 4096, token: string",
            "the token: a piece of a word",
            "sk-learn-tutorial-for-beginners-2",
            "task-12 risk-averse-people-in-2026-and-beyond",
            "AKIA is a prefix",
            "Bearer of good news in the year 2026",
            "https://example.com:8080/a@b",
            "http://localhost:3000/?q=1",
            "a == b, c: d, e := f",
            "secret: none",
            "пароль: забыл",
        ] {
            assert_eq!(redact(text), text);
        }
    }

    #[test]
    fn encoded_data_is_named_not_shown() {
        let blob = key("", 300);
        assert_eq!(
            clean(&format!("data:image/png;base64,{blob} end")),
            "data:image/png;base64,[300 characters of encoded data left out] end"
        );
        for kept in [
            key("", 256),
            "-".repeat(400),
            "ha".repeat(400),
            "言葉".repeat(400),
        ] {
            assert_eq!(clean(&kept), kept);
        }
    }

    proptest! {
        #[test]
        fn no_neighbourhood_hides_a_key(
            before in "(sk-|eyJ|password|token|secret|[=:\"'@./\\\\ \n-]|://|Bearer |-----BEGIN |PRIVATE KEY-----|[a-z0-9]{1,20}|é|漢|👍){0,30}",
            after in "([=:\"'@./\\\\ \n-]|PRIVATE KEY-----|é|漢|👍){0,9}",
        ) {
            let key = key("sk-", 40);
            let cleaned = clean(&format!("{before} {key} {after}"));
            prop_assert!(!cleaned.contains(&key));
            prop_assert!(cleaned.contains("[redacted: "));
        }
    }
}
