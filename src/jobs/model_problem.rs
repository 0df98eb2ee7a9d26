//! What is wrong with a model of memory, and what an operator can do about it. Called by `model_health`.

use crate::llm::CallError;
use crate::memory::PartKind;

/// What came of a call that wrote nothing.
#[derive(Clone, Copy, Debug)]
pub(super) enum Problem<'a> {
    Call(&'a CallError),
    /// The prompt did not fit the model, and no shorter call follows.
    NoShorterCall(&'a CallError),
    /// The model answered, and the answer cannot be used.
    Unusable,
}

impl Problem<'_> {
    /// What is wrong, for people.
    pub(super) fn text(self, kind: PartKind) -> String {
        match (self, kind) {
            (Self::Call(error), _) => error.to_string(),
            (Self::NoShorterCall(error), _) => format!("no call is short enough for it; {error}"),
            (Self::Unusable, PartKind::Chunk) => {
                "it answers, but its answers hold no observations".to_owned()
            }
            (Self::Unusable, PartKind::Reflection) => {
                "it answers, but its answers are no shorter log".to_owned()
            }
        }
    }
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
        Problem::NoShorterCall(_) => format!(
            "set {} to a model with a larger context window, or give this one a larger window",
            setting("model")
        ),
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
        let too_long = CallError::TooLong {
            message: "100 tokens".to_owned(),
            excess: None,
        };
        let remedy_text = remedy(PartKind::Chunk, true, Problem::NoShorterCall(&too_long));
        assert!(
            remedy_text.contains("memory.observation.model") && remedy_text.contains("window"),
            "{remedy_text}"
        );
        let remedy_text = remedy(PartKind::Chunk, true, Problem::Call(&refused));
        assert!(
            remedy_text.contains("the client's own key"),
            "{remedy_text}"
        );
    }
}
