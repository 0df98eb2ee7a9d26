//! The options of a provider, with the default rule that finds out who sent a request.
//!
//! Called by [`super::Provider::start`], which passes the options to [`super::request_handler`].

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::caller::{CallerKind, IdentifyCaller, OBSERVER_MODEL, REFLECTOR_MODEL};
use super::judge::Rules;
use super::message::{role, text};
use super::observer::{Observer, shows_history};
use super::prompt::{CountTokens, estimate_tokens};
use super::reflector::Reflector;
use super::script::{DefaultScript, Script};

/// The options of a provider. Rules, scripts and behaviours can be changed while it runs.
pub struct Options {
    /// The rules that it judges requests by.
    pub rules: Rules,
    /// How it counts the tokens of prompts and answers.
    pub count_tokens: CountTokens,
    /// Finds out who sent a request; by default from the model's name, or else from the shape of
    /// the prompt.
    pub identify_caller: IdentifyCaller,
    /// The script for each caller.
    pub scripts: HashMap<CallerKind, Arc<dyn Script>>,
    /// Whether the record keeps the bodies of chat requests. Without memory, the bodies of a long
    /// conversation grow with the square of its length: a replay of 1,600 messages keeps half a
    /// gigabyte.
    pub keep_bodies: bool,
}

impl Default for Options {
    fn default() -> Self {
        let scripts: [(CallerKind, Arc<dyn Script>); 3] = [
            (CallerKind::Actor, Arc::new(DefaultScript::default())),
            (CallerKind::Observer, Arc::new(Observer::default())),
            (CallerKind::Reflector, Arc::new(Reflector::default())),
        ];
        Self {
            rules: Rules::default(),
            count_tokens: estimate_tokens(),
            identify_caller: Arc::new(caller_by_model_or_shape),
            scripts: scripts.into(),
            keep_bodies: true,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("rules", &self.rules)
            .field("keep_bodies", &self.keep_bodies)
            .finish_non_exhaustive()
    }
}

/// Decides by the model's name. If a call uses the conversation's model, decides by shape: one system
/// and one user message, no tools, and a section fenced as `<history-CODE>` in the user message.
fn caller_by_model_or_shape(request: &Map<String, Value>) -> CallerKind {
    match request.get("model").and_then(Value::as_str) {
        Some(OBSERVER_MODEL) => return CallerKind::Observer,
        Some(REFLECTOR_MODEL) => return CallerKind::Reflector,
        _ => {}
    }
    let messages = request.get("messages").and_then(Value::as_array);
    let Some([system, user]) = messages.map(Vec::as_slice) else {
        return CallerKind::Actor;
    };
    let user_text = text(user);
    let has_history = user_text.lines().any(|line| line.starts_with("<history-"));
    let is_memory_prompt = role(system) == "system" && role(user) == "user";
    match is_memory_prompt && has_history && !request.contains_key("tools") {
        true if shows_history(&user_text) => CallerKind::Observer,
        true => CallerKind::Reflector,
        false => CallerKind::Actor,
    }
}
