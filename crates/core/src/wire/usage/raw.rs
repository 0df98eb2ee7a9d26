//! The usage report of a provider as it came, for the audit: its numbers under their own names.
//!
//! Whatever a provider puts there, no text of a conversation goes through: of strings only the service tier is kept, if it
//! is a short word. Bounded in names, depth and bytes. Called by the proxy for each answer.

use serde_json::{Map, Value};

/// The longest report that is kept, as JSON. Real ones have 100 to 600 bytes.
const MAX_BYTES: usize = 2_048;
/// Longer names, and longer words, are left out.
const MAX_NAME: usize = 48;
const MAX_DEPTH: usize = 3;
/// The only field whose text is kept.
const TIER: &str = "service_tier";

/// A report without anything that is not a number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawUsage(Map<String, Value>);

impl RawUsage {
    /// Takes the fields of a later report of the same answer. Fields that it leaves out stay.
    pub fn update(&mut self, later: Self) {
        if self.0.is_empty() {
            *self = later;
        } else {
            self.0.extend(later.0);
        }
    }

    /// Whether it has no field but those that vLLM, SGLang and llama.cpp write: neither the details of hosted models, nor
    /// a cost, nor a cache of another form.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let is_known = |(name, value): (&String, &Value)| match name.as_str() {
            "prompt_tokens" | "completion_tokens" | "total_tokens" | "reasoning_tokens" => true,
            "prompt_tokens_details" => value
                .as_object()
                .is_some_and(|details| details.keys().all(|name| name == "cached_tokens")),
            _ => false,
        };
        self.0.iter().all(is_known)
    }

    /// Its JSON; `None` if that is too long.
    #[must_use]
    pub fn into_json(self) -> Option<Value> {
        let json = Value::Object(self.0);
        (json.to_string().len() <= MAX_BYTES).then_some(json)
    }
}

/// The numbers of a report; `None` if it has none.
pub(super) fn read(report: Value) -> Option<RawUsage> {
    let kept = numbers(report, MAX_DEPTH)?;
    (!kept.is_empty()).then_some(RawUsage(kept))
}

fn numbers(report: Value, depth: usize) -> Option<Map<String, Value>> {
    let Value::Object(fields) = report else {
        return None;
    };
    let below = depth.checked_sub(1)?;
    // A map of its own: the one that was read keeps the room of all that is left out.
    let named = fields.into_iter().filter(|(name, _)| is_word(name));
    let kept = named.filter_map(|(name, value)| {
        let kept = match value {
            Value::Number(_) => value,
            Value::Object(_) => Value::Object(numbers(value, below)?),
            Value::String(ref text) if name == TIER && is_word(text) => value,
            _ => return None,
        };
        Some((name, kept))
    });
    Some(kept.collect())
}

fn is_word(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::UsageReports;
    use super::*;

    fn in_answer(answer: &Value) -> Option<RawUsage> {
        UsageReports::in_answer(answer).read().1
    }

    fn kept(answer: &Value) -> Option<Value> {
        in_answer(answer)?.into_json()
    }

    #[test]
    fn raw_usage_keeps_numbers_with_their_names_and_no_conversation_text() {
        let usage = json!({
            "prompt_tokens": 12, "cost": 0.00125, "service_tier": "standard", "is_byok": false, "x": null,
            "prompt_tokens_details": {"cached_tokens": 3, "said": "the words of a conversation"},
            "words of a conversation": 4, "said": "secret", "list": [1, "secret"],
            "a": {"b": {"c": {"d": 1}, "e": 2}},
        });
        let expected = json!({
            "prompt_tokens": 12, "cost": 0.00125, "service_tier": "standard",
            "prompt_tokens_details": {"cached_tokens": 3}, "a": {"b": {"e": 2}},
        });
        assert_eq!(kept(&json!({ "usage": usage })), Some(expected));
        let tier = json!({"usage": {"service_tier": "the words of a conversation"}});
        assert_eq!(kept(&tier), None);
    }

    #[test]
    fn a_usage_report_with_only_basic_fields_is_plain() {
        for (usage, is_plain) in [
            (
                json!({"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}),
                true,
            ),
            (
                json!({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}}),
                true,
            ),
            (
                json!({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 0}}),
                false,
            ),
            (
                json!({"prompt_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 0}}),
                false,
            ),
            (json!({"prompt_tokens": 9, "cost": 0.1}), false),
            (
                json!({"prompt_tokens": 9, "prompt_cache_hit_tokens": 1}),
                false,
            ),
        ] {
            let usage = in_answer(&json!({ "usage": usage })).unwrap();
            assert_eq!(usage.is_plain(), is_plain, "{usage:?}");
        }
    }

    #[test]
    fn a_missing_or_too_long_usage_report_is_not_kept() {
        let long: Map<String, Value> = (0..200)
            .map(|at| (format!("number_{at}"), json!(at)))
            .collect();
        assert_eq!(kept(&json!({ "usage": long })), None);
        for none in [json!({}), json!({"usage": null}), json!({"usage": "12"})] {
            assert_eq!(kept(&none), None, "{none}");
        }
    }

    #[test]
    fn a_later_usage_report_replaces_only_the_numbers_that_it_contains() {
        let read = |answer: Value| in_answer(&answer).unwrap();
        let begin = json!({"message": {"usage": {"input_tokens": 7, "output_tokens": 1}}});
        let mut usage = read(begin);
        usage.update(read(json!({"usage": {"output_tokens": 30}})));
        let expected = json!({"input_tokens": 7, "output_tokens": 30});
        assert_eq!(usage.into_json(), Some(expected));
    }
}
