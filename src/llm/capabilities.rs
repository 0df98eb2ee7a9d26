//! How a call is spelled for a model: which optional parameters it takes.

use std::collections::BTreeSet;
use std::fmt;

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::{CallSettings, Prompt};
use crate::wire::usage::{RefusalKind, error_message, refusal};

/// What a model takes. Begins with everything and only ever loses something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallCapabilities {
    limit: OutputLimit,
    /// Content parts beside text: pictures, sounds, files.
    attachments: bool,
    /// Parameters and options it refuses, by their name in the body.
    refused: BTreeSet<String>,
}

/// The name under which a model takes the limit of its output. Every server knows the old name;
/// OpenAI's reasoning models refuse it and want the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputLimit {
    MaxTokens,
    MaxCompletionTokens,
    None,
}

impl OutputLimit {
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

impl Default for CallCapabilities {
    fn default() -> Self {
        Self {
            limit: OutputLimit::MaxTokens,
            attachments: true,
            refused: BTreeSet::new(),
        }
    }
}

impl CallCapabilities {
    pub(super) fn body(&self, settings: &CallSettings, prompt: &Prompt) -> Value {
        let mut messages = Vec::new();
        if !prompt.system.is_empty() {
            messages.push(json!({"role": "system", "content": prompt.system}));
        }
        messages.push(json!({"role": "user", "content": self.content(prompt)}));
        let mut body = Map::new();
        body.insert("model".to_owned(), json!(settings.model));
        body.insert("messages".to_owned(), Value::Array(messages));
        body.insert("stream".to_owned(), json!(false));
        body.extend(self.parameters(settings));
        Value::Object(body)
    }

    /// The user message: text alone where nothing is attached. A model is told which attachments
    /// it cannot see, or it would describe them all the same.
    fn content(&self, prompt: &Prompt) -> Value {
        let (mut shown, mut omitted) = (Vec::new(), Vec::new());
        for attached in &prompt.attachments {
            match attached.part.as_ref().filter(|_| self.attachments) {
                Some(part) => {
                    shown.push(json!({"type": "text", "text": format!("[{}]:", attached.name)}));
                    shown.push(part.clone());
                }
                None => omitted.push(format!("[{}]", attached.name)),
            }
        }
        let mut text = prompt.user.clone();
        if !omitted.is_empty() {
            text.push_str("\n\nNot shown to you: ");
            text.push_str(&omitted.join(", "));
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
    fn without_attachments(
        &self,
        prompt: &Prompt,
        status: StatusCode,
        body: &[u8],
    ) -> Option<Self> {
        let sent = self.attachments && prompt.attachments.iter().any(|at| at.part.is_some());
        // Also too long: pictures weigh, and every server counts them otherwise.
        let refused = refusal(status.as_u16(), body).is_some()
            // Not found: a router without a model that sees. Not a media type: a text-only server.
            || matches!(status.as_u16(), 404 | 415);
        (sent && refused).then(|| Self {
            attachments: false,
            ..self.clone()
        })
    }

    /// Whether the two differ in nothing but what one prompt brought about: that its attachments
    /// did not fit, or could not be fetched, says nothing about the model.
    pub(super) fn confirmed_by(self, previous: &Self, refused: &[u8]) -> Self {
        let message = String::from_utf8_lossy(refused).to_lowercase();
        let prompt_specific = [
            "download",
            "fetch",
            "retriev",
            "too large",
            "too long",
            "exceed",
            "length",
        ];
        Self {
            attachments: self.attachments
                || previous.attachments
                    && prompt_specific.iter().any(|word| message.contains(word)),
            ..self
        }
    }

    /// The same shape without what this answer refuses, if it refuses something we sent.
    pub(super) fn without_refused(
        &self,
        settings: &CallSettings,
        prompt: &Prompt,
        status: StatusCode,
        body: &[u8],
    ) -> Option<Self> {
        self.without_parameter(settings, status, body)
            .or_else(|| self.without_attachments(prompt, status, body))
    }

    /// The same shape without the parameter that this answer refuses, if it refuses one we sent.
    fn without_parameter(
        &self,
        settings: &CallSettings,
        status: StatusCode,
        body: &[u8],
    ) -> Option<Self> {
        let message = match refusal(status.as_u16(), body)? {
            RefusalKind::TooLong | RefusalKind::Filtered => return None,
            RefusalKind::UnknownParameter(name) => name,
            // "invalid temperature: only 1 is allowed for this model", with no code at all.
            RefusalKind::Other => error_message(&serde_json::from_slice(body).ok()?)?,
        };
        let sent = self.parameters(settings);
        let name = sent.keys().find(|name| mentions(&message, name))?;
        let mut next = self.clone();
        // Under another name the model may take it.
        if Some(name.as_str()) == self.limit(settings).map(|(name, _)| name) {
            next.limit = self.limit.next();
        } else {
            next.refused.insert(name.clone());
        }
        Some(next)
    }

    /// What stands in the body beside the prompt: ours, then the operator's parameters, then the
    /// provider's options, each of which replaces what has its name.
    fn parameters(&self, settings: &CallSettings) -> Map<String, Value> {
        let mut parameters = Map::new();
        if let Some(temperature) = settings.temperature {
            // By way of text: 0.3 as a single is 0.300000012 as a double, and would be sent so.
            let rounded = temperature.to_string().parse::<f64>().ok();
            parameters.extend(rounded.map(|number| ("temperature".to_owned(), json!(number))));
        }
        if let Some((name, max)) = self.limit(settings) {
            parameters.insert(name.to_owned(), json!(max));
        }
        parameters.extend(settings.parameters.clone());
        parameters.extend(settings.options.clone());
        parameters.retain(|name, _| !self.refused.contains(name));
        parameters
    }

    /// Ours, unless the operator set one by either name.
    fn limit(&self, settings: &CallSettings) -> Option<(&'static str, u32)> {
        let configured = [OutputLimit::MaxTokens, OutputLimit::MaxCompletionTokens]
            .into_iter()
            .filter_map(OutputLimit::name)
            .any(|name| settings.options.contains_key(name));
        Some((self.limit.name()?, settings.max_output_tokens?)).filter(|_| !configured)
    }
}

impl fmt::Display for CallCapabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left_out: Vec<&str> = self.refused.iter().map(String::as_str).collect();
        match self.limit {
            OutputLimit::MaxTokens => {}
            OutputLimit::MaxCompletionTokens => {
                left_out.push("max_tokens (max_completion_tokens instead)");
            }
            OutputLimit::None => left_out.push("max_tokens"),
        }
        if !self.attachments {
            left_out.push("pictures and files");
        }
        f.write_str(&left_out.join(", "))
    }
}

/// Whether `text` speaks of the parameter `name`, and not of a longer word that holds it.
fn mentions(text: &str, name: &str) -> bool {
    let part_of_a_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(name).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + name.len()..].chars().next();
        !before.is_some_and(part_of_a_word) && !after.is_some_and(part_of_a_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_mentioned_as_a_word() {
        for (text, name, expected) in [
            ("Unsupported: 'seed' is not supported", "seed", true),
            ("reasoning.effort", "reasoning", true),
            ("field `top_p`.", "top_p", true),
            ("seeded sampling is off", "seed", false),
            ("max_completion_tokens", "max_tokens", false),
            ("stop_sequences is unknown", "stop", false),
            ("min_p is not; stop is", "stop", true),
        ] {
            assert_eq!(mentions(text, name), expected, "{text}");
        }
    }
}
