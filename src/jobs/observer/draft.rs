//! What a process remembers between the calls of one observation, and of the windows it has met.
//! Nothing is lost with it but calls: a job can always be observed from its first piece.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use crate::history::Scope;
use crate::jobs::payload::ObservationPayload;
use crate::memory::Span;
use crate::memory::observe;
use crate::store::Job;

/// The name of the author that is no model.
pub(super) const CODE_AUTHOR: &str = "code";

/// What a range became.
#[derive(Debug, Default)]
pub(super) struct ObservedText {
    pub(super) text: String,
    pub(super) current_task: Option<String>,
    pub(super) suggested_response: Option<String>,
    pub(super) title: Option<String>,
    /// `code` where no model wrote any of it.
    pub(super) model: String,
}

impl ObservedText {
    pub(super) fn from_payload(payload: &ObservationPayload) -> Self {
        Self {
            text: payload.by_code.clone(),
            model: CODE_AUTHOR.to_owned(),
            ..Self::default()
        }
    }
}

/// A range that is being observed.
#[derive(Debug)]
pub(super) struct ChunkDraft {
    /// Tokens of a piece, at most.
    pub(super) piece_limit: u32,
    /// Tokens of a piece and what is shown beside it, at most, where more was too long: what is beside
    /// it gives way.
    pub(super) combined_limit: Option<u32>,
    done: Vec<ObservedText>,
    /// The pieces that are not written yet; the first is at hand.
    pending: VecDeque<String>,
    /// Whether the first of them was asked for in vain.
    retried: bool,
    /// Answers in a row that a limit of output cut.
    truncations: usize,
    /// Whether it was cut to what a refusal said that the model takes.
    refusal_used: bool,
    /// The model that was asked for the piece at hand.
    model: Option<String>,
    /// What was learned of the models that were asked: which one depends on the size of a piece.
    limits_by_model: BTreeMap<String, ModelLimits>,
}

/// What one model takes, as far as it found more too long.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ModelLimits {
    /// See [`Draft::limit`].
    pub(super) piece: Option<u32>,
    /// See [`Draft::room`].
    pub(super) combined: Option<u32>,
}

/// Answers in a row that may be cut: pieces have become as short as a sixty-fourth of the first by
/// then, and a limit that holds no answer to any is not met by shorter ones.
const MAX_TRUNCATIONS: usize = 6;

impl ChunkDraft {
    pub(super) fn new(pieces: Vec<String>, limit: u32) -> Self {
        Self {
            piece_limit: limit,
            combined_limit: None,
            done: Vec::new(),
            pending: pieces.into(),
            retried: false,
            truncations: 0,
            refusal_used: false,
            model: None,
            limits_by_model: BTreeMap::new(),
        }
    }

    /// The piece to observe next.
    pub(super) fn next_piece(&self) -> Option<String> {
        self.pending.front().cloned()
    }

    /// Which piece that is, from 1, and of how many.
    pub(super) fn position(&self) -> (usize, usize) {
        (self.done.len() + 1, self.done.len() + self.pending.len())
    }

    pub(super) fn push(&mut self, written: ObservedText) {
        self.pending.pop_front();
        self.retried = false;
        self.done.push(written);
    }

    /// Whether the piece may be asked for once more.
    pub(super) fn allow_retry(&mut self) -> bool {
        !std::mem::replace(&mut self.retried, true)
    }

    /// An answer was cut once more; `false` where it is useless to ask for less.
    pub(super) fn count_truncation(&mut self) -> bool {
        self.truncations += 1;
        self.truncations < MAX_TRUNCATIONS
    }

    /// An answer came whole.
    pub(super) fn reset_truncations(&mut self) {
        self.truncations = 0;
    }

    /// From here on what is found too long is so for `model`; with `None` for nobody.
    pub(super) fn set_model(&mut self, model: Option<String>) {
        self.model = model;
    }

    /// A piece and what is shown beside it may have so much from now on.
    pub(super) fn set_combined_limit(&mut self, room: u32) {
        self.combined_limit = Some(room);
        if let Some(learned) = self.current_limits() {
            learned.combined = Some(room);
        }
    }

    fn current_limits(&mut self) -> Option<&mut ModelLimits> {
        let model = self.model.clone()?;
        Some(self.limits_by_model.entry(model).or_default())
    }

    /// What was learned of which model. A limit says nothing of it where no answer came whole since one
    /// was cut, which may have been due to anything.
    pub(super) fn learned_limits(&self) -> impl Iterator<Item = (&String, ModelLimits)> {
        let whole = self.truncations == 0;
        self.limits_by_model.iter().map(move |(model, learned)| {
            let limit = learned.piece.filter(|_| whole);
            (
                model,
                ModelLimits {
                    piece: limit,
                    ..*learned
                },
            )
        })
    }

