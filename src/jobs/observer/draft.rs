//! What a process remembers between the calls of one observation, and of the windows it has met.
//! Nothing is lost with it but calls: a job can always be observed from its first piece.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use super::{CODE, Written};
use crate::history::Scope;
use crate::memory::Span;
use crate::memory::observe;
use crate::store::Job;

/// A range that is being observed.
#[derive(Debug)]
pub(crate) struct Draft {
    /// Tokens of a piece, at most.
    pub(super) limit: u32,
    /// Tokens of a piece and what is shown beside it, at most, where more was too long: what is beside
    /// it gives way.
    pub(super) room: Option<u32>,
    done: Vec<Written>,
    /// The pieces that are not written yet; the first is at hand.
    waiting: VecDeque<String>,
    /// Whether the first of them was asked for in vain.
    asked: bool,
    /// Answers in a row that a limit of output cut.
    cuts: usize,
    /// Whether it was cut to what a refusal said that the model takes.
    told: bool,
    /// The model that was asked for the piece at hand.
    asked_of: Option<String>,
    /// What was learned of the models that were asked: which one depends on the size of a piece.
    learned: BTreeMap<String, Learned>,
}

/// What one model takes, as far as it found more too long.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Learned {
    /// See [`Draft::limit`].
    pub(super) limit: Option<u32>,
    /// See [`Draft::room`].
    pub(super) room: Option<u32>,
}

/// Answers in a row that may be cut: pieces have become as short as a sixty-fourth of the first by
/// then, and a limit that holds no answer to any is not met by shorter ones.
const CUTS: usize = 6;

impl Draft {
    pub(super) fn new(pieces: Vec<String>, limit: u32) -> Self {
        Self {
            limit,
            room: None,
            done: Vec::new(),
            waiting: pieces.into(),
            asked: false,
            cuts: 0,
            told: false,
            asked_of: None,
            learned: BTreeMap::new(),
        }
    }

    /// The piece to observe next.
    pub(super) fn next(&self) -> Option<String> {
        self.waiting.front().cloned()
    }

    /// Which piece that is, from 1, and of how many.
    pub(super) fn place(&self) -> (usize, usize) {
        (self.done.len() + 1, self.done.len() + self.waiting.len())
    }

    pub(super) fn written(&mut self, written: Written) {
        self.waiting.pop_front();
        self.asked = false;
        self.done.push(written);
    }

    /// Whether the piece may be asked for once more.
    pub(super) fn ask_again(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// An answer was cut once more; `false` where it is useless to ask for less.
    pub(super) fn was_cut(&mut self) -> bool {
        self.cuts += 1;
        self.cuts < CUTS
    }

    /// An answer came whole.
    pub(super) fn came_whole(&mut self) {
        self.cuts = 0;
    }

    /// From here on what is found too long is so for `model`; with `None` for nobody.
    pub(super) fn asks(&mut self, model: Option<String>) {
        self.asked_of = model;
    }

    /// A piece and what is shown beside it may have so much from now on.
    pub(super) fn leaves(&mut self, room: u32) {
        self.room = Some(room);
        if let Some(learned) = self.of_asked() {
            learned.room = Some(room);
        }
    }

    fn of_asked(&mut self) -> Option<&mut Learned> {
        let model = self.asked_of.clone()?;
        Some(self.learned.entry(model).or_default())
    }

    /// What was learned of which model. A limit says nothing of it where no answer came whole since one
    /// was cut, which may have been due to anything.
    pub(super) fn learned(&self) -> impl Iterator<Item = (&String, Learned)> {
        let whole = self.cuts == 0;
        self.learned.iter().map(move |(model, learned)| {
            let limit = learned.limit.filter(|_| whole);
            (model, Learned { limit, ..*learned })
        })
    }

    /// Whether what a refusal says is to be heeded: once, since a model that finds less too long after
    /// that has counted something else.
    pub(super) fn heeds(&mut self) -> bool {
        !std::mem::replace(&mut self.told, true)
    }

    /// Whether nobody was asked for anything of it.
    pub(super) fn is_untouched(&self) -> bool {
        self.done.is_empty() && self.cuts == 0
    }

    /// What was written so far.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.done.iter().map(|written| written.text.as_str())
    }

    /// The pieces that are not written yet.
    pub(super) fn rest(&self) -> Vec<String> {
        self.waiting.iter().cloned().collect()
    }

    /// The model that was asked takes pieces of so much, whatever others take.
    pub(super) fn takes(&mut self, limit: u32) {
        if let Some(learned) = self.of_asked() {
            learned.limit = Some(limit);
        }
    }

