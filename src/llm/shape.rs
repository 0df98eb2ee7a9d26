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
    /// Content parts beside text: pictures, sounds, files.
    parts: bool,
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
            parts: true,
        }
    }
}

impl Shape {
    pub(super) fn body(self, settings: &CallSettings, prompt: &Prompt) -> Value {
        let mut messages = Vec::new();
        if !prompt.system.is_empty() {
            messages.push(json!({"role": "system", "content": prompt.system}));
        }
        messages.push(json!({"role": "user", "content": self.content(prompt)}));
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

    /// The user message: text alone where nothing is attached. A model is told which attachments
    /// it cannot see, or it would describe them all the same.
    fn content(self, prompt: &Prompt) -> Value {
        let (mut shown, mut unseen) = (Vec::new(), Vec::new());
        for attached in &prompt.attachments {
            match attached.part.as_ref().filter(|_| self.parts) {
                Some(part) => {
                    shown.push(json!({"type": "text", "text": format!("[{}]:", attached.name)}));
                    shown.push(part.clone());
                }
                None => unseen.push(format!("[{}]", attached.name)),
            }
        }
        let mut text = prompt.user.clone();
        if !unseen.is_empty() {
            text.push_str("\n\nNot shown to you: ");
            text.push_str(&unseen.join(", "));
            text.push('.');
        }
        if shown.is_empty() {
            return Value::String(text);
        }
        let mut parts = vec![json!({"type": "text", "text": text})];
        parts.extend(shown);
        Value::Array(parts)
    }

    /// The same shape without the content parts, where this answer refuses the request and the
    /// parts may be why. Which field a provider names for a picture it cannot take has no rule, so
    /// the call is made again without them, and what is learned is only remembered if that helps.
    fn without_parts(self, prompt: &Prompt, status: StatusCode, body: &[u8]) -> Option<Self> {
        let sent = self.parts && prompt.attachments.iter().any(|at| at.part.is_some());
        // Also too long: pictures weigh, and every server counts them otherwise.
        let refused = refusal(status.as_u16(), body).is_some()
            // Not found: a router without a model that sees. Not a media type: a text-only server.
            || matches!(status.as_u16(), 404 | 415);
        (sent && refused).then_some(Self {
            parts: false,
            ..self
        })
    }

    /// Whether the two differ in nothing but what one prompt brought about: that its attachments
    /// did not fit, or could not be fetched, says nothing about the model.
    pub(super) fn learned(self, known: Self, refused: &[u8]) -> Self {
        let said = String::from_utf8_lossy(refused).to_lowercase();
        let about_this = [
            "download",
            "fetch",
            "retriev",
            "too large",
            "too long",
            "exceed",
            "length",
        ];
        Self {
            parts: self.parts || known.parts && about_this.iter().any(|word| said.contains(word)),
            ..self
        }
    }

    /// The same shape without what this answer refuses, if it refuses something we sent.
    pub(super) fn without_refused(
        self,
        settings: &CallSettings,
        prompt: &Prompt,
        status: StatusCode,
        body: &[u8],
    ) -> Option<Self> {
        self.without_parameter(settings, status, body)
            .or_else(|| self.without_parts(prompt, status, body))
    }

    /// The same shape without the parameter that this answer refuses, if it refuses one we sent.
    fn without_parameter(
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
