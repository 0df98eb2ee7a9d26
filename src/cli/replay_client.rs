//! Plays a conversation as its client did, request by request, and evaluates the requests that reached a provider.
//!
//! Like every client it sends a growing prefix of the history. All numbers come from the provider's side, one
//! record for each accepted request; the proxy is not asked. Used by `demo` and `replay`.

use anyhow::Context as _;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;

use super::terminal::harmless;
use crate::memory::render;
use crate::report::{MemoryChange, ReportStep, Story, Tokens};
use crate::wire::usage::error_message;
use diarist_provider::CallerKind;

/// The header in which a client names its conversation.
const THREAD_HEADER: &str = "x-diarist-thread";

/// A client that sends requests.
#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    credential: SecretString,
}

/// A request that was refused.
#[derive(Debug, thiserror::Error)]
#[error("answered {status}: {message}")]
pub(super) struct Rejection {
    pub(super) status: u16,
    message: String,
}

impl Client {
    /// A client with its own credential.
    ///
    /// # Errors
    ///
    /// The HTTP client cannot be set up.
    pub(super) fn new(credential: &str) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().no_proxy().build();
        Ok(Self {
            http: http.context("the HTTP client cannot be set up")?,
            credential: credential.to_owned().into(),
        })
    }

    /// Posts one chat request. The outer error is a connection that failed.
    ///
    /// # Errors
    ///
    /// No answer at all.
    pub(super) async fn send(
        &self,
        base_url: &str,
        thread: Option<&str>,
        body: &Value,
    ) -> anyhow::Result<Result<(), Rejection>> {
        let mut request = self
            .http
            .post(format!("{base_url}/chat/completions"))
            .bearer_auth(self.credential.expose_secret())
            .header("content-type", "application/json")
            .body(body.to_string());
        if let Some(thread) = thread {
            request = request.header(THREAD_HEADER, thread);
        }
        let response = request.send().await.context("no answer")?;
        let status = response.status();
        let answer = response.bytes().await.context("the answer broke off")?;
        if status.is_success() {
            return Ok(Ok(()));
        }
        let message = serde_json::from_slice(&answer)
            .ok()
            .and_then(|body: Value| error_message(&body))
            .unwrap_or_else(|| String::from_utf8_lossy(&answer).into_owned());
        let message = harmless(&message).replace('\n', " ");
        Ok(Err(Rejection {
            status: status.as_u16(),
            message: message.chars().take(300).collect(),
        }))
    }
}

/// One request that a provider accepted.
#[derive(Clone, Debug)]
pub(super) struct ModelCall {
    /// Who sent it.
    pub(super) part: CallerKind,
    /// The tokens that the provider counted.
    pub(super) tokens: Tokens,
    /// The block of observations in it.
    pub(super) block: Option<String>,
}

/// The block of observations in a request body, if it holds one.
pub(super) fn observation_block(body: &Value) -> Option<String> {
    texts(body)
        .into_iter()
        .find(|text| render::looks_like_block(text))
        .map(|text| text[render::before_block(&text).len()..].to_owned())
}

/// The text of each message of a request body, the arguments of its calls included.
pub(super) fn texts(body: &Value) -> Vec<String> {
    let messages = body.get("messages").and_then(Value::as_array);
    let calls = |message: &Value| -> String {
        let calls = message.get("tool_calls").and_then(Value::as_array);
        let arguments = calls.into_iter().flatten();
        arguments
            .filter_map(|call| call.pointer("/function/arguments")?.as_str())
            .collect()
    };
    messages
        .into_iter()
        .flatten()
        .map(|message| diarist_provider::script::text(message) + &calls(message))
        .collect()
}

/// The steps of one conversation: from the requests that the client sent directly, in order (empty if it was not
/// played directly), and from all requests with Diarist.
pub(super) fn story(direct: &[ModelCall], with_diarist: &[ModelCall]) -> Story {
    let calls_by = |part| with_diarist.iter().filter(move |call| call.part == part);
    let tokens = |part| calls_by(part).map(|call| call.tokens).collect();
    let marks = marks(calls_by(CallerKind::Actor).map(|call| call.block.as_deref()));
    let steps = calls_by(CallerKind::Actor).zip(marks).enumerate();
    Story {
        steps: steps
            .map(|(at, (proxied, mark))| ReportStep {
                direct: direct.get(at).map(|call| call.tokens),
                forwarded: proxied.tokens,
                mark,
            })
            .collect(),
        observer: tokens(CallerKind::Observer),
        reflector: tokens(CallerKind::Reflector),
    }
}

/// What is new in each block, compared with the one before.
fn marks<'a>(blocks: impl Iterator<Item = Option<&'a str>>) -> Vec<Option<MemoryChange>> {
    let mut last: Option<&str> = None;
    blocks
        .map(|block| {
            let observations = observations(block?);
            let before = last.replace(observations);
            match before {
                Some(before) if before == observations => None,
                Some(before) if !observations.starts_with(before) => Some(MemoryChange::Reflection),
                _ => Some(MemoryChange::Activation),
            }
        })
        .collect()
}

/// A block without the hints at its end, which the next activation replaces.
fn observations(block: &str) -> &str {
    ["\n<current-task>\n", "\n<suggested-response>\n"]
        .iter()
        .filter_map(|hint| block.find(hint))
        .min()
        .map_or(block, |end| &block[..=end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Rendering;
    use serde_json::json;

    #[test]
    fn a_grown_block_is_an_activation_and_a_rewritten_one_a_reflection() {
        let hint = "<current-task>\nx\n</current-task>\n";
        let (first, second) = (format!("B\n* a\n{hint}"), format!("B\n* a\n* b\n{hint}"));
        let blocks = [
            None,
            Some(first.as_str()),
            Some("B\n* a\n"),
            None,
            Some(&second),
            Some(&second),
            Some("B\n* ab\n"),
        ];
        assert_eq!(
            marks(blocks.into_iter()),
            [
                None,
                Some(MemoryChange::Activation),
                None,
                None,
                Some(MemoryChange::Activation),
                None,
                Some(MemoryChange::Reflection)
            ]
        );
    }

    #[test]
    fn the_block_is_found_alone_and_appended_to_other_text() {
        let rendering = Rendering {
            preamble: render::PREAMBLE_VERSION,
            as_of: jiff::civil::date(2026, 3, 9),
        };
        let text = "* x";
        let written = render::segments(&[render::BlockPart { text, rendering }], None).concat();
        let separate = json!({"messages": [{"role": "system", "content": written}]});
        let appended = format!("Be kind.\n\n{written}");
        let parts = json!([{"type": "text", "text": appended}]);
        let appended = json!({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": parts}]});
        assert_eq!(observation_block(&separate), Some(written.clone()));
        assert_eq!(observation_block(&appended), Some(written));
        assert_eq!(
            observation_block(&json!({"messages": [{"role": "user", "content": "hi"}]})),
            None
        );
        assert_eq!(observation_block(&json!([])), None);
    }
}
