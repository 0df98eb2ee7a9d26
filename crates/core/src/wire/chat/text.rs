//! Strings and JSON values, read without copying if the text has no escapes.
//!
//! [`Text`] is a borrowed string (serde's own `Cow` is always owned behind an `Option`). [`Tree`] is a
//! value whose meaning can be compared: members sorted, the last duplicate counts, numbers as IEEE
//! doubles, but for whole numbers of 64 bits, which are exact. Used for values compared by meaning: tool arguments, parts that are not text, unknown
//! fields. Conversation text never becomes a tree.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use super::url;
use crate::history::Encoder;

/// A JSON string, borrowed if it has no escapes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Read)
    }
}

/// A JSON value by its meaning.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tree<'a> {
    Null,
    Bool(bool),
    Number(f64),
    /// A whole number that a double cannot hold exactly, of up to 64 bits.
    LargeInteger(i128),
    Text(Text<'a>),
    List(Vec<Tree<'a>>),
    Map(BTreeMap<Text<'a>, Tree<'a>>),
}

impl<'a> Tree<'a> {
    /// The text, if it is a string.
    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A member of an object.
    pub(super) fn get(&self, key: &'static str) -> Option<&Tree<'a>> {
        match self {
            Self::Map(members) => members.get(&Text(Cow::Borrowed(key))),
            _ => None,
        }
    }

    /// How many members all of its objects have.
    pub(super) fn members(&self) -> usize {
        match self {
            Self::List(items) => items.iter().map(Tree::members).sum(),
            Self::Map(members) => {
                members.len() + members.values().map(Tree::members).sum::<usize>()
            }
            Self::Null
            | Self::Bool(_)
            | Self::Number(_)
            | Self::LargeInteger(_)
            | Self::Text(_) => 0,
        }
    }

    /// Whether it means the same as if it were missing.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Bool(_) | Self::Number(_) | Self::LargeInteger(_) => false,
            Self::Text(text) => text.is_empty(),
            Self::List(items) => items.is_empty(),
            Self::Map(members) => members.is_empty(),
        }
    }

    /// Adds the value to the fingerprint, member by member. Unambiguous: every list and object
    /// gives its length.
    pub(super) fn encode(&self, encoder: &mut Encoder) {
        match self {
            Self::Null => encoder.mark("null"),
            Self::Bool(true) => encoder.mark("true"),
            Self::Bool(false) => encoder.mark("false"),
            Self::Number(number) => encoder.number("number", *number),
            Self::LargeInteger(number) => encoder.text("integer", &number.to_string()),
            Self::Text(text) => encoder.text("text", text),
            Self::List(items) => {
                encoder.count("list", items.len());
                for item in items {
                    item.encode(encoder);
                }
            }
            Self::Map(members) => {
                encoder.count("map", members.len());
                for (key, value) in members {
                    encoder.text("key", key);
                    value.encode(encoder);
                }
            }
        }
    }

    /// Removes what clients add and remove: null members and cache markers at any level, and
    /// signing parameters of members named `url` or `..._url`.
    pub(super) fn strip(&mut self) {
        match self {
            Self::List(items) => items.iter_mut().for_each(Self::strip),
            Self::Map(members) => {
                members.retain(|key, value| !is_cache_marker(key) && *value != Tree::Null);
                for (key, value) in members {
                    match value {
                        Self::Text(text) if key.ends_with("url") => {
                            if let Cow::Owned(unsigned) = url::without_signature(text) {
                                text.0 = Cow::Owned(unsigned);
                            }
                        }
                        _ => value.strip(),
                    }
                }
            }
            Self::Null
            | Self::Bool(_)
            | Self::Number(_)
            | Self::LargeInteger(_)
            | Self::Text(_) => {}
        }
    }
}

/// Fields that control a provider's prompt cache; clients move them from message to message.
pub(super) fn is_cache_marker(key: &str) -> bool {
    matches!(key, "cache_control" | "prompt_cache_breakpoint")
}

impl Serialize for Tree<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Number(value) => serializer.serialize_f64(*value),
            Self::LargeInteger(value) => serializer.serialize_i128(*value),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => serializer.collect_seq(items),
            Self::Map(members) => {
                serializer.collect_map(members.iter().map(|(key, value)| (&**key, value)))
            }
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Tree<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReadTree)
    }
}

struct ReadTree;

/// The largest whole number up to which each is a double.
const MAX_EXACT: i128 = 1 << 53;

/// A whole number. Two ids that differ in their last digit must not count as equal, although some clients round them.
#[expect(clippy::cast_precision_loss, reason = "none is lost")]
fn integer<'a>(value: impl Into<i128>) -> Tree<'a> {
    let value = value.into();
    if value.abs() <= MAX_EXACT {
        Tree::Number(value as f64)
    } else {
        Tree::LargeInteger(value)
    }
}

impl<'de> Visitor<'de> for ReadTree {
    type Value = Tree<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(integer(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(integer(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        // `1e17` is what others write as `100000000000000000`.
        if value.fract() == 0.0
            && let Ok(value) = value.to_string().parse::<i128>()
            && (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&value)
        {
            return Ok(integer(value));
        }
        Ok(Tree::Number(value))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Tree::Text(Text(Cow::Borrowed(text))))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Tree::Text(Text(Cow::Owned(text.to_owned()))))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = BTreeMap::new();
        while let Some((key, value)) = map.next_entry()? {
            members.insert(key, value);
        }
        Ok(Tree::Map(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(json: &str) -> crate::history::Fingerprint {
        let tree: Tree<'_> = serde_json::from_str(json).unwrap();
        let mut encoder = Encoder::new();
        tree.encode(&mut encoder);
        encoder.finish()
    }

    #[test]
    fn json_values_of_equal_meaning_have_equal_fingerprints() {
        for (one, two) in [
            (r#"{"a":1,"b":2}"#, r#"{ "b" : 2.0, "a" : 1e0 }"#),
            (r#"{"a":0,"a":1}"#, r#"{"a":1}"#),
            ("-0", "0"),
            ("-0.0", "0"),
            ("9007199254740992", "9007199254740992.0"),
            ("1e17", "100000000000000000"),
            ("-1.5e18", "-1500000000000000000"),
            (r#""\u00e9\/""#, "\"é/\""),
        ] {
            assert_eq!(print(one), print(two), "{one} {two}");
        }
    }

    #[test]
    fn json_values_of_different_shape_have_different_fingerprints() {
        let all = [
            "null",
            "true",
            "false",
            "0",
            "1",
            "\"\"",
            "\"0\"",
            "9007199254740992",
            "9007199254740993",
            "-9007199254740993",
            "12345678901234567890",
            "12345678901234567000",
            "\"null\"",
            "[]",
            "{}",
            "[[]]",
            "[[],[]]",
            "[{}]",
            r#"{"":null}"#,
            r#"{"a":{"b":1}}"#,
            r#"{"a":{},"b":1}"#,
            r#"["a","b"]"#,
            r#"["ab"]"#,
            r#"{"a":"b"}"#,
            r#"["b","a"]"#,
            "\"é\"",
            "\"e\u{301}\"",
        ];
        for (index, one) in all.iter().enumerate() {
            for two in &all[index + 1..] {
                assert_ne!(print(one), print(two), "{one} {two}");
            }
        }
    }
}
