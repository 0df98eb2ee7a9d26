//! Reads fields beside the messages by name: clients put the name of a conversation into one of many
//! fields.
//!
//! The scan of the body keeps only their extents, and a field is read when it is asked for. Called by
//! `proxy::identify`.

use std::ops::Range;

use serde_json::Value;

use super::string;
use crate::history::{Encoder, PromptFields};

/// The most fields that are kept. No real client sends more.
const MAX_FIELDS: usize = 64;

/// A value with more bytes is not read as a name.
const MAX_VALUE_BYTES: usize = 16 * 1024;

/// Fields that providers put into the prompt, in front of the messages.
const PROMPT_FIELDS: [&str; 3] = ["tools", "functions", "response_format"];

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValue {
    /// A string, or a whole number in its digits.
    Text(String),
    /// A value that cannot be a name: a list, an object, too long, or there twice.
    Unusable,
}

/// The ranges of the fields: key with its quotes, and value.
#[derive(Clone, Debug, Default)]
pub(super) struct OtherFields(Vec<(Range<usize>, Range<usize>)>);

impl OtherFields {
    pub(super) fn add(&mut self, key: Range<usize>, value: Range<usize>) {
        if self.0.len() < MAX_FIELDS {
            self.0.push((key, value));
        }
    }

    /// The memory that the list holds, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        size_of_val(self.0.as_slice())
    }

    /// The hash of the fields that are part of the prompt, by their JSON as written; `None` if there are none. Reads
    /// all of them, which may be long. Not for the request path.
    pub(super) fn prompt_fields(&self, body: &[u8]) -> Option<PromptFields> {
        let (mut encoder, mut bytes) = (Encoder::new(), 0);
        for name in PROMPT_FIELDS {
            for (_, span) in self.0.iter().filter(|(key, _)| is_name(body, key, name)) {
                let Some(json) = text(body, span).filter(|json| !is_nothing(json)) else {
                    continue;
                };
                encoder.text(name, json);
                bytes += json.len();
            }
        }
        (bytes > 0).then(|| PromptFields {
            fingerprint: encoder.finish(),
            bytes,
        })
    }

    /// Whether a field of this name is there, whatever its value. `true` if there are too many fields to know.
    pub(super) fn may_have(&self, body: &[u8], name: &str) -> bool {
        self.0.len() >= MAX_FIELDS || self.0.iter().any(|(key, _)| is_name(body, key, name))
    }

    /// The value at `path` (names with dots between them); `None` if it is missing or `null`.
    pub(super) fn get(&self, body: &[u8], path: &str) -> Option<FieldValue> {
        let (name, within) = path
            .split_once('.')
            .map_or((path, None), |(name, within)| (name, Some(within)));
        let mut found = self
            .0
            .iter()
            .filter(|(key, _)| is_name(body, key, name))
            .filter_map(|(_, value)| text(body, value));
        let json = found.next()?;
        if found.next().is_some() || json.len() > MAX_VALUE_BYTES {
            return Some(FieldValue::Unusable);
        }
        let whole: Value = serde_json::from_str(json).ok()?;
        let mut value = &whole;
        for name in within.into_iter().flat_map(|within| within.split('.')) {
            value = value.get(name)?;
        }
        match value {
            Value::Null => None,
            Value::String(text) => Some(FieldValue::Text(text.clone())),
            Value::Number(number) if number.is_u64() => Some(FieldValue::Text(number.to_string())),
            _ => Some(FieldValue::Unusable),
        }
    }
}

/// The text at `span`. The parsed body is UTF-8, and the ranges are those of whole values.
fn text<'a>(body: &'a [u8], span: &Range<usize>) -> Option<&'a str> {
    std::str::from_utf8(body.get(span.clone())?).ok()
}

/// Whether the key at `span` is `name`.
fn is_name(body: &[u8], span: &Range<usize>, name: &str) -> bool {
    text(body, span)
        .and_then(string::decode)
        .is_some_and(|key| key == name)
}

/// Whether a value means the same as no value.
fn is_nothing(json: &str) -> bool {
    let list = json
        .strip_prefix('[')
        .and_then(|json| json.strip_suffix(']'));
    json == "null" || list.is_some_and(|items| items.trim_ascii().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::chat::parse;

    fn named(fields: &str, path: &str) -> Option<FieldValue> {
        let body = format!(r#"{{"messages":[{{"role":"user","content":"x"}}],{fields}}}"#);
        parse(&body.into()).expect("a request").field(path)
    }

    fn text(text: &str) -> FieldValue {
        FieldValue::Text(text.to_owned())
    }

    #[test]
    fn a_field_is_found_at_its_path_however_it_is_spelled() {
        assert_eq!(
            named(r#""session_id":"s\u0031""#, "session_id"),
            Some(text("s1"))
        );
        assert_eq!(
            named(r#""session\u005fid":"s""#, "session_id"),
            Some(text("s"))
        );
        assert_eq!(named(r#""chat":17"#, "chat"), Some(text("17")));
        let nested = r#""metadata":{"a":{"b":"c"},"n":null}"#;
        assert_eq!(named(nested, "metadata.a.b"), Some(text("c")));
        assert_eq!(named(nested, "metadata.a"), Some(FieldValue::Unusable));
        for nothing in ["metadata.n", "metadata.x", "metadata.a.b.c", "x", "model"] {
            assert_eq!(named(nested, nothing), None, "{nothing}");
        }
    }

    #[test]
    fn an_empty_list_of_tools_is_no_part_of_the_prompt() {
        for nothing in ["null", "[]", "[ ]", "[\n\t]"] {
            let body =
                format!(r#"{{"messages":[{{"role":"user","content":"x"}}],"tools":{nothing}}}"#);
            let parsed = parse(&body.into()).expect("a request");
            assert_eq!(parsed.prompt_fields(), None, "{nothing}");
        }
    }

    #[test]
    fn a_repeated_or_too_long_field_is_unusable() {
        let twice = r#""session_id":"a","session_id":"b""#;
        assert_eq!(named(twice, "session_id"), Some(FieldValue::Unusable));
        let long = format!(r#""metadata":{{"id":"{}"}}"#, "x".repeat(MAX_VALUE_BYTES));
        assert_eq!(named(&long, "metadata.id"), Some(FieldValue::Unusable));
        let many: Vec<String> = (0..=MAX_FIELDS).map(|n| format!(r#""f{n}":"v""#)).collect();
        assert_eq!(named(&many.join(","), "f0"), Some(text("v")));
        assert_eq!(named(&many.join(","), &format!("f{MAX_FIELDS}")), None);
    }

    #[test]
    fn tools_and_response_format_are_part_of_the_prompt() {
        let fields = |fields: &str| {
            let body = format!(r#"{{"messages":[{{"role":"user","content":"x"}}],{fields}}}"#);
            parse(&body.into()).expect("a request").prompt_fields()
        };
        for nothing in [
            r#""tools":null"#,
            r#""tools":[],"functions":null"#,
            r#""user":"u""#,
        ] {
            assert_eq!(fields(nothing), None, "{nothing}");
        }
        let tools = fields(r#""tools":[1]"#).expect("tools");
        assert_eq!(tools.bytes, 3);
        for same in [r#""tools":[1],"user":"u""#, r#""\u0074ools":[1]"#] {
            assert_eq!(fields(same), Some(tools), "{same}");
        }
        for other in [
            r#""tools":[2]"#,
            r#""functions":[1]"#,
            r#""tools":[1],"response_format":{}"#,
        ] {
            assert_ne!(fields(other), Some(tools), "{other}");
        }
    }
}
