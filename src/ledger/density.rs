//! Tokens of a byte in the prompts of one model: their mean, and how far requests lie apart.

/// With fewer requests than this, their spread says nothing.
const FEWEST_REQUESTS: u64 = 8;

/// The spread where too little is known: a token is about 3.3 bytes of code and JSON, 4.5 of English prose, each a quarter
/// away from 4.
const UNKNOWN_SPREAD: f64 = 0.25;

/// Whole prompts are mixed more than the text that was replaced, so it may lie apart where they do not.
const SMALLEST_SPREAD: f64 = 0.05;

/// More than this is no property of text: a model's name stands for two models.
const LARGEST_SPREAD: f64 = 0.5;

/// The prompts of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Density {
    tokens: u64,
    bytes: u64,
    requests: u64,
    /// The sum of `tokens² / bytes` of each request.
    squares: f64,
}

impl Density {
    /// Adds a prompt.
    pub(super) fn add(&mut self, tokens: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.tokens = self.tokens.saturating_add(tokens);
        self.bytes = self.bytes.saturating_add(bytes);
        self.requests += 1;
        self.squares += (tokens as f64).powi(2) / bytes as f64;
    }

    /// The tokens of so many bytes; `None` if no prompt is known.
    pub(super) fn tokens_of(&self, bytes: u64) -> Option<u64> {
        let tokens =
            (u128::from(bytes) * u128::from(self.tokens)).checked_div(self.bytes.into())?;
        Some(u64::try_from(tokens).unwrap_or(u64::MAX))
    }

    /// By which share the tokens of a text may differ from the mean: two standard deviations of the tokens of a byte over
    /// the requests, each weighted by its bytes.
    pub(super) fn spread(&self) -> f64 {
        if self.requests < FEWEST_REQUESTS || self.tokens == 0 {
            return UNKNOWN_SPREAD;
        }
        let variance = self.squares * self.bytes as f64 / (self.tokens as f64).powi(2) - 1.0;
        let spread = 2.0 * variance.max(0.0).sqrt();
        spread.clamp(SMALLEST_SPREAD, LARGEST_SPREAD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn density(prompts: &[(u64, u64)]) -> Density {
        let mut density = Density::default();
        for (tokens, bytes) in prompts {
            density.add(*tokens, *bytes);
        }
        density
    }

    fn is_near(spread: f64, expected: f64) -> bool {
        (spread - expected).abs() < 1e-9
    }

    #[test]
    fn the_spread_is_two_standard_deviations() {
        assert!(is_near(density(&[(10, 40); 7]).spread(), UNKNOWN_SPREAD));
        assert!(is_near(density(&[(10, 40); 8]).spread(), SMALLEST_SPREAD));
        // Half of the bytes have 0.2 tokens, half 0.3: a mean of 0.25, each a fifth away.
        let apart = [[(200, 1_000); 4], [(300, 1_000); 4]].concat();
        assert!(is_near(density(&apart).spread(), 0.4));
        let two_models = [[(1, 1_000); 4], [(900, 1_000); 4]].concat();
        assert!(is_near(density(&two_models).spread(), LARGEST_SPREAD));
    }

    #[test]
    fn a_long_prompt_counts_more() {
        let density = density(&[(100, 1_000), (0, 0), (900, 9_000), (10, 10)]);
        assert_eq!(density.tokens_of(10_010), Some(1_010));
        assert_eq!(Density::default().tokens_of(1), None);
    }
}
