//! Names of models as labels of metrics. Clients choose these names, so only so many get a series of their own.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The label of all models beyond the limit, and of requests without a name.
const OTHER: &str = "other";

/// So many names get a series.
const MAX_MODELS: usize = 64;

/// A longer name is no name of a model.
const MAX_BYTES: usize = 128;

static NAMES: Mutex<Names> = Mutex::new(Names(BTreeSet::new()));

/// The label for `model`: its name, or `other`. Empty is `other`.
#[must_use]
pub fn model_label(model: &str) -> String {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    names.label(model).to_owned()
}

/// The names that have a series.
struct Names(BTreeSet<String>);

impl Names {
    fn label<'m>(&mut self, model: &'m str) -> &'m str {
        let is_name = (1..=MAX_BYTES).contains(&model.len());
        if is_name && !self.0.contains(model) && self.0.len() < MAX_MODELS {
            self.0.insert(model.to_owned());
        }
        if self.0.contains(model) { model } else { OTHER }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_limited_number_of_models_get_their_own_label() {
        let mut names = Names(BTreeSet::new());
        assert_eq!(names.label(""), OTHER);
        assert_eq!(names.label(&"m".repeat(MAX_BYTES + 1)), OTHER);
        let labels: BTreeSet<String> = (0..1_000)
            .map(|number| names.label(&format!("model-{number}")).to_owned())
            .collect();
        assert_eq!(labels.len(), MAX_MODELS + 1);
        assert!(labels.contains("model-0") && labels.contains(OTHER));
        assert_eq!(names.label("model-0"), "model-0");
        assert_eq!(names.label("model-999"), OTHER);
    }
}
