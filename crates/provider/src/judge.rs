//! Decides, as the real API would, whether a chat-completions request is acceptable.
//!
//! Deliberately shares no code with `wire`, `history` or `memory`: it is the independent judge of
//! what they produce. Pure and synchronous; no clock, no sockets, no state between requests.
//! Called by [`super::server`] for every chat request and directly by property tests.
//!
//! [`judge`] is the whole verdict. [`inspect`] leaves out the one rule that needs the prompt
//! measured (the context window), for callers that already measure it: see [`Rules::fits`].

mod parameters;
mod rounds;
mod strict;

use serde_json::{Map, Value};

use super::prompt::Prompt;
use super::refusal::Refusal;
use super::{CountTokens, estimate_tokens};

pub use strict::signature_for;

/// What this provider insists on. [`Rules::default`] is the behaviour of OpenAI's API with no
/// window; every `bool` turns on one further demand of stricter providers, and they combine.
#[derive(Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent demands, any subset of which exists"
)]
pub struct Rules {
    /// User and assistant messages take turns, beginning with the user; calls and their results
    /// do not count as turns. What the chat templates of Mistral and its kin demand.
    pub alternate: bool,
    /// At most one system or developer message.
    pub single_system: bool,
    /// System and developer messages only before all others.
    pub system_first: bool,
    /// A system or developer message only as the very first, or the chat template raises an exception, which
    /// is answered 500: what llama.cpp and Ollama do for Qwen, Devstral and Mistral.
    pub template: bool,
    /// `response_format: json_object` needs the word JSON somewhere in the messages (on by default).
    pub json_object: bool,
    /// The tool calls of the current turn (after the newest user message) must come back with the
    /// signature they were issued with, see [`signature_for`].
    pub signature: bool,
    /// `stream_options` is an unknown parameter.
    pub refuse_stream_options: bool,
    /// The context window in tokens.
    pub window: Option<u32>,
    /// Models (by prefix of their name) that refuse `max_tokens` and any temperature but 1.
    pub reasoning_models: Vec<String>,
    /// Top-level parameters to accept beyond the documented ones.
    pub extra_parameters: Vec<String>,
    /// How tokens are counted, for [`Rules::window`] only.
    pub count_tokens: CountTokens,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            alternate: false,
            single_system: false,
            system_first: false,
            template: false,
            json_object: true,
            signature: false,
            refuse_stream_options: false,
            window: None,
            reasoning_models: ["o1", "o3", "o4", "gpt-5"].map(str::to_owned).to_vec(),
            extra_parameters: Vec::new(),
            count_tokens: estimate_tokens(),
        }
    }
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rules")
            .field("alternate", &self.alternate)
            .field("single_system", &self.single_system)
            .field("system_first", &self.system_first)
            .field("template", &self.template)
            .field("json_object", &self.json_object)
            .field("signature", &self.signature)
            .field("refuse_stream_options", &self.refuse_stream_options)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}

impl Rules {
    /// Every strict mode at once (but no window and no signatures, which need the client's part).
    pub fn strict() -> Self {
        Self {
            alternate: true,
            single_system: true,
            system_first: true,
            template: true,
            ..Self::default()
        }
    }

    /// The window rule alone, for a prompt whose size is known.
    ///
    /// # Errors
    /// `context_length_exceeded`, worded with both numbers as the real API does.
    pub fn check_window(&self, prompt_tokens: u32) -> Result<(), Refusal> {
        match self.window {
            Some(window) if prompt_tokens > window => Err(Refusal::invalid(format!(
                "This model's maximum context length is {window} tokens. However, your messages \
                 resulted in {prompt_tokens} tokens. Please reduce the length of the messages."
            ))
            .param("messages")
            .code("context_length_exceeded")),
            _ => Ok(()),
        }
    }

    fn is_reasoning_model(&self, model: &str) -> bool {
        self.reasoning_models
            .iter()
            .any(|prefix| model.starts_with(prefix.as_str()))
    }
}

/// A request that passed.
#[derive(Clone, Debug)]
pub struct AcceptedRequest {
    /// The whole request as parsed.
    pub request: Map<String, Value>,
    /// The model asked for.
    pub model: String,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// Whether the stream is to end with a chunk that carries usage.
    pub include_usage: bool,
    /// How many choices are asked for, at least 1.
    pub n: u32,
    /// The prompt as the model would read it.
    pub prompt: Prompt,
}

impl AcceptedRequest {
    /// The messages of the request, in order.
    pub fn messages(&self) -> &[Value] {
        self.request
            .get("messages")
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }
}

/// The whole verdict on a request body.
///
/// # Errors
/// The first refusal the real API would give, see [`Refusal`].
pub fn judge(body: &[u8], rules: &Rules) -> Result<AcceptedRequest, Refusal> {
    let accepted = inspect(body, rules)?;
    if rules.window.is_some() {
        rules.check_window(accepted.prompt.tokens(&rules.count_tokens))?;
    }
    Ok(accepted)
}

/// [`judge`] without the window.
///
/// # Errors
/// As [`judge`].
pub fn inspect(body: &[u8], rules: &Rules) -> Result<AcceptedRequest, Refusal> {
    inspect_parsed(parse(body)?, rules)
}

/// [`inspect`] for a body that has been parsed already.
pub(super) fn inspect_parsed(
    request: Map<String, Value>,
    rules: &Rules,
) -> Result<AcceptedRequest, Refusal> {
    let model = parameters::check(&request, rules)?.to_owned();
    let messages = parameters::messages(&request)?;
    for (at, message) in messages.iter().enumerate() {
        parameters::check_message(at, message)?;
    }
    rounds::check(messages)?;
    strict::check(&request, messages, rules)?;

    let flag = |value: Option<&Value>| value.and_then(Value::as_bool).unwrap_or(false);
    let include_usage = request
        .get("stream_options")
        .and_then(|options| options.get("include_usage"));
    Ok(AcceptedRequest {
        model,
        stream: flag(request.get("stream")),
        include_usage: flag(include_usage),
        n: request
            .get("n")
            .and_then(Value::as_u64)
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(1),
        prompt: Prompt::render(&request),
        request,
    })
}

/// A body as a JSON object.
pub(super) fn parse(body: &[u8]) -> Result<Map<String, Value>, Refusal> {
    // Parsed through `FromStr`, which serde_json compiles (optimised, also in tests) itself.
    let value = std::str::from_utf8(body)
        .ok()
        .and_then(|text| text.parse::<Value>().ok());
    match value {
        Some(Value::Object(request)) => Ok(request),
        _ => Err(Refusal::invalid(
            "We could not parse the JSON body of your request: a JSON object was expected.",
        )),
    }
}

/// What a message says its role is; `""` for one that does not say.
pub(super) fn role(message: &Value) -> &str {
    message
        .get("role")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn is_system(message: &Value) -> bool {
    matches!(role(message), "system" | "developer")
}

/// The ids of the tool calls a message makes, in order.
fn call_ids(message: &Value) -> impl Iterator<Item = &str> {
    message
        .get("tool_calls")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|call| call.get("id").and_then(Value::as_str).unwrap_or_default())
}

#[cfg(test)]
mod tests;
