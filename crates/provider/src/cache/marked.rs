//! Simulates Anthropic's prompt cache: a prefix is stored up to each mark, and a mark finds what was stored at most
//! twenty blocks before it (prompt caching, platform.claude.com, 2026-10).
//!
//! A hit lets its lifetime begin anew. A mark on a prefix below the least size of the model does nothing. Called by
//! `chat` for accepted requests; pure, no clock.

use std::collections::HashMap;
use std::time::Duration;

use super::blocks::Block;
use super::digest::{Digest, link};
use super::kind::{CacheKind, Lost, MINUTE, PromptUsage};
use crate::prompt::{CountTokens, pieces};

/// How many blocks a mark looks at, its own included.
const LOOK_BACK: usize = 20;

/// A prefix up to a mark.
#[derive(Clone, Copy, Debug)]
struct Entry {
    used: Duration,
    lifetime: Duration,
    is_forgotten: bool,
}

/// The cache. Customers and models never share entries.
pub(crate) struct MarkedCache {
    count_tokens: CountTokens,
    counts: HashMap<Digest, u32>,
    entries: HashMap<Digest, Entry>,
    now: Duration,
}

/// What a request stores once it is accepted: prefixes, and how long each is kept.
#[derive(Debug)]
pub(crate) struct MarkedEntries(Vec<(Digest, Duration)>);

/// The end of a block.
struct Place {
    chain: Digest,
    tokens: u32,
    mark: Option<Duration>,
}

impl MarkedCache {
    pub(crate) fn new(count_tokens: CountTokens) -> Self {
        Self {
            count_tokens,
            counts: HashMap::new(),
            entries: HashMap::new(),
            now: Duration::ZERO,
        }
    }

    /// Measures a prompt without storing it.
    pub(crate) fn read(
        &mut self,
        owner: &str,
        model: &str,
        blocks: &[Block],
    ) -> (PromptUsage, MarkedEntries) {
        let places = self.places(owner, model, blocks);
        let minimum = CacheKind::Marks.minimum_tokens(model);
        let is_mark = |place: &Place| place.mark.is_some() && place.tokens >= minimum;
        let marks: Vec<usize> = (0..places.len())
            .filter(|index| is_mark(&places[*index]))
            .collect();
        let reaches = |index: usize| {
            let mut marks = marks.iter();
            marks.any(|mark| (index..index + LOOK_BACK).contains(mark))
        };
        let (mut hit, mut lost) = (None, None);
        for (index, place) in places.iter().enumerate().rev() {
            let Some(entry) = self.entries.get(&place.chain) else {
                continue;
            };
            let reason = self
                .loss(entry)
                .or((!reaches(index)).then_some(Lost::OutOfReach));
            if reason.is_none() {
                hit = Some(index);
                break;
            }
            lost = lost.or(reason);
        }
        let tokens_at = |index: &usize| places[*index].tokens;
        let cached_tokens = hit.as_ref().map_or(0, tokens_at);
        let stored_tokens = marks.last().map_or(0, tokens_at);
        let is_hour = |index: &&usize| places[**index].mark > Some(MINUTE * 5);
        let hour_tokens = marks.iter().rev().find(is_hour).map_or(0, tokens_at);
        let usage = PromptUsage {
            prompt_tokens: places.last().map_or(0, |place| place.tokens),
            cached_tokens,
            stored_tokens,
            hour_tokens: hour_tokens.saturating_sub(cached_tokens),
            lost,
            kind: CacheKind::Marks,
        };
        let stored = marks.iter().map(|index| &places[*index]);
        let mut entries: Vec<(Digest, Duration)> = stored
            .filter_map(|place| Some((place.chain, place.mark?)))
            .collect();
        // What was read lives on for as long as before.
        entries.extend(hit.and_then(|index| {
            let chain = places[index].chain;
            Some((chain, self.entries.get(&chain)?.lifetime))
        }));
        (usage, MarkedEntries(entries))
    }

    pub(crate) fn store(&mut self, entries: &MarkedEntries) {
        for (chain, lifetime) in &entries.0 {
            let longest = self
                .entries
                .get(chain)
                .filter(|entry| self.loss(entry).is_none());
            let entry = Entry {
                used: self.now,
                lifetime: longest.map_or(*lifetime, |entry| entry.lifetime.max(*lifetime)),
                is_forgotten: false,
            };
            self.entries.insert(*chain, entry);
        }
    }

    pub(crate) fn forget(&mut self) {
        let entries = self.entries.values_mut();
        entries.for_each(|entry| entry.is_forgotten = true);
    }

    pub(crate) fn skip_time(&mut self, duration: Duration) {
        self.now += duration;
    }

    fn loss(&self, entry: &Entry) -> Option<Lost> {
        if self.now.saturating_sub(entry.used) > entry.lifetime {
            Some(Lost::Expired)
        } else if entry.is_forgotten {
            Some(Lost::Forgotten)
        } else {
            None
        }
    }

