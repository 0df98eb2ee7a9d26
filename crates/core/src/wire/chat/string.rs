//! Converts JSON strings to text.
//!
//! Most of a body is conversation text, so most of the time is spent here: one pass per string, and no
//! copy if nothing is escaped. As strict as `serde_json`, with which a property test compares it.
//! Values that are not text are left to `serde_json`.

use std::borrow::Cow;

use memchr::memchr;

/// The text of a string as the scanner found it, with quotes. `None` if it is no JSON string: a control
/// character, an unknown escape, half a surrogate pair.
pub(super) fn decode(quoted: &str) -> Option<Cow<'_, str>> {
    let mut rest = quoted.strip_prefix('"')?.strip_suffix('"')?;
    if has_control(rest) {
        return None;
    }
    let Some(mut at) = memchr(b'\\', rest.as_bytes()) else {
        return Some(Cow::Borrowed(rest));
    };
    let mut text = String::with_capacity(rest.len());
    loop {
        text.push_str(&rest[..at]);
        let (c, length) = escape(&rest[at..])?;
        text.push(c);
        rest = &rest[at + length..];
        match memchr(b'\\', rest.as_bytes()) {
            Some(next) => at = next,
            None => break,
        }
    }
    text.push_str(rest);
    Some(Cow::Owned(text))
}

/// Whether `text` holds a character that must be escaped. Works in blocks, so the compiler uses
/// vectors.
fn has_control(text: &str) -> bool {
    text.as_bytes()
        .chunks(64)
        .any(|block| block.iter().copied().fold(u8::MAX, u8::min) < b' ')
}

/// The character of the escape at the beginning of `text`, and its length in bytes.
fn escape(text: &str) -> Option<(char, usize)> {
    let c = match text.as_bytes().get(1)? {
        b'n' => '\n',
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b't' => '\t',
        b'r' => '\r',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'u' => return unicode(text),
        _ => return None,
    };
    Some((c, 2))
}

/// `\uXXXX`, or two of them if the first is the first half of a pair.
fn unicode(text: &str) -> Option<(char, usize)> {
    let first = unit(text)?;
    if let Some(c) = char::from_u32(first.into()) {
        return Some((c, 6));
    }
    let pair = [first, unit(text.get(6..)?)?];
    let mut decoded = char::decode_utf16(pair);
    Some((decoded.next()?.ok()?, 12))
}

fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    // The number parser would accept a sign.
    let hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    hex.then(|| u16::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As the scanner finds it: quotes at both ends, and no unescaped quote between them.
    fn found(inner: &str) -> String {
        format!("\"{inner}\"")
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn json_strings_are_decoded_as_by_serde_json(pieces in prop::collection::vec(prop_oneof![
            "[\\PC&&[^\"\\\\]]{0,80}",
            r#"\\[nrtbf/"\\]"#,
            "\\\\u[0-9a-fA-F]{4}",
            "\\\\u[dD][89abAB][0-9a-f]{2}\\\\u[dD][c-fC-F][0-9A-F]{2}",
            "\\\\u[dD][89a-f][0-9a-f]{2}",
            "\\\\[a-z+]",
            "\\\\u[+0-9]{4}",
            "[\u{0}-\u{1f}\u{7f}]",
        ], 0..6)) {
            let json = found(&pieces.concat());
            let expected: Option<String> = serde_json::from_str(&json).ok();
            prop_assert_eq!(decode(&json).map(Cow::into_owned), expected);
        }
    }

    #[test]
    fn text_without_escapes_is_not_copied() {
        assert!(matches!(
            decode("\"héllo 😀\""),
            Some(Cow::Borrowed("héllo 😀"))
        ));
        assert!(matches!(decode("\"\""), Some(Cow::Borrowed(""))));
        assert_eq!(decode("null"), None);
        assert_eq!(decode("\""), None);
    }
}
