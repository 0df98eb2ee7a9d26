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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnsweredChain {
    To { tip: Link, parent: Link },
    Several,
}

/// An answer that may come back as a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SummaryAnswer {
    pub(super) chain: AnsweredChain,
    /// The hash of its ending; `None` if only the store knows it.
    pub(super) ending: Option<ScopedHash>,
}

/// Whether something is stored for the next process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Saving {
    #[default]
    Unsaved,
    /// It is being stored, and nothing is added to it.
    Sealed,
    Saved,
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
    /// Hashes of messages and answers that only requests had of which nothing may be stored.
    unstorable: HashKeySet<ScopedHash>,
    /// Those of `answers` that only such requests got.
    unstorable_answers: HashKeySet<(Link, ScopedHash)>,
    /// Whether it is stored, by this process or an earlier one.
    saving: Saving,
}

impl Generation {
    fn len(&self) -> usize {
        self.messages.len()
            + self.summary_answers.len()
            + self.answer_endings.len()
            + self.answers.len()
            + self.upstream_origins.len()
            + self.unstorable.len()
            + self.unstorable_answers.len()
    }

    pub(super) fn messages(&self) -> impl Iterator<Item = (ScopedHash, Occurrence)> {
        let messages = self.messages.iter();
        messages.map(|(mark, occurrence)| (*mark, *occurrence))
    }

    pub(super) fn summary_answers(&self) -> impl Iterator<Item = (ScopedHash, SummaryAnswer)> {
        let answers = self.summary_answers.iter();
        answers.map(|(mark, answer)| (*mark, *answer))
    }

    /// Those that may be stored.
    pub(super) fn answers(&self) -> impl Iterator<Item = (Link, ScopedHash, Origin)> {
        let may_be_stored =
            |(answer, _): &(&(Link, ScopedHash), _)| !self.unstorable_answers.contains(answer);
        let answers = self.answers.iter().filter(may_be_stored);
        answers.map(|((tip, mark), origin)| (*tip, *mark, *origin))
    }

    /// Adds what is not here yet of an older generation.
    fn append(&mut self, older: Self) {
        for (mark, occurrence) in older.messages {
            self.messages.entry(mark).or_insert(occurrence);
        }
        for (mark, answer) in older.summary_answers {
            self.summary_answers.entry(mark).or_insert(answer);
        }
        for (answer, origin) in older.answers {
            self.answers.entry(answer).or_insert(origin);
        }
        self.answer_endings.extend(older.answer_endings);
        self.upstream_origins.extend(older.upstream_origins);
    }

    pub(super) fn forbid_storing(&mut self, mark: ScopedHash) {
        self.unstorable.insert(mark);
    }

    pub(super) fn add_message(&mut self, mark: ScopedHash, occurrence: Occurrence) {
        self.messages.insert(mark, occurrence);
    }

    pub(super) fn add_summary_answer(&mut self, mark: ScopedHash, answer: SummaryAnswer) {
        self.answer_endings.extend(answer.ending);
        self.summary_answers.insert(mark, answer);
    }

    /// Adds an answer: the link before it and its hash, and where it was given.
    pub(super) fn add_answer(
        &mut self,
        answer: (Link, ScopedHash),
        origin: Origin,
        may_be_stored: bool,
    ) {
        if may_be_stored {
            self.unstorable_answers.remove(&answer);
        } else if !self.answers.contains_key(&answer) {
            self.unstorable_answers.insert(answer);
        }
        self.answers.insert(answer, origin);
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
    /// Whether entries may have been dropped because of what other tenants said, and whether that is stored.
    loss: Option<Saving>,
}

impl TenantOrigins {
    pub(super) fn new(has_lost: bool) -> Self {
        Self {
            loss: has_lost.then_some(Saving::Unsaved),
            ..Self::default()
        }
    }

    /// Whether entries may have been dropped because of what other tenants said.
    pub(super) fn has_lost(&self) -> bool {
        self.loss.is_some()
    }

    /// Notes that entries were dropped because of what other tenants said.
    pub(super) fn set_has_lost(&mut self) {
        self.loss.get_or_insert(Saving::Unsaved);
    }

