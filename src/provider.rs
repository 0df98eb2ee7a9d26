//! A scripted provider: the independent judge of what Diarist sends upstream.
//!
//! It accepts and refuses requests as the real chat-completions API does ([`judge()`]), simulates
//! its prompt cache ([`PromptCache`]), and writes down every byte it received. It never uses
//! `wire`, `history` or `memory`: a mistake there must not hide itself here.

pub mod cache;
pub mod judge;
pub mod prompt;
pub mod refusal;

use std::sync::Arc;

pub use cache::{Measured, PromptCache};
pub use judge::{Accepted, Rules, judge};
pub use prompt::Prompt;
pub use refusal::Refusal;

/// Counts the tokens of a short text. Must be a pure function of the text.
pub type Count = Arc<dyn Fn(&str) -> u32 + Send + Sync>;

/// The default count: a quarter of the bytes, rounded up. No tokenizer agrees with it, but it is
/// cheap, needs no vocabulary, and is the same everywhere and for ever.
pub fn rough_count() -> Count {
    Arc::new(|text| u32::try_from(text.len().div_ceil(4)).unwrap_or(u32::MAX))
}
