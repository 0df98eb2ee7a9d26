//! Token counts: an exact tokenizer behind a guard, and an estimate.
//!
//! Counts are for budgets, never for correctness: what is sent and where a history is cut depend on
//! stored counts. Counting is expensive (about 100 ms per megabyte). So the jobs module counts each
//! message once, off the request path and off the runtime's workers; the request path never counts.
//! Counters never fail and never panic, whatever the text.

mod o200k;
mod pieces;

pub use o200k::O200k;

/// Counts tokens.
pub trait TokenCounter: Send + Sync {
    /// The tokens of `text` as plain text; names of special tokens are ordinary words.
    fn count(&self, text: &str) -> u32;

    /// The bytes that went through a tokenizer so far, over all threads.
    fn counted_bytes(&self) -> u64;
}

/// Estimates tokens from the size alone.
///
/// 3.7 bytes per token is between English prose (3.9, measured with `o200k_base`) and code. Chinese,
/// Japanese and Korean are near it too: their characters have three bytes and about one token.
#[derive(Clone, Copy, Debug, Default)]
pub struct Estimate;

impl Estimate {
    /// Tokens of a text with this many bytes.
    pub fn from_bytes(bytes: usize) -> u32 {
        let tenths = (bytes as u64).saturating_mul(10);
        u32::try_from(tenths.div_ceil(37)).unwrap_or(u32::MAX)
    }
}

impl TokenCounter for Estimate {
    fn count(&self, text: &str) -> u32 {
        Self::from_bytes(text.len())
    }

    fn counted_bytes(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_grow_with_the_text() {
        assert_eq!(Estimate.count(""), 0);
        assert_eq!(Estimate.count("a"), 1);
        assert_eq!(Estimate.count(&"a".repeat(37_000)), 10_000);
    }
}
