//! The kinds of prompt caches: their numbers, and the result for one prompt.
//!
//! Used by the caches themselves, by the answers that report usage, and by tests. Values only.

use std::time::Duration;

/// Prompts shorter than this are never served from the cache (OpenAI's prompt caching guide).
pub const MINIMUM_TOKENS: u32 = 1024;
/// Hits come in multiples of this (same source).
pub const STEP_TOKENS: u32 = 128;
/// DeepSeek's unit, which is its least size too (context caching, 2026-10). Every other step is a multiple of it.
pub const UNIT_TOKENS: u32 = 64;

pub(super) const MINUTE: Duration = Duration::from_secs(60);

/// Which provider's cache it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheKind {
    /// OpenAI up to GPT-5.4: from 1,024 tokens on, in steps of 128, for 5 minutes.
    #[default]
    Steps,
    /// DeepSeek: whole units of 64 tokens, for an hour. Usage has a hit and a miss.
    Units,
    /// GPT-5.6 and later: a prefix is stored up to a breakpoint only, and only all of it can be read. The end of the
    /// newest message is a breakpoint, and each part with a `prompt_cache_breakpoint` ends with one. Kept for 30
    /// minutes. Usage has what was written.
    Breakpoints,
    /// Anthropic: a prefix is stored up to each of the client's marks (`cache_control`), for 5 minutes or an hour. A
    /// mark reads what was stored at most 20 blocks before it. The least size depends on the model. Usage is in
    /// Anthropic's words.
    Marks,
}

impl CacheKind {
    /// Shorter prompts of `model` are never stored.
    pub fn minimum_tokens(self, model: &str) -> u32 {
        match self {
            Self::Steps | Self::Breakpoints => MINIMUM_TOKENS,
            Self::Units => UNIT_TOKENS,
            Self::Marks => marked_minimum(model),
        }
    }

    /// Hits come in multiples of this.
    pub fn step_tokens(self) -> u32 {
        match self {
            Self::Steps | Self::Breakpoints => STEP_TOKENS,
            Self::Units => UNIT_TOKENS,
            Self::Marks => 1,
        }
    }

    /// After this time without a request, a prompt is dropped. With marks, the mark says it.
    pub(super) fn lifetime(self) -> Duration {
        match self {
            Self::Steps | Self::Marks => 5 * MINUTE,
            Self::Breakpoints => 30 * MINUTE,
            Self::Units => 60 * MINUTE,
        }
    }
}

/// Why the cache gives back less of a prompt than it held once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It was not asked for within its lifetime.
    Expired,
    /// It was dropped before its time ([`crate::Provider::forget_prompts`]).
    Forgotten,
    /// It is there, but no mark of the request reaches it.
    OutOfReach,
}

/// The result for one prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptUsage {
    /// The size of the whole prompt.
    pub prompt_tokens: u32,
    /// How much of its beginning was read from the cache: 0, or at least the least size and a multiple of the step of
    /// its [`CacheKind`]. This is part of `prompt_tokens`, not in addition.
    pub cached_tokens: u32,
    /// How much of its beginning the cache holds behind this request.
    pub stored_tokens: u32,
    /// How much of what is written is kept for an hour ([`CacheKind::Marks`]).
    pub hour_tokens: u32,
    /// Why less was read than was once stored, if that is so.
    pub lost: Option<Lost>,
    /// Which provider's words the usage is reported in.
    pub kind: CacheKind,
}

impl PromptUsage {
    /// The tokens that were not read from the cache.
    pub fn uncached_tokens(self) -> u32 {
        self.prompt_tokens - self.cached_tokens
    }

    /// The tokens that were written to the cache, if its kind reports that.
    pub fn written_tokens(self) -> Option<u32> {
        match self.kind {
            CacheKind::Steps | CacheKind::Units => None,
            CacheKind::Breakpoints if self.prompt_tokens < MINIMUM_TOKENS => Some(0),
            CacheKind::Breakpoints => Some(self.uncached_tokens()),
            CacheKind::Marks => Some(self.stored_tokens - self.cached_tokens),
        }
    }
}

/// The shortest prompt of `model` that Anthropic stores.
fn marked_minimum(model: &str) -> u32 {
    let name = model.rsplit('/').next().unwrap_or(model).replace('.', "-");
    let is_one_of = |names: &[&str]| names.iter().any(|known| name.starts_with(known));
    if is_one_of(&["claude-opus-5", "claude-fable-5", "claude-mythos-5"]) {
        512
    } else if is_one_of(&["claude-opus-4-7"]) {
        2_048
    } else if is_one_of(&["claude-opus-4-5", "claude-opus-4-6", "claude-haiku-4-5"]) {
        4_096
    } else {
        1_024
    }
}
