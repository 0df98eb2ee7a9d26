//! The rules by which a provider judges requests.
//!
//! Holds the settings, and the one check that needs only a number: the context window. The other checks
//! read these flags in [`super::parameters`] and [`super::strict`].

use crate::cache::CacheKind;
use crate::prompt::{CountTokens, estimate_tokens};
use crate::refusal::Refusal;

/// What this provider demands. [`Rules::default`] is the behaviour of OpenAI's API without a window.
/// Every `bool` adds one demand of stricter providers; all can be combined.
#[derive(Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent demands, any subset of which exists"
)]
pub struct Rules {
    /// User and assistant messages alternate, beginning with the user; calls and their results do
    /// not count. The chat templates of Mistral and similar models demand this.
    pub alternate: bool,
    /// At most one system or developer message.
    pub single_system: bool,
    /// System and developer messages only before all others.
    pub system_first: bool,
    /// A system or developer message only as the very first one. Otherwise the chat template raises
    /// an exception, which is answered with 500: as llama.cpp and Ollama do for Qwen, Devstral and
    /// Mistral.
    pub template: bool,
    /// `response_format: json_object` needs the word JSON somewhere in the messages (on by default).
    pub json_object: bool,
    /// The tool calls of the current turn (behind the newest user message) must come back with the
    /// signature they were issued with, see [`super::signature_for`].
    pub signature: bool,
    /// `stream_options` is an unknown parameter.
    pub refuse_stream_options: bool,
    /// `prompt_cache_key` is an unknown parameter.
    pub refuse_cache_key: bool,
    /// Which provider's prompt cache is simulated. With [`CacheKind::Marks`], more than four marks (`cache_control`) are
    /// refused. Otherwise marks mean nothing.
    pub cache: CacheKind,
    /// The context window in tokens.
    pub window: Option<u32>,
    /// Models, by prefix of their name, that refuse `max_tokens` and any temperature except 1.
    pub reasoning_models: Vec<String>,
    /// Top-level parameters to accept besides the documented ones.
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
            refuse_cache_key: false,
            cache: CacheKind::default(),
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
            .field("refuse_cache_key", &self.refuse_cache_key)
            .field("cache", &self.cache)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}

impl Rules {
    /// All strict modes together, without window and signatures, which the client must support.
    pub fn strict() -> Self {
        Self {
            alternate: true,
            single_system: true,
            system_first: true,
            template: true,
            refuse_cache_key: true,
            ..Self::default()
        }
    }

    /// The window rule alone, for a prompt of known size.
    ///
    /// # Errors
    /// `context_length_exceeded`, with both numbers and the wording of the real API.
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

    pub(super) fn is_reasoning_model(&self, model: &str) -> bool {
        self.reasoning_models
            .iter()
            .any(|prefix| model.starts_with(prefix.as_str()))
    }
}
