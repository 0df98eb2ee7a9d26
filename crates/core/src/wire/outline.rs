//! What an audit line says of a request, read in one pass without a copy of its messages.

use std::fmt;

use super::chat::MAX_MODEL_BYTES;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

/// The outline of a chat-completions request.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub struct Outline {
    /// The model that it names.
    pub model: Option<String>,
    /// Whether it asks for a stream.
    #[serde(default)]
    pub stream: Option<bool>,
    /// How many messages it has.
    #[serde(default, rename = "messages", deserialize_with = "count")]
    pub message_count: Option<usize>,
}

impl Outline {
    /// Reads a body; `None` if it is no JSON object with fields of these kinds.
    pub fn read(body: &[u8]) -> Option<Self> {
        let mut outline: Self = serde_json::from_slice(body).ok()?;
        outline.model = outline.model.filter(|model| model.len() <= MAX_MODEL_BYTES);
        Some(outline)
    }
}

fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    struct Count;
    impl<'de> Visitor<'de> for Count {
        type Value = usize;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut messages: A) -> Result<usize, A::Error> {
            let mut count = 0;
            while messages.next_element::<IgnoredAny>()?.is_some() {
                count += 1;
            }
            Ok(count)
        }
    }
    deserializer.deserialize_seq(Count).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outline_is_read_only_from_a_body_with_valid_fields() {
        let body = br#"{"stream":true,"messages":[{"role":"user","content":[1]},2],"model":"caf\u00e9","x":1}"#;
        let outline = Outline::read(body).unwrap();
        assert_eq!(outline.model.as_deref(), Some("café"));
        assert_eq!(
            (outline.stream, outline.message_count),
            (Some(true), Some(2))
        );
        let empty = Outline::read(b"{}").unwrap();
        assert_eq!(
            (empty.model, empty.stream, empty.message_count),
            (None, None, None)
        );
        for bad in [
            "",
            "[]x",
            r#"{"model":1}"#,
            r#"{"messages":{}}"#,
            r#"{"model":"a","model":"b"}"#,
        ] {
            assert_eq!(Outline::read(bad.as_bytes()), None, "{bad}");
        }
    }
}
