//! The fields of an answer that are read. The others are skipped without a copy: the log probabilities of a long answer
//! are a hundred times its text, and in memory ten times that. Called by [`super::capture`].

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::wire::usage::UsageReports;

/// More choices than any provider gives (OpenAI's limit for `n` is 128). Bounds what an upstream can make us keep.
pub(super) const MAX_CHOICES: usize = 1024;

/// What is read of an answer, or of one piece of a stream.
#[derive(Debug, Default)]
pub(super) struct Answer<'a> {
    pub(super) choices: Vec<Choice<'a>>,
    pub(super) error: Option<Value>,
    pub(super) object: Option<Value>,
    pub(super) reports: UsageReports,
}

/// What is read of a choice. A choice that is no object has nothing of it.
#[derive(Debug, Default)]
pub(super) struct Choice<'a> {
    pub(super) delta: Option<Value>,
    pub(super) finish_reason: Option<Value>,
    pub(super) index: Option<Value>,
    /// As the upstream wrote it.
    pub(super) message: Option<&'a RawValue>,
    usage: Option<Value>,
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

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum AnswerField {
    Choices,
    Error,
    Message,
    Object,
    Response,
    Timings,
    Usage,
    #[serde(rename = "usageMetadata")]
    UsageMetadata,
    XGroq,
    #[serde(other)]
    Other,
}

struct AnswerVisitor;

impl<'de> Visitor<'de> for AnswerVisitor {
    type Value = Answer<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an answer")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Answer<'de>, A::Error> {
        let mut answer = Answer::default();
        let reports = &mut answer.reports;
        while let Some(field) = members.next_key()? {
            match field {
                AnswerField::Choices => {
                    let choices: Lenient<Choices<'_>> = members.next_value()?;
                    answer.choices = choices.0.0;
                }
                AnswerField::Error => answer.error = Some(members.next_value()?),
                AnswerField::Object => answer.object = Some(members.next_value()?),
                AnswerField::Usage => reports.usage = Some(members.next_value()?),
                AnswerField::UsageMetadata => reports.usage_metadata = Some(members.next_value()?),
                AnswerField::Timings => reports.timings = Some(members.next_value()?),
                AnswerField::Response => reports.response = usage_of(&mut members)?,
                AnswerField::Message => reports.message = usage_of(&mut members)?,
                AnswerField::XGroq => reports.x_groq = usage_of(&mut members)?,
                AnswerField::Other => {
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
        let last_choice = answer.choices.last_mut();
        reports.last_choice = last_choice.and_then(|choice| choice.usage.take());
        Ok(answer)
    }
}

/// The member `usage` of the next value.
fn usage_of<'de, A: MapAccess<'de>>(members: &mut A) -> Result<Option<Value>, A::Error> {
    let value: Lenient<WithUsage> = members.next_value()?;
    Ok(value.0.0)
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
struct WithUsage(Option<Value>);

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum WithUsageField {
    Usage,
    #[serde(other)]
    Other,
}

impl<'de> ReadPart<'de> for WithUsage {
    fn read_object<A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        let mut usage = None;
        while let Some(field) = object.next_key()? {
            match field {
                WithUsageField::Usage => usage = Some(object.next_value()?),
                WithUsageField::Other => {
                    object.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Self(usage))
    }
}

#[derive(Default)]
struct Choices<'a>(Vec<Choice<'a>>);

impl<'de> ReadPart<'de> for Choices<'de> {
    fn read_list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut choices = Vec::new();
        while choices.len() < MAX_CHOICES
            && let Some(choice) = list.next_element::<Lenient<Choice<'_>>>()?
        {
            choices.push(choice.0);
        }
        if choices.len() == MAX_CHOICES {
            while list.next_element::<IgnoredAny>()?.is_some() {}
        }
        Ok(Self(choices))
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum ChoiceField {
    Delta,
    FinishReason,
    Index,
    Message,
    Usage,
    #[serde(other)]
    Other,
}

impl<'de> ReadPart<'de> for Choice<'de> {
    fn read_object<A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        let mut choice = Self::default();
        while let Some(field) = object.next_key()? {
            match field {
                ChoiceField::Delta => choice.delta = Some(object.next_value()?),
                ChoiceField::FinishReason => choice.finish_reason = Some(object.next_value()?),
                ChoiceField::Index => choice.index = Some(object.next_value()?),
                ChoiceField::Message => choice.message = Some(object.next_value()?),
                ChoiceField::Usage => choice.usage = Some(object.next_value()?),
                ChoiceField::Other => {
                    object.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(choice)
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
    fn only_the_needed_fields_of_an_answer_are_kept() {
        let answer = json!({
            "id": "x", "object": "chat.completion", "usage": {"prompt_tokens": 7}, "huge": [[{}]],
            "response": {"output": [1], "usage": {"input_tokens": 8}}, "message": "x", "x_groq": {"id": 1},
            "choices": [
                {"index": 0, "logprobs": {"content": [1, 2]}, "message": {"content": "a", "x": [1]}, "finish_reason": "stop"},
                3, null, "x", [1], 1.5, -1, {"usage": {"prompt_tokens": 9}},
            ],
        });
        let answer = answer.to_string();
        let found = read(answer.as_bytes()).unwrap();
        assert_eq!(found.object, Some(json!("chat.completion")));
        assert_eq!(found.error, None);
        let reports = found.reports;
        assert_eq!(reports.usage, Some(json!({"prompt_tokens": 7})));
        assert_eq!(reports.response, Some(json!({"input_tokens": 8})));
        assert_eq!(reports.last_choice, Some(json!({"prompt_tokens": 9})));
        assert!(reports.message.is_none() && reports.x_groq.is_none());
        assert_eq!(found.choices.len(), 8);
        let first = &found.choices[0];
        assert_eq!(first.index, Some(json!(0)));
        assert_eq!(first.finish_reason, Some(json!("stop")));
        assert_eq!(
            first.message.map(RawValue::get),
            Some(r#"{"content":"a","x":[1]}"#)
        );
        let nothing = |choice: &Choice<'_>| choice.index.is_none() && choice.message.is_none();
        assert!(found.choices[1..].iter().all(nothing));
    }

    #[test]
    fn an_unusual_answer_is_read_if_it_is_valid_json() {
        for (odd, choices) in [
            (r#"{"choices":null}"#, Some(0)),
            (r#"{"choices":{"a":[1]}}"#, Some(0)),
            (r#"{"choices":[{}],"choices":[]}"#, Some(0)),
            (r#"{"choices":[{}"#, None),
            ("[1]", None),
            ("{} x", None),
        ] {
            let found = read(odd.as_bytes()).map(|answer| answer.choices.len());
            assert_eq!(found, choices, "{odd}");
        }
        let escaped = read(br#"{"\u0075sage":1}"#).unwrap();
        assert_eq!(escaped.reports.usage, Some(json!(1)));
        let many = format!(r#"{{"choices":[{}{{}}]}}"#, "{},".repeat(5000));
        let read = read(many.as_bytes()).unwrap();
        assert_eq!(read.choices.len(), MAX_CHOICES);
    }
}