    /// Replaces them.
    pub(super) fn cut_to(&mut self, limit: u32, pieces: Vec<String>) {
        self.limit = limit;
        self.waiting = pieces.into();
        self.asked = false;
    }

    /// The whole range. Where things stand is what the last piece says: what an earlier one said has
    /// been overtaken within the range.
    pub(super) fn finish(mut self) -> Written {
        let texts: Vec<String> = self.texts().map(str::to_owned).collect();
        let by_model = self.done.iter().find(|written| written.model != CODE);
        let model = by_model.map_or_else(|| CODE.to_owned(), |written| written.model.clone());
        let last = self.done.pop().unwrap_or_default();
        Written {
            text: observe::join(&texts),
            model,
            ..last
        }
    }
}

/// Drafts kept at most. One that goes costs its calls again.
const DRAFTS: usize = 64;

/// Whose draft, and of what: the number of a row is given again by a database put in the place of the
/// old one, and would then join the words of two conversations (INV-OWN, INV-COVER).
type Whose = (Scope, Span);

/// The drafts of jobs whose calls failed midway.
#[derive(Debug, Default)]
pub(crate) struct Drafts(Mutex<HashMap<Whose, Draft>>);

impl Drafts {
    pub(super) fn take(&self, job: &Job) -> Option<Draft> {
        let mut drafts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        drafts.remove(&(job.scope.clone(), job.work.span))
    }

    pub(super) fn keep(&self, job: &Job, draft: Draft) {
        if draft.done.is_empty() && draft.cuts == 0 || !job.has_row() {
            return;
        }
        let mut drafts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if drafts.len() >= DRAFTS {
            drafts.clear();
        }
        drafts.insert((job.scope.clone(), job.work.span), draft);
    }
}

/// Models whose windows are remembered. Clients choose the names, so it must have an end.
const WINDOWS: usize = 1_024;

/// By origin and model, how many tokens of history it took where it found more too long. Not stored: a
/// restart costs one refused call for each model that says how much was too much, and one for each halving
/// where it does not; providers do not bill those, and a model that was given a larger window meanwhile
/// gets to use it.
#[derive(Debug, Default)]
pub(crate) struct Windows(Mutex<HashMap<(String, String), u32>>);

impl Windows {
    pub(super) fn of(&self, model: &(String, String)) -> Option<u32> {
        let windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        windows.get(model).copied()
    }

    pub(super) fn lowered(&self, model: (String, String), limit: u32) {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if windows.len() >= WINDOWS {
            windows.clear();
        }
        // Jobs beside each other learn of the same model: what one found is not widened by another.
        let known = windows.entry(model).or_insert(limit);
        *known = limit.min(*known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces() -> Vec<String> {
        vec!["one".to_owned(), "two".to_owned()]
    }

    fn limits(draft: &Draft) -> Vec<(&str, Option<u32>)> {
        let learned = draft.learned();
        learned
            .map(|(model, it)| (model.as_str(), it.limit))
            .collect()
    }

    /// Which model is asked depends on the size of a piece: what is short because one model takes no more
    /// says nothing of the next, which is remembered by its own limit.
    #[test]
    fn each_model_is_remembered_by_what_it_takes_itself() {
        let mut draft = Draft::new(pieces(), 9_000);
        draft.takes(5_000);
        assert_eq!(limits(&draft), [], "nobody was asked");
        draft.asks(Some("small".to_owned()));
        draft.takes(1_000);
        draft.cut_to(1_000, pieces());
        draft.asks(Some("large".to_owned()));
        draft.takes(4_000);
        draft.cut_to(1_000, pieces());
        assert_eq!(
            limits(&draft),
            [("large", Some(4_000)), ("small", Some(1_000))]
        );
        assert_eq!(draft.limit, 1_000, "the pieces at hand stay as short");
        // It found that too long as well.
        draft.takes(2_000);
        assert_eq!(
            limits(&draft),
            [("large", Some(2_000)), ("small", Some(1_000))]
        );
    }

    /// A cut answer may be due to anything, until one comes whole.
    #[test]
    fn no_limit_is_learned_while_answers_are_cut() {
        let mut draft = Draft::new(pieces(), 9_000);
        draft.asks(Some("small".to_owned()));
        draft.takes(1_000);
        draft.leaves(1_500);
        assert!(draft.was_cut());
        let (_, learned) = draft.learned().next().unwrap();
        assert_eq!((learned.limit, learned.room), (None, Some(1_500)));
        draft.came_whole();
        assert_eq!(limits(&draft), [("small", Some(1_000))]);
    }
}
