//! The finished pieces of a range whose observation failed midway. Losing a draft only costs calls:
//! a job can always be observed from its first piece.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use crate::history::Scope;
use crate::jobs::part_report::CODE_AUTHOR;
use crate::jobs::payload::ObservationPayload;
use crate::memory::Span;
use crate::memory::observe;
use crate::store::Job;

/// The observation of a range or piece.
#[derive(Debug, Default)]
pub(super) struct ObservedText {
    pub(super) text: String,
    pub(super) current_task: Option<String>,
    pub(super) suggested_response: Option<String>,
    pub(super) title: Option<String>,
    /// [`CODE_AUTHOR`] if no model wrote any of it.
    pub(super) model: String,
}

impl ObservedText {
    /// What code writes for the range of `payload`.
    pub(super) fn from_payload(payload: &ObservationPayload) -> Self {
        let text = match payload.transcript.trim() {
            "" => payload.by_code.clone(),
            _ => observe::observations_by_code(&payload.transcript),
        };
        Self {
            text,
            model: CODE_AUTHOR.to_owned(),
            ..Self::default()
        }
    }
}

/// A range that is being observed piece by piece.
#[derive(Debug)]
pub(super) struct ChunkDraft {
    /// The most tokens of a piece.
    pub(super) piece_limit: u32,
    /// The most tokens of a piece and its background, if more was too long. The background gives
    /// way.
    pub(super) combined_limit: Option<u32>,
    done: Vec<ObservedText>,
    /// The pieces that are left. The first one is next.
    pending: VecDeque<String>,
    /// Whether the first piece was asked for in vain already.
    retried: bool,
    /// Answers in a row that an output limit cut.
    truncations: usize,
    /// Whether the limit in a refusal was used already.
    refusal_used: bool,
    /// The model that was called for the current piece.
    model: Option<String>,
    /// The limits learned, by model: the model can depend on the size of a piece.
    limits_by_model: BTreeMap<String, ModelLimits>,
}

/// What one model accepts, as far as it refused more.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ModelLimits {
    /// Tokens of a piece.
    pub(super) piece: Option<u32>,
    /// Tokens of a piece and its background.
    pub(super) combined: Option<u32>,
}

/// The most answers in a row that may be cut. By then, pieces are a sixty-fourth as long as the
/// first, and shorter ones do not help against a limit that holds no answer at all.
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

    /// The next piece to observe.
    pub(super) fn next_piece(&self) -> Option<String> {
        self.pending.front().cloned()
    }

    /// The number of that piece, from 1, and the number of pieces.
    pub(super) fn position(&self) -> (usize, usize) {
        (self.done.len() + 1, self.done.len() + self.pending.len())
    }

    pub(super) fn push(&mut self, written: ObservedText) {
        self.pending.pop_front();
        self.retried = false;
        self.done.push(written);
    }

    /// Whether the piece may be asked for once more. True once per piece.
    pub(super) fn allow_retry(&mut self) -> bool {
        !std::mem::replace(&mut self.retried, true)
    }

    /// Counts an answer that was cut; `false` if smaller pieces are useless.
    pub(super) fn count_truncation(&mut self) -> bool {
        self.truncations += 1;
        self.truncations < MAX_TRUNCATIONS
    }

    /// Notes an answer that was not cut.
    pub(super) fn reset_truncations(&mut self) {
        self.truncations = 0;
    }

    /// Assigns the limits learned from now on to `model`; with `None` to no model.
    pub(super) fn set_model(&mut self, model: Option<String>) {
        self.model = model;
    }

    /// Limits a piece and its background to `room` tokens together.
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

    /// The limits to remember, by model. The piece limit is left out if no answer was complete
    /// after one was cut, because the cut may have had any reason.
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

    /// Whether to use the limit that a refusal states. True once: a model that refuses the shorter
    /// prompt counts differently.
    pub(super) fn use_refusal_once(&mut self) -> bool {
        !std::mem::replace(&mut self.refusal_used, true)
    }

    /// Whether no call was made for it yet.
    pub(super) fn is_untouched(&self) -> bool {
        self.done.is_empty() && self.truncations == 0
    }

    /// The texts of the finished pieces.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.done.iter().map(|written| written.text.as_str())
    }

    /// The pieces that are not written yet.
    pub(super) fn pending_pieces(&self) -> Vec<String> {
        self.pending.iter().cloned().collect()
    }

    /// Notes that the current model accepts pieces of `limit` tokens.
    pub(super) fn record_piece_limit(&mut self, limit: u32) {
        if let Some(learned) = self.current_limits() {
            learned.piece = Some(limit);
        }
    }

    /// Replaces the pieces that are left.
    pub(super) fn replace_pending(&mut self, limit: u32, pieces: Vec<String>) {
        self.piece_limit = limit;
        self.pending = pieces.into();
        self.retried = false;
    }

    /// The observation of the whole range. Task and suggested response are those of the last piece,
    /// because those of earlier pieces are outdated.
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

/// The most drafts kept. Dropping one repeats its calls.
const MAX_DRAFTS: usize = 64;

/// The owner and the span. A row id is no key: a replaced database gives ids again, which would
/// join the text of two conversations (INV-OWN, INV-COVER).
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

    /// The model depends on the size of a piece. A piece that is short because of one model's limit
    /// must not set the limit of another model.
    #[test]
    fn each_model_learns_its_own_piece_limit() {
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
        // The model refused that size as well.
        draft.record_piece_limit(2_000);
        assert_eq!(
            limits(&draft),
            [("large", Some(2_000)), ("small", Some(1_000))]
        );
    }

    /// A cut answer may have any reason until one is complete.
    #[test]
    fn no_piece_limit_is_learned_while_answers_are_cut() {
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
