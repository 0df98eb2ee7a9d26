//! The prompt cache of a provider, of whichever kind its rules say.
//!
//! Called by `chat` for accepted requests, and by tests that ask what a cache would have given back. Pure, no clock.

use std::time::Duration;

use serde_json::{Map, Value};

use super::blocks::blocks;
use super::marked::{MarkedCache, MarkedEntries};
use super::{CacheKind, PromptCache, PromptPath, PromptUsage};
use crate::prompt::{CountTokens, Prompt};

/// The caches of all kinds; each request is measured by one of them.
pub struct SimulatedCache {
    prompts: PromptCache,
    marked: MarkedCache,
}

/// What a measured prompt stores once its request is accepted.
#[derive(Debug)]
pub struct StoredPrompt(Stored);

#[derive(Debug)]
enum Stored {
    Prompt(PromptPath),
    Marked(MarkedEntries),
}

impl SimulatedCache {
    /// Empty caches that count with `count_tokens`.
    pub fn new(count_tokens: &CountTokens) -> Self {
        Self {
            prompts: PromptCache::new(CountTokens::clone(count_tokens)),
            marked: MarkedCache::new(CountTokens::clone(count_tokens)),
        }
    }

    /// Measures the prompt of `request` for this `owner` (a credential) and `model` without storing it.
    pub fn read(
        &mut self,
        kind: CacheKind,
        (owner, model): (&str, &str),
        request: &Map<String, Value>,
    ) -> (PromptUsage, StoredPrompt) {
        if kind == CacheKind::Marks {
            let (usage, entries) = self.marked.read(owner, model, &blocks(request));
            return (usage, StoredPrompt(Stored::Marked(entries)));
        }
        self.prompts.set_kind(kind);
        let (usage, path) = self.prompts.read(owner, model, &Prompt::render(request));
        (usage, StoredPrompt(Stored::Prompt(path)))
    }

    /// Makes a measured prompt available to later ones.
    pub fn store(&mut self, prompt: &StoredPrompt) {
        match &prompt.0 {
            Stored::Prompt(path) => self.prompts.store(path),
            Stored::Marked(entries) => self.marked.store(entries),
        }
    }

    /// Forgets all prompts, as a provider does after a while.
    pub fn forget(&mut self) {
        self.prompts.forget();
        self.marked.forget();
    }

    /// Lets this much time pass.
    pub fn skip_time(&mut self, duration: Duration) {
        self.prompts.skip_time(duration);
        self.marked.skip_time(duration);
    }
}
