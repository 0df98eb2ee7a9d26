//! The fields of an answer that are read. The others are skipped without a copy: the log probabilities of a long answer
//! are a hundred times its text, and in memory ten times that. Called by [`super::capture`].

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Fields of an answer, or of one piece of a stream.
const ANSWER_FIELDS: [&str; 9] = [
    "choices",
    "error",
    "message",
    "object",
    "response",
    "timings",
    "usage",
    "usageMetadata",
    "x_groq",
];

/// Fields of a choice, beside its message.
const CHOICE_FIELDS: [&str; 4] = ["delta", "finish_reason", "index", "usage"];

/// More choices than any provider gives (OpenAI's limit for `n` is 128). Bounds what an upstream can make us keep.
pub(super) const MAX_CHOICES: usize = 1024;

/// What is read of an answer, or of one piece of a stream.
#[derive(Debug)]
pub(super) struct Answer<'a> {
    /// The fields that are read, an object.
    pub(super) fields: Value,
    /// The message of each choice, in their order, as the upstream wrote it. `fields` has none of them.
    pub(super) messages: Vec<Option<&'a RawValue>>,
}

/// The answer in `json`; `None` if it is no JSON object.
pub(super) fn read(json: &[u8]) -> Option<Answer<'_>> {
    // Clients read past a byte order mark.
    let json = json.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(json);
    serde_json::from_slice(json).ok()
}

impl<'de> Deserialize<'de> for Answer<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AnswerVisitor)
    }
}

struct AnswerVisitor;

impl<'de> Visitor<'de> for AnswerVisitor {
    type Value = Answer<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an answer")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Answer<'de>, A::Error> {
        let (mut read, mut messages) = (Map::new(), Vec::new());
        while let Some(name) = members.next_key::<Cow<'_, str>>()? {
            if name == "choices" {
                let choices: Lenient<Choices<'_>> = members.next_value()?;
                read.insert(name.into_owned(), choices.0.fields);
                messages = choices.0.messages;
            } else if ANSWER_FIELDS.contains(&&*name) {
                read.insert(name.into_owned(), members.next_value()?);
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        let fields = Value::Object(read);
        Ok(Answer { fields, messages })
    }
}

/// Reads a list or an object, and takes any other value for none: servers write odd things.
trait ReadPart<'de>: Sized + Default {
    fn read_list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }

    fn read_object<A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }
}

#[derive(Default)]
struct Choices<'a> {
    /// A list, or null.
    fields: Value,
    messages: Vec<Option<&'a RawValue>>,
}

impl<'de> ReadPart<'de> for Choices<'de> {
    fn read_list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let (mut choices, mut messages) = (Vec::new(), Vec::new());
        while choices.len() < MAX_CHOICES
            && let Some(choice) = list.next_element::<Lenient<Choice<'_>>>()?
        {
            choices.push(choice.0.fields);
            messages.push(choice.0.message);
        }
        if choices.len() == MAX_CHOICES {
            while list.next_element::<IgnoredAny>()?.is_some() {}
        }
        let fields = Value::Array(choices);
        Ok(Self { fields, messages })
    }
}

#[derive(Default)]
struct Choice<'a> {
    /// An object, or null.
    fields: Value,
    message: Option<&'a RawValue>,
}

impl<'de> ReadPart<'de> for Choice<'de> {
    fn read_object<A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        let (mut read, mut message) = (Map::new(), None);
        while let Some(name) = object.next_key::<Cow<'_, str>>()? {
            if name == "message" {
                message = Some(object.next_value()?);
            } else if CHOICE_FIELDS.contains(&&*name) {
                read.insert(name.into_owned(), object.next_value()?);
            } else {
                object.next_value::<IgnoredAny>()?;
            }
        }
        let fields = Value::Object(read);
        Ok(Self { fields, message })
    }
}

struct Lenient<T>(T);

impl<'de, T: ReadPart<'de>> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let visitor = LenientVisitor(std::marker::PhantomData);
        deserializer.deserialize_any(visitor).map(Self)
    }
}

struct LenientVisitor<T>(std::marker::PhantomData<T>);

impl<'de, T: ReadPart<'de>> Visitor<'de> for LenientVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        T::read_list(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<T, A::Error> {
        T::read_object(object)
    }

    fn visit_bool<E>(self, _: bool) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::default())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_is_read_is_kept() {
        let answer = json!({
            "id": "x", "object": "chat.completion", "usage": {"prompt_tokens": 7}, "huge": [[{}]],
            "choices": [
                {"index": 0, "logprobs": {"content": [1, 2]}, "message": {"content": "a", "x": [1]}, "finish_reason": "stop"},
                3, null, "x", [1], 1.5, -1, true,
            ],
        });
        let kept = json!({
            "object": "chat.completion", "usage": {"prompt_tokens": 7},
            "choices": [
                {"index": 0, "finish_reason": "stop"},
                null, null, null, null, null, null, null,
            ],
        });
        let answer = answer.to_string();
        let found = read(answer.as_bytes()).unwrap();
        assert_eq!(found.fields, kept);
        let messages: Vec<_> = found
            .messages
            .iter()
            .flatten()
            .map(|raw| raw.get())
            .collect();
        assert_eq!(messages, [r#"{"content":"a","x":[1]}"#]);
        assert!(found.messages[0].is_some() && found.messages.len() == 8);
        for (odd, kept) in [
            (r#"{"choices":null}"#, Some(json!({"choices": null}))),
            (r#"{"choices":{"a":[1]}}"#, Some(json!({"choices": null}))),
            (r#"{"\u0075sage":1}"#, Some(json!({"usage": 1}))),
            (r#"{"choices":[{}"#, None),
            ("[1]", None),
            ("{} x", None),
        ] {
            let found = read(odd.as_bytes()).map(|answer| answer.fields);
            assert_eq!(found, kept, "{odd}");
        }
        let many = format!(r#"{{"choices":[{}{{}}]}}"#, "{},".repeat(5000));
        let read = read(many.as_bytes()).unwrap();
        assert_eq!(
            read.fields["choices"].as_array().unwrap().len(),
            MAX_CHOICES
        );
    }
}
