//! Why a request hit or missed its provider's prompt cache.
//!
//! [`SentPrompt`] holds the hashes and sizes of a prompt as it was sent. [`Change`] says where two prompts of one
//! conversation differ. [`judge`] compares that with what the provider reported. Decides nothing about requests:
//! it runs when an answer has ended. Holds no text. Called by the proxy for the audit.

mod change;
mod rules;
mod sent_prompt;
mod verdict;

pub use change::{Author, Change};
pub use rules::{CacheReads, CacheRules, CacheRulesOverride};
pub use sent_prompt::{
    AttachmentBytes, PromptPart, SegmentBytes, SentBlock, SentLayout, SentPrompt,
};
pub use verdict::{Judgement, Reported, Verdict, VerdictCause, judge};

#[cfg(test)]
mod tests;
