//! What a call is made with: the parameters, and the model for the size of the prompt.

use std::time::Duration;

use serde_json::{Map, Value};

/// The parameters of a call.
#[derive(Clone, Debug)]
pub struct CallSettings {
    pub model: String,
    pub temperature: Option<f64>,
    /// The most tokens of the answer; `None` leaves it to the model.
    pub max_output_tokens: Option<u32>,
    /// Further parameters, under their names in chat completions.
    pub parameters: Map<String, Value>,
    /// Fields of the body as the operator wrote them. Each replaces our field of that name.
    pub options: Map<String, Value>,
    /// For the whole call, repetitions without refused parameters included.
    pub deadline: Duration,
}

/// The model, by the size of the whole prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Models {
    One(String),
    /// By the most tokens of a prompt, ascending.
    Tiers(Vec<(u32, String)>),
}

impl Models {
    /// The names of all of them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let (one, tiers) = match self {
            Self::One(name) => (Some(name.as_str()), [].as_slice()),
            Self::Tiers(tiers) => (None, tiers.as_slice()),
        };
        one.into_iter()
            .chain(tiers.iter().map(|(_, name)| name.as_str()))
    }

    /// The model for a prompt of `tokens`: that of the first tier that holds it, else of the last.
    #[must_use]
    pub fn pick(&self, tokens: u32) -> &str {
        match self {
            Self::One(name) => name,
            Self::Tiers(tiers) => tiers
                .iter()
                .find(|(up_to, _)| tokens <= *up_to)
                .or(tiers.last())
                .map_or("", |(_, name)| name),
        }
    }
}
