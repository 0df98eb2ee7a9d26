//! A few words at the beginning of every prompt of one run, different from those of all other runs.
//!
//! Prompt caches match prefixes. Without these words, one run would use what another run left in the cache. They
//! become the beginning of the leading system message, or a system message, so the history is not changed.

use rand::Rng as _;
use serde_json::{Value, json};

/// The words of one run.
#[derive(Clone, Debug)]
pub(super) struct CacheBuster(String);

impl CacheBuster {
    pub(super) fn new() -> Self {
        let mut random = rand::rng();
        // Three digits are one token for OpenAI's tokenizers, so all of them cost the same.
        let mut digits = || random.random_range(100..1_000);
        Self(format!("(replay {} {} {})", digits(), digits(), digits()))
    }

    /// Puts the words at the beginning of the request.
    pub(super) fn prepend_to(&self, request: &mut Value) {
        let Some(messages) = request.get_mut("messages").and_then(Value::as_array_mut) else {
            return;
        };
        let first = messages.first_mut().filter(|first| {
            let role = first.get("role").and_then(Value::as_str);
            matches!(role, Some("system" | "developer"))
        });
        match first.and_then(|first| first.get_mut("content")) {
            Some(Value::String(text)) => text.insert_str(0, &format!("{}\n\n", self.0)),
            Some(Value::Array(parts)) => parts.insert(0, json!({"type": "text", "text": self.0})),
            _ => messages.insert(0, json!({"role": "system", "content": self.0})),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_buster_is_prepended_and_the_rest_stays_unchanged() {
        let buster = CacheBuster("(s)".to_owned());
        for (before, after) in [
            (
                json!([{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "a"}]),
                json!([{"role": "developer", "content": "(s)\n\nBe kind."}, {"role": "user", "content": "a"}]),
            ),
            (
                json!([{"role": "system", "content": [{"type": "text", "text": "b"}]}]),
                json!([{"role": "system", "content": [{"type": "text", "text": "(s)"}, {"type": "text", "text": "b"}]}]),
            ),
            (
                json!([{"role": "user", "content": "a"}]),
                json!([{"role": "system", "content": "(s)"}, {"role": "user", "content": "a"}]),
            ),
        ] {
            let mut request = json!({"messages": before});
            buster.prepend_to(&mut request);
            assert_eq!(request["messages"], after);
        }
    }

    #[test]
    fn two_cache_busters_are_never_equal() {
        assert_ne!(CacheBuster::new().0, CacheBuster::new().0);
    }
}
