//! Decides, as the real API would, whether a chat-completions request is acceptable.
//!
//! Shares no code with `wire`, `history` or `memory` on purpose: it judges independently what they
//! produce. Pure and synchronous; no clock, no sockets, no state between requests. Called by
//! `chat` for every chat request, and directly by property tests.
//!
//! [`judge`] is the whole verdict. [`inspect`] leaves out the rule that needs the size of the prompt
//! (the context window), for callers that measure it themselves: see [`Rules::check_window`].

mod marks;
mod parameters;
mod rounds;
mod rules;
mod strict;

use serde_json::{Map, Value};

use super::cache::CacheKind;
use super::prompt::Prompt;
use super::refusal::Refusal;

pub use rules::Rules;
pub use strict::signature_for;

/// A request that was accepted.
#[derive(Clone, Debug)]
pub struct AcceptedRequest {
    /// The whole request as parsed.
    pub request: Map<String, Value>,
    /// The requested model.
    pub model: String,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether the stream ends with a chunk that has the usage.
    pub include_usage: bool,
    /// How many choices are requested, at least 1.
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
    if rules.cache == CacheKind::Marks {
        marks::check(&request)?;
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

#[cfg(test)]
mod tests;
