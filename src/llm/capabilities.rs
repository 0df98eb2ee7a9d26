//! How a call is written for a model: the optional parameters that it accepts.

use std::collections::BTreeSet;
use std::fmt;

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::call::CallSettings;
use crate::memory::prompt::Prompt;
use crate::wire::usage::{RefusalKind, error_message, refusal};

/// What a model accepts. Starts with everything and only loses something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallCapabilities {
    limit: OutputLimit,
    /// Content parts other than text: pictures, sounds, files.
    attachments: bool,
    /// Names of the parameters and options that it refuses.
    refused: BTreeSet<String>,
}

/// The name of the output limit. Every server knows the old name; OpenAI's reasoning models refuse
/// it and accept the new one.
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

    /// The user message: a string if nothing is attached. The model is told which attachments it
    /// cannot see, or it would describe them all the same.
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

    /// The same without content parts, if the answer refuses the request and the parts may be the
    /// reason. Providers name no common field for a picture that they refuse. So the call is
    /// repeated without the parts, and the lesson is kept only if that helps.
    fn without_attachments(
        &self,
        prompt: &Prompt,
        status: StatusCode,
        body: &[u8],
    ) -> Option<Self> {
        let sent = self.attachments && prompt.attachments.iter().any(|at| at.part.is_some());
        // A refusal as too long counts too: pictures cost tokens, and every server counts them
        // differently.
        let refused = refusal(status.as_u16(), body).is_some()
            // 404: a router without a model that sees. 415: a server for text only.
            || matches!(status.as_u16(), 404 | 415);
        (sent && refused).then(|| Self {
            attachments: false,
            ..self.clone()
        })
    }

    /// What is learned of the model by a repetition that succeeded. It leaves out what concerned
    /// one prompt only: attachments that did not fit or could not be fetched say nothing about the
    /// model.
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

    /// The same without what the answer refuses; `None` if it refuses nothing that was sent.
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

    /// The same without the parameter that the answer refuses; `None` if it refuses none that was
    /// sent.
    fn without_parameter(
        &self,
        settings: &CallSettings,
        status: StatusCode,
        body: &[u8],
    ) -> Option<Self> {
        let message = match refusal(status.as_u16(), body)? {
            RefusalKind::TooLong | RefusalKind::Filtered => return None,
            RefusalKind::UnknownParameter(name) => name,
            // Some name it in the message only: "invalid temperature: only 1 is allowed for this
            // model".
            RefusalKind::Other => error_message(&serde_json::from_slice(body).ok()?)?,
        };
        let sent = self.parameters(settings);
        let name = sent.keys().find(|name| mentions(&message, name))?;
        let mut next = self.clone();
        // The model may accept the limit under its other name.
        if Some(name.as_str()) == self.limit(settings).map(|(name, _)| name) {
            next.limit = self.limit.next();
        } else {
            next.refused.insert(name.clone());
        }
        Some(next)
    }

    /// The fields of the body beside the prompt: ours, then the operator's parameters, then the
    /// provider's options. Each replaces the ones before it with the same name.
    fn parameters(&self, settings: &CallSettings) -> Map<String, Value> {
        let mut parameters = Map::new();
        if let Some(temperature) = settings.temperature {
            // Through text, because 0.3 as a single would be sent as the double 0.300000012.
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

    /// Our output limit, unless the operator set one by either name.
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

/// Whether `text` names the parameter `name`, and not a longer word that contains it.
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
    fn a_parameter_is_found_only_as_a_whole_word() {
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
