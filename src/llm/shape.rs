//! How a call is spelled for a model: which optional parameters it takes.

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::{CallSettings, Prompt};
use crate::wire::usage::{RefusalKind, error_message, refusal};

/// What a model takes. Begins with everything and only ever loses something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    temperature: bool,
    limit: Limit,
}

/// The name under which a model takes the limit of its output. Every server knows the old name;
/// OpenAI's reasoning models refuse it and want the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    MaxTokens,
    MaxCompletionTokens,
    None,
}

impl Limit {
    fn name(self) -> Option<&'static str> {
        match self {
            Self::MaxTokens => Some("max_tokens"),
            Self::MaxCompletionTokens => Some("max_completion_tokens"),
            Self::None => None,
        }
    }

    fn next(self) -> Self {
        match self {
            Self::MaxTokens => Self::MaxCompletionTokens,
            Self::MaxCompletionTokens | Self::None => Self::None,
        }
    }
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            temperature: true,
            limit: Limit::MaxTokens,
        }
    }
}

impl Shape {
    pub(super) fn body(self, settings: &CallSettings, prompt: &Prompt) -> Value {
        let mut messages = Vec::new();
        if !prompt.system.is_empty() {
            messages.push(json!({"role": "system", "content": prompt.system}));
        }
        messages.push(json!({"role": "user", "content": prompt.user}));
        let mut body = Map::new();
        body.insert("model".to_owned(), json!(settings.model));
        body.insert("messages".to_owned(), Value::Array(messages));
        body.insert("stream".to_owned(), json!(false));
        if let Some(temperature) = self.temperature(settings) {
            body.insert("temperature".to_owned(), json!(temperature));
        }
        if let Some((name, most)) = self.limit(settings) {
            body.insert(name.to_owned(), json!(most));
        }
        Value::Object(body)
    }

    /// The same shape without the parameter that this answer refuses, if it refuses one we sent.
    pub(super) fn without_refused(
        self,
        settings: &CallSettings,
        status: StatusCode,
        body: &[u8],
    ) -> Option<Self> {
        let named = match refusal(status.as_u16(), body)? {
            RefusalKind::TooLong => return None,
            RefusalKind::UnknownParameter(name) => name,
            // "invalid temperature: only 1 is allowed for this model", with no code at all.
            RefusalKind::Other => error_message(&serde_json::from_slice(body).ok()?)?,
        };
        if self.temperature(settings).is_some() && named.contains("temperature") {
            return Some(Self {
                temperature: false,
                ..self
            });
        }
        let (limit, _) = self.limit(settings)?;
        named.contains(limit).then(|| Self {
            limit: self.limit.next(),
            ..self
        })
    }

    fn temperature(self, settings: &CallSettings) -> Option<f64> {
        // By way of text: 0.3 as a single is 0.300000012 as a double, and would be sent so.
        let temperature = settings.temperature.filter(|_| self.temperature)?;
        temperature.to_string().parse().ok()
    }

    fn limit(self, settings: &CallSettings) -> Option<(&'static str, u32)> {
        Some((self.limit.name()?, settings.max_output_tokens?))
    }
}
