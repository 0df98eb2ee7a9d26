//! The newest prompt of each conversation of this process, as it was sent: hashes and sizes, no text.
//!
//! Bounded by bytes; the conversation that was silent for the longest time goes first. Decides nothing. Called by
//! `cache_verdict` when an answer has ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::history::Link;
use crate::lookup::AgedMap;
use crate::memory::prompt_cache::SentPrompt;

/// About 1,000 conversations of 1,000 messages, or 20,000 short ones.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Roughly what an entry takes besides its prompt.
const ENTRY_BYTES: usize = 256;

/// Names one conversation of one owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConversationKey {
    /// The root of the owner's chains if the conversation has a name, otherwise the link of its first message.
    pub(super) link: Link,
    /// Its name, if the client gave it one.
    pub(super) thread_key: Option<Box<str>>,
}

/// The request before.
#[derive(Debug)]
pub(super) struct PreviousPrompt {
    pub(super) prompt: Arc<SentPrompt>,
    /// From its end to the beginning of the next one; zero if they overlap.
    pub(super) idle: Duration,
}

#[derive(Debug)]
struct Entry {
    prompt: Arc<SentPrompt>,
    ended: Instant,
    /// Idle time that no clock has measured.
    skipped: Duration,
}

/// The newest prompts.
#[derive(Debug)]
pub struct SentPrompts {
    /// The upstream's host, whose cache rules apply.
    pub(super) host: String,
    entries: Mutex<AgedMap<ConversationKey, Entry>>,
    max_bytes: usize,
}

impl SentPrompts {
    /// No prompts yet, for the upstream at `host`.
    pub fn new(host: &str) -> Self {
        Self::with_limit(host, MAX_BYTES)
    }

    fn with_limit(host: &str, max_bytes: usize) -> Self {
        Self {
            host: host.to_owned(),
            entries: Mutex::default(),
            max_bytes,
        }
    }

    /// The prompt before, for a request that began at `started`.
    pub(super) fn previous(
        &self,
        key: &ConversationKey,
        started: Instant,
    ) -> Option<PreviousPrompt> {
        let entries = self.entries();
        let entry = entries.get(key)?;
        Some(PreviousPrompt {
            prompt: Arc::clone(&entry.prompt),
            idle: started.saturating_duration_since(entry.ended) + entry.skipped,
        })
    }

    /// Drops everything, because something was deleted.
    pub fn clear(&self) {
        *self.entries() = AgedMap::default();
    }

    /// Treats every conversation as if it had been silent for this much longer. For tests, which do not wait.
    #[cfg(feature = "testing")]
    pub fn skip_time(&self, duration: Duration) {
        for entry in self.entries().values_mut() {
            entry.skipped += duration;
        }
    }

    /// Keeps `prompt`, whose answer ended now.
    pub(super) fn record(&self, key: ConversationKey, prompt: SentPrompt, ended: Instant) {
        let bytes = bytes_held(&key, &prompt);
        let entry = Entry {
            prompt: Arc::new(prompt),
            ended,
            skipped: Duration::ZERO,
        };
        let mut entries = self.entries();
        entries.insert(key, bytes, entry);
        entries.shrink(self.max_bytes, |_, _| false);
    }

    fn entries(&self) -> MutexGuard<'_, AgedMap<ConversationKey, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes_held(key: &ConversationKey, prompt: &SentPrompt) -> usize {
    let name = key.thread_key.as_ref().map_or(0, |name| name.len());
    // The key stands in both maps.
    ENTRY_BYTES + 2 * name + prompt.bytes_held()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Scope;
    use crate::memory::prompt_cache::SentLayout;

    fn key(name: &str) -> ConversationKey {
        ConversationKey {
            link: Link::root(&Scope::new(b"k", None)),
            thread_key: Some(name.into()),
        }
    }

    fn prompt(model: &str) -> SentPrompt {
        SentPrompt::new(model, None, &[], &[], SentLayout::default(), true)
    }

    #[test]
    fn the_longest_idle_conversation_is_dropped_first() {
        let one = bytes_held(&key("a"), &prompt("m"));
        let prompts = SentPrompts::with_limit("", 2 * one);
        let now = Instant::now();
        for name in ["a", "b", "a", "c"] {
            prompts.record(key(name), prompt("m"), now);
        }
        let is_known = |name| prompts.previous(&key(name), now).is_some();
        assert_eq!(["a", "b", "c"].map(is_known), [true, false, true]);
        assert_eq!(prompts.entries().bytes(), 2 * one);
    }

    #[test]
    fn a_prompt_larger_than_the_limit_is_not_kept() {
        let prompts = SentPrompts::with_limit("", 1);
        let now = Instant::now();
        prompts.record(key("a"), prompt("m"), now);
        assert!(prompts.previous(&key("a"), now).is_none());
        assert_eq!(prompts.entries().bytes(), 0);
    }

    #[test]
    fn clearing_removes_all_prompts_and_frees_their_room() {
        let prompts = SentPrompts::new("");
        let now = Instant::now();
        prompts.record(key("a"), prompt("m"), now);
        prompts.clear();
        assert!(prompts.previous(&key("a"), now).is_none());
        assert_eq!(prompts.entries().bytes(), 0);
    }

    #[test]
    fn idle_time_counts_from_the_end_of_the_last_answer() {
        let prompts = SentPrompts::new("");
        let now = Instant::now();
        let later = now + Duration::from_secs(7);
        prompts.record(key("a"), prompt("m"), now);
        let idle = |started| prompts.previous(&key("a"), started).unwrap().idle;
        assert_eq!(idle(later), Duration::from_secs(7));
        prompts.record(key("a"), prompt("m"), later);
        assert_eq!(idle(now), Duration::ZERO);
    }
}
