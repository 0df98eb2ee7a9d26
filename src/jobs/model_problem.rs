//! What is wrong with a model of memory, and what an operator can do about it. Called by `model_health`.

use crate::llm::CallError;
use crate::memory::PartKind;

/// What came of a call that wrote nothing.
#[derive(Clone, Copy, Debug)]
pub(super) enum Problem<'a> {
    Call(&'a CallError),
    /// The model answered, and the answer cannot be used.
    Unusable,
}

pub(super) fn role(kind: PartKind) -> &'static str {
    match kind {
        PartKind::Chunk => "Observer",
        PartKind::Reflection => "Reflector",
    }
}

/// What an operator can do.
pub(super) fn remedy(kind: PartKind, borrowed: bool, problem: Problem<'_>) -> String {
    let table = match kind {
        PartKind::Chunk => "memory.observation",
        PartKind::Reflection => "memory.reflection",
    };
    // What a phase does not set comes from the section `memory`.
    let setting = |key: &str| format!("{table}.{key} (memory.{key} if it is unset)");
    match problem {
        Problem::Call(CallError::RateLimited { .. }) if borrowed => format!(
            "its calls use the client's own credential, whose rate limit is reached; set {table}.base_url and {table}.api_key to give it one of its own"
        ),
        Problem::Call(CallError::RateLimited { .. }) => {
            format!("raise the rate limit of {}", setting("api_key"))
        }
        Problem::Call(CallError::Unauthorised { .. }) if borrowed => format!(
            "the client's own key may not use this model: set {table}.model to one that it may use, or {table}.base_url and {table}.api_key"
        ),
        Problem::Call(CallError::Unauthorised { .. }) => format!("check {}", setting("api_key")),
        Problem::Call(CallError::Fatal { .. }) if borrowed => {
            format!("check {table}.model: the upstream of the client must know it")
        }
        Problem::Call(CallError::Fatal { .. }) => {
            format!("check {} and {}", setting("model"), setting("base_url"))
        }
        Problem::Call(CallError::Transient { .. } | CallError::Timeout { .. }) if borrowed => {
            "check that the upstream answers".to_owned()
        }
        Problem::Call(CallError::Transient { .. } | CallError::Timeout { .. }) => {
            format!("check that {} answers", setting("base_url"))
        }
        Problem::Call(_) | Problem::Unusable => {
            format!(
                "check {}: choose one that can follow the instructions",
                setting("model")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_names_the_setting_or_key_to_change() {
        let remedy_text = remedy(PartKind::Reflection, false, Problem::Unusable);
        assert!(
            remedy_text.contains("memory.reflection.model"),
            "{remedy_text}"
        );
        let refused = CallError::Unauthorised {
            message: "401".to_owned(),
        };
        let remedy_text = remedy(PartKind::Chunk, false, Problem::Call(&refused));
        assert!(
            remedy_text.contains("memory.observation.api_key (memory.api_key if it is unset)"),
            "{remedy_text}"
        );
        let remedy_text = remedy(PartKind::Chunk, true, Problem::Call(&refused));
        assert!(
            remedy_text.contains("the client's own key"),
            "{remedy_text}"
        );
    }
}
