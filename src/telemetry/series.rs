//! Series in which every request counts, looked up once each.
//!
//! To look a series up, its name and its labels are hashed and compared under a lock: some 200 ns, and a request counts in
//! twenty series.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::{install_recorder, model_label};

/// What `make` looks up, to be kept in a `static` for as long as the process runs. The recorder is installed first: a series
/// that is looked up without one counts nothing for ever.
pub fn kept<T>(make: impl FnOnce() -> T) -> T {
    // If another recorder was installed before, the series is that recorder's.
    let _ = install_recorder();
    make()
}

/// The series of each model, by its [label](model_label).
#[derive(Debug)]
pub struct ModelSeries<T>(Mutex<BTreeMap<String, Arc<T>>>);

impl<T> Default for ModelSeries<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> ModelSeries<T> {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// The series of `model`. `make` gets its label, if they are not kept yet.
    pub fn for_model(&self, model: &str, make: impl FnOnce(&str) -> T) -> Arc<T> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Nearly every model has a label, and that is its name.
        if let Some(series) = kept.get(model) {
            return Arc::clone(series);
        }
        let label = model_label(model);
        if let Some(series) = kept.get(&label) {
            return Arc::clone(series);
        }
        let series = Arc::new(self::kept(|| make(&label)));
        kept.insert(label, Arc::clone(&series));
        series
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_a_model_are_looked_up_once() {
        let series = ModelSeries::new();
        let first = series.for_model("a model of this test", str::to_owned);
        assert_eq!(*first, "a model of this test");
        let again = series.for_model("a model of this test", |_| "looked up again".to_owned());
        assert!(Arc::ptr_eq(&first, &again));
        // Names that get no series of their own share one.
        let long = ["m", "n"].map(|letter| letter.repeat(1_000));
        let shared = long.map(|model| series.for_model(&model, str::to_owned));
        assert!(Arc::ptr_eq(&shared[0], &shared[1]));
        assert_eq!(*shared[0], model_label(""));
    }
}