    /// Whether what a refusal says is to be heeded: once, since a model that finds less too long after
    /// that has counted something else.
    pub(super) fn use_refusal_once(&mut self) -> bool {
        !std::mem::replace(&mut self.refusal_used, true)
    }

    /// Whether nobody was asked for anything of it.
    pub(super) fn is_untouched(&self) -> bool {
        self.done.is_empty() && self.truncations == 0
    }

    /// What was written so far.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.done.iter().map(|written| written.text.as_str())
    }

    /// The pieces that are not written yet.
    pub(super) fn pending_pieces(&self) -> Vec<String> {
        self.pending.iter().cloned().collect()
    }

    /// The model that was asked takes pieces of so much, whatever others take.
    pub(super) fn record_piece_limit(&mut self, limit: u32) {
        if let Some(learned) = self.current_limits() {
            learned.piece = Some(limit);
        }
    }

    /// Replaces them.
    pub(super) fn replace_pending(&mut self, limit: u32, pieces: Vec<String>) {
        self.piece_limit = limit;
        self.pending = pieces.into();
        self.retried = false;
    }

    /// The whole range. Where things stand is what the last piece says: what an earlier one said has
    /// been overtaken within the range.
    pub(super) fn finish(mut self) -> ObservedText {
        let texts: Vec<String> = self.texts().map(str::to_owned).collect();
        let by_model = self
            .done
            .iter()
            .find(|written| written.model != CODE_AUTHOR);
        let model =
            by_model.map_or_else(|| CODE_AUTHOR.to_owned(), |written| written.model.clone());
        let last = self.done.pop().unwrap_or_default();
        ObservedText {
            text: observe::join_pieces(&texts),
            model,
            ..last
        }
    }
}

/// Drafts kept at most. One that goes costs its calls again.
const MAX_DRAFTS: usize = 64;

/// Whose draft, and of what: the number of a row is given again by a database put in the place of the
/// old one, and would then join the words of two conversations (INV-OWN, INV-COVER).
type DraftKey = (Scope, Span);

/// The drafts of jobs whose calls failed midway.
#[derive(Debug, Default)]
pub(super) struct ChunkDrafts(Mutex<HashMap<DraftKey, ChunkDraft>>);

impl ChunkDrafts {
    pub(super) fn take(&self, job: &Job) -> Option<ChunkDraft> {
        let mut drafts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        drafts.remove(&(job.scope.clone(), job.spec.span))
    }

    pub(super) fn put(&self, job: &Job, draft: ChunkDraft) {
        if draft.done.is_empty() && draft.truncations == 0 || !job.is_queued() {
            return;
        }
        let mut drafts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if drafts.len() >= MAX_DRAFTS {
            drafts.clear();
        }
        drafts.insert((job.scope.clone(), job.spec.span), draft);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces() -> Vec<String> {
        vec!["one".to_owned(), "two".to_owned()]
    }

    fn limits(draft: &ChunkDraft) -> Vec<(&str, Option<u32>)> {
        let learned = draft.learned_limits();
        learned
            .map(|(model, it)| (model.as_str(), it.piece))
            .collect()
    }

    /// Which model is asked depends on the size of a piece: what is short because one model takes no more
    /// says nothing of the next, which is remembered by its own limit.
    #[test]
    fn each_model_is_remembered_by_what_it_takes_itself() {
        let mut draft = ChunkDraft::new(pieces(), 9_000);
        draft.record_piece_limit(5_000);
        assert_eq!(limits(&draft), [], "nobody was asked");
        draft.set_model(Some("small".to_owned()));
        draft.record_piece_limit(1_000);
        draft.replace_pending(1_000, pieces());
        draft.set_model(Some("large".to_owned()));
        draft.record_piece_limit(4_000);
        draft.replace_pending(1_000, pieces());
        assert_eq!(
            limits(&draft),
            [("large", Some(4_000)), ("small", Some(1_000))]
        );
        assert_eq!(draft.piece_limit, 1_000, "the pieces at hand stay as short");
        // It found that too long as well.
        draft.record_piece_limit(2_000);
        assert_eq!(
            limits(&draft),
            [("large", Some(2_000)), ("small", Some(1_000))]
        );
    }

    /// A cut answer may be due to anything, until one comes whole.
    #[test]
    fn no_limit_is_learned_while_answers_are_cut() {
        let mut draft = ChunkDraft::new(pieces(), 9_000);
        draft.set_model(Some("small".to_owned()));
        draft.record_piece_limit(1_000);
        draft.set_combined_limit(1_500);
        assert!(draft.count_truncation());
        let (_, learned) = draft.learned_limits().next().unwrap();
        assert_eq!((learned.piece, learned.combined), (None, Some(1_500)));
        draft.reset_truncations();
        assert_eq!(limits(&draft), [("small", Some(1_000))]);
    }
}