    fn places(&mut self, owner: &str, model: &str, blocks: &[Block]) -> Vec<Place> {
        let (mut chain, mut tokens) = (link(&[owner.as_bytes(), model.as_bytes()]), 0);
        let place = |block: &Block| {
            chain = link(&[&chain, block.text.as_bytes()]);
            let count = || {
                pieces(&block.text)
                    .map(|piece| (self.count_tokens)(piece))
                    .sum()
            };
            tokens += *self.counts.entry(chain).or_insert_with(count);
            Place {
                chain,
                tokens,
                mark: block.mark,
            }
        };
        blocks.iter().map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate_tokens;

    const FIVE: Duration = Duration::from_secs(300);
    const HOUR: Duration = Duration::from_secs(3600);

    /// Blocks of 100 tokens each, numbered; some with a mark.
    fn blocks(numbers: std::ops::Range<usize>, marks: &[(usize, Duration)]) -> Vec<Block> {
        let mark = |number| marks.iter().find(|(at, _)| *at == number);
        numbers
            .map(|number| Block {
                text: format!("{number:0400}"),
                mark: mark(number).map(|(_, lifetime)| *lifetime),
            })
            .collect()
    }

    struct Model(MarkedCache, &'static str);

    impl Model {
        fn new(name: &'static str) -> Self {
            Self(MarkedCache::new(estimate_tokens()), name)
        }

        fn send(&mut self, blocks: &[Block]) -> PromptUsage {
            let (usage, entries) = self.0.read("key", self.1, blocks);
            self.0.store(&entries);
            usage
        }
    }

    /// What was read, what was written, and why not more.
    fn reported(usage: PromptUsage) -> (u32, Option<u32>, Option<Lost>) {
        (usage.cached_tokens, usage.written_tokens(), usage.lost)
    }

    #[test]
    fn a_later_cache_mark_reads_what_an_earlier_one_stored() {
        let mut model = Model::new("claude-sonnet-5");
        let first = model.send(&blocks(0..20, &[(14, FIVE)]));
        assert_eq!(reported(first), (0, Some(1_500), None));
        assert_eq!(first.prompt_tokens, 2_000);
        let second = model.send(&blocks(0..24, &[(23, FIVE)]));
        assert_eq!(reported(second), (1_500, Some(900), None));
    }

    #[test]
    fn without_a_mark_nothing_is_read_or_stored() {
        let mut model = Model::new("claude-sonnet-5");
        model.send(&blocks(0..20, &[(19, FIVE)]));
        let bare = model.send(&blocks(0..21, &[]));
        assert_eq!(reported(bare), (0, Some(0), Some(Lost::OutOfReach)));
    }

    #[test]
    fn a_mark_looks_back_twenty_blocks_and_no_further() {
        for (last, cached) in [(39, 0), (38, 2_000)] {
            let mut model = Model::new("claude-sonnet-5");
            model.send(&blocks(0..20, &[(19, FIVE)]));
            let usage = model.send(&blocks(0..last + 1, &[(last, FIVE)]));
            assert_eq!(usage.cached_tokens, cached, "{last}");
            let lost = (cached == 0).then_some(Lost::OutOfReach);
            assert_eq!(usage.lost, lost, "{last}");
        }
    }

    #[test]
    fn each_cache_mark_has_its_own_lifetime_and_a_hit_renews_it() {
        let mut model = Model::new("claude-sonnet-5");
        let marked = blocks(0..20, &[(12, HOUR), (19, FIVE)]);
        let usage = model.send(&marked);
        assert_eq!((usage.stored_tokens, usage.hour_tokens), (2_000, 1_300));
        for _ in 0..3 {
            model.0.skip_time(Duration::from_secs(250));
            assert_eq!(model.send(&marked).cached_tokens, 2_000);
        }
        model.0.skip_time(Duration::from_secs(301));
        assert_eq!(
            reported(model.send(&marked)),
            (1_300, Some(700), Some(Lost::Expired))
        );
        model.0.skip_time(HOUR + FIVE);
        assert_eq!(
            reported(model.send(&marked)),
            (0, Some(2_000), Some(Lost::Expired))
        );
        model.0.forget();
        model.0.skip_time(FIVE);
        assert_eq!(
            reported(model.send(&marked)),
            (0, Some(2_000), Some(Lost::Forgotten))
        );
    }

    #[test]
    fn the_minimum_depends_on_the_model_and_counts_up_to_the_mark() {
        for (model, stored) in [
            ("claude-opus-5", 600),
            ("anthropic/claude-sonnet-4.5", 0),
            ("claude-haiku-4-5", 0),
        ] {
            let usage = Model::new(model).send(&blocks(0..20, &[(5, FIVE)]));
            assert_eq!(usage.stored_tokens, stored, "{model}");
        }
        for (model, stored) in [("claude-opus-4.7", 0), ("claude-sonnet-5", 2_000)] {
            let usage = Model::new(model).send(&blocks(0..20, &[(19, FIVE)]));
            assert_eq!(usage.stored_tokens, stored, "{model}");
        }
    }

    #[test]
    fn a_changed_block_keeps_the_cache_entry_of_an_earlier_mark() {
        let mut model = Model::new("claude-sonnet-5");
        model.send(&blocks(0..20, &[(12, FIVE), (19, FIVE)]));
        let mut changed = blocks(0..20, &[(12, FIVE), (19, FIVE)]);
        changed[16].text.push('x');
        let usage = model.send(&changed);
        assert_eq!((usage.cached_tokens, usage.lost), (1_300, None));
    }
}
