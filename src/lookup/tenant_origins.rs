//! What this process has seen of one tenant, in generations: the oldest one can be dropped as a whole. Holds only
//! hashes. Used by [`super::origin_index`] only.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use super::hash_tables::{HashKeyMap, HashKeySet};
use crate::history::{Link, ScopedHash};
use crate::memory::alignment::Origin;

/// In which conversations a message has occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occurrence {
    Once(Origin),
    Several,
}

impl Occurrence {
    pub(super) fn is_outside(self, origin: Origin) -> bool {
        self != Self::Once(origin)
    }
}

/// The chain that got an answer which may come back as a summary.
#[derive(Clone, Copy, Debug)]
pub(super) enum AnsweredChain {
    To { tip: Link, parent: Link },
    Several,
}

/// An answer that may come back as a summary.
#[derive(Clone, Copy, Debug)]
pub(super) struct SummaryAnswer {
    pub(super) chain: AnsweredChain,
    /// The hash of its ending; `None` if only the store knows it.
    pub(super) ending: Option<ScopedHash>,
}

/// Entries that were added at about one time.
#[derive(Debug, Default)]
pub(super) struct Generation {
    messages: HashKeyMap<ScopedHash, Occurrence>,
    summary_answers: HashKeyMap<ScopedHash, SummaryAnswer>,
    /// Their endings. Each is added whenever an answer is, so the two are dropped together.
    answer_endings: HashKeySet<ScopedHash>,
    /// Answers of the upstream by the link before them, with their origin.
    answers: HashKeyMap<(Link, ScopedHash), Origin>,
    upstream_origins: HashKeySet<Origin>,
}

impl Generation {
    fn len(&self) -> usize {
        self.messages.len()
            + self.summary_answers.len()
            + self.answer_endings.len()
            + self.answers.len()
            + self.upstream_origins.len()
    }

    pub(super) fn add_message(&mut self, mark: ScopedHash, occurrence: Occurrence) {
        self.messages.insert(mark, occurrence);
    }

    pub(super) fn add_summary_answer(&mut self, mark: ScopedHash, answer: SummaryAnswer) {
        self.answer_endings.extend(answer.ending);
        self.summary_answers.insert(mark, answer);
    }

    pub(super) fn add_answer(&mut self, tip: Link, mark: ScopedHash, origin: Origin) {
        self.answers.insert((tip, mark), origin);
        self.upstream_origins.insert(origin);
    }
}

/// All that is known of one tenant.
#[derive(Debug, Default)]
pub(super) struct TenantOrigins {
    /// The youngest first.
    generations: VecDeque<Generation>,
    len: usize,
    /// When something was added, in additions of all tenants.
    pub(super) last_added: u64,
    /// Whether entries may have been dropped because of what other tenants said.
    pub(super) has_lost: bool,
}

impl TenantOrigins {
    pub(super) fn new(has_lost: bool) -> Self {
        Self {
            has_lost,
            ..Self::default()
        }
    }

    /// Entries of all generations.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds to the youngest generation. A new one begins when the youngest holds half of everything, so that the tenant
    /// never loses more than half at once; `sizes` bounds that. The older ones are then small: few generations
    /// are enough, and a look-up searches few.
    pub(super) fn add(&mut self, sizes: &RangeInclusive<usize>, add: impl FnOnce(&mut Generation)) {
        let youngest = self.generations.front().map_or(0, Generation::len);
        let is_full = youngest >= (self.len / 2).clamp(*sizes.start(), *sizes.end());
        if is_full || self.generations.is_empty() {
            self.generations.push_front(Generation::default());
        }
        let youngest = &mut self.generations[0];
        let before = youngest.len();
        add(youngest);
        self.len += youngest.len() - before;
    }

    #[cfg(test)]
    pub(super) fn generation_sizes(&self) -> Vec<usize> {
        self.generations.iter().map(Generation::len).collect()
    }

    pub(super) fn drop_oldest(&mut self) {
        if let Some(oldest) = self.generations.pop_back() {
            self.len -= oldest.len();
        }
    }

    fn find<T>(&self, find: impl FnMut(&Generation) -> Option<T>) -> Option<T> {
        self.generations.iter().find_map(find)
    }

    pub(super) fn message(&self, mark: &ScopedHash) -> Option<Occurrence> {
        self.find(|generation| generation.messages.get(mark).copied())
    }

    pub(super) fn summary_answer(&self, mark: &ScopedHash) -> Option<SummaryAnswer> {
        self.find(|generation| generation.summary_answers.get(mark).copied())
    }

    pub(super) fn has_answer_ending(&self, ending: &ScopedHash) -> bool {
        let mut generations = self.generations.iter();
        generations.any(|generation| generation.answer_endings.contains(ending))
    }

    pub(super) fn answer_origin(&self, tip: Link, mark: ScopedHash) -> Option<Origin> {
        self.find(|generation| generation.answers.get(&(tip, mark)).copied())
    }

    pub(super) fn is_from_upstream(&self, origin: Origin) -> bool {
        let mut generations = self.generations.iter();
        generations.any(|generation| generation.upstream_origins.contains(&origin))
    }
}
