//! Quantiles of what was measured.

/// The value below which the share `quantile` (0 to 1) of the values lies, between two neighbours by their distance.
/// `values` are sorted. Nothing of nothing is not a number.
pub fn quantile(values: &[f64], quantile: f64) -> f64 {
    let Some(last) = values.len().checked_sub(1) else {
        return f64::NAN;
    };
    let place = quantile * last as f64;
    let below = place.floor();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in the slice"
    )]
    let index = below as usize;
    let upper = values[(index + 1).min(last)];
    values[index] + (upper - values[index]) * (place - below)
}

/// Median and quartiles of one value per round.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    pub median: f64,
    pub lower: f64,
    pub upper: f64,
}

impl Summary {
    pub fn new(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Self {
            median: quantile(&sorted, 0.5),
            lower: quantile(&sorted, 0.25),
            upper: quantile(&sorted, 0.75),
        }
    }
}