    /// Entries of all generations.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds to the youngest generation. A new one begins when the youngest holds half of everything, so that the tenant
    /// never loses more than half at once; `sizes` bounds that. The older ones are then small: few generations
    /// are enough, and a look-up searches few.
    pub(super) fn add(&mut self, sizes: &RangeInclusive<usize>, add: impl FnOnce(&mut Generation)) {
        let full = self.full_size(sizes);
        let has_room =
            |youngest: &Generation| youngest.saving == Saving::Unsaved && youngest.len() < full;
        if !self.generations.front().is_some_and(has_room) {
            self.generations.push_front(Generation::default());
        }
        let youngest = &mut self.generations[0];
        let before = youngest.len();
        add(youngest);
        // It may also be less than before: what may be stored now is no entry of its own any more.
        self.len = self.len - before + youngest.len();
    }

    /// From now on this hash may be stored. Returns whether it might not be before.
    pub(super) fn allow_storing(&mut self, mark: &ScopedHash) -> bool {
        let before = self.len;
        for generation in &mut self.generations {
            if !generation.unstorable.is_empty() {
                self.len -= usize::from(generation.unstorable.remove(mark));
            }
        }
        self.len < before
    }

    pub(super) fn may_be_stored(&self, mark: &ScopedHash) -> bool {
        let mut generations = self.generations.iter();
        generations.all(|generation| !generation.unstorable.contains(mark))
    }

    /// The hashes that must not be stored.
    pub(super) fn unstorable(&self) -> HashKeySet<ScopedHash> {
        let generations = self.generations.iter();
        generations
            .flat_map(|generation| generation.unstorable.iter().copied())
            .collect()
    }

    /// The generations that are not stored yet, the oldest first, and whether it is not stored that something is lost. Nothing
    /// is added to them any more.
    pub(super) fn seal_unsaved(&mut self) -> (impl Iterator<Item = &Generation>, bool) {
        let is_unsaved = |saving: &Saving| *saving != Saving::Saved;
        for generation in &mut self.generations {
            if is_unsaved(&generation.saving) {
                generation.saving = Saving::Sealed;
            }
        }
        let is_loss_unsaved = self.loss.as_ref().is_some_and(is_unsaved);
        if is_loss_unsaved {
            self.loss = Some(Saving::Sealed);
        }
        let generations = self.generations.iter().rev();
        let sealed = generations.filter(|generation| generation.saving == Saving::Sealed);
        (sealed, is_loss_unsaved)
    }

    /// Notes that what was sealed is stored.
    pub(super) fn mark_saved(&mut self) {
        let generations = self
            .generations
            .iter_mut()
            .map(|generation| &mut generation.saving);
        let sealed = generations.chain(&mut self.loss);
        for saving in sealed.filter(|saving| **saving == Saving::Sealed) {
            *saving = Saving::Saved;
        }
    }

    /// Adds what an earlier process has seen, as the oldest. A message that two processes have seen in two places is in
    /// several conversations. An answer is where the later one has seen it.
    pub(super) fn restore(
        &mut self,
        mut saved: Generation,
        has_lost: bool,
        sizes: &RangeInclusive<usize>,
    ) {
        saved.saving = Saving::Saved;
        if has_lost {
            self.loss = Some(Saving::Saved);
        }
        let is_elsewhere = |(mark, occurrence): (&ScopedHash, &Occurrence)| {
            let known = self.message(mark)?;
            (known != Occurrence::Several && known != *occurrence).then_some(*mark)
        };
        let elsewhere: Vec<ScopedHash> = saved.messages.iter().filter_map(is_elsewhere).collect();
        for mark in elsewhere {
            self.add(sizes, |youngest| {
                youngest.add_message(mark, Occurrence::Several);
            });
        }
        let full = self.full_size(sizes);
        let last = self.generations.back_mut();
        let is_small = |last: &&mut Generation| last.len() + saved.len() <= full;
        if let Some(last) = last.filter(|last| last.saving == Saving::Saved && is_small(last)) {
            let before = last.len();
            last.append(saved);
            self.len += last.len() - before;
        } else {
            self.len += saved.len();
            self.generations.push_back(saved);
        }
    }

    /// Entries of a generation to which nothing more is added.
    fn full_size(&self, sizes: &RangeInclusive<usize>) -> usize {
        (self.len / 2).clamp(*sizes.start(), *sizes.end())
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
